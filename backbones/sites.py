"""Sites: the places in a model where a feature map can be transformed, found on the model itself.

Nothing here knows a particular family. A residual block is a module whose own forward adds two feature
maps; its branch is the operand with more layers behind it. Blocks that share a parent and a resolution
form a stage. So `stage1.block2.branch` means the same place in an xresnet, in torchvision's ResNet and
in a model that nobody here has seen. A model without residual blocks has a site at every submodule
that returns a feature map, named by its path.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from math import prod

from torch import Tensor, nn

from backbones.trace import Trace, trace


@dataclass(frozen=True, kw_only=True)
class Site:
    """A named place in a model.

    path: the submodule whose output is the feature map.
    channels, resolution: of that feature map, for the example that the sites were found with.
    stride: how many input positions one of its positions stands for, along the first dimension.
    """

    name: str
    path: str
    channels: int
    stride: int
    resolution: tuple[int, ...]

    @property
    def positions(self) -> int:
        return prod(self.resolution)


def sites(model: nn.Module, example: Tensor) -> list[Site]:
    """All sites of `model` in order of execution, for inputs like `example`, `(B, C, *spatial)`.

    Only the shape of `example` matters. Raises InputError where the model cannot take it.
    """
    run = trace(model, example)
    maps = {
        path: output
        for path, output in run.outputs.items()
        if output.ndim == example.ndim and path not in run.repeated and _takes_insertion(model, path)
    }
    paths = _residual_names(run, maps) or {path: path for path in maps}
    return [
        Site(
            name=name,
            path=path,
            channels=maps[path].shape[1],
            stride=max(1, round(example.shape[2] / maps[path].shape[2])),
            resolution=tuple(maps[path].shape[2:]),
        )
        for name, path in paths.items()
    ]


def _residual_names(run: Trace, maps: dict[str, Tensor]) -> dict[str, str]:
    """Name -> path: `stem`, and for each residual block its branches and its own output."""
    branches: dict[str, list[str]] = {}
    for addition in run.additions:
        block = addition.path
        deepest = max(addition.operands, key=lambda operand: operand.depth)
        if block in maps and deepest.path and deepest.path.startswith(f"{block}."):
            branches.setdefault(block, []).append(deepest.path)
    names: dict[str, str] = {}
    if branches:
        stem = run.sources.get(next(iter(branches)))
        if stem in maps:
            names["stem"] = stem

    def stage(block: str) -> tuple[str, tuple[int, ...]]:
        return block.rpartition(".")[0], tuple(maps[block].shape[2:])

    for i, (_, blocks) in enumerate(groupby(branches, key=stage), start=1):
        for j, block in enumerate(blocks, start=1):
            name = f"stage{i}.block{j}"
            inner = [path for path in branches[block] if path in maps]
            for k, path in enumerate(inner, start=1):
                names[f"{name}.branch{k if len(inner) > 1 else ''}"] = path
            names[name] = block
    # A chain of modules can return one and the same tensor under several names; the last word counts.
    assert all(count == 1 for count in Counter(names.values()).values()), names
    return names


def _takes_insertion(model: nn.Module, path: str) -> bool:
    """Whether a child can be added to the submodule without changing what it computes.

    A Sequential with a forward of its own may run its children in any way it likes.
    """
    module = model.get_submodule(path)
    return not isinstance(module, nn.Sequential) or type(module).forward is nn.Sequential.forward
