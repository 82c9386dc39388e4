"""LARNN, the Linear Attention Recurrent Neural Network: an LSTM whose cell attends to its own latest states.

Source: G. Chevalier, LARNN: Linear Attention Recurrent Neural Network (2018), arXiv 1808.05578, and its code.
At each step one query, a linear map of input and hidden state, attends with several heads to the `window`
latest cell states, of which the keys and the values are linear maps, optionally with the places of the states
in the window concatenated to them, and optionally through a batch norm of ELU. What it finds joins the input
and the hidden state before the gates. The equations are in backbones.larnn_loop.

At step 0 there is one state to attend to, the initial one of zeros, as in the paper's code; before step
`window - 1` the states there are. All layers have the same width, after a linear map of the input.

The paper's code has further activations and norms, which are options here: `activation="all"` and
`norm="all"` have all of them.

Departures from the paper's code, which never registered its cells and so never trained them, and ran the
first one in the place of each: every layer is itself and learns. Without `activation="all"` there is no
output projection of the heads, as the linear map to the gates follows at once. There is no dropout inside of
the attention, and none of the hidden state that goes to the next step. Keys and values have a norm each. The
norms' statistics for evaluation are the mean over all steps. A shift of the keys, by the norm or, without
activation, by a bias, is left out: it would add the same to all scores of a query, which a softmax ignores.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError
from attention.padding import padding
from backbones import ends, larnn_loop, larnn_scan
from backbones.larnn_loop import CellNorm, Kind, Norm, Result, State, Weights, is_quick
from backbones.lstm import check_sizes

Mode = Literal["residual", "layer"]
CellActivation = Literal["elu", "tanh"]
Activation = Literal["none", "query", "all"]
NormKind = Literal["none", "memory", "all"]


class Layer(nn.Module):
    """One layer of hidden states: `(B, C, T)` and `mask`, bool `(B, T)` -> `(B, hidden, T)`.

    mode: `residual` adds one map each of input, hidden state and attention, `layer` maps the three
    concatenated. Of their weights both are the same function; they start from other ones. The others as in
    `build`.
    """

    places: Tensor

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        heads: int,
        window: int,
        mode: Mode,
        positional: bool,
        activation_on_keys_and_values: bool,
        cell_activation: CellActivation,
        dropout: float,
        activation: Activation = "none",
        norm: NormKind = "memory",
    ) -> None:
        super().__init__()
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
        places = encode(window) if positional else torch.empty(window, 0)
        self.register_buffer("places", places, persistent=False)
        features = hidden + places.shape[1]
        self.keys = nn.Linear(features, hidden, bias=activation_on_keys_and_values)
        self.values = nn.Linear(features, hidden)
        self.activated_query = activation != "none"
        self.output = nn.Linear(hidden, hidden) if activation == "all" else None
        self.norm = WindowNorm(hidden) if activation_on_keys_and_values and norm != "none" else None
        self.cell_norm = StepNorm(hidden) if norm == "all" else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        with _full_precision(x):
            y = self._states(x.to(self.query.weight.dtype), mask)
        return F.dropout(y, self.dropout, self.training)

    def _states(self, x: Tensor, mask: Tensor | None) -> Tensor:
        weights = self._folded()
        if torch.compiler.is_exporting() and not self.training:
            return larnn_scan.run(x, weights, self.kind)
        norm = cell_norm = None
        if self.norm is not None and self.training:
            norm = self.norm.of_windows(x, mask)
        if self.cell_norm is not None and self.training:
            cell_norm = self.cell_norm.of_steps(x, mask)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if is_quick(weights, self.kind) and not traced:
            result = larnn_loop.run(x, weights, self.kind, norm, cell_norm)
        else:
            result = larnn_loop.steps(x, weights, self.kind, norm, cell_norm)
        if self.norm is not None and self.training:
            self.norm.track(result, mask)
        if self.cell_norm is not None and self.training:
            self.cell_norm.track(result, mask)
        return result.states

    def _folded(self) -> Weights:
        """The weights, for evaluation with the norms in them."""
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
            places=self.places @ maps[:, H:].t() if self.places.shape[1] else None,
            query=torch.full_like(self.query.bias, scale) if self.activated_query else None,
            output=None
            if self.output is None
            else torch.cat([self.output.weight, self.output.bias.unsqueeze(1)], 1),
        )


def macs(layer: Layer, x: Tensor) -> int:
    """Multiply-adds of `layer(x)`; each step looks at as many states as there are, `window` at most."""
    (B, C, T), H = x.shape, layer.hidden
    k = min(layer.kind.window, T)
    looks = k * (k + 1) // 2 + (T - k) * k
    places = layer.kind.window * layer.places.shape[1] * 2 * H
    output = 0 if layer.output is None else H * H
    return B * (T * (5 * H * C + 5 * H * H + 4 * H * H + 2 * H * H + output) + looks * 2 * H) + places


class WindowNorm(nn.Module):
    """Batch norm of the keys and values in a window, over its states and the batch."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, hidden: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(2 * hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))  # of the values
        self.register_buffer("running_mean", torch.zeros(2 * hidden))
        self.register_buffer("running_var", torch.ones(2 * hidden))

    def of_windows(self, x: Tensor, mask: Tensor | None) -> Norm:
        """For training on `x`, (B, C, T). The initial state counts, and each that a real input led to."""
        seen = x.new_ones(x.shape[2], x.shape[0])
        if mask is not None:
            seen[1:] = mask.t()[:-1]
        return Norm(weight=self.weight, bias=self.bias, seen=seen, eps=self.eps)

    @torch.no_grad()
    def track(self, result: Result, mask: Tensor | None) -> None:
        """Moves the statistics towards the mean of those of all steps at which there is a real input."""
        assert result.mean is not None
        assert result.variance is not None
        share = _share_of_steps(result.mean, mask)
        self.running_mean.lerp_(share @ result.mean, self.momentum)
        self.running_var.lerp_(share @ result.variance, self.momentum)

    def fold(self, weights: Weights) -> Weights:
        """The weights of a layer with this norm in them, for evaluation."""
        H = len(self.bias)
        scale = self.weight * (self.running_var + self.eps).rsqrt()  # (2H)
        shift = self.bias - self.running_mean[H:] * scale[H:]
        if weights.query is None:
            rows = F.pad(scale[:H], (4 * H, 0), value=1.0)
            weights = replace(weights, inputs=weights.inputs * rows.unsqueeze(1))
        else:
            weights = replace(weights, query=weights.query * scale[:H])
        if weights.output is not None:
            matrix, bias = weights.output[:, :H], weights.output[:, H] + weights.output[:, :H] @ shift
            return replace(weights, output=torch.cat([matrix * scale[H:], bias.unsqueeze(1)], 1))
        if weights.affine is not None:
            first, *others = weights.affine.unbind(0)  # of what was found
            first = torch.stack([first[0] * scale[H:], first[1] + first[0] * shift])
            return replace(weights, affine=torch.stack([first, *others]))
        added = F.pad(weights.attention @ shift, (0, H))
        return replace(
            weights,
            inputs=weights.inputs + F.pad(added.unsqueeze(1), (weights.inputs.shape[1] - 1, 0)),
            attention=weights.attention * scale[H:],
        )


