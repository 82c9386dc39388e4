"""A LARNN layer one step at a time, for loops of the user. See `backbone`."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.tasks.sequence_classification.larnn import loop as larnn_loop
from automl.tasks.sequence_classification.larnn.layer import Layer, disable_autocast
from automl.tasks.sequence_classification.larnn.loop import Result, State


class LARNNState(NamedTuple):
    """State that a `LARNNCell` passes to the next step.

    Attributes:
        hidden: Hidden state `(B, hidden)`.
        cell: Cell state `(B, hidden)`.
        memory: Keys and values of earlier cells, each `(B, 2 hidden)`. The latest is last. `window - 1` at
            most.
    """

    hidden: Tensor
    cell: Tensor
    memory: tuple[Tensor, ...]

    def detach(self) -> "LARNNState":
        """Return the same state without its gradient, for truncated back-propagation through time."""
        return LARNNState(self.hidden.detach(), self.cell.detach(), tuple(m.detach() for m in self.memory))


class LARNNCell(nn.Module):
    """LARNN layer one step at a time, like `torch.nn.LSTMCell`.

    In a loop it computes the same as `Layer`, but more slowly. In training, the running statistics of its
    norms are updated at each step. Those of a layer are updated once for all steps.

    Args:
        channels: Number of channels of the input.
        hidden: Number of units. It must be a multiple of `heads`.
        options: Further options of `Layer`, such as `heads`, 1 by default, and `window`, 10.

    Raises:
        InputError: The window or the number of heads is invalid.

    Example:
        >>> cell = LARNNCell(9, 64, heads=8, window=10)
        >>> state = None
        >>> for x in torch.randn(128, 32, 9):
        ...     y, state = cell(x, state)
        >>> y.shape
        torch.Size([32, 64])
    """

    def __init__(self, channels: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.layer = Layer(channels, hidden, **options)

    def forward(self, x: Tensor, state: LARNNState | None = None) -> tuple[Tensor, LARNNState]:
        """Take one step.

        Args:
            x: Input `(B, channels)`.
            state: State of the previous step. None at the first step.

        Returns:
            The output `(B, hidden)`, and the state for the next step.

        Raises:
            InputError: `x` has another shape.
        """
        layer = self.layer
        if x.ndim != 2 or x.shape[1] != layer.channels:
            raise InputError(f"x must have the shape (B, {layer.channels}); got {tuple(x.shape)}")
        with disable_autocast(x):
            x = x.to(layer.query.weight.dtype)
            if state is None:
                zeros = x.new_zeros(layer.hidden, len(x))
                before = State(zeros, zeros)
            else:
                before = State(state.hidden.t(), state.cell.t(), tuple(m.t() for m in state.memory))
            ones = x.new_ones(len(x))
            training = layer.training
            window_norm = layer.norm if training else None
            step_norm = layer.cell_norm if training else None
            step = larnn_loop.advance(
                x.t(),
                before,
                layer._folded(),
                layer.kind,
                norm=None if window_norm is None else window_norm.for_windows(x.unsqueeze(2), None),
                seen=ones.expand(len(before.memory) + 1, -1),
                cell_norm=None if step_norm is None else step_norm.for_steps(x.unsqueeze(2), None),
                real=ones,
            )
            result = Result(
                states=step.state.hidden.t().unsqueeze(2),
                **{
                    name: None if value is None else value.unsqueeze(0)
                    for name, value in step._asdict().items()
                    if name != "state"
                },
            )
            if window_norm is not None:
                window_norm.track(result, None)
            if step_norm is not None:
                step_norm.track(result, None)
        hidden, cell, memory = step.state
        y = F.dropout(hidden.t(), layer.dropout, training)
        return y, LARNNState(hidden.t(), cell.t(), tuple(m.t() for m in memory))
