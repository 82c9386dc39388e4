"""Start and resume searches."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection

from automl.base import loading
from automl.base.command_line import format_command, format_option
from automl.base.errors import InputError
from automl.base.options import with_keywords_of
from automl.base.serialise import write_json
from automl.callbacks.user import UserCallbacks, check_callbacks
from automl.config.baseline import draw_baseline
from automl.config.settings import SCHEDULING_OPTIONS, Settings
from automl.config.user_code import announce, user_code
from automl.confirm.written import read_verdicts
from automl.costs.forecast import Forecast, check_limits
from automl.data import shared
from automl.data.manifest import Manifest, compare_manifests
from automl.search.checks import (
    cells_of,
    check_attentions,
    check_models,
    find_warm_start,
    with_sampler,
    with_weights,
)
from automl.search.default_space import fit_epochs, may_fit_epochs
from automl.search.prior import read_effects
from automl.search.search import RESULT_FILE, Search
from automl.search.warm_start import incomparable
from automl.storage.folder import (
    SPACE_FILE,
    NamedSearch,
    SearchMetadata,
    check_new,
    check_not_lost,
    exists,
    find_search,
    new_folder,
    old_folder,
    resolve_search,
    write_metadata,
)
from automl.storage.storage import Storage
from automl.storage.working_dir import check_not_temporary
from automl.tasks import Split, Task, open_task
from automl.tasks.layer_sensitivity import write_sensitivity
from automl.tasks.same_data import check_same_data, read_manifest, restore_manifest, write_manifest
from automl.tracking.process import MlflowProcess, prepared
from automl.tracking.run_spec import search_run_spec
from automl.tracking.silence import MlflowSilent
from automl.tracking.tracker import Tracker
from automl.trials.interrupt import Stopped
from search.callback import Callback
from search.class_statistics import describe_imbalance
from search.config import TrialConfig
from search.grid_scheduler import GridScheduler
from search.prior import write_prior
from search.record import State
from search.samplers import AUTO, load_sampler
from search.search_scheduler import SearchScheduler
from search.space import Space, SpaceFunction, draw_randomly, fingerprint, get_source
from search.spaces import SPACES
from search.study import STUDY_FILE, create_study, open_study, read_records, resume_study, warm_start_study
from search.trial_scheduler import Plan, rank_trials


@with_keywords_of(Settings)
def run_search(*positional: Any, **settings: Any) -> Search:
    """Search a space on Ray and log every trial to MLflow.

    The first trial is the baseline with published defaults. The next ones are published placements. A fixed
    fraction of the trials tunes the baseline. Ctrl-C and SIGTERM stop the search gracefully.

    Args:
        *positional: Not accepted. Give settings by name.
        **settings: The fields of `Settings`, such as `space`, `data`, `trials` and `callbacks`.

    Returns:
        The search with its trials. Its methods continue with it: `confirm`, `report`, `export`, `resume`.

    Raises:
        InputError: A setting is invalid. It is raised before anything is trained.

    Example:
        >>> import automl
        >>> result = automl.run_search(space="digits", trials=3, epochs=2, subset=0.3, name="example")
        >>> len(result.trials)
        3
    """
    return start_search(Settings(*positional, **settings))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Search that passed all checks.

    Attributes:
        settings: The settings, completed with defaults.
        space: The space.
        fingerprint: Digest of the space.
        baseline: The configuration of trial 0.
        task: The task of the baseline, with its data.
        plan: Number of trials, budget, metric and objectives.
        manifest: List of examples and splits.
        draws: Random configurations of the space.
    """

    settings: Settings
    space: Space
    fingerprint: str
    baseline: TrialConfig
    task: Task
    plan: Plan
    manifest: Manifest
    draws: Sequence[TrialConfig]


@prepared()
def start_search(settings: Settings, describe: Callable[[Prepared], str] = lambda ready: "") -> Search:
    """Run a new search with these settings, as `run_search` does.

    `describe` returns the `scale` of a study's search.
    """
    begun = time.monotonic()
    ready = prepare(settings)
    settings, space = ready.settings, ready.space
    manifest = ready.manifest
    with new_folder(
        settings, ready.plan, fingerprint=ready.fingerprint, data=manifest.digest, scale=describe(ready)
    ) as (folder, metadata):
        write_manifest(folder, manifest)
        if not isinstance(settings.space, str) and (source := get_source(space)):
            (folder / SPACE_FILE).write_text(source, encoding="utf-8")
        return _run(folder, metadata, space, ready.task, begun)


