"""Fixtures of the tests of data."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> None:
    """Give every test its own cache folder."""
