import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from automl_cases import CPU, EVERY_ATTENTION, HERE, tiny
from mlflow import MlflowClient
from safetensors.torch import load_file
from services import ObjectStore

from attention import InputError
from automl import checkpoint, export
from automl.export import ExportResult, run_export
from automl.storage import Storage
from automl.tasks import open_task
from automl.tasks.classification import Probabilities
from automl.tracking.mirror import Mirror
from automl.tracking.runs import TrackedRun
from automl.tracking.subject import Subject
from automl.tracking.tags import BEST, CONFIRMED, SEARCH, VERDICT
from automl.tracking.tracker import Tracker
from automl.train import TrainResult
from search.config import TrialConfig
from search.record import State, TrialRecord

FILES = {"model.onnx", "model.pt2", "model.safetensors", "config.json", "MODEL_CARD.md", "mlflow-model"}
OURS = ("automl", "attention", "backbones", "search", "cluster", "fastai")


@pytest.fixture(scope="module")
def expected(trained: TrainResult) -> tuple[np.ndarray, np.ndarray]:
    """100 test images, and the trained model's probabilities for them."""
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    inputs = task.raw("test", 100)
    with torch.inference_mode():
        return inputs.numpy(), Probabilities(model).eval()(inputs).numpy()


def test_what_is_exported(exported: ExportResult, trained: TrainResult, workplace: Path) -> None:
    assert exported.folder == workplace / "exports" / "model"
    assert {file.name for file in exported.folder.iterdir()} == FILES
    assert {file.name for file in exported.folder.parent.iterdir()} == {"model"}
    assert exported.run_id == trained.run_id
    assert exported.differences.keys() == {"model.onnx", "model.pt2", "mlflow-model"}
    assert all(0 <= difference <= 1e-4 for difference in exported.differences.values())


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


