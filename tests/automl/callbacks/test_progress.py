"""Progress of a search as the user sees it."""

import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

import automl.callbacks.search_progress
from attention import Spec
from automl.callbacks.search_progress import Progress, search_summary
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.metric import Metric
from search.record import State, TrialRecord
from search.trial_scheduler import Plan


@pytest.fixture(autouse=True)
def every_line_says_how_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automl.callbacks.search_progress, "SUMMED", 0.0)


class Shown(Progress):
    """The progress of a search."""

    def __init__(self, plan: Plan, records: dict[int, TrialRecord], **more: Any) -> None:
        super().__init__(
            plan, records, trials=lambda: plan.trials, summary=lambda: search_summary(plan, records), **more
        )


def make(trials: int | None, *, metric: str = "accuracy", maximize: bool = True, **more: Any) -> Shown:
    primary = ACCURACY if metric == "accuracy" else Metric(name=metric, maximize=maximize)
    plan = Plan(trials=trials, budget=9, metric=primary, objectives=[metric])
    return Shown(plan, {}, **more)


def tell(
    progress: Shown,
    number: int,
    state: State,
    value: float | None,
    reason: str | None = None,
    profile: dict[str, float] | None = None,
) -> None:
    """Run the events of one trial, as the scheduler does."""
    placement = {"stage1.block2.branch": Spec("ssa")} if number else {}
    trial = TrialRecord(number, TrialConfig(model=Model(placement=placement)), profile=profile or {})
    progress.records[number] = trial  # type: ignore[index]
    progress.on_trial_start(trial)
    if value is not None:
        metrics = {
            "epoch": 3,
            "resource": 2.5,
            progress.plan.metric.name: value,
            "seconds": 36.0,
            "steps": 21,
        }
        trial.history.append(metrics)
        progress.on_epoch_end(trial)
    trial.state, trial.reason = state, reason
    progress.on_trial_end(trial)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def matches(pattern: str, printed_lines: Iterable[str]) -> list[Any]:
    return [match.groups() if (match := re.search(pattern, line)) else None for line in printed_lines]


def events(printed_lines: list[str]) -> list[str]:
    """Return the lines of trials, without their time and the spaces of their columns."""
    return [" ".join(line[9:].split()) for line in printed_lines if re.match(r"\d\d:\d\d:\d\d ", line)]


def test_a_log_has_one_line_for_each_ended_trial(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make(5)
    tell(progress, 0, State.COMPLETE, 0.9)
    tell(progress, 1, State.PRUNED, 0.95)
    tell(progress, 2, State.INFEASIBLE, None, "out of memory: [tried 3 GiB]")
    tell(progress, 3, State.COMPLETE, 0.8)
    progress.on_trial_start(TrialRecord(4, TrialConfig()))
    explained, *printed_lines = lines(capsys)
    assert " ".join(explained.split()) == "trial accuracy steps of training ended/planned time left"
    ssa = "ssa @ stage1.block2.branch"
    assert [re.sub(r"\S+ left", "T left", line) for line in events(printed_lines)] == [
        "000 plain 90 % 21 steps 1/5",
        f"001 {ssa} 95 % 21 steps pruned 2/5 T left",
        f"002 {ssa} infeasible 3/5 T left",
        f"003 {ssa} 80 % 21 steps 4/5 T left",
    ]
    assert [line.strip() for line in printed_lines if line.startswith(" ")] == [
        "best 90 % (trial 0)",
        "out of memory: [tried 3 GiB]",
    ]


def test_models_and_the_best_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make(2)
    progress.records[1] = TrialRecord(1, TrialConfig(model=Model(backbone="xresnet34")))  # type: ignore[index]
    tell(progress, 0, State.COMPLETE, 0.9)
    assert "000 xresnet18 plain 90 %" in events(lines(capsys))[0]
    progress = make(3, metric="error", maximize=False)
    for number, value in enumerate([0.5, 0.25, 0.75]):
        tell(progress, number, State.COMPLETE, value)
    printed_lines = lines(capsys)
    assert [match for match in matches(r"best (\S+) \(trial (\d+)", printed_lines) if match] == [
        ("0.5", "0"),
        ("0.25", "1"),
    ]
    assert "left" not in printed_lines[-1]  # all have ended
    progress = make(None)
    for number, value in enumerate([0.5, 0.75, 0.25]):
        tell(progress, number, State.COMPLETE, value)
        if number == 0:
            progress.records[0].role = type(progress.records[0].role).BASELINE
    printed_lines = lines(capsys)
    assert [line.strip() for line in printed_lines if "best" in line] == [
        "best 50 % (trial 0)",
        "best 75 % (trial 1), +25 points to the baseline (trial 0)",
    ]


@pytest.mark.parametrize("variant", ["", f"sagan @ {', '.join(f'stage{i}.block1.branch' for i in range(9))}"])
def test_no_line_is_longer_than_a_terminal(capsys: pytest.CaptureFixture[str], variant: str) -> None:
    plan = Plan(trials=1000, budget=9, metric=ACCURACY, objectives=["accuracy"])
    sites = {f"layers.{i}.attention.mixer": Spec("decomposed", {"heads": 8}) for i in range(12)}
    reason = f"ValueError: {'a long message of a library ' * 9}"
    for state in State:
        trial = TrialRecord(
            999, TrialConfig(seed=2**31, model=Model(placement=sites)), state=state, variant=variant
        )
        trial.history.append({"epoch": 30, "resource": 9, "accuracy": 0.5, "seconds": 1.0, "steps": 10**6})
        for text in (None, reason):
            trial.reason = text
            progress = Progress(plan, {999: trial}, trials=lambda: 1000, summary=lambda: reason, budget=1e5)
            progress.parts[999] = 0.4
            progress._say(trial)
    printed_lines = lines(capsys)
    assert max(map(len, printed_lines)) <= 110
    assert sum("…" in line for line in printed_lines) == 2 * len(State)


def test_few_lines_summarise_many_trials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automl.callbacks.search_progress, "SUMMED", 60.0)
    progress = make(5)
    for number in range(4):
        if number == 2:
            progress.summed -= 61
        tell(progress, number, State.COMPLETE, 0.5 + number / 10)
    assert matches(r"best (\S+)", lines(capsys)[1:]) == [None, ("50",), None, None, ("70",), None]


