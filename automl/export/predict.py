"""Predictions of an exported model for files. Needs the exported folder and onnxruntime, not the dataset."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attention import InputError
from automl.config.user_code import announce
from automl.data.walk import walk
from automl.export.formats import CONFIG, ONNX
from automl.export.onnx_session import open_onnx
from automl.tasks import Task, task_of
from automl.tasks.deployment import MODEL, Arrays, Run
from backbones import loading
from search.config import TrialConfig

BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """The answer of a model to one input.

    Attributes:
        input: The file of the input, or how else the task calls it.
        text: The answer in a line.
        values: The answer as values of JSON. Of a classifier `label`, `probability` and `probabilities`.
        files: The files that were written.

    Example:
        After the example of `run_predict`:

        >>> prediction = found.predictions[0]
        >>> prediction.text.startswith(prediction.values["label"])
        True
    """

    input: str
    text: str
    values: dict[str, Any]
    files: list[Path] = field(default_factory=list)

    def top(self, count: int) -> str:
        """Return the `count` most probable labels in a line, or `text` if there are no labels."""
        known = self.values.get("probabilities", {})
        best = sorted(known, key=known.__getitem__, reverse=True)[:count]
        return ", ".join(f"{label} ({known[label]:.1%})" for label in best) or self.text


@dataclass(frozen=True)
class Predictions:
    """The answers of a model.

    Attributes:
        predictions: The prediction for each input.
        unread: Why a file gave no input, by its name.

    Example:
        After the example of `run_predict`:

        >>> found.unread
        {}
    """

    predictions: list[Prediction]
    unread: dict[str, str]


class Exported(Protocol):
    """The result of an export."""

    @property
    def folder(self) -> object:
        """Return the address of the files: a path, or one in an object store."""


def exported_folder(exported: str | Path | Exported) -> Path:
    """Return the folder of an exported model, given by its path or by the result of `run_export`.

    Raises InputError for a model that is in an object store.
    """
    folder = exported if isinstance(exported, str | Path) else exported.folder
    if not isinstance(folder, str | Path):
        raise InputError(f"the model is in {folder}; copy that folder to this machine and name the copy")
    return Path(folder)


def run_predict(
    exported: str | Path | Exported,
    files: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    trust: bool = False,
) -> Predictions:
    """Run an exported model on files.

    Args:
        exported: The folder of an exported model, or the result of `run_export`.
        files: Files and folders. A folder stands for all files in and below it that the task reads.
        out: A folder for answers that are files, such as pictures. They get the names of the inputs.
        trust: Run the code of a user-defined task, which then reads the files and describes the answers.
            Without it, inputs are NPZ files with an array for each input of the model.

    Returns:
        A prediction for each input.

    Raises:
        InputError: The folder holds no export, there is no file, no file can be read, or the answers cannot
            be written.

    Example:
        >>> import automl
        >>> found = automl.run_predict("exports/example", ["seven.png"])
        >>> [prediction.input for prediction in found.predictions]
        ['seven.png']
    """
    folder = exported_folder(exported)
    config, task, run = _open(folder, trust)
    examples = [example for file in files for example in _files(Path(file), task)]
    if not examples:
        raise InputError(
            f"name at least one file of {task.noun}, or a folder of such: {', '.join(sorted(task.suffixes))}"
        )
    unread: dict[str, str] = {}
    predictions = []
    used: Counter[str] = Counter()
    for names, inputs in _batches(_read(examples, task, config, unread)):
        try:
            outputs = run(inputs)
            answers = [{key: value[i] for key, value in outputs.items()} for i in range(len(names))]
            described = [task.describe(config, answer) for answer in answers]
        except InputError:
            raise
        except Exception as error:  # whatever onnxruntime raises, or a task for answers that are not its own
            raise InputError(f"the model in {folder} does not fit its {CONFIG} ({error})") from error
        for name, mine, (text, values) in zip(names, answers, described, strict=True):
            written = [] if out is None else _write(task, config, name, mine, Path(out), used)
            predictions.append(Prediction(input=name, text=text, values=values, files=written))
    if not predictions and unread:
        raise InputError(next(iter(unread.values())))
    return Predictions(predictions, unread)


def _write(
    task: type[Task],
    exported: dict[str, Any],
    name: str,
    outputs: Arrays,
    folder: Path,
    used: Counter[str],
) -> list[Path]:
    """used: how often each name has come, which is counted on."""
    stem = Path(name).stem
    used[stem] += 1
    number = f"-{used[stem]}" if used[stem] > 1 else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return task.write(exported, name, outputs, folder / f"{stem}{number}")
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror or error})") from error


def _files(path: Path, task: type[Task]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = (folder / name for folder, _, names in walk(path) for name in names)
    return sorted(file for file in files if task.reads(file))


def _read(
    files: Sequence[Path], task: type[Task], exported: dict[str, Any], unread: dict[str, str]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for file in files:
        try:
            yield from task.read_inputs(exported, [file])
        except InputError as error:
            unread[str(file)] = str(error)


def read_exported(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of an export. Raise InputError if there is none."""
    try:
        exported: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        TrialConfig.from_json(exported["config"]), exported["labels"]
        return exported | dict(exported["graphs"].get(MODEL, {}))
    except Exception as error:  # of a file with anything in it
        raise no_export(folder, error) from error


def no_export(folder: Path, error: Exception) -> InputError:
    """Return the error of a folder without an exported model."""
    return InputError(f"{folder} holds no exported model; make one with `automl export`. ({error})")


def _open(folder: Path, trust: bool) -> tuple[dict[str, Any], type[Task], Run]:
    exported = read_exported(folder)
    if MODEL not in exported["graphs"]:
        raise InputError(f"the model in {folder} searches code; name a folder of it, --corpus FOLDER")
    try:
        run = open_onnx(folder / ONNX)
    except Exception as error:  # onnxruntime has a different error for each kind of damage
        raise no_export(folder, error) from error
    config = TrialConfig.from_json(exported["config"])
    if not loading.is_user_defined(config.task) or loading.get_loaded_object(config.task) is not None:
        return exported, task_of(config), run  # it is ours, or was loaded before, and runs nothing now
    if trust:
        announce(f"predicting with {folder}", [config.task])
        return exported, task_of(config), run
    print(
        f"the model's task, {config.task!r}, is user-defined and was not loaded: inputs are read as NPZ "
        f"files. If you trust its author, --trust loads it",
        file=sys.stderr,
    )
    return exported, Task, run


def _batches(inputs: Iterator[tuple[str, dict[str, np.ndarray]]]) -> Iterator[tuple[list[str], Arrays]]:
    """Group consecutive inputs of the same shapes."""
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