def test_weights_and_config_rebuild_the_model(exported: ExportResult, trained: TrainResult) -> None:
    about = json.loads((exported.folder / "config.json").read_text())
    assert about["run_id"] == trained.run_id
    assert about["labels"] == [str(digit) for digit in range(10)]
    config = TrialConfig.from_json(about["config"])
    assert config == tiny(model={"placement": EVERY_ATTENTION})
    model = open_task(config, HERE).model()
    model.load_state_dict(load_file(exported.folder / "model.safetensors"))
    kept = checkpoint.read(Storage(trained.checkpoint.parent), CPU)["model"]
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_test_metrics_are_of_the_test_split(exported: ExportResult, trained: TrainResult) -> None:
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    with torch.inference_mode():
        assert exported.test == pytest.approx(
            {k: v.item() for k, v in task.evaluate(model.eval(), "test").items()}
        )


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export without its slow parts."""

    def write(
        folder: Path, task: Any, model: Any, tracked: TrackedRun, out: Path, quantize: str | None
    ) -> ExportResult:
        (folder / "config.json").write_text("{}")
        (folder / "model.onnx").write_bytes(b"new")
        return ExportResult(
            folder=out, tracked=tracked, differences={}, test={}, scores=None, speeds={}, machine="here"
        )

    monkeypatch.setattr(export, "_write", write)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.usefixtures("at_work")
def test_a_form_that_differs_is_not_exported(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_save_mlflow", lambda *args: None)
    monkeypatch.setattr(
        export, "_runtimes", lambda folder: {"model.onnx": lambda inputs: np.full((len(inputs), 10), 0.1)}
    )
    with pytest.raises(RuntimeError, match=r"model.onnx differs from the trained model by 0\.\d+, more than"):
        run_export(tmp_path / "out", run=trained.run_id)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_work", "fast")
def test_an_earlier_export_is_replaced(trained: TrainResult, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_export(out, run=trained.run_id)
    (out / "model.onnx").write_bytes(b"old")
    (out / "model.pt2").write_bytes(b"old")
    run_export(out, run=trained.run_id)
    assert (out / "model.onnx").read_bytes() == b"new"
    assert {file.name for file in out.iterdir()} == {"config.json", "model.onnx"}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("at_work", "fast")
def test_an_object_store_takes_it(
    trained: TrainResult, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    out = Storage(object_store.address(f"models/{tmp_path.name}"))
    assert str(run_export(out.address, run=trained.run_id).folder) == out.address
    out.write("model.pt2", b"old")
    run_export(out.address, run=trained.run_id)
    assert (out.read("model.onnx"), out.exists("model.pt2")) == (b"new", False)
    out.write("notes.txt", b"mine")
    with pytest.raises(InputError, match=r"--out s3://.* holds something else; name a new folder"):
        run_export(out.address, run=trained.run_id)
    gone = out.address.replace(str(object_store.port), "9")
    with pytest.raises(InputError, match=r"--out s3://.* cannot be reached"):
        run_export(gone, run=trained.run_id)


@pytest.mark.usefixtures("at_work", "fast")
def test_a_failed_export_leaves_the_earlier_one(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_export(tmp_path / "out", run=trained.run_id)
    before = snapshot(tmp_path)

    def fail(folder: Path, *args: object) -> None:
        (folder / "model.onnx").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_write", fail)
    with pytest.raises(InputError, match=r"--out .*out cannot be written \(No space left"):
        run_export(tmp_path / "out", run=trained.run_id)
    assert snapshot(tmp_path) == before


def photos(out: Path) -> None:
    out.mkdir()
    (out / "photo.jpg").write_text("mine")


def a_config(out: Path) -> None:
    out.mkdir()
    (out / "config.json").write_text("{}")


def an_export_with_a_photo(out: Path) -> None:
    photos(out)
    (out / "config.json").write_text("{}")
    (out / "model.onnx").write_bytes(b"old")


def a_file(out: Path) -> None:
    out.write_text("mine")


@pytest.mark.usefixtures("at_work", "fast")
@pytest.mark.parametrize("fill", [photos, a_config, an_export_with_a_photo, a_file])
def test_another_folder_is_refused(
    fill: Callable[[Path], object], trained: TrainResult, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(out)
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match="holds something else; name a new folder"):
        run_export(out, run=trained.run_id)
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("at_work", "fast")
def test_an_empty_folder_is_taken(trained: TrainResult, tmp_path: Path) -> None:
    run_export(tmp_path, run=trained.run_id)
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.usefixtures("at_work", "fast")
def test_an_export_with_more_files_is_replaced(trained: TrainResult, tmp_path: Path) -> None:
    run_export(tmp_path, run=trained.run_id)
    for name in ("model.int8.onnx", "confusion.csv"):
        (tmp_path / name).write_bytes(b"old")
    run_export(tmp_path, run=trained.run_id)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.onnx"}


MISTAKES = [
    ({}, r"either --best .* or --run"),
    ({"best": True, "run": "a"}, r"either --best .* or --run"),
    ({"search": "mine", "run": "a"}, "--search mine goes with --best"),
    (
        {"best": True, "quantize": "int4"},
        "unknown quantisation 'int4'; choose from int8. Did you mean 'int8'",
    ),
    ({"best": True, "alias": "prod"}, "--alias prod needs --register NAME"),
]


@pytest.mark.parametrize(("choice", "message"), MISTAKES)
def test_what_does_not_go_together(choice: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run_export(tmp_path / "out", **choice)


@pytest.mark.parametrize("out", ["x" * 300, "~nobody-has-this-name/out", "/proc/version/out", "/proc/out"])
@pytest.mark.usefixtures("at_work", "fast")
def test_a_folder_that_cannot_be(out: str, trained: TrainResult) -> None:
    with pytest.raises(InputError, match=r"--out .* cannot be written"):
        run_export(out, run=trained.run_id)


SENTENCE = "ssa in stage 1 is better by 0.7 points (95 % CI 0.2 to 1.2, 20 paired seeds, equal time)"
CHOICES = {
    "no verdict": ({}, "best", "the search's best; not confirmed"),
    "better": ({VERDICT: SENTENCE, CONFIRMED: "winner"}, "winner", f"confirmed winner: {SENTENCE}"),
    "undecided": (
        {VERDICT: "no detectable gain; 60 more seeds would be needed"},
        "best",
        "the search's best; confirmation found no winner: no detectable gain; 60 more seeds would be needed",
    ),
}


def search_called_mine(checkpoint: Storage) -> Tracker:
    subject = Subject(
        experiment="space", name="mine", tags={SEARCH: "mine"}, checkpoint=lambda trial: checkpoint
    )
    return Tracker(Mirror(subject))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("verdict", CHOICES)
def test_the_choice_follows_the_verdict(
    verdict: str,
    trained: TrainResult,
    store: MlflowClient,
    tmp_path: Path,
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    place = Storage(trained.checkpoint.parent)
    tracker = search_called_mine(place)
    trials = {"best": TrialRecord(0, tiny()), "winner": TrialRecord(1, tiny(), state=State.COMPLETE)}
    for trial in trials.values():
        trial.state = State.COMPLETE
        trial.history.append({"epoch": 1, "accuracy": 0.5})
        tracker.ended(trial)
    tracker.finish(best=trials["best"], metric="accuracy", counts={})
    runs = {name: tracker.runs[trial.number] for name, trial in trials.items()}
    tags, chosen, said = CHOICES[verdict]
    for tag, value in tags.items():
        store.set_tag(tracker.mirror.parent, tag, runs.get(value, value))
    assert store.get_run(tracker.mirror.parent).data.tags[BEST] == runs["best"]

    for search in ("mine", None):
        result = run_export(tmp_path / "out", best=True, search=search)
        assert result.run_id == runs[chosen]
        assert result.tracked.choice == said
        assert (result.tracked.verdict, result.tracked.confirmed) == (tags.get(VERDICT), CONFIRMED in tags)
    code, out, err = cli("export", "--best", "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert f"from run {runs[chosen]}\nchosen    {said}\n" in out

    # Named by its id, a run is known as the winner too, and another one is not.
    named = {name: run_export(tmp_path / "out", run=run).tracked.choice for name, run in runs.items()}
    assert named["best"] == "the run that was named; not confirmed"
    assert named["winner"] == (said if chosen == "winner" else named["best"])


@pytest.fixture
def damaged_search(store: MlflowClient, tmp_path: Path) -> Path:
    """A search whose best trial has a checkpoint that is damaged."""
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / checkpoint.NAME).write_bytes(b"not a checkpoint")
    tracker = search_called_mine(Storage(tmp_path / "trial"))
    trial = TrialRecord(0, tiny(), state=State.COMPLETE)
    trial.history.append({"epoch": 1, "accuracy": 0.5})
    tracker.ended(trial)
    tracker.finish(best=trial, metric="accuracy", counts={})
    return tmp_path / "trial" / checkpoint.NAME


def test_a_damaged_checkpoint(damaged_search: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is damaged or not one of ours"):
        run_export(tmp_path / "out", best=True, search="mine")
    damaged_search.unlink()
    with pytest.raises(InputError, match="there is no checkpoint"):
        run_export(tmp_path / "out", best=True)
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_fit_the_model(
    damaged_search: Path, trained: TrainResult, tmp_path: Path
) -> None:
    content = torch.load(trained.checkpoint, weights_only=True)
    content["model"].popitem()
    torch.save(content, damaged_search)
    with pytest.raises(InputError, match="does not fit"):
        run_export(tmp_path / "out", best=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("at_work", "fast")
def test_command_line(trained: TrainResult, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = cli("export", "--run", str(trained.run_id), "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert f"exported  {tmp_path / 'out'} from run {trained.run_id}" in out
    assert "chosen    the run that was named; not confirmed" in out
