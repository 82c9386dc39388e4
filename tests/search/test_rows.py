"""What is written of a trial reads as if Optuna had written it."""

from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from search_cases import TWO, make_study

from search.rows import Rows
from search.study import close_study

CONSTRAINTS = {"trainable": 0.0, "memory": 2.5}


@pytest.fixture
def studies(tmp_path: Path) -> Iterator[tuple[optuna.Study, optuna.Study]]:
    """One for Rows, and one for Optuna's own storage."""
    pair = []
    for name in ("ours", "optunas"):
        (tmp_path / name).mkdir()
        pair.append(make_study(tmp_path / name))
    yield pair[0], pair[1]
    for study in pair:
        close_study(study)


def new() -> FrozenTrial:
    return create_trial(
        state=TrialState.RUNNING,
        params={"rate": 1e-3, "modules": 2, "type": "ssa", "nothing": None},
        distributions={
            "rate": FloatDistribution(1e-5, 1.0, log=True),
            "modules": IntDistribution(0, 3),
            "type": CategoricalDistribution(["sagan", "ssa"]),
            "nothing": CategoricalDistribution([None, True]),
        },
        user_attrs={"role": "candidate", "config": {"seed": 1, "list": [1.5, None]}},
    )


def told(study: optuna.Study) -> dict[str, Any]:
    """All that the study knows of its last trial but the time of day."""
    trial = study.get_trials(deepcopy=False)[-1]
    assert trial.datetime_start is not None
    assert trial.state is TrialState.RUNNING or trial.datetime_complete is not None
    names = ("number", "state", "values", "params", "distributions", "user_attrs", "system_attrs")
    return {name: getattr(trial, name) for name in names} | {"steps": str(trial.intermediate_values)}


def optunas(study: optuna.Study, scores: dict[int, float], attributes: dict[str, Any]) -> optuna.Trial:
    study.add_trial(new())
    trial = optuna.Trial(study, study.get_trials()[-1]._trial_id)
    for step, value in scores.items():
        trial.report(value, step=step)
    for key, attribute in attributes.items():
        trial.set_user_attr(key, attribute)
    return trial


@pytest.mark.parametrize("scores", [{}, {1: 0.25}, {1: 0.25, 3: nan, 2: inf}, {2: -inf}])
@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])
def test_a_trial_reads_as_optunas_own(
    scores: dict[int, float], state: TrialState, studies: tuple[optuna.Study, optuna.Study]
) -> None:
    ours, theirs = studies
    rows = Rows(ours)
    values = [0.75] if state is TrialState.COMPLETE else None
    for number in range(2):
        assert rows.add(new()) == number
        rows.set(number, {"history": [], "role": "candidate"})
        rows.set(number, {"history": [{"epoch": 1.0}]}, scores)
        trial = optunas(theirs, scores, {"history": [{"epoch": 1.0}]})
        assert told(ours) == told(theirs)
        rows.end(number, state, values, attributes={"reason": "why"}, constraints=CONSTRAINTS)
        trial.set_user_attr("reason", "why")
        for key, value in CONSTRAINTS.items():
            trial.set_constraint(key, value)
        theirs.tell(trial, values, state=state)
        assert told(ours) == told(theirs)


def test_a_score_that_is_no_number_is_a_failure_as_with_optuna(
    studies: tuple[optuna.Study, optuna.Study],
) -> None:
    ours, theirs = studies
    rows = Rows(ours)
    rows.end(rows.add(new()), TrialState.COMPLETE, [nan], attributes={}, constraints={})
    with pytest.warns(UserWarning, match="nan"):
        theirs.tell(optunas(theirs, {}, {}), [nan])
    assert told(ours) == told(theirs)
    assert ours.get_trials()[0].state is TrialState.FAIL


def test_several_scores_are_kept_in_their_order(tmp_path: Path) -> None:
    study = make_study(tmp_path, objectives=TWO)
    rows = Rows(study)
    rows.end(rows.add(new()), TrialState.COMPLETE, [0.5, inf], attributes={}, constraints={})
    assert study.get_trials()[0].values == [0.5, inf]
    close_study(study)


def test_numbers_go_on_where_the_study_stands(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    study.add_trial(new())
    assert Rows(study).add(new()) == 1
    again = Rows(study)
    again.set(0, {"role": "baseline"})
    assert [trial.user_attrs["role"] for trial in study.get_trials()] == ["baseline", "candidate"]
    close_study(study)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    rows = Rows(study)
    broken = new()
    broken.set_user_attr("config", {1, 2})
    with pytest.raises(TypeError):
        rows.add(broken)
    assert study.get_trials() == []
    number = rows.add(new())
    with pytest.raises(TypeError):
        rows.set(number, {"history": {1, 2}}, {1: 0.5})
    assert study.get_trials()[0].intermediate_values == {}
    close_study(study)
