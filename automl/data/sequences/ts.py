"""`.ts` files, the format of the UEA and UCR archives, as in sktime and aeon: NAME_TRAIN.ts and NAME_TEST.ts.

A header of `@key value` lines, `@data`, then a line for each sequence: the values of a channel separated by
commas, the channels by colons, and the label last. A line that begins with `#` or `%` is a comment. `?` is a
missing value. Channels of one sequence have the same length. A header that says something else than the
lines is refused, but for `@missing`: a `?` speaks for itself. Not read: time stamps, and numbers to predict
in place of a class (`@targetLabel`).

Source: https://www.sktime.net/en/stable/api_reference/file_specifications/ts.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.sequences.number_text import NANS, NotANumber, parse_numbers, quote, read_text
from automl.data.sequences.recording import Recording, SplitSequences, make_recording
from automl.data.walk import is_clutter

SUFFIX, TRAIN, TEST = ".ts", "_TRAIN", "_TEST"
MISSING = ("?", *NANS)
COMMENTS = ("#", "%")
TRUTH = {"true": True, "false": False}


def find_files(path: Path) -> tuple[Path, ...] | None:
    """The files of training and test that `path` names; the second may be missing. None where it names none.

    `path` is a folder that has one dataset, one of the files, or a name without `_TRAIN.ts`. Raises
    InputError for a folder of several datasets, and for test data alone.
    """
    if path.is_dir():
        trains = sorted(file for file in path.glob(f"*{TRAIN}{SUFFIX}") if not is_clutter(file.name))
        if len(trains) > 1:
            names = ", ".join(file.name.removesuffix(f"{TRAIN}{SUFFIX}") for file in trains[:20])
            raise InputError(f"{path} has {len(trains)} datasets; pass {path}/NAME, with a NAME of {names}")
        if not trains:
            return None
        path = trains[0]
    name = path.name.removesuffix(SUFFIX)
    plain = path.name.endswith(SUFFIX) and not name.endswith((TRAIN, TEST))
    if plain:
        return (path,) if path.is_file() else None
    name = name.removesuffix(TRAIN).removesuffix(TEST)
    train, test = (path.with_name(f"{name}{part}{SUFFIX}") for part in (TRAIN, TEST))
    if not train.is_file():
        if test.is_file():
            raise InputError(f"{test} has nothing to train on; put {train.name} beside it")
        return None
    return (train, test) if test.is_file() else (train,)


def read_recording(files: Sequence[Path]) -> Recording:
    """The dataset of the files that `find` found. Raises InputError with file and line for what is wrong."""
    found = [_read_file(file) for file in files]
    train = found[0]
    for file, other in zip(files[1:], found[1:], strict=True):
        if other.channels != train.channels:
            raise InputError(
                f"{file} has {other.channels} dimensions, and {files[0]} has {train.channels}; they must be "
                f"the same channels"
            )
    parts = {
        split: one.part(split, file)
        for split, one, file in zip(("train", "test"), found, files, strict=False)
    }
    return make_recording([f"dim{i}" for i in range(train.channels)], train.classes, parts)


def read_series(file: Path, count: int) -> tuple[None, list[tuple[str, np.ndarray]]]:
    """The sequences of one file by their lines. Its channels have no names. Raises InputError like `read`."""
    found = _read_file(file)
    return None, [(f"line {line}", values) for line, values in zip(found.lines, found.values, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _File:
    classes: list[str]
    channels: int
    values: list[np.ndarray]
    labels: list[str]
    lines: list[int]

    def part(self, split: str, file: Path) -> SplitSequences:
        return SplitSequences(
            values=self.values,
            labels=self.labels,
            names=[f"{split}/{i}" for i in range(len(self.values))],
            locate=lambda i: f"{file}:{self.lines[i]}",
        )


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What a file says of itself; None where it does not say."""

    classes: list[str]
    channels: int | None
    steps: int | None
    equal: bool | None


def _read_file(file: Path) -> _File:
    stated, lines = {}, enumerate(read_text(file).split("\n"), start=1)
    for number, line in lines:
        words = line.split() or [""]
        if words[0].lower() == "@data":
            break
        if words[0].startswith("@"):
            stated[words[0][1:].lower()] = (number, words[1:])
        elif words[0] and not words[0].startswith(COMMENTS):
            raise InputError(f"{file}:{number}: a header has lines of '@key value' alone, before @data")
    else:
        raise InputError(f"{file} has no line '@data', after which the sequences come")
    header = _parse_header(file, stated)
    stripped = ((number, line.strip()) for number, line in lines)
    kept = [(number, line) for number, line in stripped if line and not line.startswith(COMMENTS)]
    if not kept:
        raise InputError(f"{file} has no sequences after @data")
    return _parse_body(file, header, [number for number, _ in kept], [line for _, line in kept])


