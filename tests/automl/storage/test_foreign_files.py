"""Files of another author: reading them runs none of their code and reads no other files."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from confirm_cases import RECORDS, fake_confirmation, fake_search
from mlflow import MlflowClient
from onnx import TensorProto, helper
from PIL import Image

from attention import InputError
from automl.cli.remove import find_removable
from automl.cli.searches import list_searches
from automl.cli.status import read_status
from automl.cli.sync import run_sync
from automl.confirm.compare import run_compare
from automl.confirm.run_confirm import run_confirm
from automl.export.code_search import run_code_search
from automl.export.predict import run_predict
from automl.export.run_export import run_export
from automl.export.run_maps import run_maps
from automl.report import run_report
from automl.search.run_search import resume_search
from automl.storage.folder import SEARCH_FILE, find_search
from automl.storage.trusted import is_remembered, remember
from automl.trials.train import resume_train
from search.config import TrialConfig
from search.study import STUDY_FILE, open_study, warm_start_study

CLAIMS = (
    "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"  # it leaves a file when it is run
)

# Code that a configuration may name.
Change = Callable[[dict[str, Any], Path], None]
KINDS: Mapping[str, Change] = {
    "task, a file": lambda config, folder: config.update(task=f"{folder}/planted.py:Task"),
    "task, a module": lambda config, folder: config.update(task="planted:Task"),
    "function, a file": lambda config, folder: config.update(
        task="function", data={}, training={}, model={"backbone": f"{folder}/planted.py:train"}, metric=""
    ),
    "backbone, a file": lambda config, folder: config["model"].update(backbone=f"{folder}/planted.py:Net"),
    "backbone, a module": lambda config, folder: config["model"].update(backbone="planted:Net", code="0"),
    "attention, a file": lambda config, folder: config["model"]["placement"].update(
        stem=f"{folder}/planted.py:Att"
    ),
    "attention, a module": lambda config, folder: config["model"]["placement"].update(
        stem={"type": "planted:Att", "code": "0"}
    ),
}


@pytest.fixture
def workspace(store: MlflowClient, tmp_path: Path) -> Path:
    """Return the current folder, with a module that leaves a file when it is run."""
    (tmp_path / "planted.py").write_text(CLAIMS)
    return tmp_path


def has_run(workspace: Path) -> bool:
    return (workspace / "ran").exists() or "planted" in sys.modules


def plant(value: Any, kinds: list[str], workspace: Path) -> Any:
    """Make each configuration in `value` name code, cycling through the kinds."""
    if isinstance(value, list):
        return [plant(item, kinds, workspace) for item in value]
    if not isinstance(value, dict):
        return value
    if "training" in value and "model" in value:
        kinds.append(kinds.pop(0))
        KINDS[kinds[-1]](value, workspace)
        return value
    return {key: plant(item, kinds, workspace) for key, item in value.items()}


def plant_in(file: Path, kinds: list[str], workspace: Path) -> None:
    lines = file.read_text().splitlines() if file.suffix == ".journal" else [file.read_text()]
    file.write_text("".join(json.dumps(plant(json.loads(line), kinds, workspace)) + "\n" for line in lines))


def plant_checkpoint(folder: Path, kind: str, workspace: Path) -> TrialConfig:
    folder.mkdir(parents=True, exist_ok=True)
    config = plant(RECORDS[1].config.to_json(), [kind], workspace)
    empty: dict[str, Any] = {
        key: {} for key in ("profile", "model", "average", "optimizer", "scaler", "generators")
    }
    torch.save({"config": config, "history": [], "epoch": 1, **empty}, folder / "checkpoint.pt")
    return RECORDS[1].config


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a confirmed search."""
    folder = fake_search(tmp_path_factory.mktemp("confirmed"))
    fake_confirmation(folder)
    return folder


@pytest.fixture
def search(confirmed: Path, workspace: Path) -> Path:
    """Return a confirmed search whose files name the module wherever they can name code."""
    folder = shutil.copytree(confirmed, workspace / "searches/mine")
    metadata = json.loads((folder / SEARCH_FILE).read_text())
    metadata["settings"] |= {
        "space": f"{workspace}/planted.py:draw",
        "backbone": "planted:Net",
        "attention": f"ssa,{workspace}/planted.py:Att,planted:Other",
        "sampler": "planted:Sampler",
        "callbacks": [f"{workspace}/planted.py:Callback", "planted:Callback"],
    }
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))
    for file in (STUDY_FILE, f"confirm/{STUDY_FILE}", "confirm/confirm.json"):
        plant_in(folder / file, list(KINDS), workspace)
    plant_in(
        folder / "confirm/verdict.json", list(KINDS)[:1], workspace
    )  # variants of several tasks are not compared
    for trials in (folder / "trials", folder / "confirm/trials"):
        for number in range(21):
            plant_checkpoint(trials / f"{number:04}", "task, a file", workspace)
    return folder


