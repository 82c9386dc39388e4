"""Run trials with Ray Tune as its experts do: classes in reused actors, OptunaSearch and ASHA."""

from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

SLOTS = 2


def start_ray() -> None:
    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)


def searching(epochs: int) -> dict[str, Any]:
    """Return the settings of `run_trials` for a search of trainings of so many epochs."""
    return {"search_alg": OptunaSearch(seed=0), "scheduler": ASHAScheduler(max_t=epochs)}


def run_trials(trainable: type[tune.Trainable], space: dict[str, Any], **settings: Any) -> tune.ResultGrid:
    """Return the results of all trials. `settings` are those of `tune.TuneConfig`."""
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", max_concurrent_trials=SLOTS, reuse_actors=True, **settings
        ),
        run_config=tune.RunConfig(
            storage_path=str(Path.cwd() / "reused"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    assert not results.errors, results.errors
    return results
