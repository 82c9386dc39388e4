import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from automl.base.atomic import temporary_path
from automl.base.errors import InputError
from automl.export import checks
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.export.formats import forms_of
from automl.export.run_export import ExportResult, run_export
from automl.storage import user_code
from automl.storage.metadata import read_metadata
from automl.storage.storage import Storage
from automl.task import open_task
from automl.task.opening import write_manifest
from automl.tasks.image_classification.task import ImageAnswers
from automl.tracking.run_spec import CONFIRMED, VERDICT, RunSpec, search_run_spec
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from automl.training import checkpoint
from automl.trials.train import TrainResult, run_train
from search.config import TrialConfig
from search.record import State, TrialRecord
from search.study import read_records
from tests.helpers.automl_cases import CPU, HERE, TRAINED, Cli, opened, tiny
from tests.helpers.confirm_cases import RECORDS, fake_search

FORMS = {*forms_of("model")}
FILES = FORMS | {"model.safetensors", "config.json", "MODEL_CARD.md", "mlflow-model"}
OURS = ("automl", "attention", "backbones", "search", "cluster", "fastai")


@pytest.fixture(scope="module")
def expected(trained: TrainResult) -> tuple[np.ndarray, np.ndarray]:
    """Return 100 test inputs and the probabilities of the trained model."""
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    inputs = task.model_inputs("test", 100)["images"]
    with torch.inference_mode():
        return inputs.numpy(), ImageAnswers(model).eval()(inputs).numpy()


def test_exported_files_rebuild_the_model(
    exported: ExportResult, trained: TrainResult, workplace: Path
) -> None:
    assert exported.folder == workplace / "exports" / "model"
    assert {file.name for file in exported.folder.iterdir()} == FILES
    assert {file.name for file in exported.folder.parent.iterdir()} == {"model"}
    assert exported.run_id == trained.run_id
    assert exported.differences.keys() == FORMS | {"mlflow-model"}
    assert all(0 <= difference <= 1e-4 for difference in exported.differences.values())
    metadata = json.loads((exported.folder / "config.json").read_text())
    assert metadata["run_id"] == trained.run_id
    assert metadata["labels"] == [str(digit) for digit in range(10)]
    config = TrialConfig.from_json(metadata["config"])
    assert config == TRAINED
    model = open_task(config, HERE).model()
    model.load_state_dict(load_file(exported.folder / "model.safetensors"))
    trained_weights = checkpoint.read(Storage(trained.checkpoint.parent), CPU)["model"]
    assert all(torch.equal(value, trained_weights[name]) for name, value in model.state_dict().items())
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    with torch.inference_mode():
        assert exported.test == pytest.approx(
            {k: v.item() for k, v in task.evaluate(model.eval(), "test").items()}
        )
    assert isinstance(exported.folder, Path)
    (exported.folder.parent / "folder").mkdir(exist_ok=True)
    (exported.folder.parent / "file").touch()
    modes = [os.stat(exported.folder.parent / name).st_mode for name in ("folder", "file")]
    (exported.folder.parent / "folder").rmdir()
    (exported.folder.parent / "file").unlink()
    for path in (exported.folder, *exported.folder.rglob("*")):
        assert os.stat(path).st_mode == modes[path.is_file()], path
    assert any(path.is_dir() for path in exported.folder.iterdir())


RUNTIMES = {
    "onnxruntime": (
        ("torch", "mlflow", *OURS),
        """
        import onnxruntime
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
        run = lambda x: session.run(None, {"images": x})[0]
        """,
    ),
    "torch.export": (
        OURS,
        """
        import torch
        program = torch.export.load(f"{folder}/model.pt2").module()
        run = lambda x: program(torch.from_numpy(x)).detach().numpy()
        """,
    ),
    "mlflow": (
        OURS,
        """
        import mlflow.pyfunc
        model = mlflow.pyfunc.load_model(f"{folder}/mlflow-model")
        run = lambda x: model.predict({"images": x})["probabilities"]
        """,
    ),
}

