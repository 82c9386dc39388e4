"""One pass through a model without arithmetic, noting what every submodule returns and what is added.

The pass runs on fake tensors, which have shapes and no data, and on a copy of the model that is made of them:
it takes a fraction of a second and no memory for any model, and what a forward keeps (a counter, its last
input, a cached bias) is kept by the copy. Additions are noted because they are what makes a block residual.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode

from attention import InputError

_ADDITIONS = {"add", "add_", "__add__", "__iadd__", "__radd__"}


@dataclass(frozen=True)
class Operand:
    """One side of an addition: the submodule that made it, if one did, and the layers behind it."""

    path: str | None
    depth: int


@dataclass(frozen=True)
class Addition:
    """Two feature maps that the module at `path` added in its own forward."""

    path: str
    operands: tuple[Operand, Operand]


@dataclass
class Trace:
    """What happened, in order of first execution.

    outputs: the tensor that each submodule returned, by path. Submodules that return something else
        are absent.
    sources: the submodule that made the first argument of each submodule, by path.
    repeated: paths that ran more than once.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    additions: list[Addition] = field(default_factory=list)
    repeated: set[str] = field(default_factory=set)


def trace(model: nn.Module, example: Tensor) -> Trace:
    """Run a copy of `model` in evaluation mode on a fake tensor shaped like `example`.

    Raises InputError where the model cannot be copied or cannot take such an input.
    """
    recorder, fake = _Recorder(), FakeTensorMode(allow_non_fake_inputs=True)
    twin = _copy(model, fake).eval()
    for path, module in twin.named_modules():
        if path:
            module.register_forward_pre_hook(recorder.entering(path))
            module.register_forward_hook(recorder.leaving(path))
    like = next(model.parameters(), example)
    dtype = like.dtype if example.is_floating_point() else example.dtype
    try:
        with fake, torch.no_grad(), recorder:
            twin(torch.empty(example.shape, dtype=dtype, device=like.device))
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot take an input of shape {tuple(example.shape)}: {_reason(error)}"
        ) from error
    return recorder.trace


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
        self.trace = Trace()
        self.running = [""]
        self.maker: dict[int, str] = {}
        self.depth: dict[int, int] = {}
        self.alive: list[Tensor] = []  # an id stands for one tensor as long as the tensor lives

    def entering(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.running.append(path)
            if args and id(args[0]) in self.maker:
                self.trace.sources.setdefault(path, self.maker[id(args[0])])

        return hook

    def leaving(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.running.pop()
            if path in self.trace.outputs:
                self.trace.repeated.add(path)
            if isinstance(output, Tensor):
                self.trace.outputs.setdefault(path, output)
                self.maker[id(output)] = path
                # What is computed out of sight, as a recurrence is, has the module's own layer behind it.
                weighted = any(p.ndim > 1 for p in module.parameters())
                behind = self.depth.get(id(args[0]), 0) if args else 0
                self.depth[id(output)] = max(behind + weighted, self.depth.get(id(output), 0))
                self.alive.append(output)

        return hook

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if getattr(func, "__name__", "") in _ADDITIONS and len(inputs) == 2:
            a, b = (Operand(self.maker.get(id(t)), self.depth.get(id(t), 0)) for t in inputs)
            self.trace.additions.append(Addition(self.running[-1], (a, b)))
        output = func(*args, **kwargs)
        weighted = any(isinstance(t, nn.Parameter) and t.ndim > 1 for t in inputs)
        behind = max((self.depth.get(id(t), 0) for t in inputs), default=0) + weighted
        for t in output if isinstance(output, Iterable) and not isinstance(output, Tensor) else [output]:
            if isinstance(t, Tensor):
                self.alive.append(t)
                self.depth[id(t)] = max(behind, self.depth.get(id(t), 0))
        return output
