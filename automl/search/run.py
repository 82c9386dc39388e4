"""The main job: search where attention goes. `python -m automl.search ...` is `automl search ...`."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection

from attention import InputError
from automl.data import shared
from automl.data.manifest import differences
from automl.storage.folder import About, exists, find_search, new_folder, old_folder, write_about
from automl.costs.forecast import Forecast, check_limits
from automl.storage.lasting import check_lasting
from automl.search.result import SearchResult, make_result
from automl.tasks.same_data import check_same, keep_manifest, mend_manifest, read_manifest
from automl.config.settings import PLACED, Settings, command, draw_baseline
from automl.confirm.statistics import guessing
from automl.storage.storage import Storage
from automl.tasks import Split, Task, open_task
from automl.tracking.process import Apart
from automl.tracking.run_spec import search_subject
from automl.tracking.tracker import Tracker
from search.config import TrialConfig
from search.engine import Engine
from search.ledger import Plan, leaders
from search.record import State, TrialRecord
from search.samplers import check_sampler, load_sampler
from search.spaces import Space, fingerprint, load, random_draws, same_parameters
from search.study import FILE, create_study, learn, open_study, read_records, resume_study


def run_search(settings: Settings) -> SearchResult:
    """Search a space on Ray, with every trial in MLflow, and return what was found.

    The first trial is the plain backbone with published defaults, the next ones are the papers'
    placements, and a fixed share tunes the plain backbone. Ctrl-C and SIGTERM stop it in order.

    Raises InputError, before anything is trained, for everything of the settings that cannot work.
    """
    begun = time.monotonic()
    check_lasting(settings.storage)
    space = load(settings.space)
    _check_sampler(settings, space)
    mark = fingerprint(space)
    if settings.like is not None:
        _find_like(settings, mark)
    baseline = draw_baseline(space, settings)
    shared.use(None)
    task = open_task(baseline, settings.runtime)  # decodes the data, once and before any trial
    task.model()  # and shows whether the backbone takes it
    plan = make_plan(settings, baseline, task)
    draws = [settings.adjust(config) for _, config in random_draws(space, 100) if config]
    check_limits([baseline, *draws], settings)
    manifest = task.manifest(baseline)
    with new_folder(settings, plan, fingerprint=mark, data=manifest.digest) as (folder, about):
        keep_manifest(folder, manifest)
        return _run(folder, about, space, task, begun)


def resume_search(
    name: str,
    *,
    storage: str = "searches",
    space: str | None = None,
    trials: str | None = None,
    budget: str | None = None,
    placed: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Go on with a search after whatever has ended it, or extend a finished one.

    Finished trials stay, those that were running go on from their last epoch.

    space: if given, must be the search's own. trials: `+20` for 20 more than there are, or a number in all.
    budget: time from now on. placed: where trials run from now on, values of settings in `PLACED`.

    Raises InputError when there is no such search, when it is running, or when its space or its images have
    changed.
    """
    begun = time.monotonic()
    check_lasting(storage)
    with old_folder(name, storage) as (folder, about):
        settings = about.settings
        if space is not None and space != settings.space:
            raise InputError(
                f"search {name!r} was made with --space {settings.space}; it cannot go on with {space!r}. "
                f"Start another one with --like {name}, or leave --space out."
            )
        chosen = load(settings.space)
        if fingerprint(chosen) != about.fingerprint:
            raise InputError(
                f"space {settings.space!r} has changed since search {name!r} was made; its trials cannot "
                f"stand beside new ones. Bring the old space back, or start another search."
            )
        known = len(read_records(folder, about.name))
        settings = settings.extended(trials, budget, known, placed or {})
        about = replace(about, settings=settings, plan={**about.plan, "trials": settings.most})
        baseline = draw_baseline(chosen, settings)
        shared.recall(folder, Storage(storage))
        mend_manifest(folder, about, baseline)
        check_same(baseline, folder, name, ("train", "validation"))
        task = open_task(baseline, settings.runtime)  # decodes the data where they no longer are
        write_about(folder, about)
        return _run(folder, about, chosen, task, begun)


def start_or_resume(settings: Settings) -> SearchResult:
    """Go on with the search called `settings.name`, or begin it: for jobs that are repeated when they fail.

    Raises InputError as both do, when there is no name, and when the search was made with other settings;
    more trials, another time and other places are no others.
    """
    if settings.name is None:
        raise InputError("--resume auto needs the --name of the search that is to go on")
    if not exists(settings.name, settings.storage):
        return run_search(settings)
    made = find_search(settings.name, settings.storage)[1].settings
    placed = {key: getattr(settings, key) for key in PLACED}
    same = replace(made, trials=settings.trials, budget=settings.budget, storage=settings.storage, **placed)
    if same != settings:
        other = [key for key, value in settings.to_json().items() if getattr(same, key) != value]
        told = ", ".join(f"--{key.replace('_', '-')} {getattr(made, key)}" for key in other)
        raise InputError(
            f"search {settings.name!r} was made with {told}; give it the same again, or another --name"
        )
    trials = None if settings.trials is None else str(settings.trials)
    return resume_search(
        settings.name, storage=settings.storage, trials=trials, budget=settings.budget, placed=placed
    )


