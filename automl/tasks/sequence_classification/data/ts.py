"""`.ts` files, the format of the UEA and UCR archives, sktime and aeon: NAME_TRAIN.ts and NAME_TEST.ts.

A header of `@key value` lines, `@data`, then a line for each sequence: the values of a channel separated by
commas, the channels by colons, and the label last. A line that begins with `#` or `%` is a comment. `?` is a
missing value. Channels of one sequence have the same length. A header that contradicts the lines is refused,
except for `@missing`. Not supported: time stamps, and numbers to predict instead of a class (`@targetLabel`).

Source: https://www.sktime.net/en/stable/api_reference/file_specifications/ts.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.data.files import is_clutter
from automl.tasks.sequence_classification.data.reading import (
    NANS,
    NotANumber,
    Recording,
    SplitSequences,
    make_recording,
    parse_numbers,
    quote,
    read_text,
)

SUFFIX, TRAIN, TEST = ".ts", "_TRAIN", "_TEST"
MISSING = ("?", *NANS)
COMMENTS = ("#", "%")
TRUTH = {"true": True, "false": False}


def find_files(path: Path) -> tuple[Path, ...] | None:
    """Return the training file and, if it exists, the test file that `path` names; None if it names none.

    `path` is a folder with one dataset, one of the files, or a name without `_TRAIN.ts`. Raises InputError
    for a folder of several datasets, and for test data without training data.
    """
    if path.is_dir():
        trains = sorted(file for file in path.glob(f"*{TRAIN}{SUFFIX}") if not is_clutter(file.name))
        if len(trains) > 1:
            names = ", ".join(file.name.removesuffix(f"{TRAIN}{SUFFIX}") for file in trains[:20])
            raise InputError(f"{path} has {len(trains)} datasets; pass {path}/NAME. NAME is one of {names}")
        if not trains:
            return None
        path = trains[0]
    name = path.name.removesuffix(SUFFIX)
    if path.name.endswith(SUFFIX) and not name.endswith((TRAIN, TEST)):
        return (path,) if path.is_file() else None
    name = name.removesuffix(TRAIN).removesuffix(TEST)
    train, test = (path.with_name(f"{name}{ending}{SUFFIX}") for ending in (TRAIN, TEST))
    if not train.is_file():
        if test.is_file():
            raise InputError(f"{test} has no training data; put {train.name} beside it")
        return None
    return (train, test) if test.is_file() else (train,)


def read_recording(files: Sequence[Path]) -> Recording:
    """Read the dataset of the files that `find_files` returned. Raises InputError with file and line."""
    contents = [_read_file(file) for file in files]
    train = contents[0]
    for file, content in zip(files[1:], contents[1:], strict=True):
        if content.channels != train.channels:
            raise InputError(
                f"{file} has {content.channels} dimensions, but {files[0]} has {train.channels}; both must "
                f"have the same channels"
            )
    splits = {}
    for split, content, file in zip(("train", "test"), contents, files, strict=False):
        splits[split] = SplitSequences(
            values=content.values,
            labels=content.labels,
            names=[f"{split}/{i}" for i in range(len(content.values))],
            locate=lambda i, file=file, lines=content.lines: f"{file}:{lines[i]}",  # type: ignore[misc]
        )
    return make_recording([f"dim{i}" for i in range(train.channels)], train.classes, splits)


def read_series(file: Path, count: int) -> tuple[None, list[tuple[str, np.ndarray]]]:
    """Return the sequences of a file, named by their lines. Raises InputError like `read_recording`."""
    content = _read_file(file)
    return None, [
        (f"line {line}", values) for line, values in zip(content.lines, content.values, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class _File:
    classes: list[str]
    channels: int
    values: list[np.ndarray]
    labels: list[str]
    lines: list[int]


def _read_file(file: Path) -> _File:
    statements, lines = {}, enumerate(read_text(file).split("\n"), start=1)
    for number, line in lines:
        words = line.split() or [""]
        if words[0].lower() == "@data":
            break
        if words[0].startswith("@"):
            statements[words[0][1:].lower()] = (number, words[1:])
        elif words[0] and not words[0].startswith(COMMENTS):
            raise InputError(f"{file}:{number}: only lines of '@key value' may come before @data")
    else:
        raise InputError(f"{file} must have a line '@data' before the sequences; it has none")
    classes, channels = _parse_header(file, statements)
    stripped = ((number, line.strip()) for number, line in lines)
    kept = [(number, line) for number, line in stripped if line and not line.startswith(COMMENTS)]
    if not kept:
        raise InputError(f"{file} has no sequences after @data")
    return _parse_body(file, classes, channels, [number for number, _ in kept], [line for _, line in kept])


def _parse_header(
    file: Path, statements: Mapping[str, tuple[int, list[str]]]
) -> tuple[list[str], int | None]:
    """Return the classes, and the number of channels if it is stated."""

    def get_statement(*keys: str) -> tuple[str, list[str]] | None:
        for key in keys:
            if key in statements:
                number, words = statements[key]
                return f"{file}:{number}: @{key}", words or [""]
        return None

    def flag(key: str) -> bool | None:
        if (statement := get_statement(key)) is None:
            return None
        location, words = statement
        if words[0].lower() not in TRUTH:
            raise InputError(f"{location} must be true or false, not {quote(words[0])}")
        return TRUTH[words[0].lower()]

    def count(*keys: str) -> int | None:
        if (statement := get_statement(*keys)) is None:
            return None
        location, words = statement
        if not words[0].isdecimal() or int(words[0]) < 1:
            raise InputError(f"{location} must be a whole number above 0, not {quote(words[0])}")
        return int(words[0])

    if flag("timestamps"):
        raise InputError(
            f"{file}:{statements['timestamps'][0]}: time stamps (@timeStamps true) are not supported. Write "
            f"the values at equal steps, with '?' for missing ones, or a CSV file with a column of times"
        )
    if flag("targetlabel"):
        raise InputError(
            f"{file}:{statements['targetlabel'][0]}: the dataset has numbers to predict (@targetLabel); only "
            f"classes are learned"
        )
    if not flag("classlabel"):
        raise InputError(f"{file} must have '@classLabel true' and the names of its classes")
    classes = statements["classlabel"][1][1:]
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise InputError(
            f"{file}:{statements['classlabel'][0]}: @classLabel must name at least two classes, each once, "
            f"not {' '.join(classes)!r}"
        )
    flag("missing")
    channels, univariate = count("dimensions", "dimension"), flag("univariate")
    if univariate and channels not in (None, 1):
        raise InputError(
            f"{file}:{statements['univariate'][0]}: @univariate is true, but @dimensions says {channels}"
        )
    return classes, 1 if univariate else channels


def _parse_body(
    file: Path, classes: list[str], stated: int | None, line_numbers: list[int], lines: list[str]
) -> _File:
    labels, fields = [], []
    channels = stated or max(1, lines[0].count(":"))
    known = set(classes)
    for number, line in zip(line_numbers, lines, strict=True):
        values, _, label = line.rpartition(":")
        dimensions = values.split(":") if values else []
        if len(dimensions) != channels:
            source = "@dimensions says" if stated else "the first has"
            raise InputError(
                f"{file}:{number}: the sequence has {len(dimensions)} dimensions and a label, but {source} "
                f"{channels}"
            )
        if label.strip() not in known:
            raise InputError(
                f"{file}:{number}: the label {quote(label.strip())} must be among those of @classLabel: "
                f"{', '.join(classes[:20])}"
            )
        labels.append(label.strip())
        fields += dimensions
    try:
        flat, counts = parse_numbers(fields, ",", MISSING)
    except NotANumber as error:
        row, dimension = divmod(error.index, channels)
        raise InputError(
            f"{file}:{line_numbers[row]}: dimension {dimension}: {error}; '?' is a missing one"
        ) from None
    counts = counts.reshape(len(lines), channels)
    for row in np.flatnonzero((counts != counts[:, :1]).any(axis=1))[:1]:
        other = int(np.flatnonzero(counts[row] != counts[row, 0])[0])
        raise InputError(
            f"{file}:{line_numbers[row]}: dimension {other} has {counts[row, other]} values, but dimension 0 "
            f"has {counts[row, 0]}; fill up with '?'"
        )
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    return _File(
        classes=classes,
        channels=channels,
        values=[values.reshape(channels, -1) for values in np.split(flat, ends)],
        labels=labels,
        lines=line_numbers,
    )
