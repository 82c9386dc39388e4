"""Check what was exported: parity with the trained model, scores of a whole split, and speed."""

import platform
import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from automl.base.errors import InputError
from automl.base.terminal import tell
from automl.config.device import processor
from automl.export.formats import MLFLOW_MODEL, Form, forms_of
from automl.task import Task
from automl.task.checks import ADVICE, RANDOM
from automl.task.deployment import Arrays, Deployment, Run, as_arrays, count_rows, iterate_batches
from automl.task.task_data import Split
from automl.training.clock import time_rounds, wall_seconds
from search.class_statistics import ScoreCard

BATCH = 32  # batch size of the throughput measurement
ROUNDS = 60  # maximum number of timings


def check_parity(
    folder: Path,
    task: Task,
    deployments: Mapping[str, Deployment],
    inputs: Mapping[str, Arrays],
    served: Mapping[str, Any],
    expected: Mapping[str, Arrays],
) -> Mapping[str, float]:
    """Return the maximum difference of each form's outputs from the `expected` ones, over all graphs.

    Args:
        inputs: Raw inputs of each graph.
        served: The same inputs in the form that `mlflow-model` takes.

    Raises:
        RuntimeError: A difference exceeds the task's tolerance.
        InputError: It does because the model is random.
    """
    differences: dict[str, float] = {}
    for graph, deployment in deployments.items():
        for name, run in _forms(folder, graph, deployment, inputs[graph], served[graph]).items():
            tell(f"comparing {name} with the trained model ...")
            difference = task.compare(expected[graph], run())
            if not difference <= task.tolerance:
                _check_repeats(task, deployment, inputs[graph])
                raise _difference_error(task, name, difference, f"{count_rows(inputs[graph])} inputs")
            differences[name] = max(difference, differences.get(name, 0.0))
    return differences


def check_together(task: Task, model: nn.Module, runs: Mapping[str, Run]) -> Mapping[str, float]:
    """Return the differences of the task's checks of all ONNX graphs together.

    Raises:
        RuntimeError: A difference exceeds the task's tolerance.
    """
    differences = task.compare_together(model, runs)
    for name, difference in differences.items():
        if not difference <= task.tolerance:
            raise _difference_error(task, name, difference, "test inputs")
    return differences


def _difference_error(task: Task, name: str, difference: float, where: str) -> RuntimeError:
    return RuntimeError(
        f"{name} differs from the trained model by {difference:.2g}, more than {task.tolerance:g}, on "
        f"{where}; nothing was exported"
    )


def _check_repeats(task: Task, deployment: Deployment, inputs: Arrays) -> None:
    """Raise InputError if the outputs of the model for the same inputs differ."""
    tensors = {name: torch.from_numpy(value).to(task.runtime.device) for name, value in inputs.items()}
    difference = task.compare(deployment.run(tensors), deployment.run(tensors))
    if not difference <= task.tolerance:
        raise InputError(
            f"the model {RANDOM}: two passes over the same {count_rows(inputs)} inputs differ by "
            f"{difference:.2g}; nothing was exported. {ADVICE}"
        )


def _forms(
    folder: Path, graph: str, deployment: Deployment, inputs: Arrays, served: Any
) -> dict[str, Callable[[], Arrays]]:
    """Return the outputs of each exported form of a graph that was written, read back from its file."""
    import mlflow.pyfunc

    def mlflow_model() -> Arrays:
        with TemporaryDirectory() as scratch:
            model = folder.resolve() / MLFLOW_MODEL
            if {*"#?%"} & {*str(model)}:  # MLflow would read them as parts of an address
                model = Path(shutil.copytree(model, Path(scratch) / MLFLOW_MODEL))
            outputs_of_form = mlflow.pyfunc.load_model(str(model)).predict(served)
        return {name: np.asarray(outputs_of_form[name]) for name in deployment.outputs}

    def run(file: str, form: Form) -> Arrays:
        return form.open(folder / file, deployment)(inputs)

    forms: dict[str, Callable[[], Arrays]] = {
        file: partial(run, file, form) for file, form in reversed(forms_of(graph).items())
    }
    forms[MLFLOW_MODEL] = mlflow_model
    return {file: run for file, run in forms.items() if (folder / file).exists()}


def score_card(task: Task, deployment: Deployment, split: Split, run: Run) -> ScoreCard | None:
    """Return the score card of a model on a whole split, or None if its answers are not labels."""
    if not deployment.labels:
        return None
    first = deployment.outputs[0]
    true: list[np.ndarray] = []
    answered: list[np.ndarray] = []
    for inputs, labels in task.labelled_inputs(split):
        true.append(labels.cpu().numpy())
        answered.append(run(as_arrays(inputs))[first].argmax(axis=-1))
    if not true:
        return None
    return ScoreCard.of(deployment.labels, np.concatenate(true), np.concatenate(answered))


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a model. Values are medians.

    Attributes:
        latency: Latency of one input [ms].
        throughput: Inputs per second, in batches of `batch`.
        batch: Batch size of the throughput.
    """

    latency: float
    throughput: float
    batch: int


def measure_speed(run: Run, inputs: Arrays) -> Speed:
    """Measure the speed of a model on up to BATCH of the raw `inputs`."""
    batch, example = next(iterate_batches(inputs, BATCH)), next(iterate_batches(inputs, 1))
    return Speed(
        latency=1e3 * _median_seconds(run, example),
        throughput=count_rows(batch) / _median_seconds(run, batch),
        batch=count_rows(batch),
    )


def _median_seconds(run: Run, inputs: Arrays) -> float:
    rounds = time_rounds([partial(wall_seconds, partial(run, inputs))], ROUNDS)
    return statistics.median(seconds for (seconds,) in rounds)


def machine() -> str:
    """Return the hardware of the measurement."""
    threads = torch.get_num_threads()
    return (
        f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, onnxruntime {version('onnxruntime')}"
    )
