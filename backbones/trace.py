"""One pass through a model without arithmetic, which records the outputs of submodules and the additions.

The pass runs on fake tensors, which have shapes and no data, and on a copy of the model made of them. It
takes a fraction of a second and no memory for any model. State that a forward pass stores (a counter, its
last input, a cached bias) is stored in the copy. Additions are recorded because they define residual blocks.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention import Gated
from attention.decoding import Mixer
from automl.base.errors import InputError, error_message
from backbones.channels import ADDITIONS, Channels
from backbones.example import Example, arguments, describe, feature_map, first_tensor
from backbones.torch_internals import (
    FAKE_TENSOR_LOG,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedOperatorException,
    tree_leaves,
    tree_map_only,
    version,
)
from backbones.trace_record import ELEMENTWISE, Addition, Flow, Operand, Output, Trace

# Functions that join a branch to its shortcut as an addition does: x - f(x), lerp(x, f(x), w), addcmul(x,
# f(x), g).
_BLENDS = frozenset({"sub", "sub_", "__sub__", "__isub__", "__rsub__", "lerp", "lerp_"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
# Functions that weight positions by each other. A module that calls one in its own forward mixes tokens.
_MIXES = frozenset({"scaled_dot_product_attention", "softmax", "multi_head_attention_forward"})
_SUMS_OF_PRODUCTS = frozenset({"addcmul", "addcmul_", "addcdiv", "addcdiv_"})

# Fake tensors cannot return values, take shapes from values, or run an operator that torch does not know.
_BLIND = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def trace(model: nn.Module, example: Example) -> Trace:
    """Run a copy of `model` in evaluation mode on fake tensors of the shapes of `example`.

    Raises InputError if the model cannot be copied, or cannot process such an input.
    """
    recorder, fake = _Recorder(), FakeTensorMode(allow_non_fake_inputs=True)
    twin = _copy(model, fake).eval()
    for path, module in twin.named_modules():
        if path:
            module.register_forward_pre_hook(partial(recorder.enter, path), with_kwargs=True)
            module.register_forward_hook(partial(recorder.leave, path))
    like = next(model.parameters(), first_tensor(example))

    def blank(tensor: Tensor) -> Tensor:
        dtype = like.dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=dtype, device=like.device)

    stopped = None
    try:
        with fake, torch.no_grad(), plain_transformers(), _silent():
            args, kwargs = tree_map_only(Tensor, blank, arguments(example))
            recorder.flow.start(t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
            with recorder:
                output = twin(*args, **kwargs)
            recorder.flow.end(t for t in tree_leaves(output) if isinstance(t, Tensor))
    except _BLIND as error:
        stopped = error_message(error)
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot take {describe(example)}: {error_message(error)}"
        ) from error
    return recorder.finish(first_tensor((*args, *kwargs.values())), stopped)


@contextmanager
def plain_transformers() -> Iterator[None]:
    """Disable torch's fused layers of transformers, which call no submodules and read the values of masks."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _silent() -> Iterator[None]:
    """Disable torch's log of operations that fail. The error contains the same message."""
    log = logging.getLogger(FAKE_TENSOR_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _copy(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """Copy the model, with a fake tensor instead of each of its tensors."""
    try:
        with FakeCopyMode(fake):
            return copy.deepcopy(model)
    except Exception as error:  # The content of the model determines the type of error.
        raise InputError(
            f"{type(model).__name__} must be one that copy.deepcopy can copy, since its sites are found on a "
            f"copy: {error_message(error)}. Keep what cannot be copied outside the model, or give its "
            f"class a __deepcopy__."
        ) from error


class _Call(NamedTuple):
    """Call of the module at a path, with the first of its arguments, if that is a tensor, and all tensors."""

    path: str
    entered: Tensor | None
    arguments: list[Tensor]


class _Recorder(TorchFunctionMode):
    """Mode that follows tensors by identity, through modules by hooks and through functions by this mode."""

    def __init__(self) -> None:
        super().__init__()
        # With number, end and elements of the tuple, as in `_output`.
        self.outputs: dict[str, tuple[Tensor, int | None, int, Sequence[Any]]] = {}
        self.flow = Flow()
        self.takes: dict[str, tuple[int, ...]] = {}
        self.sources: dict[str, str] = {}
        self.additions: list[Addition] = []
        self.handed: list[int] = []  # Indices of additions in a module whose shortcut was an argument.
        self.repeated: set[str] = set()
        self.positions_first: dict[str, int] = {}
        self.running = [_Call("", None, [])]  # the innermost call last
        self.makers: dict[int, list[tuple[str, int]]] = {}  # With the tensor's version at that time.
        self.origins: dict[int, list[str]] = {}  # Makers of tensors that element-wise functions returned.
        self.depth: dict[int, int] = {}
        self.channels = Channels()
        self.mixers: list[str] = []  # Mixers since the last addition of their block.
        self.mixed_later: frozenset[str] = frozenset()
        self.inserted: set[str] = set()  # Inserted attention does not belong to the block.
        self.class_tokens: dict[int, int] = {}
        self.learned: set[int] = set()  # Tensors computed only from parameters.
        self.alive: list[Tensor] = []  # Keeps tensors alive, as their ids identify them.

    def finish(self, example: Tensor, stopped: str | None) -> Trace:
        """Return the record of the pass."""
        return Trace(
            outputs={path: self._output(*output) for path, output in self.outputs.items()},
            takes=self.takes,
            sources=self.sources,
            additions=self.additions,
            flow=self.flow,
            repeated=frozenset(self.repeated),
            example=self._output(example),
            class_tokens=self.class_tokens,
            mixed_later=self.mixed_later,
            positions_first=self.positions_first,
            stopped=stopped,
        )

    def _output(
        self, tensor: Tensor, number: int | None = None, end: int = 0, elements: Sequence[Any] = ()
    ) -> Output:
        rest = [element for element in elements[1:] if element is not None]
        return Output(
            shape=tuple(tensor.shape),
            floating=tensor.is_floating_point(),
            channels=self.channels.of(tensor),
            number=number,
            end=end,
            length=len(elements),
            uses_rest=not all(isinstance(t, Tensor) and self.flow.is_unused(t, end) for t in rest),
        )

    def _operand(self, tensor: Tensor) -> Operand:
        return Operand(self._makers(tensor), self.depth.get(id(tensor), 0), tuple(tensor.shape))

    def _makers(self, tensor: Tensor) -> list[str]:
        makers = self.makers.get(id(tensor), [])
        current = [path for path, at in makers if at == makers[-1][1]]
        return current or self.origins.get(id(tensor), [])

    def enter(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = [*args, *kwargs.values()]
        tensor = feature_map(values)
        if isinstance(module, Mixer):
            self._note_mixing(path)
        elif isinstance(module, Gated):
            self.inserted.add(path)
        self.running.append(_Call(path, tensor, _tensors(values)))
        if tensor is None:
            return
        self.takes.setdefault(path, tuple(tensor.shape))
        if tensor.ndim == 3 and not getattr(module, "batch_first", True):
            self.positions_first[path] = tensor.shape[0]
        if makers := self._makers(tensor):
            self.sources.setdefault(path, makers[-1])

    def leave(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        tensor, result = self.running.pop().entered, feature_map(output)
        if path in self.outputs:
            self.repeated.add(path)
        if result is None:
            return
        self.alive.append(result)
        if isinstance(module, Gated) and module.site and tensor is not None:
            self.flow.pass_through(tensor, result)
        elif tensor is not None:
            self.flow.follow("", [tensor], [result])  # Computation that is not traced.
        elements: Sequence[Any] = () if result is output else output
        self.outputs.setdefault(path, (result, self.flow.number(result), len(self.flow), elements))
        self.makers.setdefault(id(result), []).append((path, version(result)))
        if tensor is not None:
            self.channels.carry(tensor, result)
            # Computation that is not traced, such as a recurrence, passes the module's own layer.
            weighted = any(p.ndim > 1 for p in module.parameters())
            depth = self.depth.get(id(tensor), 0) + weighted
            self.depth[id(result)] = max(depth, self.depth.get(id(result), 0))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors([*args, *kwargs.values()])
        name = getattr(func, "__name__", "")
        self._note_addition(name, inputs)
        is_inserted = any(call.path in self.inserted for call in self.running)
        if name in _MIXES and not is_inserted:
            self._note_mixing(self.running[-1].path)
        output = func(*args, **kwargs)
        outputs = _tensors([output])
        if not is_inserted:
            self.flow.follow(name, inputs, outputs)
        self._note_learned(name, inputs, outputs)
        weighted = any(isinstance(t, nn.Parameter) and t.ndim > 1 for t in inputs)
        depth = max((self.depth.get(id(t), 0) for t in inputs), default=0) + weighted
        self.channels.follow(
            func, args, kwargs, sorted(inputs, key=lambda t: self.depth.get(id(t), 0)), outputs
        )
        for t in outputs:
            if name in ELEMENTWISE:
                like = [i for i in inputs if i.shape == t.shape]
                deepest = max(like, key=lambda i: self.depth.get(id(i), 0), default=None)
                if deepest is not None and id(t) not in self.makers:
                    self.origins[id(t)] = self._makers(deepest)
            self.alive.append(t)
            self.depth[id(t)] = max(depth, self.depth.get(id(t), 0))
        return output

    def _note_mixing(self, path: str) -> None:
        self.mixed_later = frozenset(self.outputs)
        if path not in self.mixers:
            self.mixers.append(path)

    def _note_addition(self, name: str, inputs: Sequence[Tensor]) -> None:
        if name in _SUMS_OF_PRODUCTS and len(inputs) == 3:  # The product is as deep as its deeper factor.
            shape = inputs[0].shape
            factors = [t for t in inputs[1:] if t.shape == shape]
            inputs = [inputs[0], *sorted(factors, key=lambda t: -self.depth.get(id(t), 0))[:1]]
        if len(inputs) < 2 or (name in ADDITIONS and len(inputs) > 2):
            return
        if any(isinstance(t, nn.Parameter) or id(t) in self.learned for t in inputs[:2]):
            return  # An embedding of positions, for example, is no operand.
        entered = self.running[-1].entered
        if entered is not None and not entered.is_floating_point():
            return  # Embeddings of words and positions are no operands either.
        block = self._find_block(inputs[:2])
        mixers = [path for path in self.mixers if path.startswith(f"{block}.")]
        addition = Addition(block, (self._operand(inputs[0]), self._operand(inputs[1])), mixers)
        if name in ADDITIONS or (name in _BLENDS | _SUMS_OF_PRODUCTS and addition.is_residual):
            self.additions.append(addition)
            self.mixers = [path for path in self.mixers if path not in mixers]
            if block != self.running[-1].path:
                self._join(block)

    def _find_block(self, operands: Sequence[Tensor]) -> str:
        """Return the path of the residual block: the running module, or one around it."""
        # In BERT, a module `output(y, x)` ends the branch of `y` and adds `x`, the input of a module around
        # it.
        shortcut, branch = sorted(operands, key=lambda t: self.depth.get(id(t), 0))
        for call in reversed(self.running):
            first, others = call.arguments[:1], [id(t) for t in call.arguments[1:]]
            same = all(t.shape[:2] == shortcut.shape[:2] for t in first) and self.channels.of(shortcut) == 2
            if not same or id(shortcut) not in others or id(branch) in (id(first[0]), *others):
                break
        return call.path

    def _join(self, block: str) -> None:
        """Count the additions of modules in `block` that were handed their shortcut as those of `block`."""
        self.handed.append(len(self.additions) - 1)
        for i in self.handed:
            if self.additions[i].path.startswith(f"{block}."):
                self.additions[i] = replace(self.additions[i], path=block)

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
    """Return the tensors among `values` and in the tuples and lists among them."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [v for v in value if isinstance(v, Tensor)]
    return tensors
