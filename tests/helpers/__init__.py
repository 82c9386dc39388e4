"""Cases, imitations and servers that several files of tests use."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def others_slow(
    values: Iterable[Any], *default: Any, reason: str = "another case", rows: bool = False
) -> list[Any]:
    """Return values of a parameter, or `rows` of several, marked `slow` but for the default ones."""
    slow = pytest.mark.slow(reason)
    return [v if v in default else pytest.param(*(v if rows else [v]), marks=slow) for v in values]


def last(output: str) -> Any:
    """Return the JSON that is the last line of a command's output."""
    return json.loads(output.strip().splitlines()[-1])
