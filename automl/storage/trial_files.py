"""Small files of arrays, such as a trial's predictions for a split, and its progress within a long epoch.

The predictions of ten thousand inputs take about 20 KB, so the files of all trainings of a confirmation are
kept.
"""

import io
import json
import logging
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from automl.base.lazy import numpy as np
from automl.base.serialise import read_json
from automl.config.nouns import format_cost
from automl.storage.storage import Storage
from search.config import TrialConfig
from search.metric import Metric
from search.record import Role, State, TrialRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from search.class_statistics import ScoreCard

ANSWERS_FILE = "answers.npz"
ORIGINAL_NUMBER = -1  # in place of the number of a trial
ORIGINAL_FILE = "original.json"  # in the folder of a search or of a confirmation
COSTS = {"params": "parameters", "memory": "memory", "cache": "cache", "latency": "latency"}  # the nouns
LEFT_FILE = "left.json"  # names of files that the run of a command left in the command's folder

log = logging.getLogger("automl")
T = TypeVar("T")


def write_arrays(folder: Storage, name: str, about: Any, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays and a value of JSON to a compressed file. Raise OSError if that fails."""
    buffer = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), **named)
    folder.write(name, buffer.getvalue())


def read_arrays(
    folder: Storage, name: str, build: "Callable[[Any, Mapping[str, NDArray[Any]]], T]"
) -> T | None:
    """Read a file of `write_arrays`. Return None if it is missing or damaged.

    `build` makes the result of the value and the arrays.
    """
    try:
        with np.load(io.BytesIO(folder.read(name))) as file:
            return build(json.loads(file["about"].item()), file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s of %s cannot be read: %s", name, folder, error)
        return None


@dataclass(frozen=True, kw_only=True)
class Original:
    """The trained model that a search starts from, untouched.

    Attributes:
        scores: Its metrics on the validation split, or in a confirmation on the test split. Empty if its head
            is new.
        costs: Its costs, as in the profile of a trial. Empty if a training step does not fit into memory.
        device: The name of the device that measured them.
        decoding: Of decoders, by the name of a variant: contexts [tokens] with the time of one more token
            [ms], of the variant and of the original.
    """

    scores: Mapping[str, float]
    costs: Mapping[str, float]
    device: str
    decoding: Mapping[str, Sequence[tuple[int, float, float]]] = field(default_factory=dict)


def read_original(folder: Path) -> Original | None:
    """Return the original in the folder of a search or of a confirmation, or None without one."""
    file = folder / ORIGINAL_FILE
    return read_json(Original, file) if file.exists() else None


def original_records(folder: Path, config: TrialConfig) -> list[TrialRecord]:
    """Return the original of trials like `config` as a record, in a list that is empty without one."""
    if (original := read_original(folder)) is None:
        return []
    return [
        TrialRecord(
            ORIGINAL_NUMBER,
            config.change(model={"placement": {}}),
            role=Role.ORIGINAL,
            state=State.COMPLETE,
            history=[{"epoch": 0, **original.scores}] if original.scores else [],
            profile=dict(original.costs),
            variant=Role.ORIGINAL,
            device=original.device,
        )
    ]


def describe_original(folder: Path, metric: Metric, trial: TrialRecord | None = None) -> str:
    """Return score and costs of the original in a folder, and what a trial saves. Empty without one."""
    if (original := read_original(folder)) is None:
        return ""
    score, costs = original.scores.get(metric.name), {k: cost for k, cost in original.costs.items() if cost}
    words = ["no score, as its head is new" if score is None else f"{metric.name} {metric.show(score)}"]
    for name, noun in COSTS.items():
        if (cost := costs.get(name)) is not None:
            words.append(f"{format_cost(name, cost)} {noun if name == 'params' else f'of {noun}'}")
    if trial is None or not trial.profile or not costs:
        return ", ".join(words)
    changes = {name: 100 * (trial.profile.get(name, 0) / costs[name] - 1) for name in COSTS if name in costs}
    # A trial timed both in turn. Latencies of equal models differ by up to 5 % beside other processes.
    latency = 100 * (trial.profile.get("latency_ratio", 1.0) - 1)
    changes["latency"] = latency if abs(latency) > 5 else 0.0
    saved = [f"{COSTS[name]} {change:+.0f} %" for name, change in changes.items() if abs(change) >= 0.5]
    name = trial_name(trial)
    saved += [
        f"{own:.3g} instead of {theirs:.3g} ms a token after {context:,}"
        for context, own, theirs in original.decoding.get(name, ())
    ]
    return f"{', '.join(words)}; {name}: {', '.join(saved) or 'the same costs'}"


def trial_name(trial: TrialRecord) -> str:
    """Return the name of what a trial trains: a variant, or the trial with its number."""
    return trial.variant or f"trial {trial.number}"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Predictions of a model for a split, in its order.

    Attributes:
        values: Contribution of each input to the primary metric, float `(N,)`. They are jackknife
            pseudo-values: for an accuracy, 1 if the prediction is right and otherwise 0. For a retrieval,
            they are reciprocal ranks.
        labels: Names of the classes. Empty for tasks without classes, as are the next two.
        true: Index of the true label of each input, int64 `(N,)`.
        answered: Index of the predicted label of each input, int64 `(N,)`.
    """

    values: "NDArray[np.float64]"
    labels: Sequence[str] = ()
    true: "NDArray[np.int64]" = field(default_factory=lambda: np.zeros(0, np.int64))
    answered: "NDArray[np.int64]" = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def card(self) -> "ScoreCard":
        """Score card of the classes. It is empty without classes."""
        from search.class_statistics import ScoreCard  # it imports numpy

        return ScoreCard.of(self.labels, self.true, self.answered)

    def save(self, folder: Storage) -> None:
        """Write the predictions to a folder. Raise OSError if that fails."""
        smallest = np.min_scalar_type(max(1, len(self.labels)))
        arrays = {
            "true": self.true.astype(smallest),
            "answered": self.answered.astype(smallest),
            "values": self.values.astype(np.float32),
        }
        write_arrays(folder, ANSWERS_FILE, {"labels": list(self.labels)}, arrays)


def read_answers(folder: Storage) -> Answers | None:
    """Read the predictions of a training. Return None if the file is missing or damaged."""
    return read_arrays(
        folder,
        ANSWERS_FILE,
        lambda about, arrays: Answers(
            labels=about["labels"],
            true=arrays["true"].astype(np.int64),
            answered=arrays["answered"].astype(np.int64),
            values=arrays["values"].astype(np.float64),
        ),
    )


def read_left(folder: Storage) -> list[str]:
    """Read the names of files that a command left. Return none if the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        return [name for name in json.loads(folder.read(LEFT_FILE)) if isinstance(name, str)]
    return []


PROGRESS_FILE = "epoch.json"
PROGRESS_PERIOD = 10.0  # interval of writes [s]; shorter epochs write nothing


class EpochProgress:
    """Write the current step of a trial at intervals. As a context manager, delete the file at the end.

    Write errors are ignored, since checkpoints report them. Ranks above 0 have no folder, and write nothing.
    """

    def __init__(self, folder: Storage | None) -> None:
        self.folder = folder
        self.written = False
        self.last = time.monotonic()

    def __enter__(self) -> "EpochProgress":
        return self

    def __exit__(self, *error: object) -> None:
        if self.folder is not None and self.written:
            with suppress(OSError):
                self.folder.remove(PROGRESS_FILE)

    def __call__(self, epoch: int, step: int, steps: int) -> None:
        """Record step `step` of `steps` in epoch `epoch`, counted from 1."""
        now = time.monotonic()
        if self.folder is None or now - self.last < PROGRESS_PERIOD:
            return
        self.last = now
        with suppress(OSError):
            self.folder.write(
                PROGRESS_FILE, json.dumps({"epoch": epoch, "step": step, "steps": steps}).encode()
            )
            self.written = True


def read_part(folder: Storage, after: int) -> float | None:
    """Return the trained fraction of the epoch after `after`. Return None if it is unknown."""
    try:
        progress = json.loads(folder.read(PROGRESS_FILE))
        return float(progress["step"] / progress["steps"]) if progress["epoch"] > after else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
