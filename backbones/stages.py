"""Feature maps of the stages of a backbone, for models on top of one."""

from typing import Any

import torch
from torch import Tensor, nn

from backbones.trace import trace


class StoreOutput:
    """Hook that stores the output of a stage. A copy of the model has its own copy of the hook."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.maps[self.name] = output


def remove_head(body: nn.Module, last: str, size: int) -> None:
    """Remove all submodules that run after the submodule `last`, in place.

    Args:
        body: The model.
        last: Path of the last submodule to keep.
        size: Side of the images with which the model is traced [pixels].
    """
    order = list(trace(body, torch.empty(2, 3, size, size)).outputs)
    after = [path for path in order[order.index(last) + 1 :] if not f"{last}.".startswith(f"{path}.")]
    after = [path for path in after if not path.startswith(f"{last}.")]
    for path in after:
        if not any(path.startswith(f"{other}.") for other in after):
            above, _, leaf = path.rpartition(".")
            setattr(body.get_submodule(above), leaf, nn.Identity())
