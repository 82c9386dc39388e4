"""All that is used of Optuna beside its public API: what, why, and what it would cost to give it up.

Tested with Optuna 5.0.0. `tests/test_internals.py` compares Optuna with `USED`. A storage, with its
identifiers of studies and trials, is public as an interface for those who write one; a study does not give
its own away.
"""

from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial

# The attributes that a class assigns in `__init__`, and names of classes.
USED: dict[str, dict[str, Any]] = {
    "optuna.study:Study": {"attributes": ["_storage", "_study_id"]},
    "optuna.storages:JournalStorage": {"attributes": ["_backend"]},
    "optuna.trial:Trial": {"parameters": ["study", "trial_id"], "attributes": ["_trial_id"]},
    "optuna.trial:FrozenTrial": {"attributes": ["_trial_id"]},
}


def storage_of(study: optuna.Study) -> tuple[BaseStorage, int]:
    """Return the storage of a study, and the study's identifier there.

    Why: a trial is added whole, in one write, and is known by its number. `Study.add_trial` does not return
    the trial, and a study that is asked for its trials reads every open one again. Without it: with 512 open
    trials, a second for each new one.
    """
    return study._storage, study._study_id


def backend_of(study: optuna.Study) -> BaseJournalBackend | None:
    """Return what a study's journal is written with, or None if the study has no journal.

    Why: several changes of a trial are one write. Without it: a search that is killed between two of them has
    a trial with a part of its parameters.
    """
    storage = study._storage
    return storage._backend if isinstance(storage, JournalStorage) else None


def identifier_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return the identifier of a trial in its storage, by which `optuna.Trial` opens it again.

    Why: a waiting trial is begun with parameters that were drawn elsewhere. Without it: each call searches
    all trials for a number.
    """
    return trial._trial_id
