"""Check that each figure of README.md and docs/explanation is in a record of benchmarks/results.

    python scripts/figures.py              # all of these documents
    python scripts/figures.py README.md    # one

A figure is a number with a decimal point or a unit, `N of M`, or a cell of numbers in a table with a record.
A comment names its record. It ends a paragraph, an item of a list or a row of a table, which takes its
figures from all parts that the comment names. Or it stands before a table, each of whose rows is then one of
these parts:

    <!-- record: step-cpu.json:rows/xresnet18+ssa 64px, timm*; rows/xresnet50*; data-cpu.json:rows/0 -->

A path has keys, patterns of keys, positions in a list, or the texts of a row. Without a file it is in the
file before. The parts must have every figure, rounded to the printed digits. They must be so small that they
have no figure with another last digit. Code is not read, so settings may be written as code, and `SETTINGS`
lists the other numbers that nobody measured. Prints a line for each fault and exits with 1 if there are any.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GENERATED = ("docs/explanation/language-findings.md",)  # by scripts/language_page.py, from its records
TABLE = re.compile(
    "<!-- table: begin -->.*<!-- table: end -->", re.DOTALL
)  # that a script makes from its record
SETTINGS = (
    r"arXiv \d+\.\d+|Python 3\.11|7 GB",
    r"9[05] % (?:CI|bootstrap|interval|confidence)\S*",
    r"p < 0\.001|p of at most 0\.05|\b(?:[Tt]he|most|at|of) 5 %",
    r"\b(?:90|98) % (?:among|that)|95 % instead of 98 %",
    r"\b0\.5 points",  # the default margin
    r"within [23] %",  # precise time ratios
    r"40 % of the trial's|above 90 s|\b0\.6 GB|90 % of the memory|less than 0\.1 %",
    r"\b4 GiB|95 % of the free disk|\b1 MiB",
    r"at least 0\.5\b",  # split-half reliability of a table that ranks searches
    r"dropout of 0\.1|`dropout_keep_rate` 0\.9 .* 0\.1",
    r"91\.92 % after|85\.65 % in the first and 91\.92 %",  # published by LARNN's author
)
UNITS = (
    "%|ms|s|KiB|MiB|GiB|GB|points?|times|nats?|bits|images/s|tokens/s|minutes?|hours?"
    "|trainings?|continuations|pixels"
)
JOINTS = "to|and|or|more|than"
# Factors by which a value may be printed, and those of cells without a unit: one for all of a row.
FACTORS: dict[str, Sequence[int | Decimal]] = {
    "%": (1, 100),
    "point": (1, 100),
    "points": (1, 100),
    "ms": (1, 1000),
    "GiB": (1, Decimal(1) / 1024),
}
ROW_FACTORS = (1, 100, 1000)

_COMMENT = re.compile(r"<!-- record: (.*?) -->", re.S)
_HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", re.S)
_NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?"
_UNIT = rf"(?:(?:,? (?:{JOINTS}) |, ){_NUMBER})*\s?({UNITS})(?![\w/])"  # also behind further numbers
_FIGURE = re.compile(rf"(?<![\w.^/-])({_NUMBER})(?![\w/]|\.\d)(?={_UNIT}|)")
_OUT_OF = re.compile(r"\b((?:\d+, )*(?:\d+ and )?\d+) of (\d+)\b")
_CELL = re.compile(rf"(?=.*\d)(?:[-+\d.,()/>±\s*]|\b(?:{UNITS}|{JOINTS})(?!\w))+")


class Figure(NamedTuple):
    """Number as it is printed, and the factors by which its value may be printed. None if the row decides."""

    text: str
    factors: Sequence[int | Decimal] = ()

    @property
    def digit(self) -> Decimal:
        """Return what the last printed digit counts."""
        return Decimal(1).scaleb(-len(self.text.partition(".")[2]))

    def fits(self, value: float) -> bool:
        exact = Decimal(repr(value if self.text[0] in "+-" else abs(value)))
        printed = ((exact * factor).quantize(self.digit, ROUND_HALF_UP) for factor in self.factors)
        return Decimal(self.text) in printed

    def change(self, step: int) -> "Figure":
        """Return the figure with another last digit."""
        changed = Decimal(self.text) + step * self.digit
        sign = "+" if self.text[0] == "+" and changed >= 0 else ""
        return Figure(f"{sign}{changed:f}", self.factors)


class Unit(NamedTuple):
    """Paragraph, item of a list, or row of a table, with the addresses of its record."""

    line: int
    text: str
    addresses: list[str]
    in_table: bool  # if its record is that of a table


@cache
def load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def children(value: Any) -> Iterator[tuple[set[str], Any]]:
    """Yield the parts of a value with their keys. The keys of an item are its positions and its texts."""
    if isinstance(value, dict):
        yield from (({key}, part) for key, part in value.items())
    elif isinstance(value, list):
        for i, part in enumerate(value):
            texts = part.values() if isinstance(part, dict) else ()
            words = ", ".join(text for text in texts if isinstance(text, str))
            yield {str(i), str(i - len(value)), words}, part


def select(value: Any, path: Sequence[str]) -> list[Any]:
    """Return all parts of a value that a path names."""
    if not path:
        return [value]
    parts = (part for keys, part in children(value) if any(fnmatchcase(key, path[0]) for key in keys))
    return [selected for part in parts for selected in select(part, path[1:])]


def read_numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of a part. Those in a text count only if the part is this text."""
    if isinstance(value, str):
        yield from map(float, re.findall(rf"(?<![\w.]){_NUMBER}(?!\w)", value))
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if not isinstance(item, str):
                yield from read_numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def resolve(addresses: Sequence[str]) -> list[Sequence[float]]:
    """Return the numbers of each part of the records."""
    parts: list[Sequence[float]] = []
    name = ""
    for address in addresses:
        match = re.fullmatch(r"(?:([\w.-]+\.json):)?(.*)", address)
        assert match is not None
        name = match[1] or name
        selected = select(load(name), match[2].split("/"))
        if not selected:
            raise KeyError(address)
        parts += [list(read_numbers(part)) for part in selected]
    return parts


