"""Hugging Face: report, prune and resume a trial from `transformers.Trainer`."""

from typing import Any

from safetensors.torch import save_model
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
from transformers.utils import SAFE_WEIGHTS_NAME

from automl.base.errors import InputError
from automl.integrations import CheckpointFiles
from automl.tasks.function.trial import Trial

_NOT_METRICS = ("epoch", "_runtime", "_per_second")  # ends of names


class TrialCallback(TrainerCallback):
    """Connect Hugging Face's `Trainer` to a trial.

    After each epoch it makes the `Trainer` evaluate and save, and reports the metrics, such as `eval_loss`. A
    pruned trial leaves `train` with `optuna.TrialPruned`. A resumed trial continues from the `Trainer`'s
    checkpoint.

    Example:
        callback = TrialCallback(trial)
        arguments = TrainingArguments(callback.folder, num_train_epochs=len(trial.epochs(3)))
        trainer = Trainer(model, arguments, ..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.checkpoint)
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._files = CheckpointFiles()
        self._metrics: dict[str, float] = {}
        self._has_ended = False
        trial.state(transformers=self._files)

    @property
    def folder(self) -> str:
        """Temporary folder for `output_dir`."""
        return str(self._files.folder)

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint of a resumed trial for `resume_from_checkpoint`. None in a new trial."""
        path: str | None = get_last_checkpoint(self.folder)
        return path

    def on_train_begin(self, args: TrainingArguments, *others: Any, **kwargs: Any) -> None:
        """Raise InputError unless the `Trainer` writes to the folder of this callback."""
        if args.output_dir != self.folder:
            raise InputError(
                "a trial's Trainer must write its checkpoints to the folder of its TrialCallback; "
                f"got output_dir={args.output_dir!r}. Use TrainingArguments(output_dir=callback.folder)."
            )

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for an evaluation and a checkpoint."""
        control.should_evaluate = control.should_save = self._has_ended = True

    def on_evaluate(self, *others: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        """Keep the metrics, which come before the checkpoint."""
        self._metrics = {name: value for name, value in metrics.items() if not name.endswith(_NOT_METRICS)}

    def on_save(self, args: Any, state: TrainerState, control: Any, model: nn.Module, **kwargs: Any) -> None:
        """Report the metrics of the epoch."""
        if self._has_ended:
            self._has_ended = False
            self._files.newest = self._files.folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            weights = self._files.newest / SAFE_WEIGHTS_NAME
            # The Trainer writes some models with other names of weights than it reads
            # (github.com/huggingface/transformers/issues/43701).
            if weights.exists():
                save_model(model, str(weights))
            self._trial.report(epoch=round(state.epoch), **self._metrics)
