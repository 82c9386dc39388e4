"""Write the missing runs of a search to MLflow."""

from collections import Counter
from collections.abc import Sequence

from automl.base.errors import InputError
from automl.confirm.protocol import Confirmation, confirmations
from automl.confirm.scheduler import open_scheduler
from automl.confirm.trainings import conclude_in
from automl.storage.folder import NamedSearch, check_not_lost, old_folder, resolve_search
from automl.storage.metadata import SearchMetadata
from automl.tracking.run_spec import search_run_spec
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.record import State, TrialRecord
from search.study import read_records
from search.trial_scheduler import rank_trials

PATIENCE = 600.0  # maximum wait for MLflow [s]


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
        check_not_lost(folder, metadata)
        trials = len(records)
        missing = _sync_trials(metadata, records) if metadata.settings.has_space else 0
        for confirmation_folder in confirmations(folder):
            confirmation = Confirmation.read(confirmation_folder)
            scheduler = open_scheduler(confirmation_folder, metadata, confirmation, retry=False)
            scheduler.update(False)
            tracker = Tracker(MlflowWriter(confirmation.run_spec(scheduler.location, metadata)))
            for record in scheduler.planned.records.values():
                tracker.update(record)
            missing += conclude_in(tracker, metadata, scheduler, patience=PATIENCE)
            trials += len(scheduler.planned.records)
        if missing:
            raise InputError(
                f"{missing} trials were not written to MLflow completely; try again when it is available"
            )
    return trials


def _sync_trials(metadata: SearchMetadata, records: Sequence[TrialRecord]) -> int:
    """Write the runs of a search. Return the number that MLflow did not take."""
    tracker = Tracker(MlflowWriter(search_run_spec(metadata.location, metadata)))
    for record in records:
        tracker.update(record)
    counts = Counter(record.state for record in records)
    leading = rank_trials(records, metadata.plan)
    return tracker.finish(
        best=next(iter(leading), None),
        metric=metadata.plan.metric.name,
        counts=counts,
        stopped=counts[State.RUNNING] > 0,
        ranking=[record.number for record in leading],
        patience=PATIENCE,
    )
