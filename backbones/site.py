"""Sites: the positions in a model where a feature map can be transformed. They are determined by a trace.

No family of models is treated specially. A residual block is a module whose own forward adds two feature
maps, or blends or subtracts them. Its branch is the operand that passed more layers. Blocks that share a
parent and a resolution form a stage. So `stage1.block2.branch` means the same in an xresnet, in torchvision's
ResNet and in any unknown model. In a block of a transformer the branches are called `attention.branch` and
`mlp.branch`, and at `mixer` a module replaces the one that mixes the tokens. A model without residual blocks
has a site for each feature map that submodules return, named by the path of the last one: norms, activations
and dropout belong to the layer before them. Logits have no site.

A feature map is a floating-point tensor with one to three spatial dimensions. Its first dimension is the
batch, or in a `Siamese` the batches of all its inputs. Its channels are in dimension 1 or in the last one
(`backbones.channels`). It is the output of a submodule, or the first of its outputs.

A model can name sites itself, by an attribute `site_names`: `{path: name}`. The name of a block is also the
beginning of the names of the sites in it.

Attention ignores class tokens. So a model with class tokens has no sites after it has mixed its tokens for
the last time.

Models on top of a backbone take the maps of its stages, and may run one network on several inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from attention import Gated, Layout
from automl.base.errors import InputError, unknown
from backbones.example import Example, batch_size, materialise
from backbones.locations import Map, locate
from backbones.trace import trace
from backbones.trace_record import Trace


class StoreOutput:
    """Hook that stores the output of a stage. A copy of the model has its own copy of the hook."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Keep the output of a site, as a forward hook."""
        self.maps[self.name] = output


def remove_head(body: nn.Module, last: str, size: int) -> None:
    """Remove all submodules that run after `last` on images of `size` pixels, in place."""
    order = list(trace(body, torch.empty(2, 3, size, size)).outputs)
    after = [path for path in order[order.index(last) + 1 :] if not f"{last}.".startswith(f"{path}.")]
    after = [path for path in after if not path.startswith(f"{last}.")]
    for path in after:
        if not any(path.startswith(f"{other}.") for other in after):
            above, _, leaf = path.rpartition(".")
            setattr(body.get_submodule(above), leaf, nn.Identity())


class Siamese(nn.Module, ABC):
    """Base class of networks that compute the same features of several inputs, which pass them as one batch.

    So each layer runs once and has one site for attention. Batch norm takes its statistics from all inputs
    together.

    Attributes:
        inputs: Number of inputs. A layer inside receives so many batches as one.
    """

    inputs = 2

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Compute the features `(B, D, ...)` of `x`, `(B, C, ...)`. Rows are independent."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the features `(B, D, ...)` of each input `(B, C, ...)`."""
        assert len(inputs) == self.inputs, len(inputs)
        # `chunk` would make a constant of the batch size in an exported graph.
        result: tuple[Tensor, ...] = self.features(torch.cat(inputs)).unflatten(0, (self.inputs, -1)).unbind()
        return result


@dataclass(frozen=True, kw_only=True)
class Site:
    """Named position in a model where a feature map can be transformed.

    Attributes:
        name: The name, such as `stage3.block2.branch`.
        path: The submodule whose output is the feature map.
        channels: The channels of the feature map, for the example that the sites were determined with.
        stride: The number of input positions per position of the feature map, along the first dimension that
            both have. If the feature map has fewer dimensions, the average along each.
        resolution: The positions of the feature map along each dimension.
        layout: Order of the dimensions: `BC*` for `(B, C, *spatial)`, `B*C` for `(B, *spatial, C)`.
        class_tokens: Number of leading learned positions that attention ignores.
        replaces: True if a module at this site replaces the submodule.
        tuple_length: Length of the tuple that the replaced submodule returns. 0 if it returns a tensor.

    Example:
        >>> import automl, torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1, stride=2), torch.nn.ReLU())
        >>> (site,) = automl.sites(model, torch.empty(1, 3, 32, 32))
        >>> site.channels, site.stride, site.resolution
        (8, 2, (16, 16))
    """

    name: str
    path: str
    channels: int
    stride: int
    resolution: tuple[int, ...]
    layout: Layout = "BC*"
    class_tokens: int = 0
    replaces: bool = False
    tuple_length: int = 0

    @property
    def spatial(self) -> tuple[int, ...]:
        """Return the resolution without class tokens, which only a sequence of tokens has."""
        return tuple(size - self.class_tokens for size in self.resolution)

    @property
    def positions(self) -> int:
        """Return the number of positions without class tokens."""
        return prod(self.spatial)


