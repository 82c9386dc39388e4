"""Stores, loads and continues shared partial trainings.

A configuration with `training.insert_at` is trained without attention up to that epoch. All placements with
the same seed and hyperparameters share this part. The plain training stores its state at that epoch. The
training of a placement continues from the stored state. If there is none, it trains the shared part itself
and stores it.

Trainings that continue one shared partial training, with the same order of data, differ by little else than
the inserted modules. So far fewer of them detect a difference. They compare modules inserted into a partly
trained model, not modules trained from the start.

Source: J. Frankle et al., Linear Mode Connectivity and the Lottery Ticket Hypothesis (2019), arXiv
1912.05671, for trainings that branch; K. Chandrasegaran et al. (2025), arXiv 2506.05340, for modules inserted
into a trained model.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from automl.base.errors import InputError
from automl.config.device import restore_generator_states
from automl.config.runtime import log
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.training import checkpoint
from automl.training.loop import TrainingState, fit, start
from backbones.take_over import load_with_projections
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics


def continue_training(
    task: Task, shared_training: TrainingState, *, perturb: float = 0.0, seed: int = 0
) -> TrainingState:
    """Start a training of the task's model from the state of a shared partial training, which is not changed.

    It takes over the epoch, the weights and the optimiser state. New modules start without optimiser state,
    and with new weights unless they replace an attention whose projections they take over.

    Args:
        task: The task, whose model may have attention.
        shared_training: Training of the same model without attention, between two epochs.
        perturb: Relative size of normal noise on the copied weights. Without noise, two plain trainings from
            one shared partial training are equal to the last bit. They then do not show how much trainings
            differ by chance. With 1e-6 they do.
        seed: Seed of that noise.

    Raises:
        InputError: The shared partial training has another optimiser or another model.
    """
    state = start(task)
    if type(state.optimizer) is not type(shared_training.optimizer):
        expected, actual = type(shared_training.optimizer).__name__, type(state.optimizer).__name__
        raise InputError(
            f"the optimiser must be that of the shared partial training, {expected}; got {actual}"
        )
    source = "of the shared partial training"
    load_with_projections(state.model, shared_training.model, source=source)
    known = dict(shared_training.model.named_parameters())
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            if name not in known:
                continue
            values = shared_training.optimizer.state.get(known[name], {})
            state.optimizer.state[parameter] = {
                key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()
            }
            if perturb:
                sample = torch.randn(parameter.shape, generator=noise).to(parameter)
                parameter.mul_(1 + perturb * sample)
    state.scaler.load_state_dict(shared_training.scaler.state_dict())
    if state.average is not None and shared_training.average is not None:
        load_with_projections(state.average.module, shared_training.average.module, source=source)
    state.epoch = shared_training.epoch
    return state


def make_shared_config(config: TrialConfig) -> TrialConfig:
    """Return the configuration of the shared partial training that `config` continues."""
    return config.change(model={"placement": {}}, training={"perturb": 0.0}, longer=1.0)


def locate_folder(shared_trainings: Storage, config: TrialConfig) -> Storage:
    """Return the folder of the shared partial training that `config` continues or is."""
    text = json.dumps(make_shared_config(config).to_json(), sort_keys=True)
    return shared_trainings / f"{config.seed}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def start_from_shared(task: Task, shared_trainings: Storage) -> TrainingState:
    """Start a training of the task, from its shared partial training if its placement is inserted later.

    Raises `InputError` if that is damaged or belongs to another training.
    """
    config = task.config
    insert_at = config.training.insert_at
    if not insert_at or make_shared_config(config) == config:
        return start(task)
    continue_from = partial(continue_training, task, perturb=config.training.perturb, seed=config.seed)
    folder = locate_folder(shared_trainings, config)
    shared_task = open_task(make_shared_config(config), task.runtime)
    # All workers of a trial must agree on whether they load the shared partial training or train it.
    if all(task.runtime.gather(folder.exists(CHECKPOINT_FILE))):
        content = _read(folder, shared_task)
        shared = start(shared_task, shared_task.model())
        checkpoint.restore(shared, content)
        state = continue_from(shared)
        restore_generator_states(content["generators"])
        return state
    log.warning("there is no shared partial training %s; it is trained", folder)
    shared = start(shared_task)
    history = list(islice(fit(shared_task, shared), insert_at))
    if task.runtime.rank == 0:
        checkpoint.save(folder, shared_task.config, shared, history)
    return continue_from(shared)


def store_state(
    task: Task, state: TrainingState, shared_trainings: Storage, history: Sequence[Metrics]
) -> None:
    """Store the state of a plain training if it has reached the epoch at which placements are inserted."""
    config = task.config
    if make_shared_config(config) == config and state.epoch == config.training.insert_at:
        checkpoint.save(locate_folder(shared_trainings, config), config, state, history)


def _read(folder: Storage, task: Task) -> dict[str, Any]:
    advice = "delete it, and it is trained again"
    try:
        content = checkpoint.read(folder, task.runtime.device)
    except InputError as error:
        raise InputError(f"the shared partial training cannot be read; {advice}: {error}") from error
    config, expected = TrialConfig.from_json(content["config"]), task.config
    if config != expected or content["epoch"] != expected.training.insert_at:
        fields = [
            key for key in ("data", "model", "training") if getattr(config, key) != getattr(expected, key)
        ]
        difference = " and ".join(fields) or "epoch"
        raise InputError(
            f"the shared partial training {folder} is of another training, with another {difference}; "
            f"{advice}"
        )
    return content
