"""Run the trials of a search that passed its checks, on Ray, and write its result."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.study import StudyDirection

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.serialise import write_json
from automl.base.terminal import tell
from automl.base.units import pluralize
from automl.callbacks.user import UserCallbacks
from automl.costs.forecast import Forecast
from automl.judge.protocol import Confirmation, confirmations
from automl.judge.scheduler import ConfirmationScheduler, read_verdicts
from automl.judge.trainings import conclude_in
from automl.search.prepare import cells_of, find_warm_start, starts_from_sensitivity
from automl.search.result import RESULT_FILE, SearchResult
from automl.storage.folder import NamedSearch, check_not_lost, old_folder, resolve_search
from automl.storage.metadata import SearchMetadata
from automl.storage.trial_files import describe_original, original_records, trial_name
from automl.storage.user_code import remember
from automl.task import Split, Task
from automl.tracking.process import MlflowProcess
from automl.tracking.run_spec import RunSpec, search_run_spec
from automl.tracking.tracker import PATIENCE, MlflowSilent, Tracker
from automl.trials.session import Stopped
from search.class_statistics import describe_imbalance
from search.drawn import Drawn
from search.fixed_scheduler import GridScheduler
from search.placement_effects import NO_PRIOR, Prior, parse_placement, sensitivity_effects, write_prior
from search.record import Callback, State, TrialRecord
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.study import STUDY_FILE, create_study, open_study, read_records, resume_study, warm_start_study
from search.trial_scheduler import Plan, rank_trials

Result = TypeVar("Result", bound=SearchResult)
Scheduler = SearchScheduler | GridScheduler

PRIOR_DRAWS = 100  # draws of the space, to find its attention types and how placements differ
SENSITIVITY = "the sensitivity of each layer is measured first, in some minutes; --prior none leaves it out"


class RememberCode(Callback):
    """Callback that remembers the user-defined code of trials, which this search may run."""

    def on_trial_start(self, trial: TrialRecord) -> None:
        """Remember the code of a trial."""
        remember(trial.config.user_code())


def run_to_end(
    folder: Path, metadata: SearchMetadata, drawn: Drawn, task: Task, begun: float, kind: type[Result]
) -> Result:
    """Run the trials of a search that have not ended. Return its result, as the class `kind`.

    It began at `begun` [s]. Raise InputError if no trial keeps the limits, and Stopped after a signal.
    """
    # Importing Ray takes seconds. Invalid arguments are reported before.
    from automl.callbacks.retention import CheckpointRetention
    from automl.callbacks.search_progress import search_summary
    from automl.trials.job import Trainings
    from automl.trials.session import delete_tune_files, open_workers, share_data

    place, plan = metadata.settings.place, metadata.plan
    terms = replace(metadata.settings.terms, validations_per_epoch=plan.reports)
    callbacks = UserCallbacks(place.callbacks)
    advice = f"resume with: {format_command('search --resume', metadata.name, place.storage)}"
    with (
        open_workers(place, folder / "log.txt", advice) as workers,  # before MLflow makes a store
        MlflowProcess(search_run_spec(metadata.location, metadata)) as writer,
    ):
        tested: Sequence[Split] = ["test"] if terms.test else []
        data = share_data(task, folder, place.storage, "train", "validation", *tested)
        trainings = Trainings(location=metadata.location, baseline=task.config, terms=terms, data=data)
        workers = workers.share_gpus(folder, metadata.gpu_fraction, trainings, trials=plan.trials)
        with suppress(MlflowSilent):  # the tracker prints a warning
            writer.contact()
        tracker = Tracker(writer)
        page = "" if tracker.silent else writer.page()
        forecast = Forecast(terms)
        scheduler = _open_scheduler(_open_study(folder, metadata, drawn, task), metadata, drawn, forecast)
        known = list(scheduler.records.values())
        retention = CheckpointRetention(
            metadata.location, plan, known, keep=place.keep, deleted=tracker.update
        )
        for record in known:  # MLflow may have missed some
            tracker.update(record)
        tell(f"search {metadata.name} in {metadata.location}; if it is interrupted, {advice}")
        _describe_data(task, metadata.settings.values(), folder, tracker)
        callbacks.on_search_start(metadata.record(folder))
        called = [forecast, retention, tracker, RememberCode(), callbacks]
        try:
            workers.run(
                scheduler,
                trainings,
                folder=folder,
                callbacks=called,
                summary=lambda: search_summary(plan, scheduler.records),
                budget=metadata.settings.plan.seconds,
                stop=partial(_stop_late, scheduler, metadata.settings.plan.seconds, begun),
            )
        finally:  # Keep the results also if the search was interrupted.
            missing = end_tracking(tracker, list(scheduler.records.values()), plan)
            delete_tune_files(folder)
    result = kind(
        folder=folder,
        metadata=metadata,
        trials=list(scheduler.records.values()),
        verdicts=[verdict for _, verdict in read_verdicts(folder, metadata)],
        seconds=round(time.monotonic() - begun, 1),
        devices=workers.devices,
        untracked=missing,
        page=page,
        runs=dict(tracker.runs),
    )
    signal = workers.interrupt.signal
    hopeless = scheduler.all_infeasible if isinstance(scheduler, SearchScheduler) else None
    if not hopeless:
        _complete(result, scheduler, task)
    callbacks.on_search_end(result)
    if hopeless:
        raise InputError(f"{hopeless}. Relax the limits, or search another space")
    if signal is not None:
        tell(advice)
        raise Stopped(signal)
    return result


def _open_study(folder: Path, metadata: SearchMetadata, drawn: Drawn, task: Task) -> optuna.Study:
    """Open the study of the search. Or create it, with what is known before the first trial."""
    asked, plan = metadata.settings.plan, metadata.plan
    if (folder / STUDY_FILE).exists():
        with suppress(KeyError):  # an earlier process was killed before it created the study
            return resume_study(folder, name=metadata.name, needed=plan.needed)
    direction = StudyDirection.MAXIMIZE if plan.metric.sign > 0 else StudyDirection.MINIMIZE
    prior = measure_prior(drawn, task) if starts_from_sensitivity(asked, task) else NO_PRIOR
    study = create_study(folder, name=metadata.name, direction=direction, metric=plan.metric.name)
    if asked.warm_start is not None:
        earlier, other = find_warm_start(asked.warm_start, metadata.storage, metadata.fingerprint)
        warm_start_study(study, open_study(earlier, name=other.name))
    if prior:
        write_prior(study, prior)
    return study


def measure_prior(drawn: Drawn, task: Task) -> Prior:
    """Return the effects of modules that the sensitivity of a trained decoder's layers predicts."""
    tell(SENSITIVITY)
    parsed = [parse_placement(trial.params, trial.distributions) for trial in drawn.trials(PRIOR_DRAWS)]
    placements = [placement for placement in parsed if placement is not None and placement.modules]
    return sensitivity_effects(task.measure_sensitivity(drawn.configs(PRIOR_DRAWS)), placements)


