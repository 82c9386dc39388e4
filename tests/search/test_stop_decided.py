"""A search from new weights ends once its placements are decided, and continues only if it is asked to."""

from pathlib import Path

import numpy as np
import optuna
import pytest

from attention import Spec
from search import choices
from search.config import TrialConfig
from search.placement_sampler import GrowingModel
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.space import Space
from search.study import PLACEMENT_VERDICT, read_attribute, resume_study
from tests.helpers.search_cases import ask_trial, make_engine, make_plan, make_study, report


def draw(trial: optuna.Trial) -> TrialConfig:
    placement = {
        f"stage{site + 1}.block1": Spec(trial.suggest_categorical(f"type{i}", ["ssa", "sagan"]))
        for i, site in enumerate(choices.ascending(trial, 2, most=1), start=1)
    }
    return TrialConfig().change(model={"placement": placement})


SPACE = Space(name="s", draw=draw, baseline={"modules": 0}, summary="")


def make(study: optuna.Study, sampler: str = "placement", *, stop_decided: bool = True) -> SearchScheduler:
    return make_engine(study, SPACE, make_plan(), load_sampler(sampler, seed=0), stop_decided=stop_decided)


def train(scheduler: SearchScheduler, gain: float, most: int = 100) -> None:
    """Train until the scheduler has no more trials, with noise of 0.1 points. One type adds `gain`."""
    random = np.random.default_rng(0)
    for _ in range(most):
        if (record := scheduler.ask()) is None:
            break
        types = [spec.type for spec in record.config.model.placement.values()]
        score = 0.5 + gain * ("sagan" in types) + 0.001 * random.standard_normal()
        scheduler.end(record.number, report(score, finished=True))


@pytest.mark.parametrize(("gain", "verdict"), [(0.02, "decided"), (0.0, "no difference that matters")])
def test_a_search_ends_once_its_placements_are_decided(gain: float, verdict: str, tmp_path: Path) -> None:
    ended = make(make_study(tmp_path))
    train(ended, gain)
    assert len(ended.records) < 60
    assert ended.placement_verdict.startswith(verdict)
    resumed = make(resume_study(tmp_path, name="s"))
    assert resumed.ask() is None, "it does not continue silently"
    assert resumed.placement_verdict == ended.placement_verdict
    going_on = make(resume_study(tmp_path, name="s"), stop_decided=False)
    ask_trial(going_on)
    assert not read_attribute(tmp_path, "s", PLACEMENT_VERDICT)


def test_trials_are_ranked_by_the_model_that_ended_their_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.placement_sampler.REFIT", 100.0)  # other fits keep the first variances
    ended = make(make_study(tmp_path))
    train(ended, 0.02)
    assert ended.placement_verdict
    expected = GrowingModel().expected_scores(ended.study)
    for number, record in ended.records.items():
        assert record.expected == pytest.approx(expected.get(number), abs=1e-6)


@pytest.mark.parametrize(("sampler", "stop_decided"), [("placement", False), ("random", True)])
def test_a_search_trains_all_trials_otherwise(sampler: str, stop_decided: bool, tmp_path: Path) -> None:
    scheduler = make(make_study(tmp_path), sampler, stop_decided=stop_decided)
    train(scheduler, 0.02)
    assert len(scheduler.records) == 100
    assert not scheduler.placement_verdict
