"""The main job: search where attention goes. `python -m automl.search ...` is `automl search ...`."""

import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.study import StudyDirection

from attention import InputError
from automl.runtime import Runtime
from automl.tasks import open_task
from cluster.resources import TrialResources, slots
from search.config import TrialConfig
from search.record import TRIALS, State, TrialRecord
from search.spaces import Space, load

PLACEMENT_LIMIT = 300.0  # seconds that a search waits for room for its first trial


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial of a search: its MLflow run, its primary metric at the last epoch, its configuration."""

    run_id: str | None
    metric: str
    value: float
    config: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found. `best` and `baseline` are None where no such trial was trained to its end.

    baseline: the best trial without any attention.
    folder: the search's folder, with its study, checkpoints and log.
    failure: the first error, if any trial had one.
    untracked: writes that MLflow did not take.
    """

    search: str
    trials: int
    completed: int
    pruned: int
    infeasible: int
    errors: int
    seconds: float
    best: TrialResult | None
    baseline: TrialResult | None
    folder: str
    failure: str | None
    untracked: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_search(
    space: str,
    *,
    data: str | None = None,
    trials: int = 16,
    epochs: int | None = None,
    size: int | None = None,
    subset: float = 1.0,
    name: str | None = None,
    seed: int = 0,
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    workers_per_trial: int = 1,
    precision: str = "auto",
    compile: str = "auto",
    storage: str | Path = "searches",
) -> SearchResult:
    """Search a space on Ray, with every trial in MLflow, and return what was found.

    space: `digits`, `nette`, `woof`, `file.py:function` or `package.module:function`.
    data: a folder or archive to read instead of downloading the space's dataset.
    trials: how many configurations are tried; the first is the plain backbone with published defaults.
    epochs, size, subset: override the space's epochs, image side in pixels and share of the images.
    name: of the search, unique in `storage`; made from the space and the time where not given.
    seed: of the sampler and of every trial.
    cpus_per_trial, gpus_per_trial: of each worker; by default one core, and one GPU where there are any.
    workers_per_trial: processes that train one trial together, each on a part of every batch.
    precision: auto, bf16, fp16 or fp32. compile: how steps are run, auto, off, graphs or inductor.
    storage: folder that gets a folder called `name` with the study, the checkpoints and the log.

    Raises InputError, before anything is trained, for everything of this that cannot work.
    """
    # Ray and MLflow take seconds to import; a mistake in the arguments is told before that.
    begun = time.monotonic()
    if trials < 1:
        raise InputError(f"--trials must be 1 or more; got {trials}")
    shape = TrialResources(cpus=cpus_per_trial, gpus=gpus_per_trial or 0, workers=workers_per_trial)
    here = Runtime(device=torch.device("cpu"), precision=precision, compile=compile)  # type: ignore[arg-type]
    chosen = load(space)
    adjust = overrides(data=data, epochs=epochs, size=size, subset=subset, seed=seed)
    plain = adjust(draw_baseline(chosen, seed))
    task = open_task(plain, here)  # decodes the data, once and before any trial
    task.model()  # and shows whether the backbone takes it
    name = name or f"{short_name(space)}-{time.strftime('%Y%m%d-%H%M%S')}"

    from automl.logs import chatter_to
    from automl.multi_worker import multi_worker_trial
    from automl.progress import Progress
    from automl.tracking import Tracker
    from automl.trial import TrialActor
    from cluster import connect, nodes, wait_for_room
    from search.searcher import StudySearcher
    from search.study import create_study
    from search.tuner import run_trials

    with (
        new_folder(Path(storage), name) as folder,
        chatter_to(folder / "log.txt"),
        connect(dashboard=workers_per_trial > 1),
    ):
        there = nodes()
        if gpus_per_trial is None and any(node.get("GPU") for node in there):
            shape = replace(shape, gpus=1)
        concurrent = min(trials, slots(shape, there))
        wait_for_room(shape, PLACEMENT_LIMIT)
        tracker = Tracker(
            search=name,
            experiment=short_name(space),
            about={"space": space, "trials": trials, "epochs": plain.training.epochs, "seed": seed},
        )
        study = create_study(folder, name=name, direction=StudyDirection[task.direction.upper()], seed=seed)
        study.enqueue_trial(dict(chosen.baseline))
        searcher = StudySearcher(
            study,
            chosen,
            metric=task.metric,
            time_attr="epoch",
            adjust=adjust,
            extra={"runtime": {"precision": precision, "compile": compile}},
        )
        # A trial of several workers is a function that waits for them and takes no core of theirs; it
        # takes a little memory, since Ray places nothing that takes nothing.
        alone = workers_per_trial == 1
        trainable = TrialActor if alone else multi_worker_trial(shape, folder / TRIALS)
        resources = {"cpu": shape.cpus, "gpu": shape.gpus} if alone else {"memory": 2.0**20}
        progress = Progress(
            trials=trials,
            concurrent=concurrent,
            metric=task.metric,
            maximize=task.direction == "maximize",
        )
        try:
            with progress:
                run_trials(
                    trainable,
                    searcher,
                    trials=trials,
                    budget=plain.training.epochs,
                    resources=resources,
                    concurrent=concurrent,
                    folder=folder,
                    listeners=[tracker, progress],
                )
        finally:
            # Whatever ended the search, what was found until then is found.
            best, baseline = leaders(searcher.records.values(), task.metric, task.direction)
            counts = Counter(record.state for record in searcher.records.values())
            tracker.finish(best=best, metric=task.metric, counts=counts)

    def result_of(trial: TrialRecord | None) -> TrialResult | None:
        if trial is None:
            return None
        value = trial.history[-1][task.metric]
        run_id = tracker.runs.get(trial.number)
        return TrialResult(run_id=run_id, metric=task.metric, value=value, config=trial.config.to_json())

    result = SearchResult(
        search=name,
        trials=len(searcher.records),
        completed=counts[State.COMPLETE],
        pruned=counts[State.PRUNED],
        infeasible=counts[State.INFEASIBLE],
        errors=counts[State.ERROR],
        seconds=round(time.monotonic() - begun, 1),
        best=result_of(best),
        baseline=result_of(baseline),
        folder=str(folder),
        failure=next((r.reason for r in searcher.records.values() if r.state is State.ERROR), None),
        untracked=tracker.lost,
    )
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2))
    return result