ELSEWHERE = """
import sys
import numpy as np

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Absent())
folder = {folder!r}
{load}
inputs = np.load("inputs.npy")
assert run(inputs[:1]).shape == (1, 10)
assert run(inputs[:3]).shape == (3, 10)
np.save("outputs.npy", run(inputs))
"""


@pytest.mark.slow("exports again")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runs_where_this_project_is_not_installed(
    runtime: str, exported: ExportResult, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    inputs, probabilities = expected
    absent, load = RUNTIMES[runtime]
    folder = shutil.copytree(exported.folder, tmp_path / "elsewhere")
    np.save(tmp_path / "inputs.npy", inputs)
    code = ELSEWHERE.format(absent=set(absent), folder=str(folder), load=textwrap.dedent(load))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=200)
    outputs = np.load(tmp_path / "outputs.npy")
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, probabilities, rtol=0, atol=1e-4)
    np.testing.assert_allclose(outputs.sum(1), 1, atol=1e-5)
    assert np.ptp(outputs, axis=0).max() > 1e-3  # the images make a difference at all


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export without its slow parts."""

    def write(
        folder: Path, task: Any, model: Any, chosen: Chosen, out: Path, *options: object
    ) -> ExportResult:
        (folder / "config.json").write_text("{}")
        (folder / "model.onnx").write_bytes(b"new")
        return ExportResult(
            folder=out, chosen=chosen, differences={}, test={}, scores=None, speeds={}, machine="here"
        )

    monkeypatch.setattr(export, "_write", write)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.usefixtures("at_work")
def test_differing_form_is_not_exported(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export.formats, "save_mlflow", lambda *args: None)
    monkeypatch.setattr(export.formats, "save_programs", lambda *args: {})
    monkeypatch.setattr(
        checks, "_forms", lambda *_: {"model.onnx": lambda: {"probabilities": np.full((100, 10), 0.1)}}
    )
    with pytest.raises(RuntimeError, match=r"model.onnx differs from the trained model by 0\.\d+, more than"):
        run_export(tmp_path / "out", run=trained.run_id)
    assert list(tmp_path.iterdir()) == []
    stages = ["loading", "scoring", "writing", "writing", "comparing"]
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == stages


def fail(*args: object, **kwargs: object) -> None:
    try:
        raise ValueError("no such operator\nand more")
    except ValueError as error:
        raise RuntimeError("step 3 of 3") from error


@pytest.mark.slow("exports again")
@pytest.mark.parametrize("function", ["torch.onnx.export", "torch.export.export"])
@pytest.mark.usefixtures("at_work")
def test_formats_that_a_model_prevents_are_left_out(
    function: str, trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, fail)
    left_out = {"mlflow-model"} | (FORMS if function == "torch.export.export" else {"model.onnx"})
    out = tmp_path / "out"
    result = run_export(out, run=trained.run_id)
    assert set(result.left_out) == left_out
    assert result.left_out["model.onnx"].startswith("ValueError: no such operator and more (test_export")
    assert {file.name for file in out.iterdir()} == FILES - left_out
    assert set(result.differences) == FORMS - left_out


@pytest.mark.slow("exports again")
@pytest.mark.usefixtures("at_work", "fast")
def test_an_earlier_export_is_replaced(trained: TrainResult, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_export(out, run=trained.run_id)
    (out / "model.onnx").write_bytes(b"old")
    (out / "model.pt2").write_bytes(b"old")
    killed = temporary_path(out).with_suffix(".123")  # what an export leaves that was killed
    killed.mkdir()
    (killed / "model.onnx").write_bytes(b"half")
    (tmp_path / ".out.lock").touch()
    run_export(out, run=trained.run_id)
    assert (out / "model.onnx").read_bytes() == b"new"
    assert {file.name for file in out.iterdir()} == {"config.json", "model.onnx"}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("at_work", "fast")
def test_failed_export_keeps_the_earlier_one(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_export(tmp_path / "out", run=trained.run_id)
    before = snapshot(tmp_path)

    def fail(folder: Path, *args: object) -> None:
        (folder / "model.onnx").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_write", fail)
    with pytest.raises(InputError, match=r"--out .*out cannot be written: disk full at .*\(No space left"):
        run_export(tmp_path / "out", run=trained.run_id)
    assert snapshot(tmp_path) == before


def photos(out: Path) -> None:
    out.mkdir()
    (out / "photo.jpg").write_text("mine")


def an_export_with_a_photo(out: Path) -> None:
    photos(out)
    (out / "config.json").write_text("{}")
    (out / "model.onnx").write_bytes(b"old")


@pytest.mark.usefixtures("at_work", "fast")
@pytest.mark.parametrize("fill", [photos, an_export_with_a_photo])
def test_another_folder_is_refused(
    fill: Callable[[Path], object], trained: TrainResult, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(out)
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match="contains other files; choose a new folder"):
        run_export(out, run=trained.run_id)
    assert snapshot(tmp_path) == before


MISTAKES = [
    ({}, r"exactly one of --best, --baseline and --run ID"),
    ({"search": "mine", "run": "a"}, "--search mine cannot be combined with --run"),
    ({"out": "s3://bucket/model", "run": "a"}, "--out s3://bucket/model must be a folder of this machine"),
]


@pytest.mark.parametrize(("choice", "message"), MISTAKES)
def test_conflicting_options_are_rejected(choice: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run_export(**{"out": tmp_path / "out", **choice})


MINE = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.LazyLinear(classes))
"""