def prepare(settings: Settings) -> Prepared:
    """Check the settings before a search starts, and complete them with defaults.

    `run_search` and `--dry-run` start with it. It writes only the cache of the data.

    Raise InputError if a setting is invalid.
    """
    check_not_temporary(settings.storage)
    check_new(settings)
    check_callbacks(settings.callbacks)
    settings = with_weights(settings)
    space = settings.load_space()
    settings = with_sampler(settings, space)
    if space.types is not None:  # Stored, so that a later default does not change this search.
        settings = replace(settings, attention=",".join(map(loading.make_absolute, space.types)))
    mark = fingerprint(space)
    if settings.warm_start is not None:
        find_warm_start(settings, mark)
    if settings.prior is not None:
        read_effects(settings, space)
    baseline = draw_baseline(space, settings)
    shared.use(None)
    task = open_task(baseline, settings.runtime)  # decodes the data, once and before any trial
    if chosen := fit_epochs(settings, task):
        settings = replace(settings, **chosen.settings)
        print(f"chosen    {chosen.why}", file=sys.stderr)
        baseline = draw_baseline(space, settings)
        task = open_task(baseline, settings.runtime)
    if settings.shares_training and baseline.model.placement:
        raise InputError(
            "--init shared continues a training of the model without a placement, but the baseline of this "
            "space has one. Leave --full or --init shared out"
        )
    plan = make_plan(settings, baseline, task)
    if settings.is_grid:
        plan = replace(plan, trials=len(cells_of(settings, space)) * settings.seeds)
    draws = [settings.adjust(config) for _, config in draw_randomly(space, 100) if config]
    check_models([baseline, *draws], settings)
    check_attentions(space, settings, draws)
    check_limits([baseline, *draws], settings)
    return Prepared(
        settings=settings,
        space=space,
        fingerprint=mark,
        baseline=baseline,
        task=task,
        plan=plan,
        manifest=task.manifest(baseline),
        draws=draws,
    )


@prepared()
def resume_search(
    search: str | NamedSearch,
    *,
    storage: str | None = None,
    space: str | SpaceFunction | Space | None = None,
    trials: str | int | None = None,
    seeds: int | None = None,
    budget: str | None = None,
    callbacks: Sequence[str | Callback] | None = None,
    scheduling: Mapping[str, Any] | None = None,
) -> Search:
    """Resume an interrupted search, or extend a finished one.

    Finished trials are kept. Interrupted trials resume from their last epoch.

    Args:
        search: The name of the search, or its result.
        storage: The storage of the search. Default: that of the result, or `searches`.
        space: The space of the search. Required if it was a function of a notebook.
        trials: `+20` for 20 more trials, or the total number.
        seeds: The total number of seeds of each cell of a grid. Not fewer than before.
        budget: The time limit from now on.
        callbacks: Callbacks that replace those given by name.
        scheduling: New values of settings that do not change the trials, such as `label`.

    Returns:
        The whole search.

    Raises:
        InputError: The search does not exist, it is running, or its space or data have changed.

    Example:
        >>> import automl
        >>> len(automl.resume_search("example", trials="+1").trials)
        4
    """
    begun = time.monotonic()
    name, storage = resolve_search(search, storage)
    check_not_temporary(storage)
    with old_folder(name, storage) as (folder, metadata):
        settings = metadata.settings
        if isinstance(space, str) and space in SPACES and space != settings.space:
            raise InputError(
                f"search {name!r} was made with --space {settings.space_name} and cannot resume with "
                f"{space!r}. Leave --space out, or start another search with --warm-start {name}."
            )
        records = read_records(folder, metadata.name, metadata.plan.needed)
        if metadata.location.local is not None:  # in a store, checkpoints may precede the study
            check_not_lost(folder, metadata)
        announce(f"search {name!r}", user_code(settings, records))
        chosen = metadata.load_space(space)
        if space is not None:  # its file may have moved
            settings = settings.with_space(space).absolute()
        ended, more = len(records), None if trials is None else str(trials)
        changed = dict(scheduling or {})
        if callbacks is not None:
            changed["callbacks"] = callbacks
        settings = settings.extended(more, budget, ended, changed, seeds).absolute()
        check_callbacks(settings.callbacks)
        planned = len(cells_of(settings, chosen)) * settings.seeds if settings.is_grid else settings.most
        metadata = replace(metadata, settings=settings, plan=replace(metadata.plan, trials=planned))
        baseline = draw_baseline(chosen, settings)
        shared.use_saved(folder, Storage(storage))
        restore_manifest(folder, metadata, baseline)
        check_same_data(baseline, folder, name, ("train", "validation"))
        task = open_task(baseline, settings.runtime)  # decodes the data if they are no longer cached
        write_metadata(folder, metadata)
        return _run(folder, metadata, chosen, task, begun)