def _open_scheduler(
    study: optuna.Study, metadata: SearchMetadata, drawn: Drawn, forecast: Forecast
) -> Scheduler:
    question, asked, plan = metadata.settings.question, metadata.settings.plan, metadata.plan
    if asked.is_grid:
        seeds = metadata.settings.grid_seeds
        return GridScheduler(study, drawn.space, plan, cells_of(asked, drawn), seeds=seeds)
    # With the same seed, a resumed sampler would repeat its draws.
    seed = (question.seed + len(study.get_trials(deepcopy=False))) % 2**32
    sampler = load_sampler(asked.sampler, seed=seed)
    return SearchScheduler(study, drawn.space, plan, sampler, forecast=forecast)


def _describe_data(task: Task, options: Mapping[str, Any], folder: Path, tracker: Tracker) -> None:
    """Print what the trials start from: the data and, if it is trained, the original, which MLflow gets."""
    from automl.trials.measurements import measure_original  # imports Ray, which takes seconds

    tell(task.describe_data())
    if changes := task.describe_changes():
        tell(changes)
    by_class = dict(zip(task.labels, task.class_counts("train"), strict=False))
    if message := describe_imbalance(by_class, options=options):
        tell(message)
    measure_original(folder, task, "validation")
    if original := describe_original(folder, task.metric):
        tell(f"original  {original}")
    for record in original_records(folder, task.config):
        tracker.update(record)


