"""Studies in memory, for trials that are drawn but not trained."""

from collections.abc import Sequence

import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection


def memory_study(sampler: BaseSampler, *, directions: Sequence[StudyDirection] | None = None) -> optuna.Study:
    """Create an empty study in memory, without Optuna's log message.

    Args:
        sampler: The sampler of its trials.
        directions: The directions of its objectives. By default one that is minimised.

    Returns:
        The study.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=directions, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
