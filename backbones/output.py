"""The feature map in a submodule's output: the tensor itself, or the first of several.

An LSTM returns its sequence of outputs and then its last states, and a multi-head attention its output and
then its weights. A mapping, as a feature pyramid returns it, has no feature map in this sense. While torch.fx
traces a model, a proxy replaces the tensor.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import Proxy


def feature_map(output: Any) -> Tensor | None:
    """Return the tensor that `output` is or begins with, or None."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor | Proxy) else None  # type: ignore[return-value]


def with_feature_map(output: Any, new: Tensor) -> Any:
    """Return `output` with `new` instead of `feature_map(output)`."""
    if isinstance(output, Tensor | Proxy):
        return new
    values = [new, *output[1:]]
    return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)


def logits(output: Any) -> Any:
    """Return the attribute or key `logits` of a classifier's output, or else the output itself."""
    if isinstance(output, Tensor | Proxy):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if named is None else named
