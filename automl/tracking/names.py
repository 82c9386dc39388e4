"""Names of a trial's numbers and of tags in MLflow.

Numbers have units, and names that differ from those of all parameters: a metric and a parameter of one name
are one column twice in MLflow's table. Runs are looked up by tags; `state`, `role` and `reason` are only for
display.
"""

from collections.abc import Mapping
from typing import Any

from automl.base.escape import mlflow_key
from search.record import TrialRecord, model_name, placement_name

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

# MLflow's own: the description that it shows, the command and the commit of the code.
NOTE, SOURCE, COMMIT = "mlflow.note.content", "mlflow.source.name", "mlflow.source.git.commit"
SOURCE_TYPE, DATA_CONTEXT = "mlflow.source.type", "mlflow.data.context"
PARENT = "mlflow.parentRunId"
# Of an experiment: a state of the table of runs, which a link names by what follows the dot.
VIEW = "mlflow.sharedViewState."
# Of every run: the version of this package, and of a study's runs what it trains and how its source differs.
VERSION, SCALE = "automl.version", "automl.scale"
SEARCH, IDENTITY, TRIAL = "automl.search", "automl.identity", "automl.trial"
BEST, CHECKPOINT = "automl.best_run", "automl.checkpoint"
# Of a confirmation's run: the search. Of a search's: the confirmed winner's run, the verdict's headline
# and its other lines.
CONFIRMS, CONFIRMED = "automl.confirms", "automl.confirmed_run"
VERDICT, FIGURES = "automl.verdict", "automl.figures"


def named(values: Mapping[str, float], names: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    """`values` as MLflow has them; those that are not in `names` keep theirs."""
    result = {}
    for key, value in values.items():
        name, factor = names.get(key, (key, 1))
        result[mlflow_key(name)] = float(value) * factor
    return result


def run_name(trial: TrialRecord) -> str:
    """Return the name of a run. The placement comes first, since MLflow cuts names in tables and plots."""
    if trial.variant:
        return f"{trial.variant} seed {trial.config.seed}"
    return f"{placement_name(trial.config)} {trial.number:03d} {model_name(trial.config)}"


def verdict_numbers(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a verdict, which are columns of MLflow's table."""
    time = verdict.get("time") or {}
    numbers = {key: verdict.get(key) for key in ("difference", "p")}
    numbers |= {"seeds_used": verdict.get("seeds"), "time_ratio": time.get("mean")}
    intervals = {key: verdict.get(key) for key in ("interval", "interval_inputs")}
    for key, ends in {**intervals, "time_ratio": time and (time["low"], time["high"])}.items():
        numbers[f"{key}_low"], numbers[f"{key}_high"] = ends or (None, None)
    return {key: value for key, value in numbers.items() if value is not None}
