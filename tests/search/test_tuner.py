"""The scheduler on Ray Tune with a local Ray. A table of scores replaces training."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
from optuna.trial import TrialState
from ray import tune
from ray.exceptions import OutOfMemoryError, RayActorError

import search.tuner
from cluster.connect import connect
from search.config import TrialConfig
from search.record import Report, Role, State
from search.search_scheduler import SearchScheduler
from search.space import SPACES
from search.study import open_study
from search.tuner import NODE, REPORT, RETRIES, run_trials
from tests.helpers.search_cases import EPOCHS, EventRecorder, Slots, epoch, make_engine, make_plan, make_study

FEW = 1  # restarts of a trial, where RETRIES would take long

# The actors' processes cannot import these modules.
for name in (__name__, "tests.helpers.search_cases"):
    ray.cloudpickle.register_pickle_by_value(sys.modules[name])


class Scripted(tune.Trainable):
    """Report scores by the trial's number: every third trial is good, every fourth cannot be trained.

    The folder holds the reported scores, so that another process continues from there.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.config = config
        self.history: list[dict[str, float]] = []
        file = Path(config["folder"]) / f"{config['number']}"
        if file.exists():
            self.history = [self.score(i) for i in range(1, int(file.read_text()) + 1)]
        self.file = file

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def score(self, i: int) -> dict[str, float]:
        number = self.config["number"]
        score = (0.5 if number % 3 == 0 else 0.1) + i / 100 - number / 1000
        return {**epoch(i, score), "process": os.getpid()}

    def step(self) -> dict[str, Any]:
        if self.config["number"] % 4 == 3:
            return self.result(Report(infeasible="too large", violations={"params": 0.5}))
        self.history.append(self.score(len(self.history) + 1))
        self.file.write_text(str(len(self.history)))
        return self.result(Report(history=self.history, finished=len(self.history) == EPOCHS))

    def result(self, report: Report) -> dict[str, Any]:
        return {REPORT: report, "done": report.is_last}


class DyingOften(Scripted):
    """The first trial's process dies `deaths` times in an epoch, and the third trial has an error."""

    deaths: Mapping[int, int] = {1: FEW, 2: FEW + 1}

    def step(self) -> dict[str, Any]:
        if self.config["number"] == 2:
            raise KeyError("no such thing")
        done = len(self.history)
        mark = self.file.with_suffix(f".{done}.dead")
        before = len(mark.read_text()) if mark.exists() else 0
        if self.config["number"] == 0 and before < self.deaths.get(done, 0):
            mark.write_text("x" * (before + 1))
            os._exit(1)
        return super().step()


class DyingBeforeResults(Scripted):
    """The first process dies when Tune asks for its node, before any result."""

    def get_auto_filled_metrics(self, *arguments: Any, **more: Any) -> dict[str, Any]:
        mark = Path(self.config["folder"]) / "dead"
        if self.iteration == 0 and not mark.exists():
            mark.touch()
            os._exit(1)
        return super().get_auto_filled_metrics(*arguments, **more)


