"""A trial in its process: what is known before its training begins, and the loop that trains it."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from automl.base.loading import send_own_objects
from automl.base.registry import resolve
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from search.config import TrialConfig
from search.config.tasks import find_spec
from search.record import Metrics

LOOP = "automl.trials.job:train_with_loop"

# Minimum number of epochs with the placement. With fewer steps, the score does not depend on it enough.
LEAST_EPOCHS = 0.5
# Minimum in a confirmation. Its finalists have passed the search, and a time ratio that varies from seed to
# seed must not drop one.
LEAST_CONFIRMED = LEAST_EPOCHS / 2


@dataclass(kw_only=True)
class Job:
    """A trial that a process trains, or continues.

    Attributes:
        config: The configuration.
        runtime: The device, precision and workers.
        folder: The folder of the trial, for its checkpoint.
        shared_trainings: The folder of the shared partial trainings.
        history: The metrics of the epochs so far.
        content: The checkpoint to continue from, or None. The loop drops it when it has loaded it.
        profile: The measured costs.
        equal: The time ratio, and the fraction of an epoch's time that its validation takes.
        test: Score the test split after the last epoch.
    """

    config: TrialConfig
    runtime: Runtime
    folder: Storage
    shared_trainings: Storage
    history: list[Metrics] = field(default_factory=list)
    content: dict[str, Any] | None = None
    profile: Mapping[str, float] = field(default_factory=dict)
    equal: tuple[float, float] = (1.0, 0.0)
    test: bool = False

    @property
    def least_epochs(self) -> float:
        """Return the least number of epochs with the placement."""
        return LEAST_CONFIRMED if self.test else LEAST_EPOCHS

    def is_spent(self, history: list[Metrics]) -> bool:
        """Return True if the epochs of `history` use up the budget."""
        return bool(history) and history[-1]["resource"] >= self.config.training.epochs


def train(job: Job) -> Generator[list[Metrics]]:
    """Train a job with the loop of its task. Yield the metrics of all epochs so far, after each epoch."""
    send_own_objects()
    if job.is_spent(job.history):
        yield job.history
    else:
        yield from resolve(find_spec(job.config.task).loop or LOOP)(job)
