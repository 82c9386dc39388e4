"""A list of trials is run once each, even if runs are interrupted."""

from dataclasses import replace
from pathlib import Path

import optuna

from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import Report, Role, State
from tests.helpers.search_cases import EPOCHS, ask_trial, make_plan, make_study, report


def planned_trials(*variants: str, seeds: int = 2) -> list[PlannedTrial]:
    return [
        PlannedTrial(variant=variant, role=Role.FINALIST, config=TrialConfig(seed=seed))
        for seed in range(seeds)
        for variant in variants
    ]


def make(study: optuna.Study, *variants: str) -> FixedScheduler:
    return FixedScheduler(study, make_plan(), planned_trials(*variants))


def run(scheduler: FixedScheduler) -> list[tuple[str, int]]:
    """Run all remaining trials to their ends."""
    done = []
    while (record := scheduler.ask()) is not None:
        scheduler.end(record.number, report(*[0.5] * EPOCHS, finished=True))
        done.append((record.variant, record.config.seed))
    return done


def test_each_entry_is_run_once_in_order(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make(study, "a", "b")
    assert scheduler.left == 4
    assert run(scheduler) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert scheduler.left == 0
    assert run(make(study, "a", "b")) == []
    assert [trial.user_attrs["variant"] for trial in study.trials] == ["a", "b", "a", "b"]
    assert scheduler.records[1].name == "001 b seed 0"


def test_trials_may_be_planned_while_one_runs(tmp_path: Path) -> None:
    scheduler = make(make_study(tmp_path), "a")
    first, second = ask_trial(scheduler), ask_trial(scheduler)
    assert scheduler.ask() is None
    assert scheduler.waiting
    scheduler.planned_trials = planned_trials("a", "b")
    assert run(scheduler) == [("b", 0), ("b", 1)]
    assert scheduler.waiting
    for record in (first, second):
        scheduler.end(record.number, report(*[0.5] * EPOCHS, finished=True))
    assert scheduler.ask() is None
    assert not scheduler.waiting


def test_running_trials_resume_first(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make(study, "a", "b")
    first, second = ask_trial(scheduler), ask_trial(scheduler)
    scheduler.report(second.number, report(0.3))
    scheduler.end(first.number, report(*[0.5] * EPOCHS, finished=True))
    later = make(study, "a", "b")
    again = ask_trial(later)
    assert (again.number, again.variant, len(again.history)) == (second.number, "b", 1)
    assert later.left == 2


def test_the_device_that_a_trial_began_on_is_known(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make(study, "a")
    first, other = ask_trial(scheduler), ask_trial(scheduler)
    profile = {"time_ratio": 1.0}
    history = report(0.3).history
    scheduler.report(first.number, Report(history=history, profile=profile, device="a fast one"))
    scheduler.report(
        first.number, Report(history=[*history, *history], profile={"time_ratio": 1.5}, device="a slow one")
    )
    scheduler.end(other.number, Report(infeasible="too large", profile=profile, device="a slow one"))
    assert [record.device for record in make(study, "a").records.values()] == ["a fast one", "a slow one"]
    assert [record.profile for record in make(study, "a").records.values()] == [profile, profile]


def test_removed_trials_are_pruned(tmp_path: Path) -> None:
    scheduler = make(make_study(tmp_path), "a", "b")
    record = ask_trial(scheduler)
    assert scheduler.report(record.number, report(0.3))
    scheduler.planned_trials = [
        planned_trial for planned_trial in scheduler.planned_trials if planned_trial.variant == "b"
    ]
    assert not scheduler.report(record.number, report(0.3, 0.4))
    scheduler.end(record.number, report(0.3, 0.4))
    assert record.state is State.PRUNED
    assert run(scheduler) == [("b", 0), ("b", 1)]


def test_more_can_be_put_on_the_list(tmp_path: Path) -> None:
    scheduler = make(make_study(tmp_path), "a")
    run(scheduler)
    known = len(scheduler.records)
    scheduler.plan = replace(scheduler.plan, trials=None)
    scheduler.planned_trials += planned_trials("c", seeds=1)
    assert scheduler.trials == known + 1
    assert run(scheduler) == [("c", 0)]
    assert scheduler.trials == known + 1


def test_only_the_next_run_repeats_an_error(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make(study, "a")
    record = ask_trial(scheduler)
    scheduler.end(record.number, Report(error="boom"))
    assert run(scheduler) == [("a", 1)]
    assert run(make(study, "a")) == [("a", 0)]
    assert run(make(study, "a")) == []
