"""Finds the metric of a command in what it printed, or in a file that it wrote."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import isfinite
from pathlib import Path

from automl.base.errors import InputError
from automl.tasks.command.config import CommandTraining
from automl.trials import match_output

PATIENCE = 30.0  # time of a search for a pattern [s]
LISTED = 20  # largest number of columns in a message


def find_metric(training: CommandTraining, printed: Iterable[Path], out: Path) -> float:
    """Return the metric that a command reported, in the folder `out` of its run or in what it `printed`.

    Loggers print to standard error, the second file of `printed`. Raises InputError if the metric is missing,
    not a finite number, or was printed more than once.
    """
    if training.metric_file:
        text = _read_file(out / training.metric_file, training)
    else:
        text = _find_printed(training, printed)
    number = text.strip().rstrip(".,;%")
    try:
        value = float("_" if "_" in number else number)  # Python reads 0_5 as 5
    except ValueError:
        raise InputError(f"--metric {training.metric!r} is {text!r}, which is no number") from None
    if "%" in text and training.reports.unit != "%":
        raise InputError(
            f"--metric {training.metric!r} is {text.strip()!r}; print percentages with all commands and give "
            f"--unit %, or print fractions"
        )
    if not isfinite(value):
        raise InputError(f"the metric {training.metric_name} became {text.strip()}")
    return value


def _find_printed(training: CommandTraining, printed: Iterable[Path]) -> str:
    for file in printed:
        values = list(_match(training.metric, file) if training.is_pattern else _keys(training.metric, file))
        if len(values) > 1 and not training.last:
            raise InputError(
                f"the command printed --metric {training.metric!r} {len(values)} times ({values[0]}, ..., "
                f"{values[-1]}); print it once, or add --last to use the last one"
            )
        if values:
            return values[-1]
    what = "matches --metric" if training.is_pattern else "is a JSON object with the key"
    raise InputError(f"the command printed no metric: no line {what} {training.metric!r}")


def _match(pattern: str, file: Path) -> Iterator[str]:
    program = [sys.executable, "-I", "-S", match_output.__file__, pattern, str(file)]
    try:
        printed = subprocess.run(program, capture_output=True, check=True, timeout=PATIENCE).stdout
    except subprocess.TimeoutExpired:
        raise InputError(
            f"--metric {pattern!r} was not found in {PATIENCE:.0f} s; repeat no group that repeats something "
            f"itself, as in (x+)+"
        ) from None
    for value, cut in json.loads(printed):
        if cut is not None:
            raise InputError(f"--metric {pattern!r} cuts off the exponent of {cut}; use (\\S+) instead")
        yield value


def _keys(key: str, file: Path) -> Iterator[str]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                value = json.loads(line) if line.lstrip().startswith("{") else None
                if isinstance(value, dict) and key in value:
                    yield _text(value[key])


def _text(value: object) -> str:
    return "" if value is None else str(value) if type(value) in (int, float, str) else repr(value)


def _read_file(file: Path, training: CommandTraining) -> str:
    """Return the value in the last row of a CSV file, or in the last line of a JSON file, that has one."""
    name = training.metric_file
    try:
        content = file.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(
            f"the command wrote no --metric-file {name} into its folder ({error.strerror}); it must write "
            f"below the path that replaces {{out}}"
        ) from None
    rows: list[dict[str, str]] = []
    if content.lstrip().startswith("{"):
        try:
            values = [json.loads(content)]
        except (ValueError, RecursionError):
            values = []
            for line in content.splitlines():
                with suppress(ValueError, RecursionError):  # a log may have lines of other kinds
                    values.append(json.loads(line))
        rows = [{key: _text(v) for key, v in value.items()} for value in values if isinstance(value, dict)]
    else:
        table = csv.reader(content.splitlines(), skipinitialspace=True)
        try:
            header = [column.strip() for column in next(table, [])]
            rows = [dict(zip(header, row, strict=False)) for row in table]
        except csv.Error as error:  # such as a field of more than 131,072 characters
            raise InputError(f"--metric-file {name} cannot be read as CSV: {error}") from None
    reported = [row[training.metric] for row in rows if row.get(training.metric, "").strip()]
    if not reported:
        known = list(dict.fromkeys(key for row in rows for key in row))
        raise InputError(
            f"--metric-file {name} has no value of {training.metric!r}; it has "
            f"{', '.join(known[:LISTED]) or 'no rows'}"
        )
    return reported[-1]
