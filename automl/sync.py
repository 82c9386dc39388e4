"""Bringing MLflow to where a search's study stands."""

from collections import Counter

from attention import InputError
from automl.folder import old_folder
from automl.tracking import open_tracker
from search.ledger import Plan, leaders
from search.record import State
from search.study import close_study, open_study, own_trials, read_record

PATIENCE = 600.0  # seconds that MLflow may take


def run_sync(name: str, storage: str = "searches") -> int:
    """Write what MLflow lacks of a search, and return how many trials it then has.

    Raises InputError when there is no such search, when it is running, or when MLflow does not take it.
    """
    with old_folder(name, storage) as (folder, about):
        study = open_study(folder, name=about.name)
        found = [read_record(trial) for trial in own_trials(study)]
        close_study(study)
        records = [record for record in found if record is not None]
        plan = Plan(**about.plan)
        tracker = open_tracker(folder, about)
        for record in records:
            tracker.update(record)
        counts = Counter(record.state for record in records)
        best, _ = leaders(records, plan)
        missing = tracker.finish(
            best=best,
            metric=plan.metric,
            counts=counts,
            stopped=counts[State.RUNNING] > 0,
            patience=PATIENCE,
        )
        if missing:
            raise InputError(
                f"MLflow did not take {missing} trials or parts of them; try again when it answers"
            )
    return len(records)
