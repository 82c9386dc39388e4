"""A training that goes on from a plain shared partial training's, with attention in it.

Trainings that share a shared partial training, and the order of their data, differ by what was inserted and
by little else, so far fewer of them detect a difference. They compare a module that was added to a shared
partial training, not one that was trained from the start.

Source: J. Frankle et al., Linear Mode Connectivity and the Lottery Ticket Hypothesis (2019), arXiv
1912.05671, of trainings that branch; K. Chandrasegaran et al., Exploring Diffusion Transformer Designs via
Grafting (2025), arXiv 2506.05340, of modules that are put into a trained model.
"""

import torch
from torch import Tensor

from attention import InputError
from automl.tasks.base import Task
from automl.training.loop import TrainingState, start
from backbones.weights import load


def continue_training(
    task: Task, shared_training: TrainingState, *, perturb: float = 0.0, seed: int = 0
) -> TrainingState:
    """A new training of the task's model from the epoch, the weights and the optimiser's state of `shared`.

    shared partial training: a training of the same model without attention, between two epochs; it stays as
    it is. perturb: relative size of normal noise on the shared partial training's weights. Two plain
        trainings from one shared partial training are the same to the last bit, and tell nothing of how far
        trainings differ by chance; with 1e-6 they do.
    seed: of that noise.

    New modules start with new weights and an optimiser's state of their own. Raises InputError, naming keys,
    for a shared partial training that is not the task's model.
    """
    state = start(task)
    if type(state.optimizer) is not type(shared_training.optimizer):
        theirs, ours = type(shared_training.optimizer).__name__, type(state.optimizer).__name__
        raise InputError(
            f"a continued training needs the optimiser of the shared partial training, {theirs}; got {ours}"
        )
    load(state.model, shared_training.model.state_dict(), classes=0, source="of the shared partial training")
    known = dict(shared_training.model.named_parameters())
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            if name not in known:
                continue
            kept = shared_training.optimizer.state.get(known[name], {})
            state.optimizer.state[parameter] = {k: _copy(value) for k, value in kept.items()}
            if perturb:
                drawn = torch.randn(parameter.shape, generator=noise).to(parameter)
                parameter.mul_(1 + perturb * drawn)
    state.scaler.load_state_dict(shared_training.scaler.state_dict())
    if state.average is not None and shared_training.average is not None:
        load(
            state.average.model,
            shared_training.average.model.state_dict(),
            classes=0,
            source="of the shared partial training",
        )
    state.epoch = shared_training.epoch
    return state


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value