def _stop_late(scheduler: Scheduler, seconds: float | None, begun: float) -> bool:
    """Start no more trials once the time is used up. Return False, since those that run continue."""
    if seconds is not None and time.monotonic() - begun > seconds:
        scheduler.closing = True
    return False


def end_tracking(
    tracker: Tracker, records: Sequence[TrialRecord], plan: Plan, patience: float = PATIENCE
) -> int:
    """Write the end of a search to MLflow. Return the number of trials that it lacks after `patience` [s]."""
    counts = Counter(record.state for record in records)
    return tracker.finish(
        best=next(iter(rank_trials(records, plan)), None),
        metric=plan.metric.name,
        counts=counts,
        stopped=counts[State.RUNNING] > 0,
        patience=patience,
    )


def _complete(search: SearchResult, scheduler: Scheduler, task: Task) -> None:
    """Measure what the best trial of a decoder saves. Write the result, and the table of a grid."""
    from automl.trials.measurements import measure_decoding  # imports Ray

    if search.best is not None and not search.stopped:
        measure_decoding(search.folder, {trial_name(search.best): search.best.config}, task.runtime)
    write_json(search.folder / RESULT_FILE, search)
    if isinstance(scheduler, GridScheduler) and search.trials:
        from automl.report.grid_table import write_grid  # importing plots takes seconds

        write_grid(search, search.folder)


SYNC_PATIENCE = 600.0  # maximum wait for MLflow [s]


def run_sync(search: str | NamedSearch, storage: str | None = None) -> int:
    """Write the missing runs of a search and its confirmations to MLflow.

    Args:
        search: The name of the search, or its result.
        storage: The storage of the search. Default: that of the result, or `searches`.

    Returns:
        The number of trials that are in MLflow.

    Raises:
        InputError: The search does not exist, it is running, or MLflow rejects it.

    Example:
        After the example of `run_search`:

        >>> automl.run_sync(result) >= 8
        True
    """
    name, storage = resolve_search(search, storage)
    with old_folder(name, storage) as (folder, metadata):
        records = read_records(folder, metadata.name, metadata.plan.needed)
        check_not_lost(folder, metadata.location)
        trials = len(records)
        missing = 0
        if metadata.has_trials:
            originals = original_records(folder, records[0].config) if records else []
            tracker = _mirror([*records, *originals], search_run_spec(metadata.location, metadata))
            missing = end_tracking(tracker, records, metadata.plan, SYNC_PATIENCE)
        for confirmation_folder in confirmations(folder):
            confirmation = Confirmation.read(confirmation_folder)
            scheduler = ConfirmationScheduler(confirmation_folder, metadata, confirmation, retry=False)
            scheduler.update(False)
            records = list(scheduler.planned.records.values())
            tracker = _mirror(records, confirmation.run_spec(scheduler.location, metadata))
            missing += conclude_in(tracker, metadata.identity, scheduler, patience=SYNC_PATIENCE)
            trials += len(records)
        if missing:
            raise InputError(
                f"{pluralize(missing, 'trials were')} not written to MLflow completely; try again when it "
                "is available"
            )
    return trials


def _mirror(records: Sequence[TrialRecord], spec: RunSpec) -> Tracker:
    from automl.tracking.writer import MlflowWriter  # imports MLflow, which takes seconds

    tracker = Tracker(MlflowWriter(spec))
    for record in records:
        tracker.update(record)
    return tracker