def has_all(numbers: Sequence[float], figures: Sequence[Figure]) -> bool:
    """Return True if each figure is another one of the numbers."""
    return any(
        pair(numbers, [figure if figure.factors else Figure(figure.text, (factor,)) for figure in figures])
        for factor in ROW_FACTORS
    )


def pair(numbers: Sequence[float], figures: Sequence[Figure]) -> bool:
    left = list(numbers)
    for figure in sorted(figures, key=lambda figure: figure.digit):
        fitting = next((i for i, number in enumerate(left) if figure.fits(number)), None)
        if fitting is None:
            return False
        del left[fitting]
    return True


def keep_near(parts: Sequence[Sequence[float]], figures: Sequence[Figure]) -> list[Sequence[float]]:
    """Return the parts that have all figures but one, nearly. It is quick, and others need no comparison."""
    shown = [
        (abs(float(figure.text)), float(figure.digit), [float(f) for f in figure.factors or ROW_FACTORS])
        for figure in figures
    ]
    return [
        part
        for part in parts
        if len(figures) - 1
        <= sum(
            any(abs(abs(number) * factor - value) <= digit for number in part for factor in factors)
            for value, digit, factors in shown
        )
    ]


def read_figures(text: str) -> list[Figure]:
    """Return the figures of prose."""
    text = " ".join(text.split())
    for pattern in SETTINGS:
        text = re.sub(pattern, " ", text)
    text = _HIDDEN.sub("  ", text)
    counts = [
        Figure(number, (1,)) for match in _OUT_OF.finditer(text) for number in re.findall(r"\d+", match[0])
    ]
    return counts + [
        Figure(match[1].replace(",", ""), FACTORS.get(match[2], (1,)))
        for match in _FIGURE.finditer(_OUT_OF.sub(" ", text))
        if "." in match[1] or match[2]
    ]


def read_row(text: str) -> list[Figure]:
    """Return the figures of a row that has a record: also all numbers of a cell that has nothing else."""
    figures: list[Figure] = []
    first, *cells = _HIDDEN.sub("  ", text).strip().strip("|").split("|")
    for cell in cells:
        if not _CELL.fullmatch(cell.strip()):
            figures += read_figures(cell)
            continue
        unit = re.search(rf"({UNITS})\s*$", cell)
        factors: Sequence[int | Decimal] = FACTORS.get(unit[1], (1,)) if unit else ()
        figures += [
            Figure(number.replace(",", ""), factors) for number in re.findall(rf"(?<!\d){_NUMBER}", cell)
        ]
    return read_figures(first) + figures


def read_addresses(text: str) -> list[str]:
    comments = (match[1].split(";") for match in _COMMENT.finditer(text))
    return [" ".join(address.split()) for address in chain(*comments)]


def split(text: str) -> Iterator[Unit]:
    """Yield the units of a page, without its blocks of code."""
    text = re.sub(r"^( *)```.*?^\1```", lambda match: re.sub(r"[^\n]", "", match[0]), text, flags=re.S | re.M)
    line, table = 1, list[str]()
    for block in re.split(r"(\n\s*\n)", text):
        start, stripped = line, block.strip()
        line += block.count("\n")
        if _COMMENT.fullmatch(stripped):
            table = read_addresses(stripped)
        elif stripped and not re.match(r" {4}(?! *(?:\d+\.|[-|]))", block):  # an indented block is code
            for piece in re.split(r"\n(?= *(?:- |\||\d+\. ))", block):
                own, is_row = read_addresses(piece), piece.lstrip().startswith("|")
                yield Unit(start, piece, own or (table if is_row else []), is_row and not own)
                start += piece.count("\n") + 1
            table = []


def check_unit(unit: Unit) -> Iterator[str]:
    """Yield what is wrong with the figures of a unit."""
    is_row = unit.text.lstrip().startswith("|")
    figures = read_row(unit.text) if is_row and unit.addresses else read_figures(unit.text)
    shown = ", ".join(figure.text for figure in figures)
    if not figures:
        return
    if not unit.addresses:
        yield f"no record for {shown}"
        return
    try:
        parts = resolve(unit.addresses)
    except (KeyError, OSError) as error:
        yield f"not in the records: {error}"
        return
    parts = keep_near(parts if unit.in_table else [list(chain(*parts))], figures)
    if not any(has_all(part, figures) for part in parts):
        yield f"the record does not have {shown}" + " in one part" * unit.in_table
        return
    for i, figure in enumerate(figures):
        for changed in (figure.change(-1), figure.change(1)):
            if any(has_all(part, [*figures[:i], changed, *figures[i + 1 :]]) for part in parts):
                yield f"{changed.text} instead of {figure.text} would pass; name a smaller part of the record"


def check_page(name: str, text: str) -> Iterator[str]:
    """Yield the faults of a page, but for tables that are generated."""
    for unit in split(TABLE.sub(lambda match: "\n" * match[0].count("\n"), text)):
        yield from (f"{name}:{unit.line}: {fault}" for fault in check_unit(unit))


def read_documents() -> dict[str, str]:
    """Return the pages by name, without those that scripts make from records."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs" / "explanation").glob("*.md"))]
    pages = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {name: text for name, text in pages.items() if name not in GENERATED}


def main() -> None:
    pages = read_documents()
    faults = [fault for name in sys.argv[1:] or pages for fault in check_page(name, pages[name])]
    print(*faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
