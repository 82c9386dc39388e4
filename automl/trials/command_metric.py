"""Finds the metric of a command in what it printed, or in a file that it wrote."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import isfinite
from pathlib import Path

from attention import InputError
from search.config.command_config import CommandTraining

EXPONENT = re.compile(r"[eE][+-]?\d")
LISTED = 20  # largest number of columns in a message


def find_metric(training: CommandTraining, printed: Iterable[Path], out: Path) -> float:
    """Return the metric that a command reported.

    Args:
        training: Where the command reports it.
        printed: Files with its output: standard output, then standard error, where loggers print.
        out: The folder of the run.

    Returns:
        The metric.

    Raises:
        InputError: The metric is missing, not a finite number, or was printed more than once.
    """
    if training.metric_file:
        text = _read_file(out / training.metric_file, training)
    else:
        text = _find_printed(training, printed)
    try:
        value = float(text.strip().rstrip(".,;%"))
    except ValueError:
        raise InputError(f"--metric {training.metric!r} is {text!r}, which is no number") from None
    if not isfinite(value):
        raise InputError(f"the metric {training.metric_name} became {text.strip()}")
    return value


def _find_printed(training: CommandTraining, printed: Iterable[Path]) -> str:
    for file in printed:
        with open(file, encoding="utf-8", errors="replace") as lines:
            values = list(_values(training, lines))
        if len(values) > 1 and not training.last:
            raise InputError(
                f"the command printed --metric {training.metric!r} {len(values)} times ({values[0]}, ..., "
                f"{values[-1]}); print it once, or add --last to use the last one"
            )
        if values:
            return values[-1]
    what = "matches --metric" if training.is_pattern else "is a JSON object with the key"
    raise InputError(f"the command printed no metric: no line {what} {training.metric!r}")


def _values(training: CommandTraining, lines: Iterable[str]) -> Iterator[str]:
    if training.is_pattern:
        pattern = re.compile(training.metric)
        for line in lines:
            for match in pattern.finditer(line):
                if match[1] and EXPONENT.match(line, match.end(1)):
                    number = line[match.start(1) :].split()[0]
                    raise InputError(
                        f"--metric {training.metric!r} cuts off the exponent of {number}; use (\\S+) instead"
                    )
                yield match[1] or ""
        return
    for line in lines:
        with suppress(ValueError):
            value = json.loads(line) if line.lstrip().startswith("{") else None
            if isinstance(value, dict) and training.metric in value:
                yield _text(value[training.metric])


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
        except ValueError:
            values = []
            for line in content.splitlines():
                with suppress(ValueError):  # a log may have lines of other kinds
                    values.append(json.loads(line))
        rows = [{key: _text(v) for key, v in value.items()} for value in values if isinstance(value, dict)]
    else:
        table = csv.reader(content.splitlines(), skipinitialspace=True)
        header = [column.strip() for column in next(table, [])]
        rows = [dict(zip(header, row, strict=False)) for row in table]
    reported = [row[training.metric] for row in rows if row.get(training.metric, "").strip()]
    if not reported:
        known = list(dict.fromkeys(key for row in rows for key in row))
        raise InputError(
            f"--metric-file {name} has no value of {training.metric!r}; it has "
            f"{', '.join(known[:LISTED]) or 'no rows'}"
        )
    return reported[-1]