def start_or_resume(settings: Settings, describe: Callable[[Prepared], str] = lambda ready: "") -> Search:
    """Resume the search called `settings.name`, or start it, for jobs that are repeated after a failure.

    Raise InputError if there is no name, or the search has other settings. Number of trials, time limit and
    scheduling may differ.
    """
    if settings.name is None:
        raise InputError("--resume auto needs the --name of the search to resume; add --name NAME")
    if not exists(settings.name, settings.storage):
        return start_search(settings, describe)
    name, settings = settings.name, with_weights(settings).absolute()
    stored = find_search(name, settings.storage)[1].settings
    scheduling = {key: getattr(settings, key) for key in SCHEDULING_OPTIONS}
    may_differ: dict[str, Any] = {
        key: getattr(settings, key) for key in ("trials", "budget", "storage", "seeds")
    }
    space = settings.space if settings.space_name == stored.space_name else stored.space
    if settings.sampler == AUTO:
        settings = replace(settings, sampler=stored.sampler)
    if settings.attention is None:
        settings = replace(settings, attention=stored.attention)
    if settings.epochs is None and may_fit_epochs(settings):
        settings = replace(settings, epochs=stored.epochs)
    same = replace(stored.with_space(space), **may_differ, **scheduling)
    if same != settings:
        other = [key for key, value in vars(settings).items() if getattr(same, key) != value]
        if other == ["weights_digest"]:
            raise InputError(
                f"the weights {settings.weights} have changed since search {settings.name!r} was made; "
                f"restore them, or give another --name"
            )
        values = ", ".join(format_option(key, getattr(stored, key)) for key in other)
        raise InputError(
            f"search {settings.name!r} was made with {values}; give it the same again, or another --name"
        )
    return resume_search(
        name,
        storage=settings.storage,
        space=None if isinstance(settings.space, str) else settings.space,
        trials=settings.trials,
        seeds=settings.seeds if settings.is_grid else None,
        budget=settings.budget,
        scheduling=scheduling,
    )


def _run(folder: Path, metadata: SearchMetadata, space: Space, task: Task, begun: float) -> Search:
    # Importing Ray takes seconds. Invalid arguments are reported before.
    from automl.callbacks.retention import CheckpointRetention
    from automl.callbacks.search_progress import search_summary
    from automl.trials.session import delete_tune_files, open_workers, share_data

    settings, plan = metadata.settings, metadata.plan
    callbacks = UserCallbacks(settings.callbacks)
    advice = f"resume with: {format_command('search --resume', metadata.name, settings.storage)}"
    with (
        MlflowProcess(search_run_spec(metadata.location, metadata)) as writer,
        open_workers(settings, folder / "log.txt", advice) as workers,
    ):
        tested: Sequence[Split] = ["test"] if settings.test else []
        data = share_data(task, folder, metadata, "train", "validation", *tested)
        workers = workers.share_gpus(folder, metadata, task.config, trials=plan.trials, data=data)
        with suppress(MlflowSilent):  # the tracker prints a warning
            writer.contact()
        tracker = Tracker(writer)
        page = "" if tracker.silent else writer.page()
        fresh = not (folder / STUDY_FILE).exists()
        study = _open_study(folder, metadata, plan)
        if fresh and settings.warm_start is not None:
            _learn(study, folder, metadata)
        if fresh and settings.prior is not None:
            write_prior(study, read_effects(settings, space))
        forecast = Forecast(settings)
        scheduler = _open_scheduler(study, space, plan, settings, forecast)
        known = list(scheduler.records.values())
        retention = CheckpointRetention(
            metadata.location, plan, known, keep=settings.keep, deleted=tracker.update
        )
        for record in known:  # MLflow may have missed some
            tracker.update(record)
        print(
            f"search {metadata.name} in {metadata.location}; if it is interrupted, {advice}", file=sys.stderr
        )
        print(task.describe_data(), file=sys.stderr)
        if changes := task.describe_changes():
            print(changes, file=sys.stderr)
        by_class = dict(zip(task.labels, task.class_counts("train"), strict=False))
        if message := describe_imbalance(by_class, options=vars(settings)):
            print(message, file=sys.stderr)

        def out_of_time() -> bool:
            if settings.seconds is not None and time.monotonic() - begun > settings.seconds:
                scheduler.closing = True
            return False

        callbacks.on_search_start(metadata.record(folder))
        missing = 0
        rungs = None if isinstance(scheduler, GridScheduler) else scheduler.rungs
        try:
            workers.run(
                scheduler,
                folder=folder,
                location=metadata.location,
                callbacks=[forecast, retention, tracker, callbacks],
                summary=lambda: search_summary(plan, scheduler.records, rungs),
                baseline=task.config,
                limits=settings.limits,
                test=settings.test,
                data=data,
                budget=settings.seconds,
                stop=out_of_time,
            )
        finally:
            # Keep the results also if the search was interrupted.
            leading = rank_trials(scheduler.records.values(), plan)
            counts = Counter(record.state for record in scheduler.records.values())
            open_trials = counts[State.RUNNING] > 0
            missing = tracker.finish(
                best=next(iter(leading), None),
                metric=plan.metric.name,
                counts=counts,
                stopped=open_trials,
                ranking=[record.number for record in leading],
            )
            delete_tune_files(folder)
    result = Search(
        folder=folder,
        metadata=metadata,
        trials=list(scheduler.records.values()),
        verdicts=read_verdicts(folder),
        seconds=round(time.monotonic() - begun, 1),
        devices=workers.devices,
        untracked=missing,
        page=page,
        runs=dict(tracker.runs),
    )
    if isinstance(scheduler, SearchScheduler) and scheduler.all_infeasible:
        callbacks.on_search_end(result)
        raise InputError(f"{scheduler.all_infeasible}. Relax the limits, or search another space")
    write_json(folder / RESULT_FILE, result)
    if workers.interrupt.signal is None:
        write_sensitivity(folder, task, leading)
    if settings.is_grid and scheduler.records:
        from automl.report.grid_table import write_grid  # importing plots takes seconds

        write_grid(result, folder)
    callbacks.on_search_end(result)
    if workers.interrupt.signal is not None:
        print(advice, file=sys.stderr)
        raise Stopped(workers.interrupt.signal)
    return result