@pytest.mark.usefixtures("store", "fast")
def test_user_defined_model_needs_no_trust_where_it_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    backbone = f"{tmp_path}/mine.py:Net"
    config = tiny(model={"backbone": backbone, "options": {}}, training={"epochs": 1})
    run = run_train(config, runtime=HERE, storage=tmp_path / "searches").run_id
    assert run is not None
    assert (run_export(tmp_path / "out", run=run).folder / "model.onnx").is_file()
    monkeypatch.setattr(user_code, "TRUSTED", "elsewhere")  # of somebody who has not trained it
    with pytest.raises(InputError, match=r"would run '.*mine\.py:Net'.*--trust"):
        run_export(tmp_path / "again", run=run)


@pytest.fixture
def search(trained: TrainResult, store: MlflowClient, tmp_path: Path) -> Path:
    """Return the folder of a search whose trials all have the checkpoint of `trained`."""
    folder = fake_search(tmp_path / "searches")
    write_manifest(folder, opened().manifest(tiny()))
    for trial in RECORDS:
        (folder / trial.folder).mkdir(parents=True)
        shutil.copy(trained.checkpoint, folder / trial.folder / checkpoint.CHECKPOINT_FILE)
    return folder


def writer(folder: Path) -> dict[int, str]:
    """Write the search to MLflow. Return the run of each trial."""
    metadata = read_metadata(folder, str(folder.parent))
    tracker = Tracker(MlflowWriter(search_run_spec(metadata.location, metadata)))
    for record in read_records(folder, metadata.name):
        tracker.on_trial_end(record)
    tracker.finish(best=None, metric="accuracy", counts={})
    return tracker.runs


