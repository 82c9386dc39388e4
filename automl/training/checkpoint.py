"""Checkpoints: configuration, weights and optimiser state in one file, loaded without executing code."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from automl.base.atomic import room_for
from automl.base.errors import InputError, error_message
from automl.config.device import generator_states, is_out_of_memory, restore_generator_states
from automl.storage.cache_folder import cache_root
from automl.storage.storage import Storage
from automl.training.loop import TrainingState
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics

_STATES = ("model", "average", "optimizer", "scaler", "generators")
_CONTENT = {"history": list, "epoch": int, **dict.fromkeys(("config", "profile", *_STATES), dict)}


def save(
    folder: Storage,
    config: TrialConfig,
    state: TrainingState,
    history: Sequence[Metrics],
    profile: Mapping[str, float] | None = None,
    *,
    finished: bool = False,
) -> None:
    """Write the state of a training, atomically: if the writer is killed, the old file stays.

    If it is `finished`, nothing is left to train. Then only the weights that were scored are written, which
    `restore` rejects. With Adam this is a third of the size. Raises OSError, or `DiskFull` with the space
    that is needed.
    """
    content = {
        "epoch": state.epoch,
        "model": (state.scored if finished else state.model).state_dict(),
        "average": {} if state.average is None or finished else state.average.module.state_dict(),
        "optimizer": {} if finished else state.optimizer.state_dict(),
        "scaler": {} if finished else state.scaler.state_dict(),
        "generators": {} if finished else generator_states(),
    }
    write(folder, config, content, history, profile)


def write(
    folder: Storage,
    config: TrialConfig,
    content: Mapping[str, Any],
    history: Sequence[Metrics],
    profile: Mapping[str, float] | None = None,
) -> None:
    """Write a checkpoint, as `save` does. `content` holds the epoch, weights and states."""
    content = {
        "config": config.to_json(),
        "history": [dict(metrics) for metrics in history],
        "profile": dict(profile or {}),
        **content,
    }
    disk_folder = folder.local or cache_root()
    with room_for(disk_folder, _size(content)), folder.writing(CHECKPOINT_FILE) as file:
        torch.save(content, file)


def read(folder: Storage, device: torch.device) -> dict[str, Any]:
    """Read the checkpoint in `folder`. Raise InputError if there is none, or it is damaged."""
    path = f"{folder}/{CHECKPOINT_FILE}"
    try:
        with folder.open(CHECKPOINT_FILE) as file:
            content: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        for key, kind in _CONTENT.items():
            if not isinstance(content.get(key), kind):
                raise TypeError(f"it has no {key}")
        TrialConfig.from_json(content["config"])
    except FileNotFoundError:
        raise InputError(
            f"there is no checkpoint {path}; was it deleted, or written on another machine?"
        ) from None
    except Exception as error:  # Unpickling a damaged file raises errors of every kind.
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"checkpoint {path} is corrupt or in an unsupported format; train the trial again. "
            f"({error_message(error)})"
        ) from error
    return content


def restore(state: TrainingState, content: dict[str, Any]) -> None:
    """Load the content of an unfinished training from `read` into a new one of the same configuration."""
    state.model.load_state_dict(content["model"])
    if state.average is not None:
        state.average.module.load_state_dict(content["average"])
    state.optimizer.load_state_dict(content["optimizer"])
    state.scaler.load_state_dict(content["scaler"])
    # Data and augmentation depend only on seed and epoch. Dropout and similar layers draw from these
    # generators.
    restore_generator_states(content["generators"])
    state.epoch = content["epoch"]


def _size(content: object) -> int:
    """Return the size [bytes] of the tensors in `content`. With Adam it is 12 bytes for each parameter."""
    if isinstance(content, Tensor):
        return content.nbytes
    if isinstance(content, Mapping):
        return sum(map(_size, content.values()))
    return sum(map(_size, content)) if isinstance(content, list | tuple) else 0
