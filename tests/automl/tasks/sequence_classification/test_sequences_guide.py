"""Test the examples of the tutorial on sensor data and of the page on LARNN."""

import re
from pathlib import Path

import pytest

from automl.tasks.sequence_classification.data import formats as sequence_sources

pytestmark = pytest.mark.usefixtures("cache")

DOCS = Path(__file__).parents[4] / "docs"
TEXT = (DOCS / "tutorials" / "sensor-data.md").read_text()


def example(kind: str) -> str:
    """Return the first example of this kind."""
    match = re.search(rf"```{kind}\n(.*?)```", TEXT, re.S)
    assert match
    return match[1]


@pytest.mark.parametrize(
    ("kind", "name", "channels"), [("ts", "Toy_TRAIN.ts", ("dim0", "dim1")), ("csv", "d.csv", ("x", "y"))]
)
def test_the_tutorials_files_are_read(
    kind: str, name: str, channels: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(example(kind))
    cache = sequence_sources.open_source("series", tmp_path / name)
    assert cache.channels == channels
    assert set(cache.classes) == {"walking", "resting"}
    assert sorted(cache.lengths.tolist()) == ([3, 4] if kind == "ts" else [2, 3])


def test_the_pages_arrays_and_cell_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("python"), {})
    cache = sequence_sources.open_source("series", "data.npz")
    assert (cache.channels, len(cache.labels), cache.steps) == (("x", "y", "z"), 100, 50)
    text = (DOCS / "explanation" / "larnn.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", text, re.S)[0], {})
