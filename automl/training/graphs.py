"""Steps as CUDA graphs: capturing one, finding out whether its replays are right, and on which GPUs it pays.

A capture notes launches, not meaning. What Python decides in each step, a tensor that is replaced and not
written to, numbers drawn elsewhere: all of it stays as it was in the captured step, without an error. So a
capture is believed only when its replays do to the weights what the same steps have done one by one.

`graphs_measured.json` holds what `make bench-gpu` has measured, by the names of GPUs: date, torch's version,
`ratio` (the median over its models of how many times faster training is with graphs than without) and
`agreed` (whether the replays were right for all of them). A GPU that is not there runs step by step.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import date
from math import isclose, sqrt
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from automl.config.device import device_name, generator_states, restore_generator_states
from automl.tasks import Batch

MEASURED = Path(__file__).with_name("graphs_measured.json")

LOSS = 0.01  # by which part the loss of a replay may differ
WAY = 0.05  # by which part of the way that the weights have gone they may be apart

Run = Callable[[Batch], Tensor]  # a step on a batch, which returns the loss


class Capture(Protocol):
    """A way to capture a step."""

    def aside(self) -> AbstractContextManager[None]:
        """Inside the block runs as usual what is to be captured later."""

    def capture(self, run: Run, batch: Batch) -> Run:
        """What does the same as `run` on any batch shaped like `batch`. Nothing is computed yet."""


class Snapshot:
    """A copy of all that a step changes, on the CPU: weights, buffers, optimiser's state, generators."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self.learned = [_host(tensor) for tensor in _learned(model)]
        self.states = [_host(tensor) for tensor in _states(optimizer)]
        self.generators = generator_states(device)

    @torch.no_grad()
    def restore(self) -> None:
        """In place: a graph reads and writes where things lay when it was captured."""
        now = [*_learned(self.model), *_states(self.optimizer)]
        for tensor, before in zip(now, [*self.learned, *self.states], strict=True):
            tensor.copy_(before)
        restore_generator_states(self.generators, self.device)


def disagreement(
    begin: Snapshot, end: Snapshot, again: Snapshot, losses: Sequence[float], replayed: Sequence[float]
) -> str | None:
    """In what the same steps differ that have led from `begin` to `end` and, replayed, to `again`; or None.

    Kernels may add up in another order, so what is learned is compared with the way that it has gone; weights
    all together, since one without a gradient of its own, as a bias before a norm, moves by noise.
    """
    for i, (loss, found) in enumerate(zip(losses, replayed, strict=True), start=1):
        if not isclose(loss, found, rel_tol=LOSS, abs_tol=1e-3):
            return f"the loss of step {i} is {found:.6g} in place of {loss:.6g}"
    names = [name for name, _ in (*begin.model.named_parameters(), *begin.model.named_buffers())]
    moves = list(zip(begin.learned, end.learned, again.learned, strict=True))
    for name, (before, after, other) in zip(names, moves, strict=True):
        if torch.equal(before, after) != torch.equal(before, other):
            return f"{name} changes in one of the two alone"
        if not before.is_floating_point() and not torch.equal(after, other):
            return f"{name} counts otherwise"
    weights = len(list(begin.model.parameters()))
    if apart := _apart(moves[:weights], torch.float32):
        return f"the weights {apart}"
    for name, move in zip(names[weights:], moves[weights:], strict=True):
        if apart := _apart([move], torch.bfloat16):  # what a forward in less precision has made
            return f"{name} {apart}"
    return None


def _apart(moves: Sequence[tuple[Tensor, Tensor, Tensor]], rounded: torch.dtype) -> str | None:
    """How far apart tensors have come, before, after and after the replays, if it is too far."""
    way, apart = _rms([after - before for before, after, _ in moves]), _rms([b - a for _, a, b in moves])
    rounding = torch.finfo(rounded).eps * _rms([after for _, after, _ in moves])
    return None if apart <= WAY * way + rounding else f"are {apart:.2g} apart after a way of {way:.2g}"


def pays(device: torch.device) -> bool:
    """Whether graphs were measured to be right and faster on such a GPU."""
    measured = json.loads(MEASURED.read_text()).get(device_name(device))
    return measured is not None and measured["agreed"] and measured["ratio"] > 1


def record(name: str, ratio: float, agreed: bool) -> None:
    """Put what was measured on the GPU called `name` into the table."""
    measured = {
        "date": f"{date.today()}",
        "torch": torch.__version__,
        "ratio": round(ratio, 3),
        "agreed": agreed,
    }
    table = json.loads(MEASURED.read_text()) | {name: measured}
    MEASURED.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def _learned(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ]


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _rms(tensors: Sequence[Tensor]) -> float:
    """The root of the mean square of all the elements."""
    squares = sum(float(tensor.double().square().sum()) for tensor in tensors)
    return sqrt(squares / max(1, sum(tensor.numel() for tensor in tensors)))
