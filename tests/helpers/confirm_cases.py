"""Scores, variants and searches for the tests of confirmations, without a training."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from optuna.study import StudyDirection

from attention import Spec
from automl.base.serialise import write_json
from automl.config.nouns import Place
from automl.config.settings import Settings
from automl.judge.design import Design
from automl.judge.protocol import CONFIRM_FILE, FORMAT, Confirmation, Options
from automl.judge.scheduler import ConfirmationScheduler
from automl.judge.scores import Scores, TrainingCost
from automl.judge.variants import Variant, VariantSet
from automl.judge.verdict import CONFIRM_FOLDER
from automl.storage.folder import new_folder
from automl.storage.metadata import collect_provenance, read_metadata
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers
from automl.task import task_of
from automl.task.opening import write_manifest
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.trials.job import Trainings
from automl.trials.session import Interrupt
from cluster.connect import ClusterCapacity
from cluster.resources import TrialResources
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.drawn import Drawn
from search.fixed_scheduler import FixedScheduler
from search.metric import Chance, Metric
from search.record import Report, Role, State, TrialRecord
from search.space import SPACES, load_space
from search.study import create_study
from search.trial_scheduler import Plan, TrialScheduler

SSA = {"stage1.block2.branch": Spec("ssa")}
SAGAN = {"stage2.block1": Spec("sagan")}
CONV = {"stage1.block1": Spec("conv1x1")}


def config(placement: Mapping[str, Spec] | None = None, **training: Any) -> TrialConfig:
    data = ImageData(source="digits", size=32)
    model = Model(backbone="xresnet18", options={"width": 0.25}, placement=placement or {})
    return TrialConfig(data=data, model=model, training=ImageTraining(**{"epochs": 1} | training))


def record(
    number: int, value: float, placement: Mapping[str, Spec] | None = None, **more: Any
) -> TrialRecord:
    """Return the record of a finished trial of a search."""
    training = more.pop("training", {})
    metrics = {"epoch": 1, "resource": 1, "accuracy": value, "seconds": 1}
    state = more.pop("state", State.COMPLETE)
    return TrialRecord(number, config(placement, **training), state=state, history=[metrics], **more)


VARIANTS = [
    Variant(name="baseline", role=Role.BASELINE, config=config()),
    Variant(name="ssa", role=Role.FINALIST, config=config(SSA), trial=3),
    Variant(name="sagan", role=Role.FINALIST, config=config(SAGAN), trial=5),
    Variant(name="conv", role=Role.CONTROL, config=config(CONV)),
]


def design(seeds: int = 10, **more: Any) -> Design:
    values: dict[str, Any] = {
        "seeds": list(range(1, seeds + 1)),
        "equal": "time",
        "margin": 0.5,
        "sequential": False,
        "inputs": 1000,
        "chance": 0.1,
    } | more
    metric = {"name": "accuracy", "maximize": True, "scale": 100.0, "gap": "points"}
    metric |= {key: values.pop(key) for key in ("maximize", "scale") if key in values}
    metric |= {new: values.pop(key) for key, new in (("metric", "name"), ("unit", "gap")) if key in values}
    values["metric"] = Metric(**metric)
    chance, inputs = values["chance"], values["inputs"]
    if isinstance(chance, float):  # the fraction of a class
        error = (chance * (1 - chance) / inputs) ** 0.5
        values["chance"] = Chance(value=chance, error=error, step=1 / inputs)
    return Design(**values)


def scores(
    seeds: int = 10,
    *,
    sd: float = 0.005,
    level: float = 0.9,
    times: Mapping[str, float] | None = None,
    **gains: float,
) -> dict[str, Scores]:
    """Return accuracies around `level`, with gains by the name of the variant, such as `ssa=0.02`.

    `times` are the time ratios of variants. The time of each training varies by half a percent.
    """
    generator, clock = np.random.default_rng(5), np.random.default_rng(6)
    scored = {}
    for variant in VARIANTS:
        values = level + gains.get(variant.name, 0.0) + sd * generator.normal(size=seeds)
        spent = 60 * (times or {}).get(variant.name, 1.0) * np.exp(0.005 * clock.normal(size=seeds))
        scored[variant.name] = Scores(
            scores=dict(enumerate(values.tolist(), start=1)),
            costs={
                seed: TrainingCost(steps=100, seconds=seconds)
                for seed, seconds in enumerate(spent.tolist(), start=1)
            },
        )
    return scored


def answered(scored: Mapping[str, Scores], inputs: int, seed: int = 0) -> dict[str, Scores]:
    """Add answers to `inputs` images, hard and easy ones, and replace the scores by theirs."""
    generator = np.random.default_rng(seed)
    hard = generator.random(inputs)
    answers = {}
    for name, variant in scored.items():
        values = {
            seed: (hard < score + 0.05 * generator.normal(size=inputs)).astype(float)
            for seed, score in variant.scores.items()
        }
        answers[name] = replace(
            variant, values=values, scores={seed: float(right.mean()) for seed, right in values.items()}
        )
    return answers


def without(
    scored: Mapping[str, Scores], name: str, seeds: Sequence[int], reason: str | None = None
) -> dict[str, Scores]:
    """Remove the scores of a variant at some seeds. With a reason, it failed there."""
    left = {seed: value for seed, value in scored[name].scores.items() if seed not in seeds}
    failed = dict.fromkeys(seeds, reason) if reason else {}
    return {**scored, name: replace(scored[name], scores=left, failed=failed)}


PLAN = Plan(trials=6, budget=1, metric=ACCURACY)

RECORDS = [
    record(0, 0.80),
    record(1, 0.85, SSA, training={"learning_rate": 2e-3}),
    record(2, 0.84, SAGAN),
    record(3, 0.70, CONV),
]


def _drawn_fingerprint(space: str) -> str:
    return Drawn(load_space(space)).fingerprint


_fingerprint = cache(_drawn_fingerprint)  # of a built-in space, which takes a hundred draws


def fake_search(
    storage: Path | Storage, records: Sequence[TrialRecord] = RECORDS, name: str = "mine", **more: Any
) -> Path:
    """Create the folder of a search with these trials, without checkpoints. `more` are settings."""
    settings = Settings(**{"space": "digits", "name": name, "storage": str(storage), **more}).parsed
    config = (records or RECORDS)[0].config
    manifest = task_of(config).manifest(config)
    space = settings.question.space
    mark = _fingerprint(space) if space in SPACES else _drawn_fingerprint(space)
    with new_folder(settings, PLAN, fingerprint=mark, data=manifest.digest) as (folder, _):
        write_manifest(folder, manifest)
        study = create_study(folder, name=name, direction=StudyDirection.MAXIMIZE)
        planned = FixedScheduler(study, PLAN, [])
        for trial in records:
            role = Role.CANDIDATE if trial.config.model.placement else Role.BASELINE
            role = trial.role if trial.role is Role.FREE else role
            added = planned._add(role, trial.config)
            report = Report(history=trial.history, finished=trial.state is State.COMPLETE)
            if trial.state is State.RUNNING:
                planned.report(added.number, report)
            else:
                planned.end(added.number, report)
    return folder


def fake_confirmation(folder: Path) -> Path:
    """Create the folder of a confirmation in which `ssa` wins, without training."""
    metadata, confirm_folder = read_metadata(folder, str(folder.parent)), folder / CONFIRM_FOLDER
    confirm_folder.mkdir()
    confirmation = Confirmation(
        number=1,
        options=Options(top=2, seeds=7, sequential=False),
        seeds=list(range(1, 8)),
        variant_set=VariantSet(variants=VARIANTS, baseline_candidates=[], warnings=[]),
        provenance=collect_provenance(),
        inputs=1000,
        chance=None,
    )
    write_json(confirm_folder / CONFIRM_FILE, confirmation, format=FORMAT)
    scheduler = ConfirmationScheduler(confirm_folder, metadata, confirmation)
    planned = scheduler.planned
    scheduler.update(False)
    while (trial := planned.ask()) is not None:
        score = 0.9 + 0.001 * (trial.config.seed % 3) + (0.05 if trial.variant == "ssa" else 0)
        metrics = {"epoch": 1, "resource": 1, "accuracy": 0.5, "steps": 20, "seconds": 1}
        planned.end(trial.number, Report(history=[{**metrics, "test_accuracy": score}], finished=True))
        scheduler.update(False)
    return confirm_folder


class FakeWorkers:
    """Workers that do not train. `score` gives test accuracies and `valid` validation scores.

    A run ends after `most` trials as if by a signal. Trials in `broken` end in an error, and `shuffled` ones
    in another order. `seconds` is the time of a training. Answers to `images` test inputs are kept.
    """

    def __init__(
        self,
        score: Callable[[str, int], float | None],
        valid: Callable[[str, int], float] = lambda variant, seed: 0.5,
        most: int = 10**9,
        broken: Collection[tuple[str, int]] = (),
        shuffled: bool = False,
        seconds: Callable[[str, int], float] = lambda variant, seed: 1.0,
        images: int = 0,
    ) -> None:
        self.seconds, self.images = seconds, images
        self.score, self.valid, self.most = score, valid, most
        self.broken, self.shuffled = broken, shuffled
        self.trained: list[tuple[str, int]] = []
        self.devices, self.device = 1.0, "core"
        self.interrupt = Interrupt()
        self.capacity = ClusterCapacity(TrialResources(), most=1, list_nodes=lambda labels: {})

    @contextmanager
    def open(self, place: Place, log: Path, advice: str, **options: bool) -> Iterator["FakeWorkers"]:
        yield self

    def share_gpus(self, *arguments: Any, **how: Any) -> "FakeWorkers":
        return self

    def run(self, scheduler: TrialScheduler, trainings: Trainings, **how: Any) -> None:
        assert trainings.terms.test
        location = trainings.location
        scheduler.callbacks = how["callbacks"]
        running = []
        while (trial := scheduler.ask()) is not None:
            if len(self.trained) >= self.most:
                self.interrupt.signal = 15
                return
            self.trained.append((trial.variant, trial.config.seed))
            if self.shuffled:
                running.append(trial)
            else:
                self._end(scheduler, location, trial)
        for trial in reversed(running):
            self._end(scheduler, location, trial)

    def _end(self, scheduler: TrialScheduler, location: Storage, trial: TrialRecord) -> None:
        variant, seed = trial.variant, trial.config.seed
        if (variant, seed) in self.broken:
            scheduler.end(trial.number, Report(error="boom"))
            return
        score = self.score(variant, seed)
        if score is None:
            scheduler.end(trial.number, Report(infeasible="the training loss became nan"))
            return
        metrics = {"epoch": 1, "resource": 1, "accuracy": self.valid(variant, seed), "steps": 20}
        metrics["seconds"] = self.seconds(variant, seed)
        if self.images:
            right = np.arange(self.images) < self.images * score
            true = np.zeros(self.images, np.int64)
            answers = Answers(
                labels=["cat", "dog"], true=true, answered=1 - right, values=right.astype(float)
            )
            answers.save(location / trial.folder)
        (location / trial.folder).write("checkpoint.pt", b"")
        scheduler.end(trial.number, Report(history=[{**metrics, "test_accuracy": score}], finished=True))


class PlayedWorkers(FakeWorkers):
    """Workers that do not train in a search either: each trial has two epochs and the accuracy 0.5."""

    def run(self, scheduler: TrialScheduler, trainings: Trainings, **how: Any) -> None:
        if trainings.terms.test:
            return super().run(scheduler, trainings, **how)
        scheduler.callbacks = how["callbacks"]
        while (trial := scheduler.ask()) is not None:
            scheduler.started(trial.number)
            metrics = {"accuracy": 0.5, "steps": 20, "seconds": 1.0}
            history = [{"epoch": i, "resource": i, **metrics} for i in (1, 2)]
            scheduler.report(trial.number, Report(history=history[:1]))
            scheduler.end(trial.number, Report(history=history, finished=True))


class NoTracker:
    """Tracker without MLflow, which takes seconds for the runs of a confirmation."""

    runs: Mapping[int, str] = {}
    silent = True

    def __init__(self, writer: object, **options: bool) -> None:
        pass

    def on_trial_start(self, trial: TrialRecord) -> None:
        pass

    on_epoch_end = on_trial_end = update = on_trial_start

    def postpone(self) -> bool:
        return True

    def finish(self, **what: Any) -> int:
        return 0

    def conclude(self, *what: Any) -> int:
        return 0


class FakeCommands(FakeWorkers):
    """Workers that run no command. A run in `broken` fails for `reason`, and its `output` is kept.

    `clock` is the time of a run.
    """

    def __init__(
        self,
        *arguments: Any,
        output: str = "step 1\nboom",
        reason: str = "exit code 1: boom",
        clock: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.output, self.reason, self.clock = output, reason, clock

    def _end(self, scheduler: TrialScheduler, location: Storage, trial: TrialRecord) -> None:
        variant, seed = trial.variant, trial.config.seed
        if (variant, seed) in self.broken:
            scheduler.end(trial.number, Report(error=self.reason, traceback=self.output))
            return
        name = trial.config.training.reports.name
        metrics = {"epoch": 1, "resource": 1, name: self.score(variant, seed)}
        metrics |= {"seconds": self.clock, "processor_seconds": self.seconds(variant, seed)}
        scheduler.end(trial.number, Report(history=[metrics], finished=True))  # type: ignore[arg-type]
