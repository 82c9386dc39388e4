import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[3]
REAL = Path(os.environ.get("AUTOML_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test its own cache folder."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOML_MIRROR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make_folder() -> Callable[..., Path]:
    """Return a function that writes random pictures: `{"train/cat": 3}` writes three of cats for training."""

    def make(root: Path, counts: Mapping[str, int]) -> Path:
        random = np.random.RandomState(0)
        for folder, count in counts.items():
            (root / folder).mkdir(parents=True)
            for i in range(count):
                pixels = random.randint(0, 256, (12, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / folder / f"{i:04}.png")
        return root

    return make


@pytest.fixture(scope="session")
def imagenette() -> Path:
    archive = REAL / "imagenette2-128.tgz"
    if not archive.exists():
        pytest.skip(f"the real images {archive} are not here; AUTOML_TEST_DATA names their folder")
    return archive
