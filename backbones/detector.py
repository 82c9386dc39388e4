"""Faster and Mask R-CNN of torchvision over any backbone whose stages can be told, with sites on the pyramid.

Source: S. Ren et al., Faster R-CNN (2015), arXiv 1506.01497; K. He et al., Mask R-CNN (2017), arXiv
1703.06870; T.-Y. Lin et al., Feature Pyramid Networks (2016), arXiv 1612.03144. Pyramid, proposals and heads
are torchvision's, and so are the names of the weights: those of its own detectors fit.

Differs from torchvision's constructors in that images are taken at the size that they come in, where those
resize each of them; that heads can be narrower; and that in evaluation each image is padded to one size, so
that what is found in it does not depend on the others of its batch.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import LevelMapper

from attention import InputError
from backbones.normalisation import IMAGENET, Normalisation
from backbones.site import Site, sites
from backbones.torch_internals import AnyBatchNorm, tree_map
from backbones.trace import trace

STRIDES = (4, 8, 16, 32)  # of the levels p2 to p5
SIDE = 128  # pixels of the images that a backbone is looked at with
FIRST_LEVEL = 2  # p2
POOLED, MASK = 7, 14  # positions of a side of a region, as the box head and the mask head take it
CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # pixels of a region, and the level that it is taken from
RATIOS = (0.5, 1.0, 2.0)  # of anchors, height by width
GROUPS = 8  # of the channels of a group norm; fewer where they do not divide

Norm = Literal["none", "group"]


class Pyramid(nn.Module):
    """A backbone up to its last stage, and the feature pyramid over its stages.

    body: a classification model, whose head is taken off in place. channels: of each level of the pyramid.
    frozen_stages: of the body, from its stem on, whose weights do not learn. frozen_norms: whether its batch
        norms neither learn nor follow the batches. norm: after each convolution of the pyramid.
    Raises InputError for a body whose stages are no sequences of blocks.
    """

    def __init__(
        self,
        body: nn.Module,
        channels: int,
        *,
        frozen_stages: int = 0,
        frozen_norms: bool = False,
        norm: Norm = "none",
    ) -> None:
        super().__init__()
        levels = _levels(body)
        stages = [_stage(body, level) for level in levels]
        behead(body, stages[-1])
        self.out_channels = channels
        self._maps: dict[str, Tensor] = {}  # of the pass that is running
        for i, path in enumerate(stages):
            body.get_submodule(path).register_forward_hook(Keep(self._maps, str(i)))
        self.body = body
        self.frozen_norms = frozen_norms
        if frozen_stages:
            _freeze(body, stages[frozen_stages - 1])
        if frozen_norms:
            for batch_norm in self._norms():
                batch_norm.requires_grad_(False)
        self.fpn = FeaturePyramidNetwork(
            [level.channels for level in levels],
            channels,
            extra_blocks=LastLevelMaxPool(),
            norm_layer=_layer(norm),
        )

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """`(B, 3, H, W)` -> p2 to p6, `(B, channels, H / stride, W / stride)`, as "0" to "3" and "pool"."""
        self.body(images)
        maps = OrderedDict(self._maps)
        self._maps.clear()
        found: OrderedDict[str, Tensor] = self.fpn(maps)
        return found

    def train(self, mode: bool = True) -> "Pyramid":
        super().train(mode)
        if self.frozen_norms:
            for norm in self._norms():
                norm.eval()
        return self

    def _norms(self) -> Iterator[nn.Module]:
        return (module for module in self.body.modules() if isinstance(module, AnyBatchNorm))


def _layer(norm: Norm) -> Callable[[int], nn.Module] | None:
    return _group_norm if norm == "group" else None


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(GROUPS, channels), channels)


class NormedBoxHead(nn.Sequential):
    """torchvision's TwoMLPHead with a layer norm, which is a group norm of one group, after each layer.

    width: of a pooled region's features. It takes `(R, C, 7, 7)` and returns `(R, representation)`.
    """

    def __init__(self, width: int, representation: int) -> None:
        super().__init__(
            nn.Flatten(1),
            *(nn.Linear(width, representation, bias=False), nn.LayerNorm(representation), nn.ReLU()),
            *(nn.Linear(representation, representation, bias=False), nn.LayerNorm(representation), nn.ReLU()),
        )


class Keep:
    """A hook that keeps what a stage returns. It is copied with the model, and then keeps for the copy."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.maps[self.name] = output


