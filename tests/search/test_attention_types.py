"""Attention types of a space: the default, and those that the user chooses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from attention import ATTENTIONS
from attention.attention_table import RECORDS
from search import choices
from search.choices import parse_parameter, types_of
from search.config import TrialConfig
from search.drawn import Drawn
from search.space import SPACES, draw_randomly, load_space
from tests.helpers import others_slow

GATE = """
from typing import Annotated, Literal
from torch import nn
from attention import Choices

class Gate(nn.Module):
    def __init__(
        self, channels, width: Annotated[int, Choices(2, 4)] = 4, kind: Literal["mean", "max"] = "mean"
    ):
        super().__init__()

class Drawn(nn.Module):
    def __init__(self, channels, width: int = 4, rate: float = 0.5):
        super().__init__()

    @classmethod
    def suggest(cls, trial, prefix, channels):
        return {
            "width": trial.suggest_int(prefix + "width", 1, channels),
            "rate": trial.suggest_float(prefix + "rate", 0.1, 0.9),
        }
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(GATE)
    return f"{tmp_path}/mine.py"


@pytest.mark.parametrize("name", others_slow(["digits", "scenes", "sensors"], "digits"))
def test_a_new_type_of_the_table_changes_no_space(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Drawn(SPACES[name]).fingerprint
    record = replace(ATTENTIONS["ssa"], name="new")
    monkeypatch.setitem(RECORDS, "new", record)
    assert Drawn(SPACES[name]).fingerprint == before
    assert Drawn(SPACES[name].with_attention(SPACES[name].types or ())).fingerprint == before


@pytest.mark.parametrize(
    "name",
    others_slow([n for n, space in SPACES.items() if space.types], "digits", "hybrid", "sensors", "code"),
)
def test_a_space_draws_the_chosen_types(name: str) -> None:
    space = SPACES[name].with_attention(["timm:se", "decomposed"])
    assert space.types == ("timm:se", "decomposed")
    drawn = {
        spec.type
        for _, config in draw_randomly(space, 20)
        if config is not None
        for spec in config.model.placement.values()
    }
    assert drawn == {"timm:se", "decomposed"}
    known = {"decomposed"} if space.with_layers is None else {"timm:se", "decomposed"}
    assert all(types_of(params) <= known for params in space.free())


def test_published_placements_of_other_types_are_left_out() -> None:
    assert SPACES["digits"].with_attention(["timm:se"]).free() == []


def test_parameters_hold_no_folder(own: str, tmp_path: Path) -> None:
    space = SPACES["digits"].with_attention([f"{own}:Gate"])
    mark = Drawn(space).fingerprint
    (tmp_path / "moved").mkdir()
    moved = Path(own).rename(tmp_path / "moved" / "mine.py")
    assert Drawn(SPACES["digits"].with_attention([f"{moved}:Gate"])).fingerprint == mark
    moved.write_text(GATE + "\nclass Other: pass\n")
    assert Drawn(SPACES["digits"].with_attention([f"{moved}:Gate"])).fingerprint != mark


def test_options_are_parameters_of_their_module(own: str) -> None:
    space = SPACES["digits"].with_attention([f"{own}:Gate", f"{own}:Drawn"])
    types = {"type1": "mine.py:Gate", "type2": "mine.py:Drawn"}
    trial, config = next(draw_randomly(space, 1, first={"modules": 2, **types}))
    roles = {name: parse_parameter(name) for name in trial.params}
    names = [name for name, role in roles.items() if role and role.kind not in ("type", "site")]
    assert names == [
        "modules", "option1.mine.py:Gate.width", "option1.mine.py:Gate.kind",
        "option2.mine.py:Drawn.width", "option2.mine.py:Drawn.rate",
    ]  # fmt: skip
    first, second = config.model.placement.values()
    assert first.options == {key.rpartition(".")[2]: trial.params[key] for key in names[1:3]}
    assert second.options == {key.rpartition(".")[2]: trial.params[key] for key in names[3:]}
    assert first.code == second.code != ""


def _chooses(trial: optuna.Trial, kinds: Sequence[str] = ("ssa",)) -> TrialConfig:
    spec = choices.attention(trial, 1, 16, kinds)
    return TrialConfig().change(model={"placement": {"stem": spec}})


def test_a_function_with_kinds_takes_other_types() -> None:
    assert load_space(_chooses).with_attention(["sagan"]).types == ("sagan",)
