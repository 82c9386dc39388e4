"""Write the missing runs of a search to MLflow."""

from collections.abc import Sequence

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.judge.protocol import Confirmation, confirmations
from automl.judge.scheduler import ConfirmationScheduler
from automl.judge.trainings import conclude_in
from automl.search.driver import end_tracking
from automl.storage.folder import NamedSearch, check_not_lost, old_folder, resolve_search
from automl.storage.metadata import ComparisonMetadata
from automl.tracking.run_spec import RunSpec, search_run_spec
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.record import TrialRecord
from search.study import read_records

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
        missing = 0
        if not isinstance(metadata, ComparisonMetadata):
            tracker = _mirror(records, search_run_spec(metadata.location, metadata))
            missing = end_tracking(tracker, records, metadata.plan, PATIENCE)
        for confirmation_folder in confirmations(folder):
            confirmation = Confirmation.read(confirmation_folder)
            scheduler = ConfirmationScheduler(confirmation_folder, metadata, confirmation, retry=False)
            scheduler.update(False)
            records = list(scheduler.planned.records.values())
            tracker = _mirror(records, confirmation.run_spec(scheduler.location, metadata))
            missing += conclude_in(tracker, metadata.identity, scheduler, patience=PATIENCE)
            trials += len(records)
        if missing:
            raise InputError(
                f"{pluralize(missing, 'trials were')} not written to MLflow completely; try again when it "
                "is available"
            )
    return trials


def _mirror(records: Sequence[TrialRecord], spec: RunSpec) -> Tracker:
    tracker = Tracker(MlflowWriter(spec))
    for record in records:
        tracker.update(record)
    return tracker
