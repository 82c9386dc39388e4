"""Callbacks on the events of a search, a confirmation and their trials."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search.record import TrialRecord


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """Settings of a search or confirmation that starts or resumes, as passed to callbacks.

    Attributes:
        name: The name of the search.
        folder: The folder of the search or the confirmation on this machine, for files of the callback.
        storage: The folder or object store that the search is in.
        metric: The name of the primary metric.
        maximize: True if a higher metric is better.
        trials: The planned number of trials, or None if only a time limit is set.
        settings: The settings of the search, as in `search.json`.

    Example:
        >>> import automl
        >>> class Announce(automl.Callback):
        ...     def on_search_start(self, search):
        ...         print(f"{search.name} compares by {search.metric}")
    """

    name: str
    folder: Path
    storage: str
    metric: str
    maximize: bool
    trials: int | None
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Callback:
    """Base class of reactions to the events of a search or a confirmation.

    Subclass it, override the methods you need, and pass an instance to `run_search(callbacks=[...])` or
    `run_confirm(callbacks=[...])`, or name the class on the command line: `--callback file.py:Name`. Methods
    run in the process that drives the search, one after the other, so a slow one delays the next trial. A
    callback cannot change a record. An error in a callback is logged once, and the search continues.

    Example:
        >>> import automl
        >>> class PrintScores(automl.Callback):
        ...     def on_trial_end(self, trial):
        ...         print(trial.number, trial.state, trial.history[-1]["accuracy"])
        >>> trial = automl.TrialRecord(3, automl.TrialConfig(), history=[{"accuracy": 0.5}])
        >>> PrintScores().on_trial_end(trial)
        3 running 0.5
    """

    def on_search_start(self, search: SearchRecord) -> None:
        """React to a search that starts or resumes.

        Args:
            search: The search.
        """

    def on_trial_start(self, trial: TrialRecord) -> None:
        """React to a trial that starts, or restarts after its process died.

        Args:
            trial: The trial. In a confirmation, `trial.variant` is what the training repeats.
        """

    def on_epoch_end(self, trial: TrialRecord) -> None:
        """React to a finished epoch.

        Args:
            trial: The trial. `trial.history[-1]` holds the metrics of the epoch.
        """

    def on_trial_end(self, trial: TrialRecord) -> None:
        """React to a trial that has ended and is recorded in the study.

        Args:
            trial: The trial. `trial.state` is final.
        """

    def on_search_end(self, result: Any) -> None:
        """React to the end of a search, also of one that was interrupted.

        Args:
            result: The `Search`.
        """

    def on_confirmation_start(self, search: SearchRecord) -> None:
        """React to a confirmation that starts or resumes.

        Args:
            search: The search that is confirmed, with the folder of the confirmation.
        """

    def on_confirmation_end(self, result: Any) -> None:
        """React to the end of a confirmation.

        Args:
            result: The `ConfirmResult`.
        """
