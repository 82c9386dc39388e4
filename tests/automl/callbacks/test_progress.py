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
    plan = Plan(trials=trials, budget=9, metric=primary)
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


def test_the_best_of_a_minimised_metric_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make(3, metric="error", maximize=False)
    for number, value in enumerate([0.5, 0.25, 0.75]):
        tell(progress, number, State.COMPLETE, value)
    printed_lines = lines(capsys)
    assert [match for match in matches(r"best (\S+) \(trial (\d+)", printed_lines) if match] == [
        ("0.5", "0"),
        ("0.25", "1"),
    ]
    assert "left" not in printed_lines[-1]  # all have ended


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
        plan = Plan(trials=self.trials, budget=self.epochs, metric=ACCURACY, pruning=self.pruning)
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
    plan = Plan(trials=None, budget=9, metric=ACCURACY)
    progress = Shown(plan, {}, budget=3600.0)
    now += 60.0
    assert progress._left(0) == 3540.0
    now += 3600.0
    assert progress._left(0) == 0.0
