"""Continues a plain shared partial training with attention inserted.

Trainings that continue one shared partial training, with the same order of data, differ by little else than
the inserted modules. So far fewer of them detect a difference. They compare modules inserted into a partly
trained model, not modules trained from the start.

Source: J. Frankle et al., Linear Mode Connectivity and the Lottery Ticket Hypothesis (2019), arXiv
1912.05671, for trainings that branch; K. Chandrasegaran et al. (2025), arXiv 2506.05340, for modules inserted
into a trained model.
"""

import torch
from torch import Tensor

from automl.base.errors import InputError
from automl.tasks.base import Task
from automl.training.loop import TrainingState, start
from backbones.take_over import load_with_projections


def continue_training(
    task: Task, shared_training: TrainingState, *, perturb: float = 0.0, seed: int = 0
) -> TrainingState:
    """Start a training of the task's model from the state of a shared partial training.

    It takes over the epoch, the weights and the optimiser state. New modules start without optimiser state,
    and with new weights unless they replace an attention whose projections they take over.

    Args:
        task: The task, whose model may have attention.
        shared_training: Training of the same model without attention, between two epochs. It is not changed.
        perturb: Relative size of normal noise on the copied weights. Without noise, two plain trainings from
            one shared partial training are equal to the last bit. They then do not show how much trainings
            differ by chance. With 1e-6 they do.
        seed: Seed of that noise.

    Returns:
        The state of the new training.

    Raises:
        InputError: The shared partial training has another optimiser or another model. The message names the
            keys.
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
            state.optimizer.state[parameter] = {k: _copy(value) for k, value in values.items()}
            if perturb:
                sample = torch.randn(parameter.shape, generator=noise).to(parameter)
                parameter.mul_(1 + perturb * sample)
    state.scaler.load_state_dict(shared_training.scaler.state_dict())
    if state.average is not None and shared_training.average is not None:
        load_with_projections(state.average.model, shared_training.average.model, source=source)
    state.epoch = shared_training.epoch
    return state


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value
