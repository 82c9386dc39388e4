"""Lightning: report, prune and resume a trial from `Trainer.fit`."""

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from automl.config.device import all_generator_states, restore_all_generators
from automl.integrations import CheckpointFiles
from automl.tasks.function.trial import Trial


class TrialCallback(Callback):
    """Connect Lightning's `Trainer` to a trial.

    After each epoch with a validation it reports `trainer.callback_metrics`. A pruned trial leaves `fit` with
    `optuna.TrialPruned`. A resumed trial continues from Lightning's checkpoint.

    Example:
        callback = TrialCallback(trial)
        trainer = Trainer(max_epochs=len(trial.epochs(20)), callbacks=[callback])
        trainer.fit(model, ckpt_path=callback.checkpoint)
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._files = CheckpointFiles()
        self._path = self._files.folder / "lightning.ckpt"
        self._metrics: dict[str, float] = {}
        self._is_validated = False
        self._resumed: dict[str, float] = {}
        trial.state(lightning=self._files)

    @property
    def checkpoint(self) -> Path | None:
        """Lightning's checkpoint of a resumed trial for `ckpt_path`. None in a new trial."""
        return self._path if self._path.exists() else None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember that this epoch has metrics."""
        self._is_validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save a checkpoint and report the metrics."""
        if self._is_validated:
            self._is_validated = False
            self._metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            trainer.save_checkpoint(self._path)
            self._trial.report(epoch=trainer.current_epoch + 1, **self._metrics)

    # Lightning's checkpoint lacks the random generators, and the step of a plateau scheduler, which follows
    # when the epoch has ended. It calls these two methods for a callback's part of its checkpoint.
    def state_dict(self) -> dict[str, Any]:
        """Return the metrics and the states of the random generators."""
        return {"metrics": self._metrics, "generators": all_generator_states(self._trial.rng)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the random generators."""
        self._resumed = state_dict["metrics"]
        restore_all_generators(state_dict["generators"], self._trial.rng)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the missing step of plateau schedulers in the first epoch of a resumed training."""
        for config in trainer.lr_scheduler_configs if self._resumed else ():
            is_due = config.interval == "epoch" and trainer.current_epoch % config.frequency == 0
            if config.reduce_on_plateau and is_due:
                pl_module.lr_scheduler_step(config.scheduler, self._resumed[config.monitor])
        self._resumed = {}
