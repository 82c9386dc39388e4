"""A study in memory, for trials that are drawn and not trained."""

from collections.abc import Sequence

import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection


def memory_study(sampler: BaseSampler, *, directions: Sequence[StudyDirection] | None = None) -> optuna.Study:
    """Create an empty study in memory, without Optuna's message about it.

    Args:
        sampler: What draws its trials.
        directions: Of its objectives; one that is minimised where not given.

    Returns:
        The study.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=directions, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
