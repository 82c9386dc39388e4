"""One pass through a model without arithmetic, noting what every submodule returns and what is added.

The pass runs on fake tensors, which have shapes and no data: it takes a fraction of a second for any
model and leaves the model as it was. Additions are noted because they are what makes a block residual.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
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
    """Run `model` in evaluation mode on a fake tensor shaped like `example`, and leave it as it was.

    Raises InputError where the model cannot take such an input.
    """
    recorder = _Recorder()
    training = {module for module in model.modules() if module.training}
    like = next(model.parameters(), example)
    dtype = like.dtype if example.is_floating_point() else example.dtype
    handles = []
    for path, module in model.named_modules():
        if path:
            handles += [
                module.register_forward_pre_hook(recorder.entering(path)),
                module.register_forward_hook(recorder.leaving(path)),
            ]
    try:
        model.eval()
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), recorder:
            model(torch.empty(example.shape, dtype=dtype, device=like.device))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{type(model).__name__} cannot take an input of shape {tuple(example.shape)}: {reason}"
        ) from error
    finally:
        for module in model.modules():
            module.training = module in training
        for handle in handles:
            handle.remove()
    return recorder.trace


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
