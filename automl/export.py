"""A trained trial as files that work where this project is not installed, each checked against the model."""

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attention import InputError, unknown
from automl import checkpoint
from automl.logs import chatter_to
from automl.model_card import CONFUSION, MOST, model_card
from automl.onnx_session import open_onnx
from automl.quantize import IMAGES as CALIBRATED
from automl.quantize import KINDS, Quantized, quantize_int8
from automl.runtime import Runtime
from automl.same_data import check_source
from automl.score_card import Answers, Run, ScoreCard, answers
from automl.speed import BATCH, Speed, machine, measure_speed
from automl.storage import Storage, is_address
from automl.tasks import Task, open_task
from automl.tracking.registry import Registered, check_registry, register
from automl.tracking.runs import TrackedRun, find_best, find_run
from automl.tracking.tags import VERDICT
from search.config import TrialConfig

TOLERANCE = 1e-4  # the largest difference of a probability that two runtimes may have
IMAGES = 100  # test inputs that the exported forms are compared on
ONNX, PT2, WEIGHTS, CONFIG, CARD = (
    "model.onnx",
    "model.pt2",
    "model.safetensors",
    "config.json",
    "MODEL_CARD.md",
)
INT8 = "model.int8.onnx"
MLFLOW = "mlflow-model"
ALIAS = "champion"


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported model.

    folder: holds model.onnx, model.pt2, model.safetensors, config.json, MODEL_CARD.md and mlflow-model; with
        quantisation model.int8.onnx too, and confusion.csv where there are more than 20 labels.
    tracked: the run that it is of, and why it was chosen.
    differences: largest absolute difference from the trained model's output, for each exported form.
    test: the task's metrics on the test split.
    scores: the answers of model.onnx to the test split; None for a task whose answers are not labels.
    speeds: of each ONNX model, by the name of its file, on `machine`.
    """

    folder: Path | Storage
    tracked: TrackedRun
    differences: Mapping[str, float]
    test: Mapping[str, float]
    scores: ScoreCard | None
    speeds: Mapping[str, Speed]
    machine: str
    quantized: Quantized | None = None
    registered: Registered | None = None

    @property
    def run_id(self) -> str:
        return self.tracked.run_id


def run_export(
    out: str | Path,
    *,
    best: bool = False,
    search: str | None = None,
    run: str | None = None,
    quantize: str | None = None,
    register_as: str | None = None,
    alias: str | None = None,
) -> ExportResult:
    """Export a search's confirmed winner or else its best trial, or one MLflow run, to the folder `out`.

    out: a folder, or its address in an object store.
    best: of `search`, or of the latest search.
    run: an MLflow run's id instead.
    quantize: `int8` to have a quantised ONNX model beside the others.
    register_as: a name in MLflow's model registry, whose `alias` (champion) is to be this model.

    Raises InputError for a run without a readable checkpoint, other data than its search had, a folder that
    holds something else, a name that MLflow refuses, and RuntimeError when an exported form differs from the
    model by more than 1e-4.
    `out` appears only when everything has been written and checked; an earlier export there is replaced.
    It is registered after that.
    """
    if best == (run is not None):
        raise InputError("say what to export: either --best [--search NAME] or --run ID")
    if search is not None and not best:
        raise InputError(f"--search {search} goes with --best; --run names a run by itself")
    if quantize is not None and quantize not in KINDS:
        raise unknown("quantisation", quantize, KINDS)
    if alias is not None and register_as is None:
        raise InputError(f"--alias {alias} needs --register NAME, the model that it is an alias of")
    if is_address(str(out)):
        there = Storage(str(out))
        _check_store(there)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "export"
            result = run_export(
                folder,
                best=best,
                search=search,
                run=run,
                quantize=quantize,
                register_as=register_as,
                alias=alias,
            )
            _send(folder, there)
        return replace(result, folder=there)
    out = _folder(out)
    alias = ALIAS if alias is None else alias
    if register_as is not None:
        check_registry(register_as, alias)
    tracked = find_best(search) if best else find_run(run or "")
    content = checkpoint.read(tracked.checkpoint, torch.device("cpu"))
    config = TrialConfig.from_json(content["config"])
    check_source(config, tracked.checkpoint)
    task = open_task(config, Runtime(device=torch.device("cpu"), precision="fp32"))
    if quantize is not None and next(task.answers("test"), None) is None:
        raise InputError(
            f"--quantize states what it costs in accuracy, which the task {task.config.task} does not have"
        )
    model = task.model()
    try:
        model.load_state_dict(content["model"])
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(
            f"checkpoint {tracked.checkpoint} does not fit the model of its configuration; have the classes "
            f"of its data changed since? ({reason})"
        ) from error
    model.eval()
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        with chatter_to(unfinished / "log.txt"):
            result = _write(unfinished, task, model, tracked, out, quantize)
        (unfinished / "log.txt").unlink(missing_ok=True)
        if out.exists():
            shutil.rmtree(out)
        unfinished.rename(out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return result if register_as is None else _register(result, out, register_as, alias)


def _folder(out: str | Path) -> Path:
    """`out` as an absolute path, if an export may go there."""
    try:
        folder = Path(out).expanduser().resolve()
        if folder.exists() and not _replaceable(folder):
            raise InputError(f"--out {folder} holds something else; name a new folder")
    except (OSError, RuntimeError) as error:  # a name too long, a home that nobody has, no right to look
        raise InputError(f"--out {out} cannot be written ({error})") from error
    return folder


def _check_store(there: Storage) -> None:
    """Raises InputError where an export may not go."""
    try:
        held = {name.partition("/")[0] for name in there.files()}
    except OSError as error:
        raise InputError(f"--out {there} cannot be reached ({error})") from error
    if not _is_ours(held):
        raise InputError(f"--out {there} holds something else; name a new folder")


def _send(folder: Path, there: Storage) -> None:
    """Put an export into a store; of an earlier one there nothing stays."""
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    try:
        for name in sorted(names, key=lambda name: name == CONFIG):  # which says that it is all there
            there.send(folder / name, name)
        for name in there.files().keys() - names:
            there.remove(name)
    except OSError as error:
        raise InputError(f"--out {there} cannot be written ({error})") from error


def _replaceable(folder: Path) -> bool:
    """Whether `folder` is empty or what `run_export` leaves, with nothing of anybody else's in it."""
    return _is_ours({file.name for file in folder.iterdir()} if folder.is_dir() else {""})


