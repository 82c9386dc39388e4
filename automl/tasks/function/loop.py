"""Trains a trial with the user's training function."""

import time
from collections.abc import Iterator
from contextlib import closing

from automl.storage.trial_files import Answers
from automl.tasks.function.running_trial import RunningTrial
from automl.tasks.function.start import find_function
from automl.tracking.run_spec import join_runs
from automl.training import checkpoint
from automl.trials.job import Job
from search.record import Metrics


def train(job: Job) -> Iterator[list[Metrics]]:
    """Run the training function of a job. Only the first of several workers writes files.

    Yields:
        The metrics of all epochs so far, after each report and its checkpoint.

    Raises:
        TooSlow: Too few epochs fit into the baseline's time.
        Diverged: A metric is not finite.
        InputError: The function does not use its trial as it must.
    """
    # Without the states of `trial.state` the function starts over.
    content = job.content if job.content is not None and job.content["optimizer"] else None
    history, job.content = [] if content is None else job.history, None
    trial = RunningTrial(
        job.config,
        job.runtime,
        fitting=job.config.training.epochs / job.equal[0],
        least=job.least_epochs,
        tests=job.test,
        content=content,
        folder=job.folder.local,
    )
    del content
    join_runs(job.folder, job.config.model.backbone)
    with closing(trial.run(find_function(job.config.model.backbone))) as reports:
        for metrics in reports:
            history = [*history, {**metrics, "time": time.time()}]
            finished = job.is_spent(history)
            if finished and job.test:
                history[-1] |= {f"test_{name}": value for name, value in trial.tested.items()}
            if job.runtime.rank == 0:
                if finished and trial.per_example is not None:
                    Answers(values=trial.per_example).save(job.folder)
                content = trial.content(finished=finished)
                checkpoint.write(job.folder, job.config, content, history, job.profile)
                del content
            yield history
