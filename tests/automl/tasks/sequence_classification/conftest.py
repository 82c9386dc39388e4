import os
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[4]
REAL = Path(os.environ.get("AUTOML_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture
def basic_motions() -> Path:
    """Return the path, without `_TRAIN.ts` and `_TEST.ts`, of 40 and 40 recordings of a watch."""
    name = REAL / "sequences" / "BasicMotions"
    if not name.with_name("BasicMotions_TRAIN.ts").exists():
        pytest.skip(f"the real sequences {name}_TRAIN.ts are not here; AUTOML_TEST_DATA names their folder")
    return name


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a text file into the test's folder."""

    def make(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make
