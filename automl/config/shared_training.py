"""The settings of a training that continues a shared partial training."""

from automl.base.errors import InputError
from search.config import TrialConfig

INSERT_AT = 3 / 4  # of the epochs, in the flat part of the schedule


def with_shared_training(config: TrialConfig) -> TrialConfig:
    """Return `config` with its placement inserted late in the flat phase of the baseline's schedule.

    Raise InputError if it has a single epoch.
    """
    epochs = config.training.epochs
    if epochs < 2:
        raise InputError(
            f"--init shared needs 2 epochs or more, as placements are inserted after one; got {epochs}"
        )
    at = min(max(1, round(INSERT_AT * epochs)), epochs - 1)
    return config.change(training={"insert_at": at, "schedule": "flat-cosine"})
