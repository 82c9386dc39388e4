"""Run trials with Ray Tune as its experts do: a class in reused actors, with OptunaSearch and ASHA.

As in this project, each epoch may end with a checkpoint, of which the newest is kept, and MLflow's database
in the current folder has each trial.
"""

from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

SLOTS = 2


class Trial(tune.Trainable):
    """Trial with checkpoints of its model, and of its optimiser while it trains."""

    model: torch.nn.Module
    optimizer: Any = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        optimizer = self.optimizer and self.optimizer.state_dict()
        content = {"model": self.model.state_dict(), "optimizer": optimizer}
        torch.save(content, Path(checkpoint_dir, "checkpoint.pt"))


def start_ray() -> None:
    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)


def searching(epochs: int) -> dict[str, Any]:
    """Return the settings of `run_trials` for a search of trainings of so many epochs."""
    return {"search_alg": OptunaSearch(seed=0), "scheduler": ASHAScheduler(max_t=epochs)}


def run_trials(
    trainable: type[tune.Trainable], space: dict[str, Any], is_tracked: bool = True, **settings: Any
) -> tune.ResultGrid:
    """Return the results of all trials, with checkpoints and MLflow if `is_tracked`.

    `settings` are those of `tune.TuneConfig`.
    """
    callback = MLflowLoggerCallback(
        tracking_uri=f"sqlite:///{Path.cwd() / 'mlflow.db'}", experiment_name="reused"
    )
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", max_concurrent_trials=SLOTS, reuse_actors=True, **settings
        ),
        run_config=tune.RunConfig(
            storage_path=str(Path.cwd() / "reused"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=int(is_tracked), checkpoint_at_end=is_tracked, num_to_keep=1
            ),
            callbacks=[callback] if is_tracked else [],
        ),
    ).fit()
    assert not results.errors, results.errors
    assert all((result.checkpoint is not None) == is_tracked for result in results)
    return results
