"""Where a training runs, and in which precision."""

from contextlib import AbstractContextManager

import torch

from attention import InputError


def find_device(name: str = "auto") -> torch.device:
    """The device called `name`; `auto` is a GPU where there is one. Raises InputError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used; try auto, cpu or cuda. ({reason})") from error
    return device


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """bfloat16 where the device computes in it, float32 elsewhere."""
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        bf16 = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)
