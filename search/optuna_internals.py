"""Everything that is used of Optuna beside its public API, with the reason and the cost of doing without.

Tested with Optuna 5.0.0. `tests/house/test_packages.py` compares Optuna with the names in
`tests/helpers/private_names.py`. The interface of storages, with identifiers of studies and trials, is public
for authors of storages, but a study does not expose its own.
"""

from collections.abc import Collection, Sequence
from heapq import nlargest
from typing import Any, cast

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState


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


class TrialLimit:
    """Limits the trials of a study that a sampler sees to the newest ones and the best older ones.

    The latter are chosen again after `newest` / 2 trials. Reason: Optuna's TPE reads all trials for each
    group of parameters. Without it, a draw takes a third of a second after ten thousand trials.
    """

    def __init__(self, *, newest: int, best: int) -> None:
        self._newest, self._best = newest, best
        self._leading: list[FrozenTrial] = []
        self._older = 0  # number of trials that the best ones were chosen from

    def __call__(self, study: Study) -> Study:
        """Return a view of the study, or the study if it has few trials."""
        trials = study.get_trials(deepcopy=False)
        if len(trials) <= self._newest:
            return study
        if not 0 <= len(trials) - self._newest - self._older < self._newest // 2:
            self._older = len(trials) - self._newest
            sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
            older = [trial for trial in trials[: self._older] if trial.state is TrialState.COMPLETE]
            self._leading = nlargest(self._best, older, key=lambda trial: sign * trial.values[0])
            self._leading.sort(key=lambda trial: trial.number)
        return cast(Study, _LimitedStudy(study, [*self._leading, *trials[self._older :]]))


class _LimitedStudy:
    """View of a study with some of its trials."""

    def __init__(self, study: Study, trials: Sequence[FrozenTrial]) -> None:
        self._study, self._trials = study, trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(
        self, deepcopy: bool = True, states: Collection[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials if states is None or trial.state in states]

    get_trials = _get_trials
