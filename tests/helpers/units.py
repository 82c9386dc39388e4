"""The units of this program's texts: each quantity has one, as `automl/base/units.py` says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DURATION = r"\d+s|\d+m\d\ds|\d+h\d\dm"  # of a search, its trainings and what is left: `format_duration`
SIZE = r"[\d.]+[kMGT]?B"  # of memory and files: `format_size`
TIME = r"[\d.,e+-]+ m?s"  # s: an epoch, a run, a limit; ms: a step, an input, a token
COST = r"[\d.,e+-]+ device hours"
ALLOWED = re.compile(rf"{DURATION}|{SIZE}|{TIME}|{COST}")
# A number with any unit of a time or a size.
UNITS = r"(m?s|µs|sec|seconds?|min|minutes?|h|hours?|days?|[kKMGT]i?B|bytes|device hours)"
MEASURED = re.compile(rf"(?<![\w.-])\d[\d.,e+-]*(?:(?:h|m)\d+[ms]| ?{UNITS})(?![\w/-])")
# What follows a value in a text of the source. A letter without a space is a plural.
FOLLOWING = re.compile(rf"( {UNITS}|[kKMGT]?i?B)(?![\w/])")
AFTER_VALUES = {" s", " ms", " bytes", " device hours"}  # `bytes` are exact


def foreign_units(text: str) -> list[str]:
    """Return the times and sizes in a printed text that are not in a unit of this program."""
    return [match[0] for match in MEASURED.finditer(text) if not ALLOWED.fullmatch(match[0])]


def units_in_source(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and unit of each value in a text that a unit follows: `{step:.3g} ms`."""
    for text in ast.walk(ast.parse(file.read_text())):
        if not isinstance(text, ast.JoinedStr):
            continue
        for value, rest in zip(text.values, text.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(rest, ast.Constant):
                unit = FOLLOWING.match(str(rest.value))
                names = re.findall(r"[A-Za-z_]\w*", ast.unparse(value.value))
                if unit and names:
                    yield value.lineno, names[-1], unit[0]
