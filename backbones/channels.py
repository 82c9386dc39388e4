"""Which dimension of a tensor holds the channels, inferred from the layers that make and read it.

The number of dimensions does not determine it: features are `(B, C, H, W)` in a ResNet and `(B, H, W, C)` in
a Swin transformer, `(B, C, T)` in a temporal convolution and `(B, T, C)` in an LSTM. The rule:

1. A layer determines it. Convolutions, batch, group and instance norms have channels in dimension 1; linear
layers,
   layer norms, embeddings, recurrent layers and `nn.MultiheadAttention` in the last one. This holds for what
   they return, and for what they read where it is not known yet.
2. From there the dimension is followed: through permutations, and through reshapes that leave it whole.
   Other functions return it where they took it, if its size is the same.
3. Where tensors meet, the one with the fewest layers behind it is believed, and what is added is of one
   layout: a residual branch has its channels where the shortcut has them, though an MLP-Mixer's branch ends
   in linear layers along the positions.

Where none of this applies, the dimension is not known, and the tensor is no feature map.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from backbones.torch_internals import tree_map_only

ADDITIONS = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})

_SECOND = frozenset(f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3)) | {
    "batch_norm",
    "group_norm",
    "instance_norm",
    "pixel_shuffle",
    "pixel_unshuffle",
}
_LAST = frozenset(
    {
        *("linear", "bilinear", "layer_norm", "rms_norm", "embedding", "multi_head_attention_forward"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    }
)
_PRODUCTS = frozenset(
    {"matmul", "__matmul__", "mm", "addmm"}
)  # linear layers where the last factor is a parameter
_PERMUTATIONS = frozenset(
    {"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "__get__"}  # __get__: x.mT
)
_RESHAPES = frozenset(
    {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"}
)
_PARTS = frozenset(  # of these the channels may be a part, or more
    {"cat", "concat", "concatenate", "chunk", "split", "tensor_split", "__getitem__", "narrow", "pad", "glu"}
)


class Channels:
    """The dimension of the channels of each tensor of a forward pass, as far as it is known.

    Tensors are distinguished by identity, so they have to live as long as this does.
    """

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def of(self, tensor: Tensor) -> int | None:
        return self._of.get(id(tensor))

    def follow(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Note where the channels of `outputs` are.

        inputs: the tensors among the arguments, those with the fewest layers behind them first.
        """
        name = getattr(func, "__name__", "")
        place = _layer(name, args, kwargs)
        if place is not None and outputs:
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point() and name not in _PRODUCTS:
                self._of.setdefault(id(args[0]), place % args[0].ndim)
            self._of[id(outputs[0])] = place % outputs[0].ndim
            return
        for output in outputs:
            for tensor in inputs:
                if id(output) not in self._of and id(tensor) in self._of:
                    dimension = _follow(func, args, kwargs, tensor, self._of[id(tensor)], output)
                    if dimension is not None:
                        self._of[id(output)] = dimension
        if name in ADDITIONS and outputs and id(outputs[0]) in self._of:
            for tensor in inputs:
                if tensor.shape == outputs[0].shape:
                    self._of[id(tensor)] = self._of[id(outputs[0])]

    def carry(self, taken: Tensor, returned: Tensor) -> None:
        """Through a module whose functions are not seen, such as a custom autograd function."""
        dimension = self._of.get(id(taken))
        if dimension is not None and taken.shape == returned.shape:
            self._of.setdefault(id(returned), dimension)


def _layer(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """1 or -1 if the function is a layer that tells, None otherwise."""
    if name in _SECOND:
        return 1
    if name in ("layer_norm", "rms_norm"):  # over more than one dimension they do not tell
        return -1 if len(kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())) == 1 else None
    if name in _LAST or (name in _PRODUCTS and args and isinstance(args[-1], nn.Parameter)):
        return -1
    return None


def _follow(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: Tensor,
    dimension: int,
    output: Tensor,
) -> int | None:
    """Where `dimension` of the argument `tensor` is in the `output` of a function that is no layer."""
    name, size = getattr(func, "__name__", ""), tensor.shape[dimension]
    if name in _PERMUTATIONS:
        # The function is tried on a tensor whose strides name its dimensions.
        named = torch.empty_strided(tensor.shape, tuple(range(1, tensor.ndim + 1)))
        args, kwargs = tree_map_only(
            Tensor, lambda t: named if t is tensor else t, (tuple(args), dict(kwargs))
        )
        strides: tuple[int, ...] = func(*args, **kwargs).stride()
        return strides.index(dimension + 1)
    if name in _RESHAPES:
        before = prod(tensor.shape[:dimension])
        same = (d for d, s in enumerate(output.shape) if s == size and prod(output.shape[:d]) == before)
        return next(same, None)
    if name == "stack":
        new: int = kwargs.get("dim", args[1] if len(args) > 1 else 0) % output.ndim
        return dimension + (new <= dimension)
    if tensor.ndim == output.ndim and (name in _PARTS or output.shape[dimension] == size):
        return dimension
    return None