def _is_ours(held: Collection[str]) -> bool:
    ours = {ONNX, INT8, PT2, WEIGHTS, CONFIG, CARD, CONFUSION, MLFLOW}
    return not held or {CONFIG, ONNX} <= set(held) <= ours


def _register(result: ExportResult, folder: Path, name: str, alias: str) -> ExportResult:
    tracked = result.tracked
    test = {f"test_{key}": f"{value:.4f}" for key, value in result.test.items()}
    shown = ", ".join(f"{key} {value:.4f}" for key, value in result.test.items())
    with tempfile.TemporaryDirectory() as scratch, chatter_to(Path(scratch) / "log.txt"):
        try:
            registered = register(
                folder / MLFLOW,
                tracked.run_id,
                name,
                alias,
                about=f"{tracked.choice}. Test split: {shown}.",
                tags={VERDICT: tracked.verdict or "not confirmed on fresh seeds", **test},
            )
        except InputError as error:
            raise InputError(f"{error}. The model is in {result.folder} all the same.") from error
    return replace(result, registered=registered)


def _write(
    folder: Path, task: Task, model: nn.Module, tracked: TrackedRun, out: Path, quantize: str | None
) -> ExportResult:
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for the owner alone
    about = {
        "format": 1,
        "run_id": tracked.run_id,
        "labels": task.labels,
        "config": task.config.to_json(),
    }
    (folder / CONFIG).write_text(json.dumps(about, indent=2))
    inputs = task.raw("test", IMAGES)
    with torch.inference_mode():
        test = {name: value.item() for name, value in task.evaluate(model, "test").items()}
        expected = task.artifact(model)[0].eval()(inputs).numpy()
    # A parametrised weight is computed at every use; what is deployed has the weight alone.
    _bake(model)
    module, example = task.artifact(model)
    program = torch.export.export(
        module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("N", min=1)},)
    )
    torch.export.save(program, folder / PT2)
    torch.onnx.export(
        program,
        (),
        folder / ONNX,
        dynamo=True,
        external_data=False,
        input_names=["images"],
        output_names=["probabilities"],
        verbose=False,
    )
    _save_mlflow(folder, example, expected)
    differences = {
        name: float(np.abs(run(inputs.numpy()) - expected).max()) for name, run in _runtimes(folder).items()
    }
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise RuntimeError(
                f"{name} differs from the trained model by {difference:.2g}, more than {TOLERANCE:g}, on "
                f"{len(inputs)} test inputs; nothing was exported"
            )
    models = {ONNX: open_onnx(folder / ONNX)}
    calibrated = 0
    if quantize:
        calibrated = _quantize(folder, task)
        models[INT8] = open_onnx(folder / INT8)
    given = answers(task, "test", models)
    speeds = measure_speed(models, inputs[:BATCH].numpy())
    scores = given.card(ONNX) if given else None
    quantized = None
    if quantize:
        assert given is not None, "run_export refuses to quantise a task without labels"
        quantized = _measured(quantize, folder, given, speeds, calibrated)
    card = model_card(
        task,
        tracked=tracked,
        test=test,
        differences=differences,
        scores=scores,
        speeds=speeds,
        machine=machine(),
        quantized=quantized,
    )
    (folder / CARD).write_text(card, encoding="utf-8")
    if scores and len(scores.labels) > MOST:
        scores.write_csv(folder / CONFUSION)
    return ExportResult(
        folder=out,
        tracked=tracked,
        differences=differences,
        test=test,
        scores=scores,
        speeds=speeds,
        machine=machine(),
        quantized=quantized,
    )