class StepNorm(nn.Module):
    """Batch norms of what the attention finds, of the cell and of the hidden state, over a step's batch."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, hidden: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(3, hidden))
        self.bias = nn.Parameter(torch.zeros(3, hidden))
        self.register_buffer("running_mean", torch.zeros(3, hidden))
        self.register_buffer("running_var", torch.ones(3, hidden))

    def of_steps(self, x: Tensor, mask: Tensor | None) -> CellNorm:
        """For training on `x`, (B, C, T). Inputs at padding do not count."""
        real = x.new_ones(x.shape[2], x.shape[0]) if mask is None else mask.t().to(x.dtype)
        return CellNorm(weight=self.weight, bias=self.bias, real=real, eps=self.eps)

    @torch.no_grad()
    def track(self, result: Result, mask: Tensor | None) -> None:
        """Moves the statistics towards the mean of those of all steps at which there is a real input."""
        assert result.cell_mean is not None
        assert result.cell_variance is not None
        share = _share_of_steps(result.cell_mean, mask)
        self.running_mean.lerp_(torch.tensordot(share, result.cell_mean, 1), self.momentum)
        self.running_var.lerp_(torch.tensordot(share, result.cell_variance, 1), self.momentum)

    def affine(self) -> Tensor:
        """Scale and shift for evaluation, (3, 2, H)."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return torch.stack([scale, self.bias - self.running_mean * scale], 1)