def test_a_quiet_log_gets_epochs_and_the_progress_within(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = make(5)
    progress.printed -= 61
    tell(progress, 0, State.COMPLETE, 0.9)
    epoch, end = events(lines(capsys))
    assert epoch == "000 plain 90 % 21 steps running 0/5"
    assert end.startswith("000 plain 90 % 21 steps 1/5")
    for interval in ("QUIET", "READ_INTERVAL"):
        monkeypatch.setattr(automl.callbacks.search_progress, interval, 0.0)
    progress = make(trials=4, part=lambda trial: 0.4 if trial.number else None)
    for number in (0, 1):
        trial = TrialRecord(number, TrialConfig())
        progress.records[number] = trial  # type: ignore[index]
        progress.on_trial_start(trial)
    progress.read_progress()
    (line,) = events(capsys.readouterr().err.splitlines())
    assert line == "001 plain running, 40% of epoch 1 0/4"
    trial.history.append({"epoch": 1, "resource": 1.5, "accuracy": 0.5, "seconds": 90.0})
    progress.on_epoch_end(trial)
    (line,) = events(capsys.readouterr().err.splitlines())
    assert line.startswith("001 plain 50 % running 0/4"), "the fraction was that of the epoch"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Events of a search whose durations are known."""

    trials: int = 24
    slots: int = 1
    epochs: int = 9
    pruning: bool = True
    failing: int = 10**6  # one of so many trials fails at its start
    known: int = 0  # trials of an earlier run, on a machine that was ten times as slow
    seed: int = 0

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float | None]]:
        """Return the time that was left after each end of a trial, and its estimate."""
        now, random = 0.0, Random(self.seed)
        monkeypatch.setattr(time, "monotonic", lambda: now)
        plan = Plan(
            trials=self.trials,
            budget=self.epochs,
            metric=ACCURACY,
            objectives=["accuracy"],
            pruning=self.pruning,
        )
        rungs, records = plan.rungs(), {}
        for number in range(self.known):
            metrics = {"epoch": 9, "resource": 9.0, "seconds": 900.0, "accuracy": 0.5}
            records[number] = TrialRecord(number, TrialConfig(), state=State.COMPLETE, history=[metrics])
        progress = Shown(plan, records)
        now += 500.0  # Ray starts
        events, shown = [(now, number) for number in range(self.known, self.known + self.slots)], []
        while events:
            now, number = heappop(events)
            if number not in records:
                records[number] = TrialRecord(number, TrialConfig())
                progress.on_trial_start(records[number])
                heappush(events, (now + (1.0 if number % self.failing == self.failing - 1 else 13.0), number))
                continue
            trial, resource = records[number], records[number].resource + 1.0
            if number % self.failing == self.failing - 1:
                trial.state = State.ERROR
            else:
                metrics = {
                    "epoch": resource,
                    "resource": resource,
                    "seconds": 10.0,
                    "accuracy": random.random(),
                }
                trial.history.append(metrics)
                progress.on_epoch_end(trial)
                if resource == self.epochs:
                    trial.state = State.COMPLETE
                elif rungs.enter(number, "", resource, [metrics["accuracy"]]) is False:
                    trial.state = State.PRUNED
            if trial.state is State.RUNNING:
                heappush(events, (now + 10.0, number))
            else:
                progress.on_trial_end(trial)
                if len(records) < self.trials:
                    heappush(
                        events, (now, max(records) + 1 + len([e for e in events if e[1] not in records]))
                    )
                ended = sum(record.state is not State.RUNNING for record in records.values())
                shown.append((now, progress._left(ended)))
        return [(now - time, left) for time, left in shown]


@pytest.mark.parametrize(
    "stream",
    [
        Stream(pruning=False),
        Stream(pruning=False, epochs=1),
        Stream(),
        Stream(slots=4),
        Stream(slots=4, epochs=27, trials=60),
        Stream(slots=2, failing=4),
        Stream(slots=2, known=12, trials=36),
        Stream(slots=2, known=12, trials=36, failing=4),
    ],
    ids=str,
)
def test_estimates_are_right_from_the_first_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = []
    for seed in range(7):
        times = replace(stream, seed=seed).run(monkeypatch)
        assert [left for _, left in (times[0], times[-1])] == [None, None], "after one trial, and at the end"
        first = next(i for i, (_, left) in enumerate(times) if left is not None)
        assert first <= 2
        errors.append([left / truth for truth, left in times[first : first + 6] if left is not None])
    for number in range(6):  # which trials are pruned is luck
        assert 1 / 1.5 < statistics.median(ratios[number] for ratios in errors) < 1.5


def test_the_time_limit_ends_a_search_that_would_last_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = Plan(trials=None, budget=9, metric=ACCURACY, objectives=["accuracy"])
    progress = Shown(plan, {}, budget=3600.0)
    now += 60.0
    assert progress._left(0) == 3540.0
    now += 3600.0
    assert progress._left(0) == 0.0
