import re
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.base.units import (
    decimals,
    format_count,
    format_duration,
    parse_count,
    parse_seconds,
    parse_size,
    pluralize,
)


def test_seconds() -> None:
    seconds = {"90s": 90, "30m": 1800, "2h": 7200, "1h30m": 5400, "1d": 86400, "1.5h": 5400, "1m1s": 61}
    assert {text: parse_seconds(text, "--budget") for text in seconds} == seconds


@pytest.mark.parametrize(
    "text", ["", "banana", "90", "0s", "0h0m", "-5m", "1h 30m", "h", "1.h", "2x", "1e3s", "2H", "30mm"]
)
def test_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_seconds(text, "--budget")
    assert str(error.value) == f"--budget must be a time such as 90s, 30m, 2h or 1h30m; got {text!r}"


def test_counts_and_sizes() -> None:
    counts = {"5000000": 5e6, "5m": 5e6, "1.8G": 1.8e9, " 3 T ": 3e12}
    assert {text: parse_count(text, "--max-params") for text in counts} == pytest.approx(counts)
    sizes = {"800MB": 8e8, "2GB": 2e9, "2 gb": 2e9, "1.5GiB": 1.5 * 2**30, "1024": 1024, "1KiB": 1024}
    assert {text: parse_size(text, "--max-memory") for text in sizes} == pytest.approx(sizes)


@pytest.mark.parametrize(
    "text", ["", "lots", "0", "0M", "-1", "5Q", "M", "1e6", "5,000", "nan", "inf", "1.2.3"]
)
def test_invalid_number_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_count(text, "--max-macs")
    expected = f"--max-macs must be a number such as 500000, 5M or 1.8G, above 0; got {text!r}"
    assert str(error.value) == expected
    size = r"--max-memory must be a size such as 800MB, 2GB or 1\.5GiB, above 0"
    with pytest.raises(InputError, match=size):
        parse_size(text, "--max-memory")


def test_numbers_as_text() -> None:
    durations = {0.4: "0s", 59.6: "1m00s", 200: "3m20s", 3600: "1h00m", 90_000: "25h00m"}
    assert {value: format_duration(value) for value in durations} == durations
    counts = {7: "7", 999.7: "1k", 16_400: "16.4k", 3.5e12: "3.5T", 0.25: "0.25"}
    assert {value: format_count(value) for value in counts} == counts
    assert [pluralize(n, "epochs") for n in (0, 1, 1.5)] == ["0 epochs", "1 epoch", "1.5 epochs"]


# Numbers before a noun that are never 1, and names before a noun.
NEVER_ONE = r"""SEEDS|seeds|count|steps|inputs|\w*timed|self\.timed|trials|of|2 \* PAIRS|MIN_STEPS|size|top
first|validated|plan\.seeds|(?:d|self)\.count|verdict\..*|(?:len\(self\.)?design\..*|len\(used\)|self\.least
speed\..*|count_rows\(.*|len\(photos\)|course\.epoch|len\(search\.done\)|ROUNDS.*|name(!r)?|what|program
.*:[.,]?\w+|storage|dataset!r|LABEL_STUDIO|.*suffix|self\.model\.backbone|MAX_PAIRS"""


def test_one_of_a_thing_is_singular() -> None:
    """A number before a noun that `pluralize` knows from elsewhere is formatted by it, or is never 1."""
    root, wrong = Path(__file__).parents[3], []
    packages = ("attention", "backbones", "search", "automl")
    texts = {file: file.read_text() for name in packages for file in (root / name).rglob("*.py")}
    nouns = set(re.findall(r"""pluralize\([^"\'\n]+["\'](?:\w+ )?(\w+s)\b""", "".join(texts.values())))
    assert {"images", "seeds", "trials"} <= nouns
    nouns -= {"channels", "times"}
    for file, text in texts.items():
        for value, noun in re.findall(rf"\{{([^{{}}\n]+)\}} ((?:\w+ )?(?:{'|'.join(nouns)}))\b", text):
            if not re.fullmatch(NEVER_ONE.replace("\n", "|"), value):
                wrong.append(f"{file.relative_to(root)}: {value} {noun}")
    assert not wrong


@pytest.mark.parametrize(
    ("margin", "expected"),
    [(0.5, 2), (5.0, 2), (0.1, 2), (0.3, 2), (0.05, 3), (0.01, 3), (0.002, 4), (0.001, 4), (0.0, 3)],
)
def test_decimals_show_a_tenth_of_the_margin(margin: float, expected: int) -> None:
    assert decimals(margin) == expected
    assert not margin or float(f"{margin / 10:.{decimals(margin)}f}") > 0
