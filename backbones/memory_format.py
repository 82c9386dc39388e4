"""The memory format of a model of images: channels_last, or contiguous if channels_last crashes.

oneDNN's weight gradient of a strided 1x1 convolution writes beyond its buffers if features are channels_last
and have fewer channels than a vector of the processor has floats. It ends the process with a segmentation
fault or an abort, or sometimes returns wrong numbers. None of this can be caught. Upstream:
https://github.com/pytorch/pytorch/issues/136348.

Measured with torch 2.15 on an EPYC with AVX2, whose vectors have 8 floats, with each case in its own process
(1 to 64 channels, 16 to 128 px, compared with the contiguous convolution without oneDNN):

- crashes: 2 to 7 input channels, any number of output channels, stride 2, 4, (1, 2) or (2, 1), batches of 2
  or more, if the weights or the features are channels_last; `nn.ConvTranspose2d` with 4 output channels
- correct: 1 input channel, 8 or more, groups (also depthwise), padding, kernels of 2, 3 or (1, 3), a stride
  that does not divide the side, the forward pass, bfloat16, `nn.Conv1d`, `nn.Conv3d`, everything contiguous

On another processor, with AVX-512 and its 16 floats, up to 12 channels crashed. So fewer than 16 channels are
avoided.
"""

import torch
from torch import Tensor, nn

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
    model.to(memory_format=memory_format)
    if memory_format == torch.contiguous_format:  # Batches of images are channels_last.
        model.register_forward_pre_hook(_contiguous)
    return model


def _contiguous(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(arg.contiguous() if isinstance(arg, Tensor) else arg for arg in args)