def _open_scheduler(
    study: optuna.Study, space: Space, plan: Plan, settings: Settings, forecast: Forecast
) -> SearchScheduler | GridScheduler:
    if settings.is_grid:
        cells = cells_of(settings, space)
        return GridScheduler(study, space, plan, cells, seeds=settings.grid_seeds)
    # With the same seed, a resumed sampler would repeat its draws.
    seed = (settings.seed + len(study.get_trials(deepcopy=False))) % 2**32
    return SearchScheduler(
        study,
        space,
        plan,
        load_sampler(settings.sampler, seed=seed, objectives=len(plan.objectives)),
        adjust=settings.adjust,
        forecast=forecast,
        shared_trainings=settings.shared_trainings if settings.shares_training else 0,
        stop_decided=settings.stops_decided,
    )


def make_plan(settings: Settings, baseline: TrialConfig, task: Task) -> Plan:
    """Return the plan of a search."""
    chance = task.chance("validation")
    return Plan(
        trials=settings.most,
        budget=float(baseline.training.epochs),
        metric=task.metric,
        objectives=settings.objectives(task.metric.name),
        baseline_share=settings.baseline_share,
        pruning=settings.pruning and not settings.is_grid and not settings.shares_training,
        guessing=None if chance is None else task.metric.guessing(chance, task.size("validation")),
    )


def _open_study(folder: Path, metadata: SearchMetadata, plan: Plan) -> optuna.Study:
    """Open the study of the search, or create it."""
    if (folder / STUDY_FILE).exists():
        with suppress(KeyError):  # an earlier process was killed before it created the study
            return resume_study(folder, name=metadata.name, needed=plan.needed)
    directions = [
        StudyDirection.MAXIMIZE if plan.better(name) > 0 else StudyDirection.MINIMIZE
        for name in plan.objectives
    ]
    return create_study(folder, name=metadata.name, directions=directions, objectives=plan.objectives)


def _learn(study: optuna.Study, folder: Path, metadata: SearchMetadata) -> None:
    """Add the trials of the search `--warm-start` to a new study."""
    settings = metadata.settings
    earlier, other = find_warm_start(settings, metadata.fingerprint)
    reasons = incomparable(other, metadata, settings.load_space())
    if other.data != metadata.data:
        reasons[0] += f" ({compare_manifests(read_manifest(earlier), read_manifest(folder))})"
    if reasons:
        print(
            f"search {other.name!r} was made with {'; '.join(reasons)}. Its scores are not comparable, so "
            f"only its best configurations are used, as first trials",
            file=sys.stderr,
        )
    warm_start_study(study, open_study(earlier, name=other.name), name=other.name, comparable=not reasons)
