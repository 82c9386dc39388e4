"""A trained trial as files that work where this project is not installed, each checked against the model."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attention import InputError
from automl import checkpoint
from automl.logs import chatter_to
from automl.model_card import model_card
from automl.runtime import Runtime
from automl.tasks import Task, open_task
from automl.tracking import TrackedRun, find_best, find_run
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
MLFLOW = "mlflow-model"


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported model.

    folder: holds model.onnx, model.pt2, model.safetensors, config.json, MODEL_CARD.md and mlflow-model.
    differences: largest absolute difference from the trained model's output, for each exported form.
    test: the task's metrics on the test split.
    """

    folder: Path
    run_id: str
    differences: dict[str, float]
    test: dict[str, float]


def run_export(
    out: str | Path, *, best: bool = False, search: str | None = None, run: str | None = None
) -> ExportResult:
    """Export the best trial of a search, or the trial of one MLflow run, to the folder `out`.

    best: the best of `search`, or of the latest search.
    run: an MLflow run's id instead.

    Raises InputError for a run without a readable checkpoint or a folder that holds something else, and
    RuntimeError when an exported form differs from the model by more than 1e-4. `out` appears only when
    everything has been written and checked; an earlier export there is replaced.
    """
    if best == (run is not None):
        raise InputError("say what to export: either --best [--search NAME] or --run ID")
    out = Path(out).expanduser().resolve()
    if out.exists() and not _replaceable(out):
        raise InputError(f"--out {out} holds something else; name a new folder")
    tracked = find_best(search) if best else find_run(run or "")
    content = checkpoint.read(tracked.checkpoint, torch.device("cpu"))
    task = open_task(
        TrialConfig.from_json(content["config"]), Runtime(device=torch.device("cpu"), precision="fp32")
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
            result = _write(unfinished, task, model, tracked, out)
        (unfinished / "log.txt").unlink(missing_ok=True)
        if out.exists():
            shutil.rmtree(out)
        unfinished.rename(out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return result


def _replaceable(folder: Path) -> bool:
    """Whether `folder` is empty or what `run_export` leaves, with nothing of anybody else's in it."""
    held = {file.name for file in folder.iterdir()} if folder.is_dir() else {""}
    return not held or {CONFIG, ONNX} <= held <= {ONNX, PT2, WEIGHTS, CONFIG, CARD, MLFLOW}


def _write(folder: Path, task: Task, model: nn.Module, tracked: TrackedRun, out: Path) -> ExportResult:
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
        name: float(np.abs(run(inputs) - expected).max()) for name, run in _runtimes(folder).items()
    }
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise RuntimeError(
                f"{name} differs from the trained model by {difference:.2g}, more than {TOLERANCE:g}, on "
                f"{len(inputs)} test inputs; nothing was exported"
            )
    (folder / CARD).write_text(
        model_card(task, run_id=tracked.run_id, name=tracked.name, test=test, differences=differences)
    )
    return ExportResult(folder=out, run_id=tracked.run_id, differences=differences, test=test)


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


def _runtimes(folder: Path) -> dict[str, Callable[[Tensor], np.ndarray]]:
    """Each exported form, read back from its file, as a function of raw inputs."""
    import mlflow.pyfunc
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
    program = torch.export.load(folder / PT2).module()
    served = mlflow.pyfunc.load_model(str(folder / MLFLOW))

    def torch_export(inputs: Tensor) -> np.ndarray:
        with torch.inference_mode():
            output: Any = program(inputs)
        return np.asarray(output)

    return {
        ONNX: lambda inputs: np.asarray(session.run(None, {"images": inputs.numpy()})[0]),
        PT2: torch_export,
        MLFLOW: lambda inputs: np.asarray(served.predict({"images": inputs.numpy()})["probabilities"]),
    }
