"""CONTRIBUTING.md names files that exist, and its picture shows the import contracts."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import house  # noqa: E402

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_picture_is_current():
    assert house.IMAGE.read_text() == house.draw(), "run `python scripts/house.py`"


def test_picture_has_every_package():
    packages, layers, _ = house.read_contracts()
    names = {*packages, *(f"automl.{name}" for layer in layers for name in layer)}
    assert names == set(house.PURPOSES)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w.-]+/[\w./-]*)`|\]\(([^):]+)\)", TEXT))))
def test_paths_exist(path):
    assert (ROOT / "".join(path)).exists()


def test_is_short():
    assert len(TEXT.splitlines()) <= 200
