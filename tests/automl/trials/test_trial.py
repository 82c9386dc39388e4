"""Reports of a trial, without its process."""

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch

from attention import Spec
from automl.base import live_objects, loading
from automl.base.serialise import to_json
from automl.config.device import OUT_OF_MEMORY, UnusableGpu, find_device
from automl.config.nouns import Terms
from automl.config.runtime import Runtime
from automl.costs.profile import CostProfile
from automl.storage.storage import Storage
from automl.storage.trial_files import read_answers
from automl.task import open_task
from automl.training import checkpoint
from automl.training.loop import evaluate
from automl.trials import trial
from automl.trials.job import Trainings
from automl.trials.trial import build_assignment, train_trial
from search.config import TrialConfig
from tests.helpers.automl_cases import CPU, HERE, TINY, timeless, tiny
from tests.helpers.imitated_gpus import SIZE, Driver

TIME_RATIO = 1.3
MEASURED = CostProfile(
    params=1000, macs=5000, memory=10**9, latency=2.0, time_ratio=TIME_RATIO, time_ratio_low=1.28,
    time_ratio_high=1.33, time_ratio_imprecise=0.0, validation=0.0, epoch=0.5,
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[TrialConfig]:
    """Replace measurements by fixed costs, and return the list of measured configurations."""
    configs: list[TrialConfig] = []

    def measure(config: TrialConfig, *args: Any) -> CostProfile:
        configs.append(config)
        return MEASURED

    monkeypatch.setattr(trial, "measure", measure)
    return configs


def make_assignment(
    folder: Path, config: TrialConfig, equal: str = "time", test: bool = False, **limits: Any
) -> dict[str, Any]:
    terms = Terms(equal=equal, test=test, **limits)
    trainings = Trainings(location=Storage(str(folder.parent)), baseline=TINY, terms=terms)
    return build_assignment(config, Storage(str(folder)), trainings)


@pytest.mark.parametrize(("equal", "steps"), [("time", 22), ("epochs", 28)])  # 7 an epoch
def test_each_epoch_has_a_complete_report(
    equal: str, steps: int, measured: list[TrialConfig], tmp_path: Path
) -> None:
    config = tiny(training={"epochs": 4}, data={"subset": 0.2})
    received = list(train_trial(make_assignment(tmp_path / "0", config, equal, max_params="2000"), HERE))
    assert [len(report.history) for report in received] == [1, 2, 3, 4]
    assert timeless(received[0].history) == timeless(received[-1].history)[:1]
    assert [report.finished for report in received] == [False] * (len(received) - 1) + [True]
    resources = [metrics["resource"] for metrics in received[-1].history]
    assert resources == [pytest.approx(4 * 7 * i / steps) for i in (1, 2, 3)] + [4]
    for report in received:
        assert report.profile == to_json(MEASURED)
        assert report.violations == {"params": -0.5}
    content = checkpoint.read(Storage(tmp_path / "0"), CPU)
    assert content["history"] == received[-1].history
    assert content["profile"] == to_json(MEASURED)


def test_another_process_resumes_a_killed_trial(measured: list[TrialConfig], tmp_path: Path) -> None:
    config = tiny(training={"epochs": 3, "mixup": 0.2}, model={"placement": {"stage2.block1": Spec("ssa")}})
    whole = list(train_trial(make_assignment(tmp_path / "whole", config), HERE))
    work = train_trial(make_assignment(tmp_path / "0", config), HERE)
    first = next(work)
    work.close()
    torch.manual_seed(4711)
    rest = list(train_trial(make_assignment(tmp_path / "0", config), HERE))
    assert len(measured) == 2, "the checkpoint keeps the measured costs"
    assert rest[0].history[:1] == first.history
    assert timeless(rest[-1].history) == timeless(whole[-1].history)
    weights, expected = (checkpoint.read(Storage(tmp_path / name), CPU)["model"] for name in ("0", "whole"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    # Killed after its last epoch but before its report was received, it reports again.
    (again,) = train_trial(make_assignment(tmp_path / "0", config), HERE)
    assert again.finished
    assert again.history == rest[-1].history


def test_resuming_does_not_need_the_initial_weights(measured: list[TrialConfig], tmp_path: Path) -> None:
    file = tmp_path / "trained.pt"
    torch.save(open_task(tiny(), HERE).model().state_dict(), file)
    config = tiny(training={"epochs": 2}, model={"weights": str(file)})
    work = train_trial(make_assignment(tmp_path / "0", config, "epochs"), HERE)
    next(work)
    work.close()
    file.unlink()
    *_, last = train_trial(make_assignment(tmp_path / "0", config, "epochs"), HERE)
    assert last.finished
    assert last.error is None


# Without OutOfMemoryError, each is a message that begins like this.
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    *(RuntimeError(f"{beginning} in a call") for beginning in OUT_OF_MEMORY),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
@pytest.mark.parametrize(
    ("fraction", "used", "is_at_fault"),
    [(1.0, 0.0, True), (0.25, 0.75, True), (1.0, 0.7, False), (0.25, 0.9, False)],
    ids=["alone", "beside its sharers", "beside a foreign process", "beside both"],
)
def test_a_trial_is_at_fault_if_its_own_memory_is_too_little(
    error: RuntimeError,
    fraction: float,
    used: float,
    is_at_fault: bool,
    gpus: Driver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def measure(*arguments: Any) -> CostProfile:
        raise error

    monkeypatch.setattr(trial, "measure", measure)
    runtime = Runtime(device=find_device("cuda"), memory_fraction=fraction)
    gpus.used[0] = int(used * SIZE)
    work = train_trial(make_assignment(tmp_path / "0", TINY), runtime)
    if is_at_fault:
        (report,) = work
        assert str(report.infeasible).startswith("out of memory: ")
    else:
        with pytest.raises(UnusableGpu, match=r"other processes hold \S+ of the 85\.9GB of GPU 0\. End them"):
            next(work)


def test_answers_to_images_are_kept(measured: list[TrialConfig], tmp_path: Path) -> None:
    config, folder = tiny(training={"epochs": 2}), Storage(tmp_path / "0")
    *_, report = train_trial(make_assignment(tmp_path / "0", config, test=True), HERE)
    assert report.device
    answers = read_answers(folder)
    task = open_task(config, HERE)
    assert answers.values.shape == (task.size("test"),)
    assert answers.values.mean() == pytest.approx(report.history[-1]["test_accuracy"])
    assert answers.card.counts.tolist() == task.class_counts("test")
    model = task.model()
    model.load_state_dict(checkpoint.read(folder, CPU)["model"])
    evaluator = task.evaluator("test")
    evaluate(task, model, "test", evaluator)
    recomputed = evaluator.answers(HERE)
    assert np.array_equal(recomputed.answered, answers.answered)
    folder.remove(checkpoint.CHECKPOINT_FILE)  # Retention deletes it.
    assert read_answers(folder) is not None
    *_, report = train_trial(make_assignment(tmp_path / "1", tiny()), HERE)
    answers = read_answers(Storage(tmp_path / "1"))
    assert answers.card.accuracy == pytest.approx(report.history[-1]["accuracy"])


def test_trials_that_end_at_once(measured: list[TrialConfig], tmp_path: Path) -> None:
    (report,) = train_trial(make_assignment(tmp_path / "0", tiny(), max_params="500", max_latency_ms=4), HERE)
    assert report.infeasible == "params 1k exceeds the limit of 500"
    assert report.violations == {"params": 1.0, "latency": -0.5}
    assert report.profile == to_json(MEASURED)
    assert report.is_last
    assert not (tmp_path / "0").exists()
    *_, report = train_trial(make_assignment(tmp_path / "0", tiny(training={"learning_rate": 1e30})), HERE)
    assert report.infeasible is not None
    assert "became nan" in report.infeasible
    assert report.profile == to_json(MEASURED)


@pytest.mark.parametrize(
    ("time_ratio", "equal", "test", "steps"),
    [
        (7.9, "time", False, "1 of the 7 steps"),
        (2.2, "time", False, "3 of the 7 steps"),
        (7.9, "time", True, "1 of the 7 steps"),
        (1.9, "time", False, 4),
        (2.9, "time", True, 2),  # a finalist whose time ratio varies from seed to seed
        (7.9, "epochs", False, 7),
    ],
)
def test_less_than_half_an_epoch_is_too_slow(
    time_ratio: float, equal: str, test: bool, steps: str | int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    measured = replace(MEASURED, time_ratio=time_ratio)
    monkeypatch.setattr(trial, "measure", lambda *args: measured)
    config = tiny(model={"placement": {"stage2.block1": Spec("ssa")}}, data={"subset": 0.2})
    *_, last = train_trial(make_assignment(tmp_path / "0", config, equal, test), HERE)
    if isinstance(steps, int):
        assert last.finished
        assert last.history[-1]["steps"] == steps
    else:
        assert last.infeasible.startswith("too slow for this budget")
        assert steps in last.infeasible
        assert last.violations["steps"] > 0
        assert not list(tmp_path.iterdir())


NAME = "__main__:train"
ARRAY = 40_000_000  # bytes of a notebook's array


def test_large_code_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store: dict[ray.ObjectRef, bytes] = {}
    reads: list[ray.ObjectRef] = []

    def put(content: bytes) -> ray.ObjectRef:
        reference = ray.ObjectRef(bytes([len(store)]) * 28)
        store[reference] = content
        return reference

    def get(references: list[ray.ObjectRef]) -> list[bytes]:
        reads.extend(references)
        return [store[each] for each in references]

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(trial, "_fetched", {})
    monkeypatch.setattr(live_objects, "_received", {})
    packed = pickle.dumps(("hash", bytes(ARRAY)))
    send = trial.make_sender()
    for _ in range(3):
        sent = send({NAME: packed, "small.py": b"x = 1"})
        assert sent["small.py"] == b"x = 1"
        trial.receive_code({NAME: sent[NAME]})
        assert loading.hash_code(NAME) == "hash"
    assert list(store.values()) == [packed]
    assert len(reads) == 1
    assert not capsys.readouterr().err
    monkeypatch.setattr(trial, "LARGE", ARRAY)
    trial.make_sender()({NAME: packed})
    assert "load large data inside the function" in capsys.readouterr().err


def test_a_ray_that_does_not_answer_ends_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def draining_nodes() -> set[str]:
        raise RuntimeError("Failed to connect to GCS")

    node = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(trial.ray, "get_runtime_context", lambda: node)
    monkeypatch.setattr(trial, "draining_nodes", draining_nodes)
    assert not trial.is_draining()
