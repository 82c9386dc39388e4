"""A trained trial as files that work where this project is not installed, each checked against the model."""

import errno
import json
import os
import shutil
import sys
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
from automl.config.runtime import Runtime
from automl.config.settings import command
from automl.export.chosen import Chosen, choose, choose_run
from automl.export.model_card import CONFUSION, MOST, model_card
from automl.export.onnx_session import open_onnx
from automl.export.quantize import IMAGES as CALIBRATED
from automl.export.quantize import KINDS, Quantized, quantize_int8
from automl.export.score_card import Answers, Run, ScoreCard, answers
from automl.export.speed import BATCH, Speed, machine, measure_speed
from automl.storage.disk import disk_full, free, no_room
from automl.storage.folder import named
from automl.storage.logs import capture_library_logs
from automl.storage.storage import Storage, is_address
from automl.tasks import Task, open_task
from automl.tasks.same_data import check_source
from automl.tracking.registry import Registered, check_registry, register
from automl.tracking.runs import find_trial_run
from automl.tracking.tags import VERDICT
from automl.training import checkpoint
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
BATCH_AXIS = "N"
COPIES = 5  # of the weights that are written: four forms, and what MLflow copies
LEAST = 1e6  # bytes; a disk with fewer is full
ALIAS = "champion"


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported model.

    folder: holds model.onnx, model.pt2, model.safetensors, config.json, MODEL_CARD.md and mlflow-model; with
        quantisation model.int8.onnx too, and confusion.csv where there are more than 20 labels.
    chosen: the trial that it is of, and why it was chosen.
    differences: largest absolute difference from the trained model's output, for each exported form.
    test: the task's metrics on the test split.
    scores: the answers of model.onnx to the test split; None for a task whose answers are not labels.
    speeds: of each ONNX model, by the name of its file, on `machine`.
    """

    folder: Path | Storage
    chosen: Chosen
    differences: Mapping[str, float]
    test: Mapping[str, float]
    scores: ScoreCard | None
    speeds: Mapping[str, Speed]
    machine: str
    quantized: Quantized | None = None
    registered: Registered | None = None

    @property
    def run_id(self) -> str | None:
        """Of the trial's run in MLflow; None where that does not answer or has none."""
        return self.chosen.run_id


def run_export(
    out: str | Path,
    *,
    best: bool = False,
    search: str | None = None,
    run: str | None = None,
    storage: str = "searches",
    quantize: str | None = None,
    register_as: str | None = None,
    alias: str | None = None,
) -> ExportResult:
    """Export a search's confirmed winner or else its best trial, or one MLflow run, to the folder `out`.

    out: a folder, or its address in an object store.
    best: of `search`, or of the latest search in `storage`. MLflow need not answer: its run is looked up for
        the model card alone.
    run: an MLflow run's id instead.
    quantize: `int8` to have a quantised ONNX model beside the others.
    register_as: a name in MLflow's model registry, whose `alias` (champion) is to be this model.

    Raises InputError for a search or run without a readable checkpoint, other data than its search had, a
    folder that holds something else, a full disk, a name that MLflow refuses, and RuntimeError when an
    exported form differs from the model by more than 1e-4. `out` appears only when everything has been
    written and checked; an earlier export there is replaced. It is registered after that.
    """
    if best == (run is not None):
        raise InputError("say what to export: either --best [--search NAME] or --run ID")
    if search is not None and not best:
        raise InputError(f"--search {search} goes with --best; --run names a run by itself")
    if quantize is not None and quantize not in KINDS:
        raise unknown("quantisation", quantize, KINDS)
    if alias is not None and register_as is None:
        raise InputError(f"--alias {alias} needs --register NAME, the model that it is an alias of")
    alias = ALIAS if alias is None else alias
    place = _place(out)
    if register_as is not None:
        check_registry(register_as, alias)
    chosen = _best(search, storage, needed=register_as is not None) if best else choose_run(run or "")
    if isinstance(place, Path):
        result = _export(place, chosen, quantize)
        return result if register_as is None else _register(result, place, register_as, alias)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "export"
        result = replace(_export(folder, chosen, quantize), folder=place)
        _send(folder, place)
        return result if register_as is None else _register(result, folder, register_as, alias)


