"""One quantity has one unit in all texts of the program. `automl/base/units.py` has the table."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.helpers.units import AFTER_VALUES, foreign_units, units_in_source

ROOT = Path(__file__).parents[2]
FORMATTERS = ("automl/base/units.py",)
VALUES = [
    (f"{file.relative_to(ROOT)}:{line}", name, unit)
    for package in ("attention", "automl", "backbones", "cluster", "search")
    for file in sorted((ROOT / package).rglob("*.py"))
    if not file.relative_to(ROOT).as_posix().startswith(FORMATTERS)
    for line, name, unit in units_in_source(file)
]


def test_texts_have_the_units_of_the_table() -> None:
    """Longer times are by `format_duration`, sizes by `format_size`."""
    assert len(VALUES) > 30
    assert not [row for row in VALUES if row[2] not in AFTER_VALUES]


def test_a_quantity_has_one_unit() -> None:
    units: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for where, name, unit in VALUES:
        units[name][unit] = where
    assert not {name: positions for name, positions in units.items() if len(positions) > 1}


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("a step takes 2.4 ms, an epoch 12.1 s, the search 1h05m and 45s; 3m20s left; 4.2GB of memory", []),
        ("12 hours of training", ["12 hours"]),
        ("at most 72 MB", ["72 MB"]),
        ("1.5 minutes, 90sec, 3GiB and 20 kB", ["1.5 minutes", "90sec", "3GiB", "20 kB"]),
        ("8 seeds, 3 steps and search-20261129-0941", []),
    ],
)
def test_foreign_units_are_found(text: str, foreign: list[str]) -> None:
    assert foreign_units(text) == foreign