def test_reading_a_search_runs_no_code(search: Path, workspace: Path) -> None:
    assert read_status("mine").states["complete"] == 4
    assert [trial.state for trial in list_searches()] == ["stopped"]
    run_report("mine")
    run_compare(["mine:baseline", "mine"])
    find_removable("mine")
    assert run_sync("mine") > 14
    with pytest.raises(InputError, match=r"would run '.*planted.py:Task'.*--trust"):
        run_export("out", best=True, search="mine")
    with pytest.raises(InputError, match=r"has a checkpoint|would run"):
        run_export("out", baseline=True, search="mine")
    # Its runs are in MLflow now, and their artifacts are hostile, too.
    runs = [run.info.run_id for run in MlflowClient().search_runs(["1"]) if "role" in run.data.tags]
    for run in runs:
        with pytest.raises(InputError):
            run_compare([run, "mine"])
    study = open_study(find_search("mine", "searches")[0], name="mine")
    # As --warm-start does.
    warm_start_study(open_study(search, name="mine"), study, name="other", comparable=False)
    assert not has_run(workspace)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_a_checkpoint_or_export_runs_no_code(kind: str, workspace: Path) -> None:
    plant_checkpoint(workspace / "searches/a", kind, workspace)
    run = MlflowClient().create_run("0", tags={"automl.checkpoint": str(workspace / "searches/a")})
    with pytest.raises(InputError, match="--trust"):
        run_export("out", run=run.info.run_id)
    model = exported_model(workspace / "model", config=plant(RECORDS[1].config.to_json(), [kind], workspace))
    Image.new("RGB", (8, 8)).save(workspace / "a.png")
    for read in (
        lambda: run_predict(model, [workspace / "a.png"]),
        lambda: run_code_search(model, ["query"], corpus=workspace),
        lambda: run_maps(model, [workspace / "a.png"], out=workspace / "maps"),
    ):
        with pytest.raises(InputError):
            read()
    assert not has_run(workspace)


@pytest.mark.parametrize(
    "go_on",
    [
        lambda: resume_search("mine"),
        lambda: run_confirm("mine", again=True),
        lambda: resume_train("a"),
        lambda: run_export("out", best=True, search="mine", trust=True),
    ],
    ids=["resume", "confirm", "train", "export"],
)
def test_resuming_names_the_code_and_runs_it(
    go_on: Callable[[], object], search: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/security.md documents this."""
    plant_checkpoint(workspace / "searches/a", "task, a file", workspace)
    with pytest.raises(InputError):
        go_on()
    assert f"{workspace}/planted.py:" in capsys.readouterr().err
    assert has_run(workspace)
    sys.modules.pop("planted", None)


def test_file_is_trusted_until_it_changes(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(workspace / "cache"))
    own, other = f"{workspace}/planted.py:Net", f"{workspace}/other.py:Net"
    (workspace / "other.py").write_text(CLAIMS)
    assert not is_remembered([own])
    remember([own, "planted:Net"])
    assert is_remembered([own])
    assert not is_remembered([f"{workspace}/planted.py:system"]), "another name in the file"
    assert not is_remembered([own, other]), "the same content elsewhere is another file"
    assert not is_remembered(["planted:Net"]), "a module's name does not tell its file"
    assert not is_remembered([])
    (workspace / "planted.py").write_text(CLAIMS + "\n")
    assert not is_remembered([own])
    assert not has_run(workspace)


def exported_model(
    model: Path, *, config: Mapping[str, Any] | None = None, weights: onnx.TensorProto | None = None
) -> Path:
    """Export a model that returns its weights."""
    model.mkdir()
    ends = (
        helper.make_tensor_value_info(name, TensorProto.UINT8, [10]) for name in ("images", "probabilities")
    )
    weights = weights or helper.make_tensor("w", TensorProto.UINT8, [10], bytes(10), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["probabilities"])], "g", [next(ends)], [next(ends)], [weights]
    )
    graph_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (model / "model.onnx").write_bytes(graph_model.SerializeToString())
    metadata = {
        "labels": [str(i) for i in range(10)],
        "config": config or {"data": {"size": 32}},
        "graphs": {"model": {"inputs": [], "outputs": [], "details": {}}},
    }
    (model / "config.json").write_text(json.dumps(metadata))
    return model


@pytest.mark.parametrize("location", ["../secret", "{folder}/secret", "link"])
def test_model_reads_no_file_outside_its_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(10)))
    weights = onnx.TensorProto(
        name="w", data_type=TensorProto.UINT8, dims=[10], data_location=TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value=location.format(folder=tmp_path))
    model = exported_model(tmp_path / "model", weights=weights)
    (model / "link").symlink_to(tmp_path / "secret")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="External data path"):
        run_predict(model, [tmp_path / "a.png"])