def overrides(
    *, data: str | None, epochs: int | None, size: int | None, subset: float, seed: int
) -> Callable[[TrialConfig], TrialConfig]:
    """What the command line lays over every configuration that a space draws."""
    changes: dict[str, Any] = {"subset": subset}
    if data is not None:
        changes["path"] = str(Path(data).expanduser().resolve())
    if size is not None:
        changes["size"] = size
    training = {} if epochs is None else {"epochs": epochs}
    return lambda config: config.change(data=changes, training=training, seed=seed)


def draw_baseline(space: Space, seed: int) -> TrialConfig:
    """The configuration of trial 0, drawn apart from any search's study."""
    TrialConfig(seed=seed)  # refuses a seed that the sampler would choke on
    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        study.enqueue_trial(dict(space.baseline))
        return space(study.ask())
    finally:
        optuna.logging.set_verbosity(loud)


@contextmanager
def new_folder(storage: Path, name: str) -> Iterator[Path]:
    """A new folder called `name` in `storage`, which goes again if a mistake shows before the first trial.

    Raises InputError when it exists or cannot be written.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"--name may hold letters, digits, '.', '_' and '-'; got {name!r}")
    folder = storage.expanduser().resolve() / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"a search called {name!r} exists already in {storage}; give this one another --name"
        ) from None
    except OSError as error:
        raise InputError(
            f"--storage {storage} cannot be written ({error.strerror}); name a folder that can"
        ) from error
    try:
        yield folder
    except InputError:
        if not (folder / TRIALS).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def short_name(space: str) -> str:
    """A space's name as it can stand in the name of a folder and of an experiment."""
    return space.rpartition(":")[2]


def leaders(
    records: Iterable[TrialRecord], metric: str, direction: str
) -> tuple[TrialRecord | None, TrialRecord | None]:
    """The best of the finished trials, and the best of those without attention."""
    sign = 1 if direction == "maximize" else -1
    done = sorted(
        (record for record in records if record.state is State.COMPLETE),
        key=lambda record: sign * record.history[-1][metric],
        reverse=True,
    )
    plain = [record for record in done if not record.config.model.placement]
    return next(iter(done), None), next(iter(plain), None)


if __name__ == "__main__":
    from automl.cli import main

    main(["search", *sys.argv[1:]])