def _parse_header(file: Path, stated: Mapping[str, tuple[int, list[str]]]) -> _Header:
    def said(*keys: str) -> tuple[str, list[str]] | None:
        for key in keys:
            if key in stated:
                number, words = stated[key]
                return f"{file}:{number}: @{key}", words or [""]
        return None

    def flag(key: str) -> bool | None:
        if (found := said(key)) is None:
            return None
        place, words = found
        if words[0].lower() not in TRUTH:
            raise InputError(f"{place} must be true or false, not {quote(words[0])}")
        return TRUTH[words[0].lower()]

    def count(*keys: str) -> int | None:
        if (found := said(*keys)) is None:
            return None
        place, words = found
        if not words[0].isdecimal() or int(words[0]) < 1:
            raise InputError(f"{place} must be a whole number above 0, not {quote(words[0])}")
        return int(words[0])

    if flag("timestamps"):
        raise InputError(
            f"{file}:{stated['timestamps'][0]}: time stamps (@timeStamps true) are not read; write the "
            f"values at equal steps, with '?' where one is missing, or a CSV file with a column of times"
        )
    if "targetlabel" in stated and flag("targetlabel"):
        raise InputError(
            f"{file}:{stated['targetlabel'][0]}: the dataset has numbers to predict (@targetLabel); only "
            f"classes are learned"
        )
    if not flag("classlabel"):
        raise InputError(
            f"{file} must have '@classLabel true' and the names of its classes; it has no classes"
        )
    classes = stated["classlabel"][1][1:]
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise InputError(
            f"{file}:{stated['classlabel'][0]}: @classLabel must name two classes or more, each once, not "
            f"{' '.join(classes)!r}"
        )
    flag("missing")
    channels, univariate = count("dimensions", "dimension"), flag("univariate")
    if univariate and channels not in (None, 1):
        raise InputError(
            f"{file}:{stated['univariate'][0]}: @univariate true, and @dimensions says {channels}"
        )
    return _Header(
        classes=classes,
        channels=1 if univariate else channels,
        steps=count("serieslength"),
        equal=flag("equallength"),
    )


def _parse_body(file: Path, header: _Header, at: list[int], lines: list[str]) -> _File:
    labels, fields = [], []
    channels = header.channels or max(1, lines[0].count(":"))
    known = set(header.classes)
    for number, line in zip(at, lines, strict=True):
        values, _, label = line.rpartition(":")
        dimensions = values.split(":") if values else []
        if len(dimensions) != channels:
            says = "@dimensions says" if header.channels else "the first has"
            raise InputError(
                f"{file}:{number}: a sequence of {len(dimensions)} dimensions and a label, and {says} "
                f"{channels}"
            )
        if label.strip() not in known:
            raise InputError(
                f"{file}:{number}: the label {quote(label.strip())} must be among those of @classLabel: "
                f"{', '.join(header.classes[:20])}"
            )
        labels.append(label.strip())
        fields += dimensions
    try:
        flat, counts = parse_numbers(fields, ",", MISSING)
    except NotANumber as error:
        row, dimension = divmod(error.index, channels)
        raise InputError(f"{file}:{at[row]}: dimension {dimension}: {error}; '?' is a missing one") from None
    counts = counts.reshape(len(lines), channels)
    _check_lengths(file, header, at, counts)
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    return _File(
        classes=header.classes,
        channels=channels,
        values=[values.reshape(channels, -1) for values in np.split(flat, ends)],
        labels=labels,
        lines=at,
    )


def _check_lengths(file: Path, header: _Header, at: list[int], counts: np.ndarray) -> None:
    """counts: the values of each dimension of each sequence, (N, C)."""
    for row in np.flatnonzero((counts != counts[:, :1]).any(axis=1))[:1]:
        other = int(np.flatnonzero(counts[row] != counts[row, 0])[0])
        raise InputError(
            f"{file}:{at[row]}: dimension {other} has {counts[row, other]} values and dimension 0 has "
            f"{counts[row, 0]}; fill up with '?'"
        )
    if header.equal is False:
        return
    if header.equal is None and header.steps is None:
        return
    steps = int(counts[0, 0]) if header.steps is None else header.steps
    says = "the first has" if header.steps is None else "@seriesLength says"
    for row in np.flatnonzero(counts[:, 0] != steps)[:1]:
        raise InputError(
            f"{file}:{at[row]}: a sequence of {counts[row, 0]} steps, and {says} {steps}; fix it, or write "
            f"'@equalLength false'"
        )
