"""One pass through a model without arithmetic, noting what every submodule returns and what is added.

The pass runs on fake tensors, which have shapes and no data, and on a copy of the model that is made of them:
it takes a fraction of a second and no memory for any model, and what a forward keeps (a counter, its last
input, a cached bias) is kept by the copy. Additions are noted because they are what makes a block residual.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention import Gated, InputError
from backbones.channels import ADDITIONS, Channels
from backbones.example import Example, arguments, describe, first_tensor
from backbones.mixer import Mixer
from backbones.output import feature_map
from backbones.torch_internals import (
    FAKE_TENSOR_LOG,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedOperatorException,
    tree_map_only,
    version,
)

# Functions after which a map is still that of the submodule before them.
_ELEMENTWISE = frozenset(
    {
        *("mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "neg", "__neg__"),
        *("relu", "relu_", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "prelu"),
        *("hardswish", "hardsigmoid", "hardtanh", "tanh", "tanh_", "sigmoid", "sigmoid_", "softplus"),
        *("dropout", "dropout_", "feature_dropout", "dropout1d", "dropout2d", "dropout3d", "clamp", "clamp_"),
        *("contiguous", "clone", "to", "float", "type_as"),
    }
)
# What joins a branch to its shortcut as an addition does: x - f(x), lerp(x, f(x), w), addcmul(x, f(x), g).
_BLENDS = frozenset({"sub", "sub_", "__sub__", "__isub__", "__rsub__", "lerp", "lerp_"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
# What weighs positions by each other: a module that does so in its own forward mixes tokens.
_MIXES = frozenset({"scaled_dot_product_attention", "softmax", "multi_head_attention_forward"})
_SUMS_OF_PRODUCTS = frozenset({"addcmul", "addcmul_", "addcdiv", "addcdiv_"})

# What fake tensors cannot do: tell values, take shapes from values, pass an operator unknown to torch.
_BLIND = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


@dataclass(frozen=True)
class Output:
    """What a submodule returned.

    shape, floating: of the tensor that it is or begins with.
    channels: the dimension of that tensor's channels, None where it is not known.
    alone: it is the tensor itself, and not the first of several.
    """

    shape: tuple[int, ...]
    floating: bool
    channels: int | None
    alone: bool


@dataclass(frozen=True)
class Operand:
    """One side of an addition.

    makers: the submodules that returned it, innermost first: as it is, or else before functions that work
        element by element, such as a scale or an activation. depth: the layers behind it.
    """

    makers: Sequence[str]
    depth: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Addition:
    """Two feature maps that the module at `path` added in its own forward, or blended or subtracted.

    mixers: the submodules of `path` that mixed positions since its addition before this one.
    """

    path: str
    operands: tuple[Operand, Operand]
    mixers: Sequence[str] = ()

    @property
    def branch(self) -> Operand:
        """The one with more layers behind it."""
        return max(self.operands, key=lambda operand: operand.depth)

    @property
    def is_residual(self) -> bool:
        """It joins two maps of one shape, of which one has gone through more layers than the other."""
        one, other = self.operands
        return one.shape == other.shape and one.depth != other.depth


@dataclass(frozen=True)
class Trace:
    """What happened, in order of first execution.

    outputs: what each submodule returned, by path. Submodules that return no tensor first are absent.
    takes: the shape of the first tensor that each submodule took, by path.
    sources: the submodule that made the first tensor that each submodule took, by path.
    repeated: paths that ran more than once.
    example: the shape of the example's first tensor, and the dimension of its channels as for outputs.
    class_tokens: how many of so many positions of `(B, N, C)` are learned ones that were put before the rest.
    mixed_later: paths that returned before positions were mixed for the last time.
    positions_first: modules with `batch_first=False` that took `(T, B, C)`, and T, by path.
    stopped: why the pass ended before the model did, None if it did not: what comes next goes by values.
    """

    outputs: Mapping[str, Output]
    takes: Mapping[str, tuple[int, ...]]
    sources: Mapping[str, str]
    additions: Sequence[Addition]
    repeated: frozenset[str]
    example: Output
    class_tokens: Mapping[int, int]
    mixed_later: frozenset[str]
    positions_first: Mapping[str, int]
    stopped: str | None


def trace(model: nn.Module, example: Example) -> Trace:
    """Run a copy of `model` in evaluation mode on fake tensors shaped like those of `example`.

    Raises InputError where the model cannot be copied or cannot take such an input.
    """
    recorder, fake = _Recorder(), FakeTensorMode(allow_non_fake_inputs=True)
    twin = _copy(model, fake).eval()
    for path, module in twin.named_modules():
        if path:
            module.register_forward_pre_hook(recorder.entering(path), with_kwargs=True)
            module.register_forward_hook(recorder.leaving(path))
    like = next(model.parameters(), first_tensor(example))

    def blank(tensor: Tensor) -> Tensor:
        dtype = like.dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=dtype, device=like.device)

    stopped = None
    try:
        with fake, torch.no_grad(), _plain_transformers(), _silent():
            args, kwargs = tree_map_only(Tensor, blank, arguments(example))
            with recorder:
                twin(*args, **kwargs)
    except _BLIND as error:
        stopped = _reason(error)
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot take {describe(example)}: {_reason(error)}"
        ) from error
    return recorder.found(first_tensor((*args, *kwargs.values())), stopped)


@contextmanager
def _plain_transformers() -> Iterator[None]:
    """Without torch's fused layers of transformers, which call no submodules and look at a mask's values."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _silent() -> Iterator[None]:
    """Without what torch logs of an operation that fails, which the error says too."""
    log = logging.getLogger(FAKE_TENSOR_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _copy(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """The model with a fake tensor in place of each tensor that it holds, wherever it holds it."""
    try:
        with FakeCopyMode(fake):
            return copy.deepcopy(model)
    except Exception as error:  # whatever the model holds decides how it fails
        raise InputError(
            f"{type(model).__name__} must be one that copy.deepcopy can copy, since its sites are found on a "
            f"copy: {_reason(error)}. Keep what cannot be copied outside the model, or give its class a "
            f"__deepcopy__."
        ) from error


def _reason(error: Exception) -> str:
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__


class _Recorder(TorchFunctionMode):
    """Follows tensors by identity through modules (hooks) and through functions (this mode)."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, tuple[Tensor, bool]] = {}
        self.takes: dict[str, tuple[int, ...]] = {}
        self.sources: dict[str, str] = {}
        self.additions: list[Addition] = []
        self.repeated: set[str] = set()
        self.positions_first: dict[str, int] = {}
        self.running = [""]
        self.taken: list[Tensor | None] = []
        self.makers: dict[int, list[tuple[str, int]]] = {}  # with what has been done in place until then
        self.origins: dict[int, list[str]] = {}  # of what functions made element by element
        self.depth: dict[int, int] = {}
        self.channels = Channels()
        self.mixers: list[str] = []  # since the last addition of the block that they are in
        self.mixed_later: frozenset[str] = frozenset()
        self.inserted: set[str] = set()  # attention of ours is none of the block's
        self.class_tokens: dict[int, int] = {}
        self.learned: set[int] = set()  # what is computed from parameters alone
        self.alive: list[Tensor] = []  # an id stands for one tensor as long as the tensor lives

    def found(self, example: Tensor, stopped: str | None) -> Trace:
        return Trace(
            outputs={path: self._output(tensor, alone) for path, (tensor, alone) in self.outputs.items()},
            takes=self.takes,
            sources=self.sources,
            additions=self.additions,
            repeated=frozenset(self.repeated),
            example=self._output(example, True),
            class_tokens=self.class_tokens,
            mixed_later=self.mixed_later,
            positions_first=self.positions_first,
            stopped=stopped,
        )

    def _output(self, tensor: Tensor, alone: bool) -> Output:
        return Output(tuple(tensor.shape), tensor.is_floating_point(), self.channels.of(tensor), alone)

    def _operand(self, tensor: Tensor) -> Operand:
        return Operand(self._makers(tensor), self.depth.get(id(tensor), 0), tuple(tensor.shape))

    def _makers(self, tensor: Tensor) -> list[str]:
        makers = self.makers.get(id(tensor), [])
        here = [path for path, at in makers if at == makers[-1][1]]
        return here or self.origins.get(id(tensor), [])

    def entering(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            taken = feature_map([*args, *kwargs.values()])
            if isinstance(module, Mixer):
                self._note_mixing(path)
            elif isinstance(module, Gated):
                self.inserted.add(path)
            self.running.append(path)
            self.taken.append(taken)
            if taken is None:
                return
            self.takes.setdefault(path, tuple(taken.shape))
            if taken.ndim == 3 and not getattr(module, "batch_first", True):
                self.positions_first[path] = taken.shape[0]
            if id(taken) in self.makers:
                self.sources.setdefault(path, self.makers[id(taken)][-1][0])

        return hook

    def leaving(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.running.pop()
            taken, returned = self.taken.pop(), feature_map(output)
            if path in self.outputs:
                self.repeated.add(path)
            if returned is None:
                return
            self.alive.append(returned)
            self.outputs.setdefault(path, (returned, returned is output))
            self.makers.setdefault(id(returned), []).append((path, version(returned)))
            if taken is not None:
                self.channels.carry(taken, returned)
                # What is computed out of sight, as a recurrence is, has the module's own layer behind it.
                weighted = any(p.ndim > 1 for p in module.parameters())
                behind = self.depth.get(id(taken), 0) + weighted
                self.depth[id(returned)] = max(behind, self.depth.get(id(returned), 0))

        return hook

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors([*args, *kwargs.values()])
        name = getattr(func, "__name__", "")
        self._note_addition(name, inputs)
        if name in _MIXES and not self.inserted & {*self.running}:
            self._note_mixing(self.running[-1])
        output = func(*args, **kwargs)
        outputs = _tensors([output])
        self._note_learned(name, inputs, outputs)
        weighted = any(isinstance(t, nn.Parameter) and t.ndim > 1 for t in inputs)
        behind = max((self.depth.get(id(t), 0) for t in inputs), default=0) + weighted
        self.channels.follow(
            func, args, kwargs, sorted(inputs, key=lambda t: self.depth.get(id(t), 0)), outputs
        )
        for t in outputs:
            if name in _ELEMENTWISE:
                like = [i for i in inputs if i.shape == t.shape]
                deepest = max(like, key=lambda i: self.depth.get(id(i), 0), default=None)
                if deepest is not None and id(t) not in self.makers:
                    self.origins[id(t)] = self._makers(deepest)
            self.alive.append(t)
            self.depth[id(t)] = max(behind, self.depth.get(id(t), 0))
        return output

    def _note_mixing(self, path: str) -> None:
        self.mixed_later = frozenset(self.outputs)
        if path not in self.mixers:
            self.mixers.append(path)

    def _note_addition(self, name: str, inputs: Sequence[Tensor]) -> None:
        if name in _SUMS_OF_PRODUCTS and len(inputs) == 3:  # the product is as deep as its deeper factor
            shape = inputs[0].shape
            factors = [t for t in inputs[1:] if t.shape == shape]
            inputs = [inputs[0], *sorted(factors, key=lambda t: -self.depth.get(id(t), 0))[:1]]
        if len(inputs) < 2 or (name in ADDITIONS and len(inputs) > 2):
            return
        if any(isinstance(t, nn.Parameter) or id(t) in self.learned for t in inputs[:2]):
            return  # such as an embedding of positions
        block = self.running[-1]
        mixers = [path for path in self.mixers if path.startswith(f"{block}.")]
        found = Addition(block, (self._operand(inputs[0]), self._operand(inputs[1])), mixers)
        if name in ADDITIONS or (name in _BLENDS | _SUMS_OF_PRODUCTS and found.is_residual):
            self.additions.append(found)
            self.mixers = [path for path in self.mixers if path not in mixers]

    def _note_learned(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        learned = [isinstance(t, nn.Parameter) or id(t) in self.learned for t in inputs]
        if learned and all(learned):
            self.learned.update(id(t) for t in outputs)
        elif name in _JOINS and outputs[0].ndim == 3 and self.channels.of(inputs[-1]) == 2:
            count = learned.index(False)
            first, rest = inputs[:count], inputs[count:]
            if len(rest) == 1 and rest[0].shape[::2] == outputs[0].shape[::2]:
                before = self.class_tokens.get(rest[0].shape[1], 0)
                if tokens := before + sum(t.shape[1] for t in first):
                    self.class_tokens[outputs[0].shape[1]] = tokens


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """The tensors among `values` and in the tuples and lists among them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [v for v in value if isinstance(v, Tensor)]
    return found
