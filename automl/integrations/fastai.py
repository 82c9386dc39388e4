"""fastai: report, prune and resume a trial from `Learner.fit`."""

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.data.load import DataLoader
from fastai.learner import load_model, save_model

from automl.base.errors import InputError
from automl.config.device import all_generator_states, restore_all_generators
from automl.integrations import CheckpointFiles
from automl.tasks.function.trial import Trial


class TrialCallback(Callback):
    """Connect fastai's `Learner` to a trial.

    After each epoch it reports the metrics of the validation by their names in fastai's table. A pruned trial
    leaves `fit` with `optuna.TrialPruned`. A resumed trial loads model and optimizer when `fit` begins.

    Example:
        callback = TrialCallback(trial)
        epochs = trial.epochs(5)
        learner.fit_one_cycle(len(epochs), start_epoch=epochs.start, cbs=callback)
    """

    order = 90  # after the Recorder, which computes the metrics, and SkipToEpoch

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial
        self._files = CheckpointFiles()
        self._model_path = self._files.folder / "learner.pth"
        self._random_path = self._files.folder / "random.pth"
        self._is_trained = self._has_reported = False
        trial.state(fastai=self._files)
        self._is_resumed = self._model_path.exists()

    def before_fit(self) -> None:
        """Refuse a second `fit`, whose epochs would begin at 0 again."""
        if self._has_reported:
            raise InputError(
                "automl.integrations.fastai counts the epochs of one fit, and fine_tune fits twice; call "
                "learner.freeze or unfreeze and fit once: learner.fit_one_cycle(len(epochs), ...)"
            )

    def after_train(self) -> None:
        """Remember that this epoch was trained; epochs before `start_epoch` are not."""
        self._is_trained = True

    def after_epoch(self) -> None:
        """Save a checkpoint and report the metrics."""
        if not self._is_trained:
            return
        self._is_trained = False
        save_model(self._model_path, self.learn.model, self.learn.opt)
        state = {
            "loaders": [loader.rng.getstate() for loader in self._loaders()],
            "scalers": [scaler.state_dict() for scaler in self._scalers()],
            "generators": all_generator_states(self._trial.rng),
        }
        torch.save(state, self._random_path)
        values = dict(zip(self.learn.recorder.metric_names, self.learn.recorder.log, strict=True))
        metrics = {
            name: float(values[name]) for name in values if not name.startswith(("epoch", "time", "train_"))
        }
        self._has_reported = True
        self._trial.report(epoch=self.learn.epoch + 1, **metrics)

    def before_train(self) -> None:
        """Load the checkpoint in the first epoch of a resumed training."""
        if not self._is_resumed:
            return
        self._is_resumed = False
        load_model(self._model_path, self.learn.model, self.learn.opt, device=self.learn.dls.device)
        state = torch.load(self._random_path, weights_only=True)
        for loader, loader_state in zip(self._loaders(), state["loaders"], strict=True):
            loader.rng.setstate(loader_state)
        for scaler, scaler_state in zip(self._scalers(), state["scalers"], strict=True):
            scaler.load_state_dict(scaler_state)
        restore_all_generators(state["generators"], self._trial.rng)

    after_fit = before_train  # if no epoch was left to train

    def _loaders(self) -> list[DataLoader]:
        """Return the loaders that shuffle with a generator of their own."""
        return [loader for loader in self.learn.dls if isinstance(loader, DataLoader)]

    def _scalers(self) -> list[torch.amp.GradScaler]:
        is_mixed = any(isinstance(callback, MixedPrecision) for callback in self.learn.cbs)
        return [self.learn.scaler] if is_mixed else []
