"""The feature map in what a submodule returns: the tensor itself, or the first of several.

An LSTM returns its sequence of outputs and then its last states, a multi-head attention its output and then
its weights. In a mapping, as a feature pyramid returns, no one is the first. While torch.fx traces a model, a
proxy stands for a tensor.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import Proxy


def feature_map(output: Any) -> Tensor | None:
    """The tensor that `output` is or begins with, if one."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor | Proxy) else None  # type: ignore[return-value]


def with_feature_map(output: Any, new: Tensor) -> Any:
    """`output` with `new` in place of `feature_map(output)`."""
    if isinstance(output, Tensor | Proxy):
        return new
    values = [new, *output[1:]]
    return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)


def logits(output: Any) -> Any:
    """What a classifier returns as an attribute or key `logits`; else its output as it is."""
    if isinstance(output, Tensor | Proxy):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if named is None else named
