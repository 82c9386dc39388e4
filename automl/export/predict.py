"""Predictions of an exported model for files. Needs the exported folder and onnxruntime, not the dataset."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from automl.base import loading
from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.base.terminal import tell
from automl.base.text import NotUtf8, is_special, read_text
from automl.data.files import walk
from automl.export.formats import CONFIG, ONNX, onnx_file, open_onnx
from automl.export.served_decoder import TextDecoder
from automl.storage.user_code import announce
from automl.task import Task, task_of
from automl.task.deployment import MODEL, TOKENIZER, Arrays
from search.config import TrialConfig

BATCH = 32

tokenizers = optional("tokenizers", "text")


@dataclass(frozen=True)
class Prediction:
    """Prediction for one input.

    Attributes:
        input: The file of the input, or another name that the task gives it.
        text: The prediction in one line.
        values: The prediction for JSON. A classifier has `label`, `probability` and `probabilities`.
        files: The written files.

    Example:
        After the example of `run_predict`:

        >>> prediction = predicted.predictions[0]
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
    """Predictions of a model.

    Attributes:
        predictions: The prediction for each input.
        unread: The error message of each file that could not be read.

    Example:
        After the example of `run_predict`:

        >>> predicted.unread
        {}
    """

    predictions: list[Prediction]
    unread: dict[str, str]


class Exported(Protocol):
    """Result of an export."""

    @property
    def folder(self) -> Path:
        """Path of the files."""


def exported_folder(exported: str | Path | Exported) -> Path:
    """Return the folder of an exported model."""
    return Path(exported if isinstance(exported, str | Path) else exported.folder)


def run_predict(
    exported: str | Path | Exported,
    files: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    trust: bool = False,
) -> Predictions:
    """Run an exported model on files, or continue texts with a language model.

    Args:
        exported: The folder of an exported model, or the result of `run_export`.
        files: Files and folders. In and below a folder, all files that the task reads are used. For a
            language model, texts to continue, or files of text; for one of recall, symbols separated by
            spaces.
        out: A folder for predictions that are files, such as images. They get the names of the inputs.
        tokens: The number of tokens to add to each text. Default: 64, or one symbol of recall.
        temperature: Divides the logits before tokens are drawn. Default: 0, the most probable token.
        seed: The seed of the draws. Default: 0.
        trust: Allow running the code of a user-defined task, to read files and describe predictions. Without
            it, inputs must be NPZ files with an array for each input of the model.

    Returns:
        A prediction for each input. For a language model its `text` is the continuation, and its `values`
        are `continuation`, `tokens` and `log_probabilities`.

    Raises:
        InputError: The folder has no exported model, there is no file, no file can be read, or the
            predictions cannot be written. Or an option does not fit the model, or no text can be continued.

    Example:
        >>> import automl
        >>> predicted = automl.run_predict("exports/example", ["seven.png"])
        >>> [prediction.input for prediction in predicted.predictions]
        ['seven.png']
    """
    if temperature is not None and not 0 <= temperature < inf:
        raise InputError(f"--temperature must be 0 or a positive number; got {temperature}")
    folder = exported_folder(exported)
    about = read_exported(folder)
    options = {"tokens": tokens, "temperature": temperature, "seed": seed}
    if about.get("kind") == "decoder":
        if out is not None:
            raise InputError("a language model writes no files; leave out --out")
        options = {name: value for name, value in options.items() if value is not None}
        return _continue(folder, about, [str(text) for text in files], options)
    if wrong := [f"--{name}" for name, value in options.items() if value is not None]:
        raise InputError(
            f"{', '.join(wrong)} is for language models; the model in {folder} is for "
            f"{about['config']['task']}"
        )
    return _predict_files(folder, about, files, out, trust)


def _predict_files(
    folder: Path, about: dict[str, Any], files: Sequence[str | Path], out: str | Path | None, trust: bool
) -> Predictions:
    check_written(folder, about, ONNX)
    if MODEL not in about["graphs"]:
        raise InputError(f"the model in {folder} searches code; add a folder of code with --corpus FOLDER")
    try:
        run = open_onnx(folder / ONNX)
    except Exception as error:  # onnxruntime has a different error for each kind of damage
        raise no_export(folder, error) from error
    task = input_reader(about, f"predicting with {folder}", trust)
    examples = [example for file in files for example in list_inputs(Path(file), task)]
    if not examples:
        raise InputError(
            f"give at least one file of {task.noun}, or a folder: {', '.join(sorted(task.suffixes))}"
        )
    unread: dict[str, str] = {}
    predictions = []
    used: Counter[str] = Counter()
    for names, inputs in _batches(_read(examples, task, about, unread)):
        try:
            outputs = run(inputs)
            answers = [{key: value[i] for key, value in outputs.items()} for i in range(len(names))]
            described = [task.describe(about, answer) for answer in answers]
        except InputError:
            raise
        except Exception as error:  # onnxruntime and tasks raise various errors
            raise InputError(f"the model in {folder} does not fit its {CONFIG} ({error})") from error
        for name, answer, (text, values) in zip(names, answers, described, strict=True):
            written = [] if out is None else _write(task, about, name, answer, Path(out), used)
            predictions.append(Prediction(input=name, text=text, values=values, files=written))
    if not predictions and unread:
        raise InputError(next(iter(unread.values())))
    return Predictions(predictions, unread)