class DyingBetweenTrials(Scripted):
    """The process of a finished trial dies once before the next trial takes it over."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        mark = Path(new_config["folder"]) / "dead"
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return super().reset_config(new_config)


class Slow(Scripted):
    def step(self) -> dict[str, Any]:
        time.sleep(0.05)
        return {**super().step(), NODE: ray.get_runtime_context().get_node_id()}


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Any:
    with connect():
        yield


def run(
    folder: Path, study: optuna.Study, trainable: Any, trials: int, **more: Any
) -> tuple[SearchScheduler, EventRecorder]:
    heard = EventRecorder()
    scheduler = make_engine(study, SPACES["digits"], make_plan(trials))
    scheduler.callbacks = [heard]
    stop = more.pop("stop", lambda scheduler: False)
    capacity = more.pop("capacity", Slots(2))
    run_trials(
        trainable,
        scheduler,
        assign=lambda record: {"folder": str(folder)},
        resources={"CPU": 1},
        capacity=capacity,
        folder=folder / "ray",
        stop=lambda: stop(scheduler),
    )
    return scheduler, heard


def numbers(scheduler: SearchScheduler, state: State) -> list[int]:
    return [record.number for record in scheduler.records.values() if record.state is state]


@pytest.mark.heavy("trials in processes of Ray")
def test_trials_end_as_planned_and_callbacks_are_called(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler, heard = run(tmp_path, study, Scripted, trials=12)
    records = list(scheduler.records.values())
    assert [record.number for record in records] == list(range(12))
    assert records[0].role is Role.BASELINE
    assert numbers(scheduler, State.INFEASIBLE) == [3, 7, 11]
    assert 0 in numbers(scheduler, State.COMPLETE)
    assert len(numbers(scheduler, State.PRUNED)) >= 3, "halving prunes the weak ones"
    assert not numbers(scheduler, State.ERROR) + numbers(scheduler, State.RUNNING)

    optuna_states = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.PRUNED}
    for record, trial in zip(records, study.trials, strict=True):
        assert TrialConfig.from_json(trial.user_attrs["config"]) == record.config
        if record.state is State.INFEASIBLE:
            assert trial.constraints == {"trainable": 0.0, "params": 0.5}
        else:
            assert optuna_states[trial.state] is record.state
            scores_by_epoch = {int(metrics["epoch"]): metrics["accuracy"] for metrics in record.history}
            assert trial.intermediate_values == scores_by_epoch
        if record.state is State.COMPLETE:
            assert len(record.history) == EPOCHS
            assert trial.value == record.history[-1]["accuracy"]

    for record in records:
        mine = heard.of(record.number)
        assert mine[0] == ("started", record.number)
        assert mine[-1] == ("ended", record.number, str(record.state))
        assert [e[2] for e in mine if e[0] == "reported"] == list(range(1, len(record.history) + 1))

    processes = {metrics["process"] for record in records for metrics in record.history}
    assert len(processes) <= 4, "actors are reused from trial to trial"


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower RETRIES, since each death costs the start of a process."""
    assert RETRIES > FEW
    monkeypatch.setattr(search.tuner, "RETRIES", FEW)


@pytest.mark.heavy("trials in processes of Ray")
@pytest.mark.usefixtures("few_retries")
def test_too_many_deaths_in_one_epoch_are_an_error(tmp_path: Path) -> None:
    scheduler, heard = run(tmp_path, make_study(tmp_path), DyingOften, trials=3)
    assert numbers(scheduler, State.ERROR) == [0, 2], "the search continues without them"
    assert len(scheduler.records[0].history) == 2
    assert len([e for e in heard.of(0) if e[0] == "started"]) == 1 + FEW + FEW
    assert "no such thing" in str(scheduler.records[2].reason)
    assert len([e for e in heard.of(2) if e[0] == "started"]) == 1 + FEW


@pytest.fixture
def low_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every death one by Ray's memory monitor."""
    get = ray.get

    def low(*arguments: Any, **more: Any) -> Any:
        try:
            return get(*arguments, **more)
        except RayActorError as death:
            raise OutOfMemoryError("1 worker(s) were killed due to the node running low on memory") from death

    monkeypatch.setattr(ray, "get", low)


@pytest.mark.slow("starts processes of Ray")
@pytest.mark.usefixtures("few_retries", "low_memory")
def test_ray_may_end_processes_where_memory_is_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DyingOften, "deaths", {0: FEW, 1: FEW + 1})
    scheduler, heard = run(tmp_path, make_study(tmp_path), DyingOften, trials=2)
    assert len([e for e in heard.of(0) if e[0] == "started"]) == 1 + FEW + FEW
    assert "low on memory" in str(scheduler.records[0].reason)
    assert scheduler.records[1].state is not State.ERROR, "the search continues without it"


