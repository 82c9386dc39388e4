"""One layer of LARNN, over all steps by the loop that suits it, or one step at a time. See `backbone`."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.tasks.sequence_classification.larnn import (
    fast as larnn_fast,
)
from automl.tasks.sequence_classification.larnn import (
    loop as larnn_loop,
)
from automl.tasks.sequence_classification.larnn import (
    scan as larnn_scan,
)
from automl.tasks.sequence_classification.larnn.loop import Kind, Result, State, Weights
from automl.tasks.sequence_classification.larnn.norm import StepNorm, WindowNorm

Mode = Literal["residual", "layer"]
CellActivation = Literal["elu", "tanh"]
Activation = Literal["none", "query", "all"]
NormKind = Literal["none", "memory", "all"]


class Layer(nn.Module):
    """Layer of hidden states.

    Args:
        channels: Number of channels C of the input.
        hidden: Number of units.
        mode: `residual` adds one map each of input, hidden state and attention. `layer` maps the three
            concatenated. Both compute the same function of their weights, but their initial weights differ.

    The other arguments are those of `larnn.build`.

    Shape:
        `(B, C, T)` to `(B, hidden, T)`, with a mask, bool `(B, T)`.
    """

    encodings: Tensor

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        heads: int = 1,
        window: int = 10,
        mode: Mode = "residual",
        positional: bool = False,
        activation_on_keys_and_values: bool = True,
        cell_activation: CellActivation = "elu",
        dropout: float = 0.0,
        activation: Activation = "none",
        norm: NormKind = "memory",
    ) -> None:
        super().__init__()
        check_window_and_heads(hidden, heads, window)
        self.channels, self.hidden, self.mode, self.dropout = channels, hidden, mode, dropout
        self.kind = Kind(
            heads=heads,
            window=window,
            elu=cell_activation == "elu",
            activation=activation_on_keys_and_values,
        )
        self.query = nn.Linear(channels + hidden, hidden)
        if mode == "residual":
            self.from_input = nn.Linear(channels, 4 * hidden)
            self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
            self.from_attention = nn.Linear(hidden, 4 * hidden, bias=False)
        else:
            self.from_all = nn.Linear(channels + 2 * hidden, 4 * hidden)
        encodings = encode_window(window) if positional else torch.empty(window, 0)
        self.register_buffer("encodings", encodings, persistent=False)
        features = hidden + encodings.shape[1]
        self.keys = nn.Linear(features, hidden, bias=activation_on_keys_and_values)
        self.values = nn.Linear(features, hidden)
        self.activated_query = activation != "none"
        self.output = nn.Linear(hidden, hidden) if activation == "all" else None
        self.norm = WindowNorm(hidden) if activation_on_keys_and_values and norm != "none" else None
        self.cell_norm = StepNorm(hidden) if norm == "all" else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states `(B, hidden, T)` of `x`, `(B, C, T)`."""
        with disable_autocast(x):
            y = self._states(x.to(self.query.weight.dtype), mask)
        return F.dropout(y, self.dropout, self.training)

    def _states(self, x: Tensor, mask: Tensor | None) -> Tensor:
        weights = self._folded()
        if torch.compiler.is_exporting() and not self.training:
            return larnn_scan.run(x, weights, self.kind)
        norm = cell_norm = None
        if self.norm is not None and self.training:
            norm = self.norm.for_windows(x, mask)
        if self.cell_norm is not None and self.training:
            cell_norm = self.cell_norm.for_steps(x, mask)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if larnn_fast.is_supported(weights, self.kind) and not traced:
            result = larnn_fast.run(x, weights, self.kind, norm, cell_norm)
        else:
            result = larnn_loop.run(x, weights, self.kind, norm, cell_norm)
        if self.norm is not None and self.training:
            self.norm.track(result, mask)
        if self.cell_norm is not None and self.training:
            self.cell_norm.track(result, mask)
        return result.states

    def _folded(self) -> Weights:
        """Return the weights. In evaluation the norms are folded into them."""
        weights = self._weights()
        if self.cell_norm is not None and not self.training:
            weights = replace(weights, affine=self.cell_norm.affine())
        if self.norm is not None and not self.training:
            weights = self.norm.fold(weights)
        return weights

    def _weights(self) -> Weights:
        C, H = self.channels, self.hidden
        if self.mode == "layer":
            x, h, a = self.from_all.weight.split([C, H, H], 1)
            bias = self.from_all.bias
        else:
            x, h, a = (m.weight for m in (self.from_input, self.from_hidden, self.from_attention))
            bias = self.from_input.bias
        scale = math.sqrt(self.kind.heads / H)
        query = torch.cat([self.query.weight, self.query.bias.unsqueeze(1)], 1)
        maps = torch.cat([self.keys.weight, self.values.weight])  # (2H, H + P)
        key_bias = torch.zeros_like(self.values.bias) if self.keys.bias is None else self.keys.bias
        map_bias = torch.cat([key_bias, self.values.bias]).unsqueeze(1)
        return Weights(
            inputs=torch.cat(
                [torch.cat([x, h, bias.unsqueeze(1)], 1), query if self.activated_query else query * scale]
            ),
            attention=a,
            memory=torch.cat([maps[:, :H], map_bias], 1),
            offsets=self.encodings @ maps[:, H:].t() if self.encodings.shape[1] else None,
            query=torch.full_like(self.query.bias, scale) if self.activated_query else None,
            output=None
            if self.output is None
            else torch.cat([self.output.weight, self.output.bias.unsqueeze(1)], 1),
        )

    def count_macs(self, x: Tensor) -> int:
        """Count the multiply-adds of a pass. Each step attends to the existing states, `window` at most."""
        (B, C, T), H = x.shape, self.hidden
        k = min(self.kind.window, T)
        attended = k * (k + 1) // 2 + (T - k) * k
        encodings = self.kind.window * self.encodings.shape[1] * 2 * H
        output = 0 if self.output is None else H * H
        return (
            B * (T * (5 * H * C + 5 * H * H + 4 * H * H + 2 * H * H + output) + attended * 2 * H) + encodings
        )


def encode_window(window: int) -> Tensor:
    """Encode positions in the window by cosines and sines of their distance: `(window, features)`.

    The latest state has the last row. Wave lengths are powers of two. The window is a quarter of the longest
    sine.
    """
    waves = math.ceil(math.log2(4 * window))
    distance = torch.arange(window, 0, -1, dtype=torch.float64).unsqueeze(1)
    cosines = torch.cos(2 * math.pi * distance * 0.5 ** torch.arange(1, waves + 1))
    sines = torch.sin(2 * math.pi * distance * 0.5 ** torch.arange(2, waves + 2))
    return torch.cat([cosines, sines], 1).float()


def check_window_and_heads(hidden: int, heads: int, window: int) -> None:
    """Raise `InputError` if the window or the number of heads is invalid."""
    if not 1 <= window <= 4096:
        raise InputError(f"window, the states attended to, must lie between 1 and 4096; got {window}")
    if not 1 <= heads <= hidden or hidden % heads:
        divisors = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
        above = max(1, heads) * -(-hidden // max(1, heads))
        raise InputError(
            f"hidden must be a multiple of heads; got hidden={hidden} and heads={heads}. Take "
            f"hidden={above}, or as heads one of {divisors}"
        )


def disable_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would convert the loop's products to another dtype."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


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
