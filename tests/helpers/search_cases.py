"""Shared helpers of the search tests: a small space, and trials with given scores."""

from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection

from attention import Spec
from automl.tasks.image_classification import ImageData, ImageTraining
from cluster.ray_internals import node_of_actor
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.record import Metrics, Report, TrialRecord
from search.search_scheduler import SearchScheduler
from search.space import Space
from search.study import create_study
from search.trial_scheduler import RESOURCE, Plan, TrialScheduler

EPOCHS = 9


def draw(trial: optuna.Trial) -> TrialConfig:
    """Draw up to two modules: 1 + 2 + 2 x 3 = 9 combinations."""
    modules = trial.suggest_int("modules", 0, 2)
    placement = {}
    if modules:
        placement["stage1.block1"] = Spec(trial.suggest_categorical("first", ["ssa", "sagan"]))
    if modules == 2:
        placement["stage2.block1"] = Spec("multihead", {"heads": trial.suggest_int("heads", 1, 3)})
    return TrialConfig(
        data=ImageData(size=32), model=Model(placement=placement), training=ImageTraining(epochs=EPOCHS)
    )


PUBLISHED: list[dict[str, Any]] = [{"modules": 1, "first": "ssa"}, {"modules": 1, "first": "sagan"}]

SMALL = Space(
    name="small", draw=draw, baseline={"modules": 0}, free=lambda: PUBLISHED, summary="nine combinations"
)


def make_plan(trials: int | None = 100, budget: float = EPOCHS, **more: Any) -> Plan:
    return Plan(trials=trials, budget=budget, metric=ACCURACY, **more)


def make_study(folder: Path) -> optuna.Study:
    return create_study(folder, name="s", direction=StudyDirection.MAXIMIZE)


def make_engine(
    study: optuna.Study,
    space: Space = SMALL,
    plan: Plan | None = None,
    sampler: BaseSampler | None = None,
    **more: Any,
) -> SearchScheduler:
    return SearchScheduler(study, space, plan or make_plan(), sampler or RandomSampler(seed=0), **more)


def ask_trial(scheduler: TrialScheduler) -> TrialRecord:
    """Return the next trial, and assert that it exists."""
    record = scheduler.ask()
    assert record is not None
    return record


def epoch(number: int, accuracy: float, resource: float | None = None) -> Metrics:
    return {"epoch": number, RESOURCE: number if resource is None else resource, "accuracy": accuracy}


def report(*scores: float, finished: bool = False, **more: Any) -> Report:
    """Return a report with one score per epoch."""
    history = [epoch(i, score) for i, score in enumerate(scores, start=1)]
    return Report(history=history, finished=finished, **more)


class EventRecorder:
    """Callback that records all events."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_trial_start(self, trial: TrialRecord) -> None:
        self.events.append(("started", trial.number))

    def on_epoch_end(self, trial: TrialRecord) -> None:
        self.events.append(("reported", trial.number, trial.history[-1]["epoch"]))

    def on_trial_end(self, trial: TrialRecord) -> None:
        self.events.append(("ended", trial.number, str(trial.state)))

    def of(self, number: int) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[1] == number]


class Slots:
    """Capacity for `count` trials at once. `left` holds nodes that trials should leave, or that are lost."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left: set[str] = set()
        self.closed: dict[str, str] = {}

    def slots(self) -> int:
        return self.count

    def labels(self) -> dict[str, str]:
        return {}

    def close(self, node: str, why: str) -> None:
        self.closed[node] = why

    def leaving(self, node: str) -> bool:
        return node in self.left

    lost = leaving

    def node_of(self, actor: str) -> str:
        return node_of_actor(actor)
