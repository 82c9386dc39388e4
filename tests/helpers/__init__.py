"""Cases, imitations and servers that several files of tests use."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def others_slow(values: Iterable[Any], *default: Any, reason: str = "another case") -> list[Any]:
    """Return values of a parameter, marked `slow` but for the default ones."""
    return [v if v in default else pytest.param(v, marks=pytest.mark.slow(reason)) for v in values]
