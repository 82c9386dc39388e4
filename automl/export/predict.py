"""Predictions of an exported model for files. Needs the exported folder and onnxruntime, not the dataset."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention import InputError
from automl.export.onnx_session import open_onnx
from automl.tasks import Task, task_of
from automl.tasks.deployment import Arrays, Run
from search.config import TrialConfig

BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """What the model says of one input.

    input: its file, or what else the task calls it. text: for people, in a line. values: for programs, of
    JSON's types; of a classifier `label`, `probability` and `probabilities`.
    """

    input: str
    text: str
    values: dict[str, Any]

    def top(self, count: int) -> str:
        """The `count` most probable labels in a line; `text` where it has none."""
        known = self.values.get("probabilities", {})
        best = sorted(known, key=known.__getitem__, reverse=True)[:count]
        return ", ".join(f"{label} ({known[label]:.1%})" for label in best) or self.text


@dataclass(frozen=True)
class Predictions:
    """unread: why a file gave no input, by its name."""

    predictions: list[Prediction]
    unread: dict[str, str]


def run_predict(folder: str | Path, files: Sequence[str | Path]) -> Predictions:
    """What the model that `automl export` left in `folder` says of the inputs in `files`.

    A folder among these stands for the files in it and below that the model's task reads.

    Raises InputError when the folder holds no export, when there is no file, and when none can be read.
    """
    exported, task, run = _open(Path(folder))
    found = [one for file in files for one in _files(Path(file), task)]
    if not found:
        raise InputError(
            f"name at least one file of {task.noun}, or a folder of such: {', '.join(sorted(task.suffixes))}"
        )
    unread: dict[str, str] = {}
    predictions = []
    for names, inputs in _batches(_read(found, task, exported, unread)):
        outputs = run(inputs)
        for i, name in enumerate(names):
            text, values = task.describe(exported, {key: value[i] for key, value in outputs.items()})
            predictions.append(Prediction(input=name, text=text, values=values))
    if not predictions and unread:
        raise InputError(next(iter(unread.values())))
    return Predictions(predictions, unread)


def _files(path: Path, task: type[Task]) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in task.suffixes and file.is_file())


def _read(
    files: Sequence[Path], task: type[Task], exported: dict[str, Any], unread: dict[str, str]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for file in files:
        try:
            yield from task.read_inputs(exported, [file])
        except InputError as error:
            unread[str(file)] = str(error)


def _open(folder: Path) -> tuple[dict[str, Any], type[Task], Run]:
    try:
        exported = json.loads((folder / "config.json").read_text())
        config, _, _ = TrialConfig.from_json(exported["config"]), exported["labels"], exported["inputs"]
        run = open_onnx(folder / "model.onnx")
    except Exception as error:  # onnxruntime has a different error for each kind of damage
        raise InputError(
            f"{folder} holds no exported model; make one with `automl export`. ({error})"
        ) from error
    return exported, task_of(config), run


def _batches(inputs: Iterator[tuple[str, dict[str, np.ndarray]]]) -> Iterator[tuple[list[str], Arrays]]:
    """Inputs that follow each other and are of the same shapes, together."""
    names: list[str] = []
    parts: list[dict[str, np.ndarray]] = []
    for name, arrays in inputs:
        if parts and (len(parts) == BATCH or _shapes(arrays) != _shapes(parts[0])):
            yield names, _together(parts)
            names, parts = [], []
        names.append(name)
        parts.append(arrays)
    if parts:
        yield names, _together(parts)


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arrays.items()}


def _together(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
