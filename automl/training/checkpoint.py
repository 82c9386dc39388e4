"""Checkpoints: configuration, weights and optimiser state in one file, loaded without executing code."""

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil
from typing import Any

import torch
from torch import Tensor

from automl.base.atomic import room_for
from automl.base.errors import InputError, error_message
from automl.config.device import (
    generator_states,
    is_out_of_memory,
    restore_generator_states,
    synchronise,
)
from automl.config.runtime import Runtime
from automl.storage.cache_folder import cache_root
from automl.storage.storage import Storage
from automl.training.clock import Stopwatch
from automl.training.loop import TrainingState
from backbones.torch_internals import tree_map
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics

_STATES = ("model", "average", "optimizer", "scaler", "generators")
_CONTENT = {"history": list, "epoch": int, **dict.fromkeys(("config", "profile", *_STATES), dict)}

# Time between two checkpoints within an epoch [s].
PERIOD = float(os.environ.get("AUTOML_CHECKPOINT_SECONDS", "300"))
FIRST = 20  # steps after which the time of a step is known
NOTICE = 5.0  # time between two questions whether the node is being taken back [s]


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
    write(folder, config, content_of(state, finished=finished), history, profile)


def content_of(state: TrainingState, *, finished: bool = False) -> dict[str, Any]:
    """Return the part of a checkpoint that `restore` loads. Its tensors are those of the training."""
    unfinished = {"values": state.values, "spent": state.watch.read()}
    return {
        "epoch": state.epoch,
        **({} if state.values is None else {"unfinished": unfinished}),
        "model": (state.scored if finished else state.model).state_dict(),
        "average": {} if state.average is None or finished else state.average.module.state_dict(),
        "optimizer": {} if finished else state.optimizer.state_dict(),
        "scaler": {} if finished else state.scaler.state_dict(),
        "generators": {} if finished else generator_states(),
    }


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
    """Read the checkpoint in `folder`. Raise InputError if there is none or it is damaged, or OSError."""
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
        # Torch seeks beyond the end of a damaged file.
        if (isinstance(error, OSError) and error.errno != errno.EINVAL) or is_out_of_memory(error):
            raise
        raise InputError(
            f"checkpoint {path} is corrupt or in an unsupported format; train the trial again. "
            f"({error_message(error)})"
        ) from error
    return content


def scored_weights(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights that were scored: the averages if the training has them."""
    weights: dict[str, Tensor] = content["average"] or content["model"]
    return weights


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
    if unfinished := content.get("unfinished"):
        state.values, state.watch = unfinished["values"], Stopwatch(*unfinished["spent"])


class Keeper:
    """Keeps checkpoints within the epochs of a training, every few minutes.

    The training waits for a copy of its tensors alone. A thread writes and uploads that, and where this takes
    longer than the time between two checkpoints, one is left out. One is also kept once a node is `leaving`,
    which is asked every few seconds. Several workers ask and keep at the same steps: the values are over all
    of them, and the first writes.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        write: Callable[[dict[str, Any]], None],
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self.runtime, self.state, self.write, self.leaving = runtime, state, write, leaving
        self._asked, self._left = time.monotonic(), False
        self._steps = 0  # since the last checkpoint
        self._every: int | None = None  # steps between two, known after `FIRST`
        self._ask = 0  # steps between two questions of several workers, known then
        self._watch = Stopwatch()
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def __call__(self) -> None:
        """Keep a checkpoint if it is time to. The state is complete."""
        self._steps += 1
        if self._every is None and self._steps >= FIRST:
            synchronise(self.runtime.device)
            seconds = torch.tensor(self._watch.read()[0] / self._steps, device=self.runtime.device)
            step = float(self.runtime.total(seconds)) / self.runtime.workers
            self._every, self._ask = ceil(PERIOD / step), max(1, ceil(NOTICE / step))
        is_leaving = self._is_leaving()
        if is_leaving:
            self.wait()  # for an earlier one: this one may not be left out
        if is_leaving or (self._every is not None and self._steps >= self._every):
            self._steps = 0
            self._keep()

    def _is_leaving(self) -> bool:
        """Return True once if the node of a worker is leaving, as one checkpoint is enough."""
        if self.runtime.workers == 1:
            is_due = time.monotonic() - self._asked > NOTICE
        else:
            is_due = self._ask > 0 and self._steps % self._ask == 0
        if not is_due or self._left:
            return False
        self._asked = time.monotonic()
        answer = torch.tensor(float(self.leaving()), device=self.runtime.device)
        self._left = bool(self.runtime.total(answer))
        return self._left

    def _keep(self) -> None:
        values = self.state.values
        assert values is not None
        self.state.values = self.runtime.total(values.clone()) / self.runtime.workers
        is_free = self._writing is None or self._writing.done()
        if self.runtime.rank == 0 and is_free:
            self.wait()
            content = tree_map(_copy, content_of(self.state))
            self._writing = self._thread.submit(self.write, content)

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raise the error of its writing."""
        writing, self._writing, self._steps = self._writing, None, 0
        if self._every is None:
            self._watch = Stopwatch()
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread after the file that it writes."""
        self._thread.shutdown()


def _copy(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


def _size(content: object) -> int:
    """Return the size [bytes] of the tensors in `content`. With Adam it is 12 bytes for each parameter."""
    if isinstance(content, Tensor):
        return content.nbytes
    if isinstance(content, Mapping):
        return sum(map(_size, content.values()))
    return sum(map(_size, content)) if isinstance(content, list | tuple) else 0
