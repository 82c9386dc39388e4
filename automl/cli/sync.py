"""Writes to MLflow what it lacks of a search's study."""

from collections import Counter

from attention import InputError
from automl.confirm.protocol import Confirmation, confirmations
from automl.confirm.run import conclude_in, open_scheduler
from automl.confirm.run_spec import confirmation_run_spec
from automl.storage.folder import check_not_lost, old_folder
from automl.tracking.run_spec import search_run_spec
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.record import State
from search.study import read_records
from search.trial_scheduler import ranked

PATIENCE = 600.0  # seconds that MLflow may take


def run_sync(name: str, storage: str = "searches") -> int:
    """Write what MLflow lacks of a search and its confirmations, and return how many trials it then has.

    Raises InputError when there is no such search, when it is running, or when MLflow does not take it.
    """
    with old_folder(name, storage) as (folder, metadata):
        plan = metadata.plan
        records = read_records(folder, metadata.name, plan.needed)
        check_not_lost(folder, metadata)
        trials = len(records)
        tracker = Tracker(MlflowWriter(search_run_spec(metadata.location, metadata)))
        for record in records:
            tracker.update(record)
        counts = Counter(record.state for record in records)
        leading = ranked(records, plan)
        stopped = counts[State.RUNNING] > 0
        missing = tracker.finish(
            best=next(iter(leading), None),
            metric=plan.metric.name,
            counts=counts,
            stopped=stopped,
            ranking=[record.number for record in leading],
            patience=PATIENCE,
        )
        for place in confirmations(folder):
            confirmation = Confirmation.read(place)
            scheduler = open_scheduler(place, metadata, confirmation, retry=False)
            scheduler.look(False)
            tracker = Tracker(
                MlflowWriter(confirmation_run_spec(metadata.location / place.name, metadata, confirmation))
            )
            for record in scheduler.planned.records.values():
                tracker.update(record)
            missing += conclude_in(tracker, metadata, scheduler, patience=PATIENCE)
            trials += len(scheduler.planned.records)
        if missing:
            raise InputError(
                f"MLflow did not take {missing} trials or parts of them; try again when it answers"
            )
    return trials
