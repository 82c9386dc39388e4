"""The columns of docs/reference/backbones.md, for models of its families; the quick ones in every run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import backbones_table as table

QUICK = {"timm:test_resnet"}
NAMES = [f"torchvision:{name}" for name in table.TORCHVISION] + [f"timm:{name}" for name in table.TIMM]
KNOWN = {"timm:coat_tiny", "timm:deepseek_vit_412m", "timm:gemma4_vit_167m_enc"}  # the table says why not


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in NAMES
        if name not in KNOWN
    ],
)
def test_every_column_holds(name: str) -> None:
    row = table.judge(name)
    assert list(row.passed) == list(table.COLUMNS), row.reason


def test_the_table_has_all_of_them() -> None:
    text = table.DOCUMENT.read_text()
    assert all(f"| {name} |" in text for name in NAMES)
