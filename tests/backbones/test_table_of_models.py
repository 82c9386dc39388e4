"""Columns of docs/reference/backbones.md, for models of its families. The fast ones run every time."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import backbones_table as table

QUICK = {"timm:test_resnet"}
NAMES = [f"torchvision:{name}" for name in table.TORCHVISION] + [f"timm:{name}" for name in table.TIMM]
# The table gives the reason.
KNOWN = {"timm:coat_tiny", "timm:deepseek_vit_412m", "timm:gemma4_vit_167m_enc"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow("another case"))
        for name in NAMES
        if name not in KNOWN
    ],
)
@pytest.mark.heavy("every column of the table of models")
def test_the_model_passes_every_column(name: str) -> None:
    row = table.check_model(name)
    assert list(row.passed) == list(table.COLUMNS), row.reason


def test_the_table_lists_every_model() -> None:
    text = table.DOCUMENT.read_text()
    assert all(f"| {name} |" in text for name in NAMES)