def _full(module: nn.Module, args: Any, output: Any) -> Any:
    """A head's answers in float32: places in bfloat16 are pixels apart, and thin boxes vanish among them."""
    low = (torch.bfloat16, torch.float16)
    return tree_map(lambda part: part.float() if part.dtype in low else part, output)


class AsTheyCome(GeneralizedRCNNTransform):
    """Normalises and pads images, and does not resize them.

    canvas: pixels of the sides to which each image is padded in evaluation, at least.
    """

    canvas: int = 0

    def max_by_axis(self, the_list: list[list[int]]) -> list[int]:
        channels, *sides = super().max_by_axis(the_list)
        return [channels, *(side if self.training else max(side, self.canvas) for side in sides)]

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        return image, target


def build_detector(
    body: nn.Module,
    *,
    classes: int,
    masks: bool = True,
    channels: int = 256,
    representation: int = 1024,
    anchor: int = 32,
    proposals: int = 1000,
    regions: int = 512,
    detections: int = 100,
    canvas: int = 0,
    frozen_stages: int = 0,
    frozen_norms: bool = False,
    norm: Norm = "none",
    normalisation: Normalisation = IMAGENET,
) -> nn.Module:
    """A detector of `classes` kinds of objects, labelled from 1 on.

    It takes a list of images `(3, H, W)` from 0 to 1. In training it also takes `targets`, a dictionary of
    `boxes` (N, 4), `labels` (N,) and `masks` (N, H, W) for each image, and returns its losses by name;
    otherwise for each image a dictionary of `boxes`, `labels`, `scores` and `masks`.

    body: a classification model, which becomes its backbone. masks: whether it finds masks, too.
    channels: of the pyramid and of the mask head. representation: width of the box head. anchor: side in
        pixels of the smallest anchors; each level doubles it. proposals: in evaluation, twice as many in
        training. regions: proposals of an image that the heads learn from. detections: of an image, at most.
    canvas: pixels of the sides to which each image is padded in evaluation, at least.
    frozen_stages, frozen_norms: as `Pyramid` has them.
    norm: `group` for group norms in the pyramid, the box head and the mask head, with which a detector learns
        sooner from new weights; `none` for torchvision's heads, whose published weights fit. Source: K. He et
        al., Rethinking ImageNet Pre-training (2018), arXiv 1811.08883, section 3.1.

    Its sites on the pyramid are called `fpn.p2` to `fpn.p5`. Raises InputError like `Pyramid`.
    """
    backbone = Pyramid(body, channels, frozen_stages=frozen_stages, frozen_norms=frozen_norms, norm=norm)
    box_head = TwoMLPHead if norm == "none" else NormedBoxHead
    given: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((anchor * 2**level,) for level in range(len(STRIDES) + 1)), (RATIOS,) * (len(STRIDES) + 1)
        ),
        "rpn_pre_nms_top_n_train": 2 * proposals,
        "rpn_post_nms_top_n_train": 2 * proposals,
        "rpn_pre_nms_top_n_test": proposals,
        "rpn_post_nms_top_n_test": proposals,
        "box_roi_pool": _regions(POOLED),
        "box_head": box_head(channels * POOLED**2, representation),
        "box_predictor": FastRCNNPredictor(representation, classes + 1),  # 0 is the background
        "box_batch_size_per_image": regions,
        "box_detections_per_img": detections,
    }
    if masks:
        given["mask_roi_pool"] = _regions(MASK)
        given["mask_head"] = MaskRCNNHeads(channels, (channels,) * 4, 1, norm_layer=_layer(norm))
        given["mask_predictor"] = MaskRCNNPredictor(channels, channels, classes + 1)
    model: nn.Module = (MaskRCNN if masks else FasterRCNN)(backbone, **given)
    for head in (model.rpn.head, model.roi_heads.box_predictor):  # type: ignore[union-attr]
        head.register_forward_hook(_full)  # type: ignore[union-attr]
    mean, std = (list(values) for values in normalisation)
    model.transform = AsTheyCome(SIDE, SIDE, mean, std)
    model.transform.canvas = canvas
    model.site_names = {f"backbone.fpn.layer_blocks.{i}": f"fpn.p{i + 2}" for i in range(len(STRIDES))}  # type: ignore[assignment]
    return model


