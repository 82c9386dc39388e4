"""Trains a trial with this project's training loop."""

import time
from collections.abc import Iterator

from automl.maps.examples import save_examples
from automl.storage.trial_files import EpochProgress
from automl.tasks import open_task
from automl.training import checkpoint, shared_training
from automl.training.loop import Course, TooSlow, evaluate, fit, plan_course, start
from automl.trials.job import Job
from search.record import Metrics


def train_with_loop(job: Job) -> Iterator[list[Metrics]]:
    """Train the model of a job's task. Only the first of several workers writes files.

    Yields:
        The metrics of all epochs so far, after each epoch and its checkpoint.

    Raises:
        TooSlow: Too few epochs fit into the baseline's time.
        Diverged: The loss or a metric is not finite.
    """
    runtime, folder, history = job.runtime, job.folder, job.history
    task = open_task(job.config, runtime)
    course = plan_course(task, *job.equal)
    if course.epochs < job.least_epochs:
        raise TooSlow(course.epochs, job.least_epochs, _too_slow(course, job.equal[0]))
    # A resumed trial loads its checkpoint. Its initial weights may no longer exist.
    if job.content is None:
        state = shared_training.start_from_shared(task, job.shared_trainings)
    else:
        state = start(task, task.model())
        checkpoint.restore(state, job.content)
        job.content = None
    with EpochProgress(folder if runtime.rank == 0 else None) as tell:
        for metrics in fit(task, state, *job.equal, tell):
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
                # Before the checkpoint, after which the shared partial training would not be stored any more.
                shared_training.store_state(task, state, job.shared_trainings, history)
                checkpoint.save(folder, job.config, state, history, job.profile, finished=finished)
            yield history


def _too_slow(course: Course, time_ratio: float) -> str:
    suffix = " after the shared partial training" if course.shared_training else ""
    return (
        f"too slow for this budget: {course.total - course.shared_training} of the {course.epoch} steps "
        f"of an epoch fit into it{suffix}, at {time_ratio:.2g} times the baseline's time; give more --epochs"
    )
