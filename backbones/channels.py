"""Infers which dimension of a tensor holds the channels, from the layers that write and read the tensor.

The number of dimensions does not determine it. Features are `(B, C, H, W)` in a ResNet and `(B, H, W, C)` in
a Swin transformer, `(B, C, T)` in a temporal convolution and `(B, T, C)` in an LSTM. The rules:

1. Layers determine it. Convolutions, batch, group and instance norms have channels in dimension 1. Linear
   layers, layer norms, embeddings, recurrent layers and `nn.MultiheadAttention` have them in the last one.
   This holds for their outputs, and for their inputs if those are not known yet.
2. From there the dimension is followed through permutations, and through reshapes that keep it whole. Other
   functions keep its position if its size stays the same.
3. Where tensors are combined, the one that passed the fewest layers counts. The terms of a sum have one
   layout: a residual branch has its channels in the dimension of the shortcut's, even if it ends in linear
   layers along the positions, as in an MLP-Mixer.

If no rule applies, the dimension is unknown, and the tensor is not treated as a feature map.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from backbones.torch_internals import tree_map_only

ADDITIONS = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})

CONVOLUTIONS = frozenset(f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3))
_SECOND = CONVOLUTIONS | {"batch_norm", "group_norm", "instance_norm", "pixel_shuffle", "pixel_unshuffle"}
_LAST = frozenset(
    {
        *("linear", "bilinear", "layer_norm", "rms_norm", "embedding", "multi_head_attention_forward"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    }
)
# Linear layers if the last factor is a parameter.
PRODUCTS = frozenset({"matmul", "__matmul__", "mm", "addmm"})
PERMUTATIONS = frozenset(
    {"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "__get__"}  # __get__: x.mT
)
RESHAPES = frozenset(
    {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"}
)
_RESIZING = frozenset(  # Functions that may change the number of channels.
    {"cat", "concat", "concatenate", "chunk", "split", "tensor_split", "__getitem__", "narrow", "pad", "glu"}
)


class Channels:
    """Dimension of the channels, if known, of each tensor of a pass, by `id`: the tensors must stay alive."""

    def __init__(self) -> None:
        self._dimensions: dict[int, int] = {}

    def of(self, tensor: Tensor) -> int | None:
        """Return the dimension of the tensor's channels, or None if it is unknown."""
        return self._dimensions.get(id(tensor))

    def follow(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Record the dimension of the channels of the `outputs` of `func(*args, **kwargs)`.

        `inputs` are the tensors among the arguments, starting with those that passed the fewest layers.
        """
        name = getattr(func, "__name__", "")
        layer_dimension = _layer(name, args, kwargs)
        if layer_dimension is not None and outputs:
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point() and name not in PRODUCTS:
                self._dimensions.setdefault(id(args[0]), layer_dimension % args[0].ndim)
            self._dimensions[id(outputs[0])] = layer_dimension % outputs[0].ndim
            return
        for output in outputs:
            for tensor in inputs:
                if id(output) not in self._dimensions and id(tensor) in self._dimensions:
                    dimension = _follow(func, args, kwargs, tensor, self._dimensions[id(tensor)], output)
                    if dimension is not None:
                        self._dimensions[id(output)] = dimension
        if name in ADDITIONS and outputs and id(outputs[0]) in self._dimensions:
            for tensor in inputs:
                if tensor.shape == outputs[0].shape:
                    self._dimensions[id(tensor)] = self._dimensions[id(outputs[0])]

    def carry(self, source: Tensor, target: Tensor) -> None:
        """Copy the dimension through a module without traced functions, as a custom autograd function."""
        dimension = self._dimensions.get(id(source))
        if dimension is not None and source.shape == target.shape:
            self._dimensions.setdefault(id(target), dimension)


def _layer(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the dimension, 1 or -1, if the function is a layer that determines it. Otherwise return None."""
    if name in _SECOND:
        return 1
    if name in ("layer_norm", "rms_norm"):  # Over more than one dimension, the norm does not determine it.
        return -1 if len(kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())) == 1 else None
    if name in _LAST or (name in PRODUCTS and args and isinstance(args[-1], nn.Parameter)):
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
    """Return the position of `dimension` of `tensor` in the `output` of a function that is no layer."""
    name, size = getattr(func, "__name__", ""), tensor.shape[dimension]
    if name in PERMUTATIONS:
        # The function runs on a tensor whose strides identify its dimensions.
        named = torch.empty_strided(tensor.shape, tuple(range(1, tensor.ndim + 1)))
        args, kwargs = tree_map_only(
            Tensor, lambda t: named if t is tensor else t, (tuple(args), dict(kwargs))
        )
        strides: tuple[int, ...] = func(*args, **kwargs).stride()
        return strides.index(dimension + 1)
    if name in RESHAPES:
        before = prod(tensor.shape[:dimension])
        same = (d for d, s in enumerate(output.shape) if s == size and prod(output.shape[:d]) == before)
        return next(same, None)
    if name == "stack":
        new: int = kwargs.get("dim", args[1] if len(args) > 1 else 0) % output.ndim
        return dimension + (new <= dimension)
    if tensor.ndim == output.ndim and (name in _RESIZING or output.shape[dimension] == size):
        return dimension
    return None


# oneDNN's weight gradient of a strided 1x1 convolution writes beyond its buffers if features are
# channels_last and have fewer channels than a vector of the processor has floats. It ends the process with a
# segmentation fault or an abort, or sometimes returns wrong numbers. None of this can be caught. Upstream:
# https://github.com/pytorch/pytorch/issues/136348.
#
# Measured with torch 2.15 on an EPYC with AVX2, whose vectors have 8 floats, with each case in its own
# process (1 to 64 channels, 16 to 128 px, compared with the contiguous convolution without oneDNN):
#
# - crashes: 2 to 7 input channels, any number of output channels, stride 2, 4, (1, 2) or (2, 1), batches of
#   2 or more, if the weights or the features are channels_last; `nn.ConvTranspose2d` with 4 output channels
# - correct: 1 input channel, 8 or more, groups (also depthwise), padding, kernels of 2, 3 or (1, 3), a stride
#   that does not divide the side, the forward pass, bfloat16, `nn.Conv1d`, `nn.Conv3d`, everything contiguous
#
# On another processor, with AVX-512 and its 16 floats, up to 12 channels crashed. So fewer than 16 channels
# are avoided.
VECTOR = 16  # Number of floats in the widest vectors.


def find_crashing_layer(model: nn.Module) -> str | None:
    """Return the path of the first layer whose backward pass can crash on a CPU in channels_last, or None."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            channels = module.out_channels if module.transposed else module.in_channels
            strided = set(module.kernel_size) == {1} and max(module.stride) > 1 and module.groups == 1
            if strided and 1 < channels < VECTOR:
                return str(path)
    return None


def set_format(model: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    """Convert the weights of the model, and its inputs, to the format. Return the model."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.dim() == 4:  # `Module.to` also converts weights of 3-D convolutions, and fails
            weight.data = weight.data.to(memory_format=memory_format)
    if memory_format == torch.contiguous_format:  # Batches of images are channels_last.
        model.register_forward_pre_hook(_contiguous)
    return model


def _contiguous(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(arg.contiguous() if isinstance(arg, Tensor) else arg for arg in args)
