"""UCI HAR: accelerometer and gyroscope of a phone at the waist of 30 people in 6 activities.

10,299 windows of 2.56 s at 50 Hz, nine signals of 128 steps. Windows overlap by half, so those of one person
must not be on both sides of a split. The published test split has 9 people, the training split 21 others. The
folder `UCI HAR Dataset` has one text file per signal and split, with one line per window:

    activity_labels.txt                                   1 WALKING
    train/y_train.txt, train/subject_train.txt            number of an activity, of a person
    train/Inertial Signals/body_acc_x_train.txt, ...      128 numbers

Source: Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN
2013; https://archive.ics.uci.edu/dataset/240 (CC BY 4.0)
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.data.archive import extract_cached
from automl.data.download import read_datasets
from automl.tasks.sequence_classification.data.reading import (
    NotANumber,
    Recording,
    SplitSequences,
    make_recording,
    parse_numbers,
    quote,
    read_text,
)

FOLDER = "UCI HAR Dataset"
INNER = f"{FOLDER}.zip"  # in the published archive
LABELS = "activity_labels.txt"
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
PUBLISHED_SPLITS = ("train", "test")


def find_files(path: Path) -> tuple[Path, ...] | None:
    """Return the dataset's files in `path`, or in what it contains. Raises InputError if one is missing."""
    if not path.is_dir():
        return None
    if (path / INNER).is_file() and not (path / FOLDER).exists():
        path = extract_cached(path / INNER)
    if (path / FOLDER).is_dir():
        path = path / FOLDER
    if not any((path / split / "Inertial Signals").is_dir() for split in PUBLISHED_SPLITS):
        return None
    files = tuple(path / name for name in _list_names())
    if lacking := [file for file in files if not file.is_file()]:
        raise InputError(
            f"{lacking[0]} is missing ({pluralize(len(lacking), 'files')} in all); fetch UCI HAR again"
        )
    return files


def _list_names() -> list[str]:
    names = [LABELS]
    for split in PUBLISHED_SPLITS:
        names += [f"{split}/y_{split}.txt", f"{split}/subject_{split}.txt"]
        names += [f"{split}/Inertial Signals/{signal}_{split}.txt" for signal in SIGNALS]
    return names


def read_recording(files: Sequence[Path]) -> Recording:
    """Read the dataset of the files that `find_files` returned. Raises InputError with file and line."""
    named = dict(zip(_list_names(), files, strict=True))
    activities: dict[str, str] = {}  # names by number, as written, in the order of the file
    for i, line in enumerate(_read_lines(named[LABELS])):
        number, _, name = line.partition(" ")
        if not name or number in activities:
            where = f"{named[LABELS]}:{i + 1}"
            raise InputError(f"{where}: a line must be a new number and a name, not {quote(line)}")
        activities[number] = name.strip()
    recordings: dict[str, SplitSequences] = {}
    steps = None
    for split in PUBLISHED_SPLITS:
        file, subjects = named[f"{split}/y_{split}.txt"], named[f"{split}/subject_{split}.txt"]
        numbered = _read_lines(file)
        for i, label in enumerate(numbered):
            if label not in activities:
                raise InputError(
                    f"{file}:{i + 1}: {quote(label)} must be a number in {LABELS}: {', '.join(activities)}"
                )
        signals = []
        for signal in SIGNALS:
            values = _read_signal(
                named[f"{split}/Inertial Signals/{signal}_{split}.txt"], len(numbered), file, steps
            )
            steps = values.shape[1]
            signals.append(values)
        recordings[split] = _make_split(split, signals, [activities[label] for label in numbered], subjects)
    return make_recording(SIGNALS, activities.values(), recordings)


def _make_split(split: str, signals: list[np.ndarray], labels: list[str], subjects: Path) -> SplitSequences:
    people = _read_lines(subjects)
    if len(people) != len(labels):
        raise InputError(
            f"{subjects} has {len(people)} lines and y_{split}.txt has {len(labels)}; fetch UCI HAR again"
        )
    signals_of = subjects.parent / "Inertial Signals" / f"*_{split}.txt"
    return SplitSequences(
        values=list(np.stack(signals, axis=1)),  # (N, 9, 128)
        labels=labels,
        names=[f"{split}/{i}" for i in range(len(labels))],
        locate=lambda i: f"{signals_of}:{i + 1}",
        subjects=people,
    )


def _read_lines(file: Path) -> list[str]:
    return [line.strip() for line in read_text(file).rstrip().split("\n")]


def _read_signal(file: Path, windows: int, labels: Path, steps: int | None) -> np.ndarray:
    """Read a signal, float32 `(windows, steps)`. `steps` is that of the signals before, if any."""
    lines = _read_lines(file)
    if len(lines) != windows:
        raise InputError(
            f"{file} has {len(lines)} windows and {labels.name} has {windows}; fetch UCI HAR again"
        )
    try:
        flat, counts = parse_numbers(lines)
    except NotANumber as error:
        raise InputError(f"{file}:{error.index + 1}: {error}") from None
    steps = int(counts[0]) if steps is None else steps
    for row in np.flatnonzero(counts != steps)[:1]:
        raise InputError(f"{file}:{row + 1}: the window has {counts[row]} values; others have {steps}")
    return flat.reshape(windows, steps)


DATASETS = read_datasets(__file__)