def _continue(
    folder: Path, exported: Mapping[str, Any], texts: Sequence[str], options: Mapping[str, Any]
) -> Predictions:
    if not texts:
        raise InputError("give at least one text to continue")
    for name in exported["graphs"]:
        check_written(folder, exported, onnx_file(name))
    try:
        runs = {name: open_onnx(folder / onnx_file(name)) for name in exported["graphs"]}
        file = folder / TOKENIZER
        tokenizer = tokenizers.Tokenizer.from_file(str(file)) if file.exists() else None
        decoder = TextDecoder(exported["graphs"], runs, tokenizer)
    except InputError:
        raise
    except Exception as error:  # onnxruntime and tokenizers have an error for each kind of damage
        raise no_export(folder, error) from error
    predictions, unread = [], {}
    for text in texts:
        try:
            answer = decoder.continue_text(_prompt(text), **options)
        except ValueError as error:
            unread[text] = str(error)
        except Exception as error:
            raise InputError(f"the model in {folder} does not fit its {CONFIG} ({error})") from error
        else:
            predictions.append(Prediction(input=text, text=answer.continuation, values=answer._asdict()))
    if not predictions:
        raise InputError(next(iter(unread.values())))
    return Predictions(predictions, unread)


def _prompt(text: str) -> str:
    """Return the content of a file of text, or the text itself. Raise ValueError if it cannot be read."""
    if not os.path.isfile(text):
        return text
    try:
        return read_text(Path(text))
    except (OSError, NotUtf8) as error:
        raise ValueError(f"{text} cannot be read as a file of UTF-8 text: {error}") from error


def _write(
    task: type[Task], exported: dict[str, Any], name: str, outputs: Arrays, folder: Path, used: Counter[str]
) -> list[Path]:
    """Write the files of a prediction. `used` counts each name, to number duplicates."""
    stem = Path(name).stem
    used[stem] += 1
    number = f"-{used[stem]}" if used[stem] > 1 else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return task.write(exported, name, outputs, folder / f"{stem}{number}")
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror or error})") from error


def list_inputs(path: Path, task: type[Task]) -> list[Path]:
    """Return a file, or the inputs in and below a folder."""
    if is_special(path):
        raise InputError(f"{path} is a pipe or a device; give a file or a folder")
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
    except Exception as error:  # the file may have any content
        raise no_export(folder, error) from error


def check_written(folder: Path, exported: Mapping[str, Any], file: str) -> None:
    """Raise InputError if the export left out a file that predictions need."""
    if reason := exported.get("left_out", {}).get(file):
        raise InputError(f"{folder} has no {file}, which predictions need; its export left it out: {reason}")


def no_export(folder: Path, error: Exception) -> InputError:
    """Return the error of a folder without an exported model."""
    return InputError(f"{folder} has no exported model; create one with `automl export`. ({error})")


def input_reader(exported: Mapping[str, Any], what: str, trust: bool) -> type[Task]:
    """Return the task that reads the inputs of an exported model.

    Without `trust`, a user-defined one is not loaded, and inputs are NPZ files. `what` is about to be done.
    """
    config = TrialConfig.from_json(exported["config"])
    if not loading.is_user_defined(config.task) or loading.get_loaded_object(config.task) is not None:
        return task_of(config)  # no user-defined code runs here
    if trust:
        announce(what, [config.task])
        return task_of(config)
    tell(
        f"the user-defined task {config.task!r} of the model was not loaded, so inputs are read as NPZ "
        f"files. If you trust its author, add --trust"
    )
    return Task


def _batches(inputs: Iterator[tuple[str, dict[str, np.ndarray]]]) -> Iterator[tuple[list[str], Arrays]]:
    """Group consecutive inputs of the same shapes."""
    names: list[str] = []
    parts: list[dict[str, np.ndarray]] = []
    for name, arrays in inputs:
        shapes = {name: value.shape for name, value in arrays.items()}
        if parts and (len(parts) == BATCH or shapes != {name: v.shape for name, v in parts[0].items()}):
            yield names, _together(parts)
            names, parts = [], []
        names.append(name)
        parts.append(arrays)
    if parts:
        yield names, _together(parts)


def _together(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
