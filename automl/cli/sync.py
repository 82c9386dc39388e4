"""Bringing MLflow to where a search's study stands."""

from collections import Counter

from attention import InputError
from automl.confirm.run import conclude_in, open_jury
from automl.confirm.protocol import Confirmation, confirmations
from automl.storage.folder import old_folder
from automl.tracking.writer import Mirror
from automl.tracking.run_spec import confirmation_subject, search_subject
from automl.tracking.tracker import Tracker
from search.ledger import Plan, leaders
from search.record import State
from search.study import read_records

PATIENCE = 600.0  # seconds that MLflow may take


def run_sync(name: str, storage: str = "searches") -> int:
    """Write what MLflow lacks of a search and its confirmations, and return how many trials it then has.

    Raises InputError when there is no such search, when it is running, or when MLflow does not take it.
    """
    with old_folder(name, storage) as (folder, about):
        plan = Plan(**about.plan)
        records = read_records(folder, about.name)
        trials = len(records)
        tracker = Tracker(Mirror(search_subject(about.kept, about)))
        for record in records:
            tracker.update(record)
        counts = Counter(record.state for record in records)
        best, _ = leaders(records, plan)
        stopped = counts[State.RUNNING] > 0
        missing = tracker.finish(
            best=best, metric=plan.metric, counts=counts, stopped=stopped, patience=PATIENCE
        )
        for place in confirmations(folder):
            confirmation = Confirmation.read(place)
            jury = open_jury(place, about, confirmation, retry=False)
            jury.look(False)
            tracker = Tracker(Mirror(confirmation_subject(about.kept / place.name, about, confirmation)))
            for record in jury.roster.records.values():
                tracker.update(record)
            missing += conclude_in(tracker, about, jury, patience=PATIENCE)
            trials += len(jury.roster.records)
        if missing:
            raise InputError(
                f"MLflow did not take {missing} trials or parts of them; try again when it answers"
            )
    return trials
