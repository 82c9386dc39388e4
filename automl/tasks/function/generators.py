"""Random generators of Python, NumPy and torch, which a training function may draw from."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from automl.config.device import generator_states, restore_generator_states

PYTHON, NUMPY, OWN = "python", "numpy", "own"


def seed_all(seed: int) -> None:
    """Seed the generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def read_states(own: torch.Generator) -> dict[str, Any]:
    """Return the states of the generators and of a trial's `own` generator."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        **generator_states(),
        PYTHON: [version, list(numbers), gauss],
        NUMPY: [name, torch.tensor(np.asarray(keys, np.int64)), *rest],
        OWN: own.get_state(),
    }


def restore_states(states: Mapping[str, Any], own: torch.Generator) -> None:
    """Restore the states of `read_states`."""
    restore_generator_states({name: state for name, state in states.items() if isinstance(state, Tensor)})
    version, numbers, gauss = states[PYTHON]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = states[NUMPY]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    own.set_state(states[OWN].cpu())


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the generators after the block."""
    own = torch.Generator()
    states = read_states(own)
    try:
        yield
    finally:
        restore_states(states, own)