def _share_of_steps(statistics: Tensor, mask: Tensor | None) -> Tensor:
    """The share that each of the steps `(T, ...)` has in a mean over those with a real input."""
    real = statistics.new_ones(len(statistics)) if mask is None else mask.any(0).to(statistics.dtype)
    return real / real.sum().clamp(min=1)


class LARNNState(NamedTuple):
    """What a LARNNCell leaves to the next step.

    hidden, cell: `(B, hidden)`. memory: keys and values of earlier cells, the latest last, `window - 1` at
    most, each `(B, 2 hidden)`.
    """

    hidden: Tensor
    cell: Tensor
    memory: tuple[Tensor, ...]

    def detach(self) -> "LARNNState":
        """Return the same state without its gradient, for truncated back-propagation through time."""
        return LARNNState(self.hidden.detach(), self.cell.detach(), tuple(m.detach() for m in self.memory))


class LARNNCell(nn.Module):
    """A LARNN layer one step at a time, for a loop of your own, as `torch.nn.LSTMCell`.

    In a loop it computes what `Layer` does, and is slower. During training the running statistics of its
    norms move at each step, those of a layer once for all steps.

    Args:
        channels: of the input.
        hidden: units, a multiple of `heads`.
        options: as of `build`, but `layers` and `residual`. Dropout is of the output, not of the state.

    Example:
        >>> cell = LARNNCell(9, 64, heads=8, window=10)
        >>> state = None
        >>> for x in torch.randn(128, 32, 9):
        ...     y, state = cell(x, state)
        >>> y.shape
        torch.Size([32, 64])
    """

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
        _check_window_and_heads(hidden, heads, window)
        self.layer = Layer(
            channels,
            hidden,
            heads=heads,
            window=window,
            mode=mode,
            positional=positional,
            activation_on_keys_and_values=activation_on_keys_and_values,
            cell_activation=cell_activation,
            dropout=dropout,
            activation=activation,
            norm=norm,
        )

    def forward(self, x: Tensor, state: LARNNState | None = None) -> tuple[Tensor, LARNNState]:
        """Take one step.

        Args:
            x: `(B, channels)`.
            state: of the step before, None at the first one.

        Returns:
            The output `(B, hidden)`, and the state for the next step.

        Raises:
            InputError: if the shape of `x` is another one.
        """
        layer = self.layer
        if x.ndim != 2 or x.shape[1] != layer.channels:
            raise InputError(f"x must have the shape (B, {layer.channels}); got {tuple(x.shape)}")
        with _full_precision(x):
            x = x.to(layer.query.weight.dtype)
            if state is None:
                zeros = x.new_zeros(layer.hidden, len(x))
                before = State(zeros, zeros)
            else:
                before = State(state.hidden.t(), state.cell.t(), tuple(m.t() for m in state.memory))
            one = x.new_ones(len(x))
            training = layer.training
            window_norm = layer.norm if training else None
            step_norm = layer.cell_norm if training else None
            step = larnn_loop.advance(
                x.t(),
                before,
                layer._folded(),
                layer.kind,
                norm=None if window_norm is None else window_norm.of_windows(x.unsqueeze(2), None),
                seen=one.expand(len(before.memory) + 1, -1),
                cell_norm=None if step_norm is None else step_norm.of_steps(x.unsqueeze(2), None),
                real=one,
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


class Residual(nn.Module):
    """A layer with a connection around it."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.branch = layer

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = x + self.branch(x, mask)
        return y


class LARNN(nn.Module):
    """A linear map of the input and layers of equal width; the logits see the last real hidden state."""

    def __init__(
        self, *, classes: int, in_channels: int, hidden: int, layers: int, residual: bool, **options: Any
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.activated_input = options.get("activation") == "all"
        self.stem = nn.Conv1d(in_channels, hidden, 1)
        stack = (Layer(hidden, hidden, **options) for _ in range(layers))
        self.layers = nn.ModuleList(Residual(layer) if residual else layer for layer in stack)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(B, C, T)` and bool `(B, T)` -> logits. Raises InputError for a bad shape."""
        ends.check(x, mask, self.in_channels)
        x = self.stem(ends.without_padding(x, mask))
        if self.activated_input:
            x = F.elu(x)
        with padding(mask):
            for layer in self.layers:
                x = layer(x, mask)
        logits: Tensor = self.head(ends.last(x, mask))
        return logits


def build(
    *,
    classes: int,
    in_channels: int,
    hidden: int = 81,
    heads: int = 27,
    window: int = 38,
    layers: int = 3,
    residual: bool = True,
    mode: Mode = "residual",
    positional: bool = False,
    activation_on_keys_and_values: bool = True,
    cell_activation: CellActivation = "elu",
    dropout: float = 0.09,
    activation: Activation = "none",
    norm: NormKind = "memory",
) -> nn.Module:
    """A new network. The defaults are the best that the search of the paper's code found for UCI HAR.

    hidden: units of each layer, a multiple of heads. window: how many of its states a layer attends to.
    residual: connections around the layers. positional: places of the states are part of keys and values.
    activation_on_keys_and_values: their ELU, with the batch norm that `norm` says. cell_activation: of the
    state on its way out.
    activation: further ELUs. `query` has one of the query. `all` has one of the query, one of the first map
        of the input, and one of what the attention finds, behind a linear map, as the paper's code.
    norm: batch norms. `memory` has one of keys and values where these have an activation. `all` has one of
        what the attention finds, of the cell and of the hidden state, too, as the paper's code.
    With both `positional` and `activation_on_keys_and_values` the loop over time is several times slower.
    Raises InputError for sizes that cannot be built.
    """
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    _check_window_and_heads(hidden, heads, window)
    return LARNN(
        classes=classes,
        in_channels=in_channels,
        hidden=hidden,
        heads=heads,
        window=window,
        layers=layers,
        residual=residual,
        mode=mode,
        positional=positional,
        activation_on_keys_and_values=activation_on_keys_and_values,
        cell_activation=cell_activation,
        dropout=dropout,
        activation=activation,
        norm=norm,
    )


def _check_window_and_heads(hidden: int, heads: int, window: int) -> None:
    if not 1 <= window <= 4096:
        raise InputError(f"window, the states attended to, must lie between 1 and 4096; got {window}")
    if not 1 <= heads <= hidden or hidden % heads:
        divisors = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
        above = max(1, heads) * -(-hidden // max(1, heads))
        raise InputError(
            f"hidden must be a multiple of heads; got hidden={hidden} and heads={heads}. Take "
            f"hidden={above}, or as heads one of {divisors}"
        )


def encode(window: int) -> Tensor:
    """Places in the window, the latest last, as cosines and sines of their distance: (window, features).

    Wave lengths are powers of two, the longest sine so long that the window is a quarter of it.
    """
    waves = math.ceil(math.log2(4 * window))
    distance = torch.arange(window, 0, -1, dtype=torch.float64).unsqueeze(1)
    cosines = torch.cos(2 * math.pi * distance * 0.5 ** torch.arange(1, waves + 1))
    sines = torch.sin(2 * math.pi * distance * 0.5 ** torch.arange(2, waves + 2))
    return torch.cat([cosines, sines], 1).float()


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Where autocast would take the loop's products to another dtype, it is off."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
