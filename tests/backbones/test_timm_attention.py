"""timm's attention modules: docs/reference/timm-attention.md, and equality with timm's own modules."""

import sys
from pathlib import Path

import pytest

from attention.attention_table import TIMM_NAMES

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import attention_contract_table as table

FAILS = "ge"  # timm's module cannot be built with its defaults.


@pytest.mark.parametrize("name", [name for name in TIMM_NAMES if name != FAILS])
def test_is_the_identity_at_gate_0_and_timms_module_at_gate_1(name: str) -> None:
    """Compare every bit, for contiguous features and for channels_last ones."""
    assert table.is_bitwise(name)


def test_the_page_lists_every_name() -> None:
    lines = [line for line in table.DOCUMENT.read_text().splitlines() if line.startswith("| `timm:")]
    assert [line.split("`")[1].removeprefix("timm:") for line in lines] == list(TIMM_NAMES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "se" else pytest.mark.slow("another case"))
        for name in TIMM_NAMES
    ],
)
def test_the_page_has_the_results(name: str) -> None:
    assert table.check_type(name).line() in table.DOCUMENT.read_text().splitlines()