def _best(search: str | None, storage: str, *, needed: bool) -> Chosen:
    """What is chosen of a search, with its run in MLflow. needed: raise InputError where there is none."""
    name = named(search, storage)
    chosen = choose(name, storage)
    try:
        return replace(chosen, run_id=find_trial_run(chosen.identity, chosen.number))
    except InputError as error:
        bring = command("sync", name, storage)
        if needed:
            raise InputError(
                f"--register needs the run of {chosen.name!r}, and {error}; bring it there with {bring}"
            ) from error
        print(
            f"warning: the model card names no run of {chosen.name!r}: {error}; when it answers, {bring} "
            f"brings it there",
            file=sys.stderr,
        )
        return chosen


def _export(out: Path, chosen: Chosen, quantize: str | None) -> ExportResult:
    """Write the files of an export to `out`, all or none."""
    content = checkpoint.read(chosen.checkpoint, torch.device("cpu"))
    config = TrialConfig.from_json(content["config"])
    check_source(config, chosen.checkpoint)
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
            f"checkpoint {chosen.checkpoint} does not fit the model of its configuration; have the classes "
            f"of its data changed since? ({reason})"
        ) from error
    model.eval()
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        with capture_library_logs(unfinished / "log.txt"):
            result = _write(unfinished, task, model, chosen, out, quantize)
        (unfinished / "log.txt").unlink(missing_ok=True)
        _open_up(unfinished)
        if out.exists():
            shutil.rmtree(out)
        unfinished.rename(out)
    except InputError:
        raise
    except Exception as error:
        if _is_full(error, unfinished):
            weights = sum(value.nbytes for value in model.state_dict().values())
            why = disk_full(out.parent, COPIES * weights)
            raise InputError(f"--out {out} cannot be written: {why}; make room, or name another") from error
        if isinstance(error, OSError):
            raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return result


def _is_full(error: BaseException, folder: Path) -> bool:
    """Whether it is for want of room, which what writes the weights does not always say."""
    reason = os.strerror(errno.ENOSPC) in str(error)
    return no_room(error) is not None or reason or (folder.exists() and free(folder) < LEAST)


def _open_up(folder: Path) -> None:
    """Let whoever may read the folder read all in it: some libraries write for the owner alone."""
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _place(out: str | Path) -> Path | Storage:
    """Where the export goes, if it may."""
    if not is_address(str(out)):
        return _folder(out)
    there = Storage(str(out))
    if there.local is not None:
        return _folder(there.local)
    _check_store(there)
    return there


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
    chosen = result.chosen
    assert chosen.run_id is not None, "check_registry was called, and the run was found"
    test = {f"test_{key}": f"{value:.4f}" for key, value in result.test.items()}
    shown = ", ".join(f"{key} {value:.4f}" for key, value in result.test.items())
    with tempfile.TemporaryDirectory() as scratch, capture_library_logs(Path(scratch) / "log.txt"):
        try:
            registered = register(
                folder / MLFLOW,
                chosen.run_id,
                name,
                alias,
                description=f"{chosen.choice}. Test split: {shown}.",
                tags={VERDICT: chosen.verdict or "not confirmed on fresh seeds", **test},
            )
        except InputError as error:
            raise InputError(f"{error}. The model is in {result.folder} all the same.") from error
    return replace(result, registered=registered)


def _write(
    folder: Path, task: Task, model: nn.Module, chosen: Chosen, out: Path, quantize: str | None
) -> ExportResult:
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)
    metadata = {
        "format": 1,
        "run_id": chosen.run_id,
        "labels": task.labels,
        "config": task.config.to_json(),
    }
    (folder / CONFIG).write_text(json.dumps(metadata, indent=2))
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
    _name_batch(folder / ONNX)
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
        chosen=chosen,
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
        chosen=chosen,
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


def _name_batch(file: Path) -> None:
    """Call the batch's dimension `N` in the model's input and output: PyTorch makes up a name for it."""
    import onnx

    model = onnx.load(file)
    made_up = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == made_up:
                dimension.dim_param = BATCH_AXIS
    onnx.save(model, file)


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