@pytest.mark.slow("starts processes of Ray")
@pytest.mark.usefixtures("low_memory")
def test_ray_may_end_a_process_before_any_result(tmp_path: Path) -> None:
    scheduler, _ = run(tmp_path, make_study(tmp_path), DyingBeforeResults, trials=2)
    assert (tmp_path / "dead").exists()
    assert not numbers(scheduler, State.ERROR) + numbers(scheduler, State.RUNNING)


@pytest.mark.slow("starts processes of Ray")
def test_a_death_between_two_trials_is_no_error(tmp_path: Path) -> None:
    scheduler, _ = run(tmp_path, make_study(tmp_path), DyingBetweenTrials, trials=6)
    assert (tmp_path / "dead").exists()
    assert not numbers(scheduler, State.ERROR) + numbers(scheduler, State.RUNNING)
    assert len(scheduler.records) == 6


@pytest.mark.slow("starts processes of Ray")
def test_simultaneous_trials_follow_the_capacity(tmp_path: Path) -> None:
    capacity = Slots(1)
    at_once: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    begun: set[int] = set()  # before there was no place, until the last one had ended

    def watch(scheduler: SearchScheduler) -> bool:
        running = len(numbers(scheduler, State.RUNNING))
        at_once[capacity.count].add(running)
        if capacity.count == 1 and len(scheduler.records) - running == 2:
            capacity.count = 2
        elif capacity.count == 2 and len(scheduler.records) == 6:
            capacity.count = 0
        elif capacity.count == 0:
            begun.add(len(scheduler.records))
            capacity.count = 0 if running else 1
        return False

    scheduler, _ = run(tmp_path, make_study(tmp_path), Slow, trials=9, capacity=capacity, stop=watch)
    assert (max(at_once[1]), max(at_once[2])) == (1, 2)
    assert (min(at_once[0]), begun) == (0, {6})
    assert len(scheduler.records) == 9
    assert not numbers(scheduler, State.RUNNING)


def test_a_stop_works_without_free_capacity(tmp_path: Path) -> None:
    ask_trial = []

    def stop(scheduler: SearchScheduler) -> bool:
        ask_trial.append(scheduler)
        return len(ask_trial) > 3

    scheduler, _ = run(tmp_path, make_study(tmp_path), Scripted, trials=1, capacity=Slots(0), stop=stop)
    assert not scheduler.records


@pytest.mark.slow("starts processes of Ray")
@pytest.mark.usefixtures("few_retries")
def test_deaths_by_a_lost_node_do_not_count_for_trials(tmp_path: Path) -> None:
    capacity = Slots(2)
    capacity.left.add(ray.get_runtime_context().get_node_id())
    scheduler, heard = run(tmp_path, make_study(tmp_path), DyingOften, trials=1, capacity=capacity)
    assert scheduler.records[0].state is State.COMPLETE
    assert len([e for e in heard.of(0) if e[0] == "started"]) == 1 + FEW + FEW + 1
    assert [e[2] for e in heard.of(0) if e[0] == "reported"] == list(range(1, EPOCHS + 1))
    assert len({metrics["process"] for metrics in scheduler.records[0].history}) == 3


@pytest.mark.heavy("trials in processes of Ray")
def test_stopped_trials_resume_where_they_were(tmp_path: Path) -> None:
    study = make_study(tmp_path)

    def stop(scheduler: SearchScheduler) -> bool:
        return any(len(record.history) >= 2 for record in scheduler.records.values())

    first, _ = run(tmp_path, study, Slow, trials=2, stop=stop, capacity=Slots(1))
    left = numbers(first, State.RUNNING)
    assert 0 in left
    assert all(study.trials[number].state is TrialState.RUNNING for number in left)
    again = open_study(tmp_path, name="s")
    second, heard = run(tmp_path, again, Scripted, trials=2, capacity=Slots(1))
    assert not numbers(second, State.RUNNING)
    assert second.records.keys() == {0, 1}
    assert second.records[0].state is State.COMPLETE
    before = len(first.records[0].history)
    assert [e[2] for e in heard.of(0) if e[0] == "reported"] == list(range(before + 1, EPOCHS + 1))
