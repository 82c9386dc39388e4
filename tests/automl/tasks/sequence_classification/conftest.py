from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a text file into the test's folder."""

    def make(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make
