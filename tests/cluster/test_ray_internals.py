"""Another version of Ray may lack any private name. What needs the name then does without it."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import grpc
import pytest
import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from cluster import ray_internals
from tests.helpers.private_names import actor_manager, keep_tune, load_without, names_in_use

NODES = [{"NodeID": key, "Resources": {"CPU": 2.0}, "Alive": key != "dead"} for key in ("a", "b", "dead")]
# Where these are missing, Ray does not call or read what replaces them, so that nothing can be noticed.
SILENT = {"_actor_task_failed", "_serialize", "get_node", "health_check_failure", "last_result"}
SILENT |= {"tag_callbacks", "wait_for_persisted_port"}


@pytest.fixture
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what asks a cluster, and the methods of Tune that are called."""
    state = ray_internals.state.state
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    monkeypatch.setattr(state, "get_draining_nodes", lambda: {"a": 0})
    monkeypatch.setattr(state, "available_resources_per_node", lambda: {"a": {"CPU": 1.0}})
    monkeypatch.setattr(state, "actor_table", lambda actor: {"Address": {"NodeID": "a"}})
    monkeypatch.setattr("ray.util.state.get_actor", lambda actor: SimpleNamespace(node_id="a"))
    keep_tune(monkeypatch)
    monkeypatch.setattr(
        actor_manager(), "_actor_task_failed", lambda self, task, error: setattr(self, "error", error)
    )


def use_everything(internals: ModuleType, folder: Path) -> None:
    """Call all that a search needs, and check what holds with any Ray."""
    assert internals.draining_nodes() in ({"a"}, set())
    assert internals.free_resources() in ({"a": {"CPU": 1.0}}, {key: {"CPU": 2.0} for key in "ab"})
    assert internals.node_of_actor("an actor") == "a"
    assert isinstance(internals.LocalJob()._serialize(), bytes)
    with internals.start_patiently():
        assert ray_internals.services.ConsolePopen([sys.executable, "-c", ""]).wait() == 0
    with suppress(grpc.RpcError):
        internals.ask_cluster_id("127.0.0.1:1", 0.1)
    internals.prepare_tune()
    manager = actor_manager().__new__(actor_manager())
    manager._live_actors_to_ray_actors_resources = {
        "an actor": (SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "01")), None)
    }
    manager._actor_task_failed(SimpleNamespace(_tracked_actor="an actor"), OutOfMemoryError("too large"))
    assert isinstance(manager.error, RayActorError | OutOfMemoryError)
    file = folder / "error"
    file.write_bytes(ray.cloudpickle.dumps(ValueError("its reason")))
    trial = SimpleNamespace(
        temporary_state=SimpleNamespace(ray_actor="an actor"),
        run_metadata=SimpleNamespace(),
        error_file=__file__,
        pickled_error_file=str(file),
    )
    internals.end_process(trial)
    internals.skip_first_result(trial)
    assert internals.error_text(trial) in (Path(__file__).read_text(), "")
    assert str(internals.error_of(trial)) in ("its reason", "None")


@pytest.mark.parametrize("name", names_in_use())
@pytest.mark.usefixtures("without_cluster")
def test_a_private_name_that_ray_lacks_is_reported_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    internals = load_without([name])
    for _ in range(2):
        use_everything(internals, tmp_path)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: with Ray")]
    assert len(notes) == (name not in SILENT)
    assert all(name in note for note in notes)


@pytest.mark.usefixtures("without_cluster")
def test_nothing_is_reported_with_the_installed_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_everything(load_without(["no such name"]), tmp_path)
    assert "note:" not in capsys.readouterr().err


WITHOUT_NAMES = """
import sys
from tests.helpers.private_names import load_without, names_in_use
import cluster
sys.modules["cluster.ray_internals"] = cluster.ray_internals = load_without(names_in_use())
from automl.cli.main import run
run()
"""


@pytest.mark.slow("a search on Ray")
def test_a_search_needs_no_private_name(tmp_path: Path) -> None:
    search = ["search", "--space", "digits", "--trials", "2", "--name", "plain"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMES, *search],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a search on one machine listens on the network" in done.stderr
    assert "best      " in done.stdout
