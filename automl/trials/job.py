"""A trial in its process: the job, the common loop that trains it, and the error that ends it."""

import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from automl.base.atomic import DiskFull, format_disk_full, full_disk_errno
from automl.base.errors import InputError, UnusableGpu, error_line
from automl.base.escape import redact
from automl.base.lazy import resolve
from automl.base.loading import send_own_objects
from automl.config.nouns import Terms
from automl.storage.cache_folder import cache_root
from automl.storage.storage import Storage
from automl.storage.trial_files import EpochProgress
from search.config import TrialConfig
from search.config.tasks import find_spec
from search.record import CHECKPOINT_FILE, Metrics, Report

if TYPE_CHECKING:
    from automl.config.runtime import Runtime

# Minimum number of epochs. With fewer steps, the score does not depend on the placement enough.
LEAST_EPOCHS = 0.5
# Minimum in a confirmation. Its finalists have passed the search, and a time ratio that varies from seed to
# seed must not drop one.
LEAST_CONFIRMED = LEAST_EPOCHS / 2


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """Common part of the trainings of a search, a confirmation or a command.

    Attributes:
        location: Folder of the trials' folders, with their checkpoints.
        baseline: Configuration whose epochs are the unit of time.
        terms: How each training runs.
        data: Result of `session.share_data` if the data come from the storage.
        profile: Measure the costs before training, for limits and for equal time. False for commands.
    """

    location: Storage
    baseline: TrialConfig
    terms: Terms
    data: Mapping[str, Any] | None = None
    profile: bool = True


@dataclass(kw_only=True)
class Job:
    """A trial that a process trains, or continues.

    Attributes:
        folder: The folder of the trial, for its checkpoint.
        history: The metrics of the epochs so far.
        content: The checkpoint to continue from, or None. The loop drops it when it has loaded it.
        equal: The time ratio, and the fraction of an epoch's time that its validations take.
        test: Score the test split after the last epoch.
        runtime: None for a command of `session.Pool`, which uses no GPU.
        threads: Threads of each process of such a command.
        stop: File descriptor that can be read once such a command must end at once.
        leaving: Returns True once this node is being taken back.
        stamp: Stamp of the checkpoint that this process has read or written. None if no other may write it.
    """

    config: TrialConfig
    runtime: "Runtime | None"
    folder: Storage
    history: list[Metrics] = field(default_factory=list)
    content: dict[str, Any] | None = None
    profile: Mapping[str, float] = field(default_factory=dict)
    equal: tuple[float, float] = (1.0, 0.0)
    test: bool = False
    threads: int | None = None
    stop: int | None = None
    leaving: Callable[[], bool] = lambda: False
    stamp: str | None = None

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Write a checkpoint in the block. Raise Replaced if another process has written one meanwhile."""
        if self.stamp is not None and self.folder.stamp(CHECKPOINT_FILE) != self.stamp:
            raise Replaced(f"another process continues the trial in {self.folder}; this one ends")
        yield
        if self.stamp is not None:
            self.stamp = self.folder.stamp(CHECKPOINT_FILE)

    @property
    def least_epochs(self) -> float:
        """Return the least number of epochs."""
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
        loop = find_spec(job.config.task).loop
        yield from (resolve(loop) if loop else train_with_loop)(job)


def train_with_loop(job: Job) -> Iterator[list[Metrics]]:
    """Train a job's model by the common loop. Only the first of several workers writes files.

    Yields the metrics of all epochs so far, after each epoch and its checkpoint. Raises TooSlow if too few
    epochs fit into the baseline's time, and Diverged.
    """
    from automl.maps import save_examples  # this and the following import torch, which commands do without
    from automl.task import open_task
    from automl.training import checkpoint
    from automl.training.loop import TooSlow, evaluate, fit, plan_course, start

    runtime, folder, history = job.runtime, job.folder, job.history
    assert runtime is not None
    task = open_task(job.config, runtime)
    course = plan_course(task, *job.equal)
    if course.epochs < job.least_epochs:
        reason = (
            f"too slow for this budget: {course.total} of the {course.epoch} steps of an epoch and its "
            f"validation fit into it, at {job.equal[0]:.2g} times the baseline's time; give more --epochs"
        )
        raise TooSlow(course.epochs, job.least_epochs, reason)
    # A resumed trial loads its checkpoint. Its initial weights may no longer exist.
    if job.content is None:
        state = start(task)
    else:
        state = start(task, task.model())
        checkpoint.restore(state, job.content)
        job.content = None

    def write(content: dict[str, Any]) -> None:
        with job.saving():
            checkpoint.write(folder, job.config, content, history, job.profile)

    with (
        EpochProgress(folder if runtime.rank == 0 else None) as tell,
        closing(checkpoint.Keeper(runtime, state, write, job.leaving)) as keep,
    ):
        for metrics in fit(task, state, *job.equal, tell, keep):
            keep.wait()
            history = [*history, {**metrics, "time": time.time()}]
            finished = job.is_spent(history)
            if finished:
                evaluator = state.validated
                if job.test:
                    evaluator = task.evaluator("test")
                    scores = evaluate(task, state.scored, "test", evaluator)
                    history[-1] |= {f"test_{name}": float(value) for name, value in scores.items()}
                answers = None if evaluator is None else evaluator.answers(runtime)
                if job.test and runtime.rank == 0:
                    save_examples(task, state.scored, folder)
                if answers is not None and runtime.rank == 0:
                    answers.save(folder)  # Before the checkpoint, which marks the trial as complete.
            if runtime.rank == 0:
                with job.saving():
                    checkpoint.save(folder, job.config, state, history, job.profile, finished=finished)
            yield history


class Replaced(Exception):
    """Ray gave this process up, as when its node was cut off, and another one continues its trial."""


class CommandFailed(Exception):
    """A command failed for a reason. `log` is the end of its output."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


class Interrupted(Exception):
    """A command was ended, since its pool was stopped. It has no result."""


def classify_error(error: BaseException, folder: Storage) -> Report:
    """Return the report of a trial that ended with `error`.

    It is a fault of the node if its disk is full, its GPU is broken, or it cannot use the trial's `folder`.
    """
    if isinstance(error, CommandFailed):
        return Report(error=redact(str(error)), traceback=redact(error.log))
    if isinstance(error, UnusableGpu):
        return Report(fault=str(error))
    line = error_line(error)
    if isinstance(error, OSError) and f"{folder.parent.name}/{folder.name}" in str(error):
        return Report(fault=line)
    if (code := full_disk_errno(error)) is None:
        return Report(error=line, traceback=traceback.format_exc())
    if isinstance(error, InputError | DiskFull):  # These errors already name the folder.
        return Report(fault=line)
    return Report(fault=f"{format_disk_full(folder.local or cache_root(), None, code)}: {line}")