@pytest.mark.usefixtures("fast")
def test_best_trial_of_a_search_is_exported(search: Path, tmp_path: Path, cli: Cli) -> None:
    runs = writer(search)
    for named in ("mine", None):
        result = run_export(tmp_path / "out", best=True, search=named)
        assert result.run_id == runs[1]
        assert result.chosen.checkpoint.local == search / RECORDS[1].folder
    away = shutil.move(search.parent, tmp_path / "away")
    code, out, err = cli("export", "--best", "--storage", str(away), "--out", str(tmp_path / "out"))
    assert (code, err.splitlines()[-2]) == (0, f"the latest search in {away} is mine")
    assert f"from MLflow run {runs[1]}\nchosen    the search's best; not confirmed\n" in out


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("mlflow", ["does not answer", "has no run of it", "has no runs"])
def test_without_mlflow(
    mlflow: str, search: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    if mlflow == "does not answer":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    if mlflow == "has no runs":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    code, out, err = cli("export", "--best", "--search", "mine", "--out", str(tmp_path / "out"))
    assert code == 0
    assert re.match(rf"warning: the model card has no MLflow run of '001 .*{mlflow}.* automl sync mine", err)
    assert re.search(r"from trial 001 xresnet18\(.*\) ssa @ stage1.block2.branch of search mine\n", out)
    assert not Path("elsewhere.db").exists()


@pytest.mark.slow("exports again")
@pytest.mark.usefixtures("store", "fast")
def test_winner_is_exported_by_run_id(trained: TrainResult, store: MlflowClient, tmp_path: Path) -> None:
    """Choose by run, as `automl export --run` does, without the search's folder."""
    folder = Storage(trained.checkpoint.parent)
    tracker = Tracker(MlflowWriter(RunSpec(experiment="space", name="mine", checkpoint=lambda trial: folder)))
    for number in (0, 1):
        trial = TrialRecord(number, tiny(), state=State.COMPLETE)
        trial.history.append({"epoch": 1, "accuracy": 0.5})
        tracker.on_trial_end(trial)
    tracker.finish(best=None, metric="accuracy", counts={})
    for tag, value in ((VERDICT, "it is better"), (CONFIRMED, tracker.runs[1])):
        store.set_tag(tracker.writer.parent, tag, value)
    named = [run_export(tmp_path / "out", run=run).chosen.choice for run in tracker.runs.values()]
    assert named == ["the run that was named; not confirmed", "confirmed winner: it is better"]


def test_damaged_checkpoints_and_weights_that_do_not_fit(search: Path, tmp_path: Path) -> None:
    file = search / RECORDS[1].folder / checkpoint.CHECKPOINT_FILE
    content = torch.load(file, weights_only=True)
    content["model"].popitem()
    torch.save(content, file)
    with pytest.raises(InputError, match="does not fit"):
        run_export(tmp_path / "out", best=True)
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="is corrupt or in an unsupported format"):
        run_export(tmp_path / "out", best=True, search="mine")
    assert not (tmp_path / "out").exists()


REFUSED: list[tuple[Any, str]] = [
    ({"images": np.full((1, 24, 24, 3), 0.5)}, r"uint8 between 0 and 255; got floats between 0 and 1\. M"),
    ({"images": np.full((1, 24, 24, 3), 127.5)}, r"whole numbers of uint8; got floats such as 127\.5"),
    ({"images": np.full((1, 24, 24, 3), 300)}, "must lie between 0 and 255; got 300 to 300"),
    ({"images": np.zeros((24, 24, 3))}, r"shape \(N, 24, 24, 3\), .* got the shape \(24, 24, 3\)"),
    ({"images": np.zeros((0, 24, 24, 3), np.uint8)}, "must hold one input or more"),
    ({"image": np.zeros((1, 24, 24, 3))}, "the inputs are images, each a list by its name; got image"),
]


@pytest.fixture(scope="module")
def mlflow_model(exported: ExportResult) -> Any:
    return mlflow.pyfunc.load_model(str(exported.folder / "mlflow-model"))


@pytest.mark.parametrize(("inputs", "message"), REFUSED, ids=[message[:20] for _, message in REFUSED])
def test_mlflow_model_rejects_wrong_input(inputs: Any, message: str, mlflow_model: Any) -> None:
    with pytest.raises(mlflow.MlflowException, match=message):
        mlflow_model.predict(inputs)


def test_mlflow_model_returns_labels(mlflow_model: Any, expected: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, probabilities = expected[0][:5], expected[1][:5]
    for form in (inputs, inputs.tolist(), {"images": inputs.astype(float)}):
        answer = mlflow_model.predict(form)
        assert list(answer["label"]) == [str(i) for i in probabilities.argmax(1)]
        np.testing.assert_allclose(answer["probability"], probabilities.max(1), atol=1e-4)
        assert list(answer["labels"]) == [str(digit) for digit in range(10)]