def sites(model: nn.Module, example: Example) -> list[Site]:
    """Return the sites of a model, in the order in which they run.

    The model runs once on fake tensors. Lazy layers are initialised in place. If the control flow depends on
    the values of tensors, as in a detector, only sites before that point are returned.

    Args:
        model: Any module.
        example: An input: a tensor `(B, ...)`, a tuple of positional arguments or a mapping of keyword
            arguments. Only shapes matter. The batch is the first dimension of the first tensor, or the length
            of a list of images `(C, H, W)`.

    Returns:
        The sites.

    Raises:
        InputError: The model cannot process the example, has positions before the batch, or depends on values
            before its first site.

    Example:
        >>> import automl, torch
        >>> from torchvision.models import resnet18
        >>> listed = automl.sites(resnet18(), torch.empty(1, 3, 64, 64))
        >>> listed[1].name, listed[1].channels
        ('stage1.block1.branch', 64)
    """
    materialise(model, example)
    run, batch = trace(model, example), batch_size(example)
    for path, size in run.positions_first.items():
        if size == batch:
            raise InputError(
                f"{path!r} of {type(model).__name__} has batch_first=False and takes {size} positions, as "
                f"many as the example's first dimension: build it with batch_first=True, or, where the model "
                f"itself moves the batch, give an example of another batch size"
            )
    maps = _feature_maps(model, run, batch)
    locations = locate(model, run, maps)
    own = getattr(model, "site_names", {})
    renamed = {name: own[location.path] for name, location in locations.items() if location.path in own}
    named = {}  # after the model's own name for a site, or for the block that it is in
    for name, location in locations.items():
        blocks = [block for block in renamed if name == block or name.startswith(f"{block}.")]
        block = max(blocks, key=len, default="")
        named[renamed[block] + name.removeprefix(block) if blocks else name] = location
    if run.stopped and not named:
        raise InputError(
            f"no sites can be found on {type(model).__name__}: before its first feature map its control "
            f"flow depends on values of tensors ({run.stopped}); find sites on a part where it does not, "
            f"such as its backbone"
        )
    known = run.example.channels
    input_resolution = _positions(run.example.shape, 1 if known is None and run.example.floating else known)
    return [
        Site(
            name=name,
            path=location.path,
            channels=(feature_map := maps[location.path]).channels,
            stride=_stride(input_resolution, feature_map.resolution),
            resolution=feature_map.resolution,
            layout=feature_map.layout,
            class_tokens=_class_tokens(run, feature_map),
            replaces=location.replaces,
            tuple_length=run.outputs[location.path].length if location.replaces else 0,
        )
        for name, location in named.items()
        # Attention does not change class tokens. After the last mixing, its result would not reach them, and
        # only they may be read.
        if location.path in run.mixed_later or not _class_tokens(run, maps[location.path])
    ]


def features(site: Site, batch: int) -> Tensor:
    """Return zeros of the shape at a site for a batch, with the channels innermost in memory.

    The shape is `(B, C, *spatial)`, or `(B, *spatial, C)` if the layout of the site is `B*C`.
    """
    x = torch.zeros(batch, *site.resolution, site.channels)
    return x if site.layout == "B*C" else x.movedim(-1, 1)


def _feature_maps(model: nn.Module, run: Trace, batch: int) -> dict[str, Map]:
    """Return the feature maps that can be transformed, by the path of their submodule."""
    inserted = [f"{path}." for path, m in model.named_modules() if isinstance(m, Gated) and m.site]
    maps = {}
    for path, output in run.outputs.items():
        shape, channels = output.shape, output.channels
        is_map = output.floating and 3 <= len(shape) <= 5 and shape[0] == batch * _inputs_of(model, path)
        if not is_map or channels not in (1, len(shape) - 1) or path in run.repeated:
            continue
        # A Sequential with its own forward may run its children in any way. One with several outputs would
        # pass them all to a child that is added.
        module = model.get_submodule(path)
        takes = type(module).forward is nn.Sequential.forward and output.alone
        if isinstance(module, nn.Sequential) and not takes:
            continue
        if not f"{path}.".startswith(tuple(inserted)):
            layout: Layout = "BC*" if channels == 1 else "B*C"
            maps[path] = Map(shape[channels], layout, _positions(shape, channels))
    return maps


def _inputs_of(model: nn.Module, path: str) -> int:
    """Return how many inputs share the layer at `path` as one batch, or 0 at a module that separates them."""
    if isinstance(model.get_submodule(path), Siamese):
        return 0
    above = (path[:i] for i, letter in enumerate(path) if letter == ".")
    return prod(m.inputs for m in map(model.get_submodule, above) if isinstance(m, Siamese))


def _positions(shape: tuple[int, ...], channels: int | None) -> tuple[int, ...]:
    """Return the dimensions other than batch and channels."""
    return tuple(size for d, size in enumerate(shape) if d not in (0, channels))


def _class_tokens(run: Trace, feature_map: Map) -> int:
    is_tokens = feature_map.layout == "B*C" and len(feature_map.resolution) == 1
    return run.class_tokens.get(feature_map.resolution[0], 0) if is_tokens else 0


def _stride(input_resolution: tuple[int, ...], resolution: tuple[int, ...]) -> int:
    if not input_resolution or 0 in resolution:
        return 1
    if len(resolution) < len(input_resolution):
        ratio = float((prod(input_resolution) / prod(resolution)) ** (1 / len(input_resolution)))
    else:  # new dimensions, such as the disparities of a cost volume, come first
        ratio = input_resolution[0] / resolution[len(resolution) - len(input_resolution)]
    return max(1, round(ratio))


def unknown_site(model: nn.Module, name: str, known: Sequence[Site]) -> InputError:
    """Return the error for an unknown site, with the sites nearest to a path, or all of the model."""
    kind = f"site of {type(model).__name__}"
    if names := [site.name for site in known if site.path == name]:
        return InputError(
            f"unknown {kind} {name!r}: that is a module, whose site is called "
            f"{' and '.join(map(repr, names))}"
        )
    paths = [path for path, _ in model.named_modules()]
    if name and name in paths:
        inside = [site.name for site in known if site.path.startswith(f"{name}.")]
        around = [site for site in known if name.startswith(f"{site.path}.")]
        beside = [
            path for path in paths[paths.index(name) :] if path.rpartition(".")[0] == name.rpartition(".")[0]
        ]
        after = [site.name for path in beside for site in known if site.path == path]
        nearest = max(around, key=lambda site: len(site.path)).name if around else None
        hints = [f"around it is {nearest!r}"] if nearest else []
        hints += [f"after it is {after[0]!r}"] if after else []
        hints += [f"in it are {', '.join(inside)}"] if inside else []
        return InputError(
            f"unknown {kind} {name!r}: that is a module without a site of its own"
            f"{'; ' * bool(hints)}{', and '.join(hints)}"
        )
    return unknown(kind, name, [site.name for site in known])
