"""Parameters that a space fixes instead of drawing them."""

from typing import Any

import optuna
import pytest

from automl.base.errors import InputError
from search.config import TrialConfig
from search.drawn import check_fixed_parameters
from search.space import SPACES, Space
from tests.helpers.search_cases import SMALL, draw


def space(draws: Any = draw, **fields: Any) -> Space:
    published = fields.pop("free", ())
    values = {"baseline": {"modules": 0}, **fields}
    return Space(name="mine", draw=draws, free=lambda: published, summary="", **values)


def tunable(trial: optuna.Trial) -> TrialConfig:
    """Draw the modules, and learning rates for each of two optimisers."""
    kind = trial.suggest_categorical("optimizer", ["adamw", "sgd"])
    rate = trial.suggest_float(f"{kind}.rate", 1e-3, 1e-2, log=True)
    trial.suggest_float("mixup", 0, 0.4, step=0.1)
    return draw(trial).change(training={"learning_rate": rate})


@pytest.mark.parametrize("built_in", [*SPACES.values(), SMALL], ids=lambda s: s.name)
def test_built_in_spaces_have_valid_parameters(built_in: Space) -> None:
    check_fixed_parameters(built_in)


def test_valid_parameters_are_accepted() -> None:
    check_fixed_parameters(
        space(tunable, baseline={"modules": 0, "optimizer": "sgd", "sgd.rate": 5e-3, "mixup": 0.3})
    )
    check_fixed_parameters(space(tunable, plain={"modules": 0, "adamw.rate": 5e-3}))  # of half of the draws
    check_fixed_parameters(space(lambda trial: TrialConfig()))  # which has no modules anyway


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"modules": 3}, ["the parameter 'modules' to 3", "choose from 0 to 2"]),
    ({"modules": 0, "optimizer": "adam"}, ["'optimizer' to 'adam'", "choose from 'adamw', 'sgd'"]),
    ({"modules": 0, "sgd.rate": 1.0}, ["'sgd.rate' to 1.0", "choose from 0.001 to 0.01"]),
    ({"modules": 0, "mixup": 0.15}, ["'mixup' to 0.15", "choose from 0 to 0.4 in steps of 0.1"]),
    ({"modules": 0, "mixupp": 0.1}, ["names the parameter 'mixupp'", "never draws", "Did you mean 'mixup'?"]),
    ({"modules": 0, "first": "ssa"}, ["names the parameter 'first'", "it draws"]),
]


@pytest.mark.parametrize("what", ["baseline", "plain", "free"])
@pytest.mark.parametrize(("params", "messages"), WRONG, ids=[str(params) for params, _ in WRONG])
def test_invalid_parameters_are_rejected(what: str, params: dict[str, Any], messages: list[str]) -> None:
    fields = {what: [params] if what == "free" else params}
    with pytest.raises(InputError) as error:
        check_fixed_parameters(space(tunable, **fields))
    for part in (f"`{what}` of space 'mine'", *messages):
        assert part in str(error.value)


def forced(trial: optuna.Trial) -> TrialConfig:
    """Draw at least one module, with another parameter name."""
    trial.suggest_int("count", 1, 2)
    return draw(optuna.trial.FixedTrial({"modules": 1, "first": "ssa"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("draws", [forced, draw])
@pytest.mark.parametrize("what", ["baseline", "plain"])
def test_a_plain_trial_with_attention_is_rejected(draws: Any, what: str) -> None:
    fields: dict[str, Any] = {"baseline": {"modules": 0}, "plain": {"modules": 0}}
    if draws is draw:
        fields[what] = {}  # modules are drawn
    else:
        what = "baseline"
    with pytest.raises(InputError) as error:
        check_fixed_parameters(space(draws, **fields))
    assert f"`{what}` of space 'mine', " in str(error.value)
    assert "draws attention (ssa @ stage1.block1" in str(error.value)
    assert f"set FUNCTION.{what} to" in str(error.value)
