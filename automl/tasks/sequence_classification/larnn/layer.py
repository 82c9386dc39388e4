"""One layer of LARNN, over all steps or one step at a time. See `backbone`.

Its batch norms have statistics in training, and are folded into the weights in evaluation.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.tasks.sequence_classification.larnn import loop
from automl.tasks.sequence_classification.larnn.loop import Kind, LARNNState, Norm, Statistics, Weights

Mode = Literal["residual", "layer"]
CellActivation = Literal["elu", "tanh"]
Activation = Literal["none", "query", "all"]
NormKind = Literal["none", "memory", "all"]


class _Norm(nn.Module, ABC):
    """Parameters and running statistics of batch norms."""

    running_mean: Tensor
    running_var: Tensor
    # Averages the running statistics over several workers, see `automl.training.sync_norm`. Each worker
    # trains with those of its own part of the batch, since every step of a sequence has statistics of its
    # own.
    average: Callable[..., None] | None = None

    def __init__(self, *shape: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))

    @abstractmethod
    def find_valid(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return `Norm.valid` for training on `x`, (B, C, T)."""

    def for_training(self, x: Tensor, mask: Tensor | None) -> Norm:
        """Return the norm for training on `x`, (B, C, T)."""
        return Norm(self.weight, self.bias, self.find_valid(x, mask), self.eps)

    @torch.no_grad()
    def track(self, mean: Tensor | None, variance: Tensor | None, mask: Tensor | None) -> None:
        """Move the running statistics, if there are new ones, towards their mean over steps with an input."""
        if mean is None or variance is None:
            return
        real = mean.new_ones(len(mean)) if mask is None else mask.any(0).to(mean.dtype)
        weights_of_steps = real / real.sum().clamp(min=1)
        self.running_mean.lerp_(torch.tensordot(weights_of_steps, mean, 1), self.momentum)
        self.running_var.lerp_(torch.tensordot(weights_of_steps, variance, 1), self.momentum)
        if self.average is not None:
            self.average(self.running_mean, self.running_var)


class WindowNorm(_Norm):
    """Batch norm of the keys and values in a window, over its states and the batch."""

    def __init__(self, hidden: int) -> None:
        super().__init__(2 * hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))  # The keys have no shift.

    def find_valid(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mark the initial state, and each state computed from a real input."""
        seen = x.new_ones(x.shape[2], x.shape[0])
        if mask is not None:
            seen[1:] = mask.t()[:-1]
        return seen

    def fold(self, weights: Weights) -> Weights:
        """Return the weights of a layer with this norm folded in, for evaluation."""
        H = len(self.bias)
        scale = self.weight * (self.running_var + self.eps).rsqrt()  # (2H)
        shift = self.bias - self.running_mean[H:] * scale[H:]
        if weights.query is None:
            rows = F.pad(scale[:H], (4 * H, 0), value=1.0)
            weights = weights._replace(inputs=weights.inputs * rows.unsqueeze(1))
        else:
            weights = weights._replace(query=weights.query * scale[:H])
        if weights.output is not None:
            matrix, bias = weights.output[:, :H], weights.output[:, H] + weights.output[:, :H] @ shift
            return weights._replace(output=torch.cat([matrix * scale[H:], bias.unsqueeze(1)], 1))
        if weights.affine is not None:
            first, *others = weights.affine.unbind(0)  # of the attention's result
            first = torch.stack([first[0] * scale[H:], first[1] + first[0] * shift])
            return weights._replace(affine=torch.stack([first, *others]))
        shift_of_gates = F.pad(weights.attention @ shift, (0, H))
        return weights._replace(
            inputs=weights.inputs + F.pad(shift_of_gates.unsqueeze(1), (weights.inputs.shape[1] - 1, 0)),
            attention=weights.attention * scale[H:],
        )


class StepNorm(_Norm):
    """Batch norms of the attention's result, the cell and the hidden state, over the batch of a step."""

    def __init__(self, hidden: int) -> None:
        super().__init__(3, hidden)

    def find_valid(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mark the steps with a real input."""
        return x.new_ones(x.shape[2], x.shape[0]) if mask is None else mask.t().to(x.dtype)

    def affine(self) -> Tensor:
        """Return scale and shift for evaluation, (3, 2, H)."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return torch.stack([scale, self.bias - self.running_mean * scale], 1)


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
        if not 1 <= window <= 4096:
            raise InputError(f"window, the states attended to, must lie between 1 and 4096; got {window}")
        if not 1 <= heads <= hidden or hidden % heads:
            divisors = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
            above = max(1, heads) * -(-hidden // max(1, heads))
            raise InputError(
                f"hidden must be a multiple of heads; got hidden={hidden} and heads={heads}. Take "
                f"hidden={above}, or as heads one of {divisors}"
            )
        self.channels, self.hidden, self.mode, self.dropout = channels, hidden, mode, dropout
        self.kind = Kind(
            heads=heads, window=window, elu=cell_activation == "elu", activation=activation_on_keys_and_values
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
            return loop.run_scan(x, weights, self.kind)
        states, statistics = loop.run(x, weights, self.kind, *self._norms(x, mask))
        self._track(statistics, mask)
        return states

    def _norms(self, x: Tensor, mask: Tensor | None) -> Iterator[Norm | None]:
        """Yield the two norms for training on `x`, (B, C, T). In evaluation they are in the weights."""
        for norm in (self.norm, self.cell_norm):
            yield None if norm is None or not self.training else norm.for_training(x, mask)

    def _track(self, statistics: Statistics, mask: Tensor | None) -> None:
        if self.norm is not None:
            self.norm.track(statistics.mean, statistics.variance, mask)
        if self.cell_norm is not None:
            self.cell_norm.track(statistics.cell_mean, statistics.cell_variance, mask)

    def _folded(self) -> Weights:
        """Return the weights. In evaluation the norms are folded into them."""
        weights = self._weights()
        if self.cell_norm is not None and not self.training:
            weights = weights._replace(affine=self.cell_norm.affine())
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


def disable_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would convert the loop's products to another dtype."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


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
            zeros = x.new_zeros(layer.hidden, len(x))
            before = LARNNState(zeros, zeros) if state is None else state.t()
            norm, cell_norm = layer._norms(x.unsqueeze(2), None)  # `valid` has one step
            if norm is not None:
                norm = norm._replace(valid=norm.valid.expand(len(before.memory) + 1, -1))
            if cell_norm is not None:
                cell_norm = cell_norm._replace(valid=cell_norm.valid[0])
            after, step = loop.advance(x.t(), before, layer._folded(), layer.kind, norm, cell_norm)
            layer._track(Statistics(*(None if value is None else value[None] for value in step)), None)
        after = after.t()
        return F.dropout(after.hidden, layer.dropout, layer.training), after
