"""Everything that is used of Optuna beside its public API, with the reason and the cost of doing without.

Tested with Optuna 5.0.0. `tests/test_internals.py` compares Optuna with `USED`. The interface of storages,
with identifiers of studies and trials, is public for authors of storages, but a study does not expose its
own.
"""

from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial

# Attributes that a class assigns in `__init__`, and names of classes.
USED: dict[str, dict[str, Any]] = {
    "optuna.study:Study": {"attributes": ["_storage", "_study_id"]},
    "optuna.storages:JournalStorage": {"attributes": ["_backend"]},
    "optuna.trial:Trial": {"parameters": ["study", "trial_id"], "attributes": ["_trial_id"]},
    "optuna.trial:FrozenTrial": {"attributes": ["_trial_id"]},
}


def storage_of(study: optuna.Study) -> tuple[BaseStorage, int]:
    """Return the storage of a study and the study's identifier in it.

    Reason: a trial is added in one write and needs its number. `Study.add_trial` does not return the trial,
    and `get_trials` reads every open trial again. Without it, adding a trial takes a second with 512 open
    trials.
    """
    return study._storage, study._study_id


def backend_of(study: optuna.Study) -> BaseJournalBackend | None:
    """Return the backend of a study's journal, or None if the study has no journal.

    Reason: several changes of a trial are one write. Without it, a search that is killed between two writes
    leaves a trial with some of its parameters.
    """
    storage = study._storage
    return storage._backend if isinstance(storage, JournalStorage) else None


def identifier_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return the identifier of a trial in its storage, with which `optuna.Trial` opens it again.

    Reason: a waiting trial is started with parameters that were drawn elsewhere. Without it, each call
    searches all trials for a number.
    """
    return trial._trial_id