def _run(folder: Path, about: About, space: Space, task: Task, begun: float) -> SearchResult:
    # Ray takes seconds to import; a mistake in the arguments is told before that.
    from automl.listeners.retention import Keeper
    from automl.listeners.prometheus import Meter
    from automl.listeners.progress import Progress, search_summary
    from automl.trials.session import open_workers, settle

    settings, plan = about.settings, Plan(**about.plan)
    advice = f"go on with: {command('search --resume', about.name, settings.storage)}"
    with (
        Apart(search_subject(about.kept, about)) as mirror,
        open_workers(settings, folder / "log.txt", advice) as workers,
    ):
        tracker = Tracker(mirror)
        fresh = not (folder / FILE).exists()
        study = _open_study(folder, about, plan)
        if fresh and settings.like is not None:
            _learn(study, folder, about)
        # One that began with the same seed again would draw again what it has drawn.
        seed = (settings.seed + len(study.get_trials(deepcopy=False))) % 2**32
        sampler = load_sampler(settings.sampler, seed=seed, objectives=len(plan.objectives))
        forecast = Forecast(settings)
        engine = Engine(study, space, plan, sampler, adjust=settings.adjust, forecast=forecast)
        known = list(engine.records.values())
        keeper = Keeper(about.kept, plan, known, keep=settings.keep, told=tracker.update)
        progress = Progress(
            plan,
            engine.records,
            summary=lambda: search_summary(plan, engine.records, engine.rungs),
            budget=settings.seconds,
            devices=workers.devices,
            device=workers.device,
        )
        meter = Meter(about.name, engine.records, workers, plan)
        engine.listeners = [forecast, keeper, tracker, progress, meter, Traces(folder)]
        for record in known:  # what MLflow missed
            tracker.update(record)
        print(f"search {about.name} in {about.kept}; if anything ends it, {advice}", file=sys.stderr)

        def out_of_time() -> bool:
            if settings.seconds is not None and time.monotonic() - begun > settings.seconds:
                engine.closing = True
            return False

        missing = 0
        try:
            with progress:
                workers.run(
                    engine,
                    folder,
                    about.kept,
                    baseline=task.config,
                    limits=settings.limits,
                    data=share(task, folder, about, "train", "validation"),
                    stop=out_of_time,
                )
        finally:
            # Whatever ended the search, what was found until then is found.
            best, _ = leaders(engine.records.values(), plan)
            counts = Counter(record.state for record in engine.records.values())
            open_trials = counts[State.RUNNING] > 0
            missing = tracker.finish(best=best, metric=plan.metric, counts=counts, stopped=open_trials)
            settle(folder)
    result = make_result(
        folder, about.name, engine, runs=tracker.runs, begun=begun, untracked=missing, devices=workers.devices
    )
    if engine.barren:
        raise InputError(f"{engine.barren}. Loosen the limits, or search another space")
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2))
    if workers.interrupt.signal is not None:
        print(advice, file=sys.stderr)
        raise Stopped(workers.interrupt.signal)
    return result


def share(task: Task, folder: Path, about: About, *splits: Split) -> dict[str, Any] | None:
    """What trials are to know of the data, where they may run on machines that do not have them."""
    from cluster import joins

    if about.kept.local is not None and not joins():
        return None
    return task.share(Storage(about.settings.storage), folder, splits)


class Stopped(SystemExit):
    """A signal stopped it, in order. Exits with 128 and the signal's number."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


def make_plan(settings: Settings, baseline: TrialConfig, task: Task) -> Plan:
    chance = task.chance("validation")
    return Plan(
        trials=settings.most,
        budget=float(baseline.training.epochs),
        metric=task.metric,
        maximize=task.direction == "maximize",
        objectives=settings.objectives(task.metric),
        baseline_share=settings.baseline_share,
        guessing=None if chance is None else guessing(chance, task.size("validation")),
    )


def _check_sampler(settings: Settings, space: Space) -> None:
    load_sampler(settings.sampler, seed=settings.seed, objectives=(settings.objective or "").count(",") + 1)
    check_sampler(settings.sampler, space)


def _open_study(folder: Path, about: About, plan: Plan) -> optuna.Study:
    """The search's study, made where there is none yet."""
    if (folder / FILE).exists():
        with suppress(KeyError):  # killed between the file and the study in it
            return resume_study(folder, name=about.name)
    directions = [
        StudyDirection.MAXIMIZE if plan.better(name) > 0 else StudyDirection.MINIMIZE
        for name in plan.objectives
    ]
    return create_study(folder, name=about.name, directions=directions)


def _learn(study: optuna.Study, folder: Path, about: About) -> None:
    """Put what the search `--like` has found into a new study."""
    settings = about.settings
    place, other = _find_like(settings, about.fingerprint)
    same = ("epochs", "size", "subset", "equal", "objective")
    if other.data != about.data:
        found = differences(read_manifest(place), read_manifest(folder))
        print(
            f"the images are not those of search {other.name!r}: {found}. Its scores do not count here; its "
            f"best configurations are tried first",
            file=sys.stderr,
        )
    comparable = (other.data, other.fingerprint) == (about.data, about.fingerprint) and all(
        getattr(other.settings, key) == getattr(settings, key) for key in same
    )
    learn(study, open_study(place, name=other.name), name=other.name, comparable=comparable)


def _find_like(settings: Settings, mark: str) -> tuple[Path, About]:
    """The search `--like`. Raises InputError when there is none, or its space draws other parameters."""
    assert settings.like is not None
    place, other = find_search(settings.like, settings.storage)
    if not same_parameters(other.fingerprint, mark):
        raise InputError(
            f"search {settings.like!r} was made with another space ({other.settings.space}); --like needs "
            f"one that draws the same parameters"
        )
    return place, other


class Traces:
    """A listener that keeps why a trial failed beside its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self, trial: TrialRecord) -> None:
        pass

    def reported(self, trial: TrialRecord) -> None:
        pass

    def ended(self, trial: TrialRecord) -> None:
        if trial.traceback:
            place = self.folder / trial.folder
            place.mkdir(parents=True, exist_ok=True)
            (place / "error.txt").write_text(trial.traceback)


if __name__ == "__main__":
    from automl.cli.main import main

    main(["search", *sys.argv[1:]])
