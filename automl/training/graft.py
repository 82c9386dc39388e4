"""A training that goes on from a plain trunk's, with attention in it.

Trainings that share a trunk, and the order of their data, differ by what was inserted and by little else, so
that far fewer of them tell a difference. What is then compared is "added to a trained trunk", which is
another question than "trained with it from the start".

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


def graft(task: Task, trunk: TrainingState, *, perturb: float = 0.0, seed: int = 0) -> TrainingState:
    """A new training of the task's model from the epoch, the weights and the optimiser's state of `trunk`.

    trunk: a training of the same model without attention, between two epochs; it stays as it is.
    perturb: relative size of normal noise on the trunk's weights. Two plain trainings from one trunk are the
        same to the last bit, and tell nothing of how far trainings differ by chance; with 1e-6 they do.
    seed: of that noise.

    New modules start with new weights and an optimiser's state of their own. Raises InputError, naming keys,
    for a trunk that is not the task's model.
    """
    state = start(task)
    if type(state.optimizer) is not type(trunk.optimizer):
        theirs, ours = type(trunk.optimizer).__name__, type(state.optimizer).__name__
        raise InputError(f"a training that goes on from a trunk needs its optimiser, {theirs}; got {ours}")
    load(state.model, trunk.model.state_dict(), classes=0, source="of the trunk")
    known = dict(trunk.model.named_parameters())
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            if name not in known:
                continue
            kept = trunk.optimizer.state.get(known[name], {})
            state.optimizer.state[parameter] = {k: _copy(value) for k, value in kept.items()}
            if perturb:
                drawn = torch.randn(parameter.shape, generator=noise).to(parameter)
                parameter.mul_(1 + perturb * drawn)
    state.scaler.load_state_dict(trunk.scaler.state_dict())
    if state.average is not None and trunk.average is not None:
        load(state.average.model, trunk.average.model.state_dict(), classes=0, source="of the trunk")
    state.epoch = trunk.epoch
    return state


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value
