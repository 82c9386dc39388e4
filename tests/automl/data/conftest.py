"""Fixtures of the tests of data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from automl.tasks.image_classification.task import feed_cache, load_images


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> Iterator[None]:
    """Give every test its own cache folder, which is deleted after it: no later test may read from there."""
    yield
    load_images.cache_clear()
    feed_cache.cache_clear()