def _quantize(folder: Path, task: Task) -> int:
    """Write the quantised model. Returns how many training inputs it was calibrated on."""
    inputs = task.raw("train", CALIBRATED).numpy()
    quantize_int8(folder / ONNX, folder / INT8, inputs)
    return len(inputs)


def _measured(
    kind: str, folder: Path, given: Answers, speeds: Mapping[str, Speed], calibrated: int
) -> Quantized:
    accuracy, size = given.card(INT8).accuracy, (folder / INT8).stat().st_size
    return Quantized(
        kind=kind,
        calibrated=calibrated,
        accuracy=accuracy,
        difference=accuracy - given.card(ONNX).accuracy,
        agreement=given.agreement(ONNX, INT8),
        size=size,
        size_ratio=size / (folder / ONNX).stat().st_size,
        latency_ratio=speeds[INT8].ratio,
    )


def _bake(model: nn.Module) -> None:
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def _save_mlflow(folder: Path, example: Tensor, expected: np.ndarray) -> None:
    import mlflow.onnx
    import onnx
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *example.shape[1:]), "images")]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, *expected.shape[1:]), "probabilities")]),
    )
    requirements = [f"{name}=={_version(name)}" for name in ("mlflow", "onnx", "onnxruntime", "numpy")]
    mlflow.onnx.save_model(
        onnx.load(folder / ONNX), str(folder / MLFLOW), signature=signature, pip_requirements=requirements
    )


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _runtimes(folder: Path) -> dict[str, Run]:
    """Each exported form, read back from its file, as a function of raw inputs."""
    import mlflow.pyfunc

    program = torch.export.load(folder / PT2).module()
    served = mlflow.pyfunc.load_model(str(folder / MLFLOW))

    def torch_export(inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output: Any = program(torch.from_numpy(inputs))
        return np.asarray(output)

    return {
        ONNX: open_onnx(folder / ONNX),
        PT2: torch_export,
        MLFLOW: lambda inputs: np.asarray(served.predict({"images": inputs})["probabilities"]),
    }
