"""What is known of a trial, and who wants to hear of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from search.config import TrialConfig

TRIALS = "trials"  # the folder of the trials' checkpoints, in the search's folder


class State(StrEnum):
    """How a trial stands. `pruned` was cut by the scheduler; `infeasible` cannot be trained as it is."""

    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    ERROR = "error"


@dataclass
class TrialRecord:
    """One trial.

    history: one record of metrics an epoch.
    reason: why it is infeasible or failed.
    checkpoint: the folder of its last checkpoint.
    """

    number: int
    config: TrialConfig
    state: State = State.RUNNING
    history: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    checkpoint: str | None = None

    @property
    def name(self) -> str:
        """Short and readable: its number, backbone and what sits where."""
        model = self.config.model
        where = " + ".join(f"{spec.type}@{site}" for site, spec in model.placement.items())
        return f"{self.number:03d} {model.backbone} {where or 'plain'}"


class Listener(Protocol):
    """Hears of trials, in the process that drives the search."""

    def started(self, trial: TrialRecord) -> None: ...

    def reported(self, trial: TrialRecord) -> None:
        """The last record of `trial.history` is new."""

    def ended(self, trial: TrialRecord) -> None: ...

    def saved(self, trial: TrialRecord) -> None:
        """`trial.checkpoint` is new. A trial's last checkpoint is written after it ended."""
