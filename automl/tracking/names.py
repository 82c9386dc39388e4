"""Names of a trial's numbers in MLflow, with units and different from all parameters.

A metric and a parameter of one name are one column twice in MLflow's table.
"""

from collections.abc import Mapping

from automl.base.escape import mlflow_key

EPOCHS_DONE = "epochs_done"  # MLflow's steps are epochs
RANK = "rank"  # of a completed trial in its search, from 1 on

# Keys of an epoch's record and of a profile, with the name in MLflow and the factor to its unit.
EPOCH: Mapping[str, tuple[str, float]] = {
    "epoch": (EPOCHS_DONE, 1),
    "resource": ("baseline_epochs", 1),
    "learning_rate": ("lr", 1),
    "seconds": ("epoch_seconds", 1),
    "processor_seconds": ("epoch_processor_seconds", 1),
}
PROFILE: Mapping[str, tuple[str, float]] = {
    "memory": ("memory_mb", 1e-6),
    "cache": ("cache_mb", 1e-6),
    "latency": ("latency_ms", 1),
    "epoch": ("measured_epoch_seconds", 1),
    "validation": ("validation_share_of_epoch", 1),
}


def named(values: Mapping[str, float], names: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    """`values` as MLflow has them; those that are not in `names` keep theirs."""
    result = {}
    for key, value in values.items():
        name, factor = names.get(key, (key, 1))
        result[mlflow_key(name)] = float(value) * factor
    return result