def _regions(side: int) -> MultiScaleRoIAlign:
    """torchvision's, with the strides as they are.

    It would take them from the maps and the images of its first batch, and be wrong by a factor of two where
    these are small and padded.
    """
    names = [str(i) for i in range(len(STRIDES))]
    found = MultiScaleRoIAlign(featmap_names=names, output_size=side, sampling_ratio=2)
    found.scales = [1 / stride for stride in STRIDES]
    last = FIRST_LEVEL + len(STRIDES) - 1
    found.map_levels = LevelMapper(FIRST_LEVEL, last, CANONICAL_SIDE, CANONICAL_LEVEL)
    return found


def _levels(body: nn.Module) -> Sequence[Site]:
    """The last residual block at each stride."""
    found = [site for site in sites(body, torch.empty(2, 3, SIDE, SIDE)) if site.layout == "BC*"]
    last = {s.stride: s for s in found if ".block" in s.name and s.name.count(".") == 1}
    if not all(stride in last for stride in STRIDES):
        raise InputError(
            f"a feature pyramid needs a backbone with residual blocks at the strides "
            f"{', '.join(map(str, STRIDES))}; {type(body).__name__} has some at "
            f"{', '.join(map(str, sorted(last))) or 'none'}. Take xresnet50 or torchvision:resnet50"
        )
    return [last[stride] for stride in STRIDES]


def _stage(body: nn.Module, level: Site) -> str:
    """The path of the sequence that ends with a block, and so with an attention after it."""
    path = level.path
    while above := path.rpartition(".")[0]:
        stage = body.get_submodule(above)
        children = [name for name, _ in stage.named_children()]
        if not (type(stage).forward is nn.Sequential.forward and path == f"{above}.{children[-1]}"):
            break
        path = above
    if path == level.path:
        raise InputError(
            f"a feature pyramid needs a backbone whose stages are sequences of blocks; {level.path!r} of "
            f"{type(body).__name__} does not end one. Take xresnet50 or torchvision:resnet50"
        )
    return path


def behead(body: nn.Module, last: str, size: int = SIDE) -> None:
    """Take off all that runs after the submodule `last`. size: pixels of the images' sides."""
    order = list(trace(body, torch.empty(2, 3, size, size)).outputs)
    after = [path for path in order[order.index(last) + 1 :] if not f"{last}.".startswith(f"{path}.")]
    after = [path for path in after if not path.startswith(f"{last}.")]
    for path in after:
        if not any(path.startswith(f"{other}.") for other in after):
            above, _, leaf = path.rpartition(".")
            setattr(body.get_submodule(above), leaf, nn.Identity())


def _freeze(body: nn.Module, last: str) -> None:
    """Keep the weights of all that runs up to the end of the submodule `last` as they are."""
    order = list(trace(body, torch.empty(2, 3, SIDE, SIDE)).outputs)
    early = tuple(f"{path}." for path in order[: order.index(last) + 1])
    for name, parameter in body.named_parameters():
        if name.startswith(early):
            parameter.requires_grad_(False)
