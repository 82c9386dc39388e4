"""The scheduler of a search: the next trial, pruning, and the sampler's knowledge of each end."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from automl.base.errors import InputError
from search.config import TrialConfig
from search.record import Report, Role, State, TrialRecord
from search.samplers import load_sampler
from search.search_scheduler import ALL_INFEASIBLE, REFUSED, SearchScheduler
from search.space import Space
from search.study import CONFIG, ROLE, STUDY_FILE, open_study, resume_study, warm_start_study
from search.trial_scheduler import REPEATED_FAILURES, Plan, rank_trials
from tests.helpers.search_cases import (
    EPOCHS,
    PUBLISHED,
    SMALL,
    EventRecorder,
    ask_trial,
    draw,
    epoch,
    make_engine,
    make_plan,
    make_study,
    report,
)

DONE = report(0.5, finished=True)


@pytest.fixture
def scheduler(tmp_path: Path) -> SearchScheduler:
    return make_engine(make_study(tmp_path))


def stored_trial(scheduler: SearchScheduler, number: int) -> FrozenTrial:
    return scheduler.study.get_trials(deepcopy=False)[number]


def finish(scheduler: SearchScheduler, record: TrialRecord, score: float = 0.5) -> None:
    scheduler.end(record.number, report(score, finished=True, profile={"macs": 100.0}))


def everything(scheduler: SearchScheduler, most: int = 100) -> list[TrialRecord]:
    """Return all trials, each ended before the next one starts."""
    records = []
    while (record := scheduler.ask()) is not None:
        records.append(record)
        finish(scheduler, record)
        assert len(records) <= most
    return records


class AtLeastOneModule(RandomSampler):
    """Sampler that draws at least one module."""

    def sample_independent(self, study: Any, trial: Any, name: str, kind: Any) -> Any:
        value = super().sample_independent(study, trial, name, kind)
        return max(1, value) if name == "modules" else value


def tunable(trial: optuna.Trial) -> TrialConfig:
    """Draw from the small space, with a learning rate to tune."""
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-2)
    return draw(trial).change(training={"learning_rate": rate})


BASELINE = {"modules": 0, "learning_rate": 5e-3}
TUNABLE = Space(name="tunable", draw=tunable, baseline=BASELINE, free=lambda: PUBLISHED, summary="")


# The next trial.


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 1.0])
def test_the_baseline_then_papers_then_a_fraction_of_plain_trials(fraction: float, tmp_path: Path) -> None:
    plan = make_plan(baseline_share=fraction)
    scheduler = make_engine(make_study(tmp_path), TUNABLE, plan, AtLeastOneModule(seed=0))
    records = [ask_trial(scheduler) for _ in range(40)]
    assert [record.number for record in records] == list(range(40))
    params = [stored_trial(scheduler, record.number).params for record in records]
    assert (records[0].role, params[0]) == (Role.BASELINE, BASELINE)
    for record, drawn, paper in zip(records[1:3], params[1:3], PUBLISHED, strict=True):
        assert record.role is Role.FREE
        assert drawn.items() >= paper.items()
    roles = Counter(record.role for record in records[3:])
    expected = max(1, int(40 * fraction)) - 1 if fraction < 1 else 37
    assert roles == Counter({Role.BASELINE: expected, Role.CANDIDATE: 37 - expected})
    for record in records:
        assert (record.role is Role.BASELINE) == (record.config.model.placement == {})
        assert stored_trial(scheduler, record.number).user_attrs[ROLE] == record.role
        stored = stored_trial(scheduler, record.number).user_attrs[CONFIG]
        assert TrialConfig.from_json(stored) == record.config
    assert len({drawn["learning_rate"] for drawn in params}) == 40, "the sampler draws the other parameters"


def test_enqueued_trials_are_tried(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make_engine(study, TUNABLE)
    ask_trial(scheduler)
    by_hand = optuna.load_study(
        study_name="s", storage=JournalStorage(JournalFileBackend(str(tmp_path / STUDY_FILE)))
    )
    by_hand.enqueue_trial({"modules": 0, "learning_rate": 7e-3})
    scheduler = make_engine(resume_study(tmp_path, name="s"), TUNABLE)
    assert ask_trial(scheduler).number == 0, "the open trial resumes"
    records = [ask_trial(scheduler) for _ in range(3)]
    assert [record.number for record in records] == [1, 2, 3]
    assert stored_trial(scheduler, 1).params == {"modules": 0, "learning_rate": 7e-3}
    assert [record.role for record in records[1:]] == [Role.FREE, Role.FREE], "none is skipped"
    for number in range(4):
        finish(scheduler, scheduler.records[number])
    again = make_engine(resume_study(tmp_path, name="s"), TUNABLE)
    assert {trial.state for trial in again.study.get_trials()} == {TrialState.COMPLETE}
    assert ask_trial(again).role is Role.BASELINE or again.records[4].role is Role.CANDIDATE


def test_plain_draws_are_baselines(tmp_path: Path) -> None:
    scheduler = make_engine(make_study(tmp_path), plan=make_plan(baseline_share=0))
    records = [ask_trial(scheduler) for _ in range(40)]
    assert sum(record.role is Role.BASELINE for record in records) > 3
    for record in records:
        assert (record.role is Role.BASELINE) == (record.config.model.placement == {})


@pytest.mark.parametrize("seed", [3, 2**32 - 1])
def test_a_repeated_configuration_gets_another_seed(seed: int, tmp_path: Path) -> None:
    space = Space(name="one", draw=lambda trial: TrialConfig(seed=seed), baseline={}, summary="")
    scheduler = make_engine(make_study(tmp_path), space)
    seeds = [ask_trial(scheduler).config.seed for _ in range(3)]
    for number in range(3):
        scheduler.end(number, DONE)
    seeds.append(ask_trial(make_engine(open_study(tmp_path, name="s"), space)).config.seed)
    assert seeds == [(seed + i) % 2**32 for i in range(4)]


def refusing(trial: optuna.Trial) -> TrialConfig:
    config = draw(trial)
    if trial.params.get("heads", 1) > 1 or trial.params.get("first") == "sagan":
        raise optuna.TrialPruned
    return config


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_rejected_draws_are_no_trials(sampler: str, tmp_path: Path) -> None:
    space = Space(name="refusing", draw=refusing, baseline={"modules": 0}, free=lambda: PUBLISHED, summary="")
    scheduler = make_engine(make_study(tmp_path), space, make_plan(20), load_sampler(sampler, seed=0))
    records = everything(scheduler)
    assert len(records) == len(scheduler.study.get_trials(deepcopy=False)) == 20
    roles = [record.role for record in records]
    assert roles[1] is Role.FREE
    assert roles.count(Role.FREE) == 1, "the space refuses the other one, and no other takes its name"


def test_a_space_that_rejects_everything(tmp_path: Path) -> None:
    def never(trial: optuna.Trial) -> TrialConfig:
        raise optuna.TrialPruned

    scheduler = make_engine(make_study(tmp_path), Space(name="never", draw=never, baseline={}, summary=""))
    with pytest.raises(InputError, match=rf"space 'never' rejected {REFUSED} draws in a row \(TrialPruned\)"):
        scheduler.ask()
    assert scheduler.study.trials == []


# Limits.


def heavy(config: TrialConfig) -> dict[str, float]:
    """Forecast that two modules exceed a limit by one."""
    return {"params": len(config.model.placement) - 1.5}


def test_draws_that_would_exceed_a_limit_are_not_tried(tmp_path: Path) -> None:
    papers = [{"modules": 2, "first": "ssa", "heads": 3}]
    space = Space(name="s", draw=draw, baseline={"modules": 0}, free=lambda: papers, summary="")
    sampler = load_sampler("tpe", seed=0)
    scheduler = make_engine(make_study(tmp_path), space, make_plan(25), sampler, forecast=heavy)
    records = everything(scheduler)
    assert len(records) == 25
    assert [len(record.config.model.placement) for record in records].index(2) == 1, "what is given, is tried"
    assert all(len(record.config.model.placement) < 2 for record in records[2:])


def test_draws_are_tried_if_all_would_exceed_a_limit(tmp_path: Path) -> None:
    scheduler = make_engine(make_study(tmp_path), forecast=lambda config: {"params": 0.5})
    assert [ask_trial(scheduler).number for _ in range(6)] == list(range(6))


@pytest.mark.parametrize(
    ("which", "all_infeasible"), [(range(ALL_INFEASIBLE), True), (range(1, ALL_INFEASIBLE), False)]
)
def test_a_search_whose_trials_all_exceed_the_limits_ends(
    which: range, all_infeasible: bool, scheduler: SearchScheduler
) -> None:
    for number in range(ALL_INFEASIBLE):
        assert scheduler.all_infeasible is None
        record = ask_trial(scheduler)
        scheduler.end(number, Report(infeasible="too large") if number in which else DONE)
        assert record.state is (State.INFEASIBLE if number in which else State.COMPLETE)
    assert (scheduler.ask() is None) is all_infeasible
    assert scheduler.all_infeasible == (
        f"none of the first {ALL_INFEASIBLE} trials could be trained; the last one: too large"
        if all_infeasible
        else None
    )


# The state that each end leaves.


def test_a_finished_trial_is_complete_with_its_last_value(scheduler: SearchScheduler) -> None:
    number = ask_trial(scheduler).number
    assert scheduler.report(number, report(0.9))
    scheduler.end(number, report(0.9, 0.5, finished=True))
    trial = stored_trial(scheduler, number)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.5), "the last epoch, not the best"
    assert trial.intermediate_values == {1: 0.9, 2: 0.5}
    assert trial.constraints == {"trainable": 0.0}
    assert scheduler.records[number].state is State.COMPLETE


def test_a_cut_trial_is_pruned_with_its_intermediate_values(scheduler: SearchScheduler) -> None:
    baseline, good, weak = (ask_trial(scheduler).number for _ in range(3))
    assert scheduler.report(baseline, report(0.1, 0.5))
    assert scheduler.report(good, report(0.1, 0.4)), "another kind than the baseline"
    assert scheduler.report(weak, report(0.9)), "no rung yet"
    assert not scheduler.report(weak, report(0.9, 0.3))
    scheduler.end(weak, report(0.9, 0.3))
    trial = stored_trial(scheduler, weak)
    assert trial.state is TrialState.PRUNED
    assert trial.intermediate_values == {1: 0.9, 2: 0.3}
    assert scheduler.records[weak].state is State.PRUNED


def test_no_trial_is_cut_without_pruning(tmp_path: Path) -> None:
    scheduler = make_engine(make_study(tmp_path), plan=make_plan(pruning=False))
    assert scheduler.rungs.milestones == []
    _, good, weak = (ask_trial(scheduler).number for _ in range(3))
    assert scheduler.report(good, report(0.1, 0.4))
    assert scheduler.report(weak, report(0.9, 0.3))


@pytest.mark.parametrize(
    ("violations", "constraints"),
    [
        ({}, {"trainable": 1.0}),
        ({"params": 0.25, "macs": -0.5}, {"trainable": 0.0, "params": 0.25, "macs": -0.5}),
        ({"params": -0.25}, {"trainable": 1.0, "params": -0.25}),
    ],
    ids=["diverged", "over a limit", "diverged within the limit"],
)
def test_infeasible_trials_violate_constraints(
    violations: dict[str, float], constraints: dict[str, float], scheduler: SearchScheduler
) -> None:
    number = ask_trial(scheduler).number
    scheduler.end(number, Report(infeasible="too much", violations=violations, profile={"params": 5.0}))
    assert stored_trial(scheduler, number).state is TrialState.PRUNED
    assert stored_trial(scheduler, number).constraints == constraints
    record = scheduler.records[number]
    assert (record.state, record.reason, record.profile) == (State.INFEASIBLE, "too much", {"params": 5.0})


@pytest.mark.parametrize("half", [b"", b'{"op_code":9,"wor', b"\x00" * 40])
def test_an_incomplete_write_is_repaired(half: bytes, scheduler: SearchScheduler, tmp_path: Path) -> None:
    scheduler.end(ask_trial(scheduler).number, report(0.4, finished=True))
    with open(tmp_path / STUDY_FILE, "ab") as file:
        file.write(half)
    assert len(open_study(tmp_path, name="s").trials) == 1, "to read, it is as good"
    again = make_engine(resume_study(tmp_path, name="s"))
    again.end(ask_trial(again).number, report(0.6, finished=True))
    assert [trial.value for trial in open_study(tmp_path, name="s").trials] == [0.4, 0.6]


# Reports.


def test_reports_are_cumulative_and_counted_once(scheduler: SearchScheduler) -> None:
    heard = EventRecorder()
    scheduler.callbacks = [heard]
    number = ask_trial(scheduler).number
    scheduler.started(number)
    for partial in (report(0.1), report(0.1), report(0.1, 0.2, 0.3), report(0.1, 0.2)):
        assert scheduler.report(number, partial)
    last = report(0.1, 0.2, 0.3, 0.4, finished=True)
    assert not scheduler.report(number, last)
    scheduler.end(number, last)
    scheduler.end(number, last)
    assert not scheduler.report(number, last), "it has ended"
    assert heard.events == [
        ("started", number),
        *(("reported", number, i) for i in (1, 2, 3, 4)),
        ("ended", number, "complete"),
    ]
    assert stored_trial(scheduler, number).intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert [metrics["accuracy"] for metrics in scheduler.records[number].history] == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("reasons", "repeated_failure"),
    [
        (["no"] * REPEATED_FAILURES, True),
        (["yes", *["no"] * REPEATED_FAILURES], True),
        (["no"] * (REPEATED_FAILURES - 1), False),
        ([*["no"] * (REPEATED_FAILURES - 1), None, "no"], False),
    ],
)
def test_nothing_but_one_error_ends_the_search(
    reasons: list[str | None], repeated_failure: bool, scheduler: SearchScheduler
) -> None:
    for reason in reasons:
        number = ask_trial(scheduler).number
        assert not scheduler.repeated_failure
        scheduler.end(number, DONE if reason is None else Report(error=reason))
    assert scheduler.repeated_failure is repeated_failure


def test_closing_lets_trials_reach_their_next_rung(scheduler: SearchScheduler) -> None:
    milestones = scheduler.rungs.milestones
    assert milestones == [2, 6]
    number = ask_trial(scheduler).number
    scheduler.closing = True
    assert scheduler.ask() is None
    scores: list[float] = []
    while True:
        scores.append(0.5)
        if not scheduler.report(number, report(*scores)):
            break
    assert len(scores) == milestones[0]
    scheduler.end(number, report(*scores))
    assert scheduler.records[number].state is State.PRUNED


# Resuming a study.


def resumed(tmp_path: Path, plan: Plan | None = None) -> SearchScheduler:
    return make_engine(open_study(tmp_path, name="s"), plan=plan)


def test_open_trials_of_an_earlier_run_come_first(scheduler: SearchScheduler, tmp_path: Path) -> None:
    records = [ask_trial(scheduler) for _ in range(5)]
    for number in (0, 3):
        finish(scheduler, records[number], 0.25 + number)
    scheduler.report(2, report(0.125, 0.25, profile={"time_ratio": 1.5}))
    scheduler.end(4, None, error="gone")
    again = resumed(tmp_path)
    assert {n: (r.state, r.config, r.role, r.reason) for n, r in again.records.items()} == {
        r.number: (r.state, r.config, r.role, r.reason) for r in records
    }
    assert [ask_trial(again).number for _ in range(3)] == [1, 2, 5]
    assert again.records[2].profile == {"time_ratio": 1.5}
    assert [metrics["accuracy"] for metrics in again.records[2].history] == [0.125, 0.25]
    again.end(2, report(0.125, 0.25, 0.5, finished=True))
    assert stored_trial(again, 2).intermediate_values == {1: 0.125, 2: 0.25, 3: 0.5}


def test_the_rungs_are_built_again(scheduler: SearchScheduler, tmp_path: Path) -> None:
    for score in (0.9, 0.5, 0.25, 0.75, 0.125):
        number = ask_trial(scheduler).number
        scores = [score] * EPOCHS
        for i in range(1, EPOCHS + 1):
            if not scheduler.report(number, report(*scores[:i], finished=i == EPOCHS)):
                break
        scheduler.end(number, report(*scores[:i], finished=i == EPOCHS))
    assert any(state is State.PRUNED for state in (r.state for r in scheduler.records.values()))
    assert resumed(tmp_path).rungs._tables == scheduler.rungs._tables


def test_rungs_within_an_epoch(tmp_path: Path) -> None:
    plan = make_plan(budget=1, reports=9)
    scheduler = make_engine(make_study(tmp_path), plan=plan)
    _, good, weak = (ask_trial(scheduler).number for _ in range(3))
    history = [epoch(i / 9, 0.5) for i in (1, 2, 3)]
    assert scheduler.report(good, Report(history=history))
    assert not scheduler.report(weak, Report(history=[epoch(1 / 9, 0.4)]))
    assert stored_trial(scheduler, good).intermediate_values == {1: 0.5, 2: 0.5, 3: 0.5}
    tables = [{"candidate": {good: 0.5, weak: 0.4}}, {"candidate": {good: 0.5}}]
    assert resumed(tmp_path, plan).rungs._tables == scheduler.rungs._tables == tables


@pytest.mark.parametrize("before", [0, 1, 5])
def test_killed_in_the_middle_of_a_draw(before: int, tmp_path: Path) -> None:
    alive = True

    def dying(trial: optuna.Trial) -> TrialConfig:
        trial.suggest_int("modules", 0, 2)
        if not alive:
            raise KeyboardInterrupt
        return draw(trial)

    space = Space(name="s", draw=dying, baseline={"modules": 0}, free=lambda: PUBLISHED, summary="")
    scheduler = make_engine(make_study(tmp_path), space)
    for _ in range(before):
        finish(scheduler, ask_trial(scheduler))
    alive = False
    with pytest.raises(KeyboardInterrupt):
        scheduler.ask()
    again = resumed(tmp_path, make_plan(6))
    assert [record.number for record in everything(again)] == list(range(before, 6))
    assert [again.records[i].role for i in range(3)] == [Role.BASELINE, Role.FREE, Role.FREE]
    assert len(again.study.get_trials(deepcopy=False)) == 6


def test_killed_between_the_mark_of_a_cut_trial_and_its_end(
    scheduler: SearchScheduler, tmp_path: Path
) -> None:
    baseline, good, weak = (ask_trial(scheduler).number for _ in range(3))
    assert scheduler.report(good, report(0.1, 0.4))
    assert not scheduler.report(weak, report(0.9, 0.3))
    again = resumed(tmp_path)
    assert again.records[weak].state is State.PRUNED
    assert stored_trial(again, weak).state is TrialState.PRUNED
    assert [ask_trial(again).number for _ in range(3)] == [baseline, good, 3]


def test_trials_that_may_guess_are_ranked_last() -> None:
    """Their order does not follow from the model of placements."""
    plan = make_plan(guessing=0.6)
    lucky, learned = (
        TrialRecord(i, TrialConfig(), state=State.COMPLETE, history=[{"accuracy": score}], expected=expected)
        for i, (score, expected) in enumerate([(0.55, 0.9), (0.7, 0.65)])
    )
    assert rank_trials([lucky, learned], plan) == [learned, lucky]


def test_killed_between_the_constraints_and_the_end(scheduler: SearchScheduler, tmp_path: Path) -> None:
    number = ask_trial(scheduler).number
    scheduler._open[number][0][1].set_constraint("params", 0.5)
    again = resumed(tmp_path)
    assert ask_trial(again).number == number
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warning of a constraint that is set twice
        again.end(number, Report(infeasible="too large", violations={"params": 0.5}))
    assert stored_trial(again, number).constraints == {"trainable": 0.0, "params": 0.5}


# Learning from another search.


@pytest.fixture
def other(tmp_path: Path) -> optuna.Study:
    """Return the study of a search of seven trials: five complete, one pruned, one failed."""
    (tmp_path / "other").mkdir()
    scheduler = make_engine(make_study(tmp_path / "other"))
    for i, score in enumerate([0.1, 0.5, 0.3, 0.2, 0.4, 0.9, 0.8]):
        number = ask_trial(scheduler).number
        if i == 5:
            scheduler.end(number, report(score))
        else:
            scheduler.end(number, report(score, finished=True), error="no" if i == 6 else None)
    return scheduler.study


def test_the_best_of_other_results_are_tried_first(other: optuna.Study, tmp_path: Path) -> None:
    study = make_study(tmp_path)
    warm_start_study(study, other)
    origin = other.get_trials(deepcopy=False)
    best = [origin[number].params for number in (1, 4, 2, 3, 0)]
    scheduler = make_engine(study)
    first = [ask_trial(scheduler) for _ in range(3)]
    scheduler = resumed(tmp_path)
    assert [ask_trial(scheduler).number for _ in range(3)] == [0, 1, 2]
    records = [*first, *(ask_trial(scheduler) for _ in range(5))]
    params = [stored_trial(scheduler, record.number).params for record in records]
    assert params == [SMALL.baseline, *best, *PUBLISHED], "but after the baseline"
    assert records[1].role is Role.CANDIDATE
    assert [record.role for record in records[6:]] == [Role.FREE] * 2
