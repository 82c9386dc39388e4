"""Faster and Mask R-CNN of torchvision over a backbone with identifiable stages, with sites on the pyramid.

Source: S. Ren et al., Faster R-CNN (2015), arXiv 1506.01497; K. He et al., Mask R-CNN (2017), arXiv
1703.06870; T.-Y. Lin et al., Feature Pyramid Networks (2016), arXiv 1612.03144. Pyramid, proposals and heads
are torchvision's. The weights have its names, so those of its own detectors fit.

Departures from torchvision's constructors: images keep their size and are not resized; heads can be narrower;
in evaluation each image is padded to one size, so that its detections do not depend on the other images of
the batch.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any

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

from automl.base.errors import InputError
from automl.task.subject import OBJECTS, Subject
from automl.tasks.detection import DetectionModel
from backbones import find
from backbones.example import Example
from backbones.site import Site, StoreOutput, remove_head, sites
from backbones.torch_internals import AnyBatchNorm, tree_map
from backbones.trace import trace

STRIDES = (4, 8, 16, 32)  # Strides of the levels p2 to p5.
SIDE = 128  # Side of the images with which a backbone is traced [pixels].
POOLED, MASK = 7, 14  # Side of a pooled region for the box head and the mask head [positions].
RATIOS = (0.5, 1.0, 2.0)  # Ratios of height to width of the anchors.
GROUPS = 8  # Groups of a group norm. Fewer if they do not divide the channels.


class Pyramid(nn.Module):
    """Backbone up to its last stage, with a feature pyramid over its stages.

    Args:
        body: A classification model. Its head is removed in place.
        chosen: The channels of each level, the frozen stages and batch norms, and the norm.

    Raises:
        InputError: The stages of the body are not sequences of blocks.

    Shape:
        `(B, 3, H, W)` to five maps `(B, channels, H / stride, W / stride)`.
    """

    def __init__(self, body: nn.Module, chosen: DetectionModel) -> None:
        super().__init__()
        levels = _levels(body)
        stages = [_stage(body, level) for level in levels]
        remove_head(body, stages[-1], SIDE)
        self.out_channels = chosen.channels
        self._maps: dict[str, Tensor] = {}  # Maps of the current pass.
        for i, path in enumerate(stages):
            body.get_submodule(path).register_forward_hook(StoreOutput(self._maps, str(i)))
        self.body = body
        self.frozen_norms = chosen.frozen_norms
        if chosen.frozen_stages:
            order = list(trace(body, torch.empty(2, 3, SIDE, SIDE)).outputs)
            last = order.index(stages[chosen.frozen_stages - 1])
            frozen = tuple(f"{path}." for path in order[: last + 1])
            for name, parameter in body.named_parameters():
                if name.startswith(frozen):
                    parameter.requires_grad_(False)
        if chosen.frozen_norms:
            for batch_norm in self._norms():
                batch_norm.requires_grad_(False)
        self.fpn = FeaturePyramidNetwork(
            [level.channels for level in levels],
            chosen.channels,
            extra_blocks=LastLevelMaxPool(),
            norm_layer=_layer(chosen),
        )

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """Return the levels p2 to p6 under the names "0" to "3" and "pool"."""
        self.body(images)
        maps = OrderedDict(self._maps)
        self._maps.clear()
        result: OrderedDict[str, Tensor] = self.fpn(maps)
        return result

    def train(self, mode: bool = True) -> "Pyramid":
        super().train(mode)
        if self.frozen_norms:
            for norm in self._norms():
                norm.eval()
        return self

    def _norms(self) -> Iterator[nn.Module]:
        return (module for module in self.body.modules() if isinstance(module, AnyBatchNorm))


def _layer(chosen: DetectionModel) -> Callable[[int], nn.Module] | None:
    """Return a function that builds the norm of so many channels."""
    return (
        (lambda channels: nn.GroupNorm(gcd(GROUPS, channels), channels)) if chosen.norm == "group" else None
    )


class NormedBoxHead(nn.Sequential):
    """torchvision's TwoMLPHead with a layer norm, which is a group norm of one group, after each layer.

    Shape:
        `(R, C, 7, 7)` to `(R, representation)`.
    """

    def __init__(self, width: int, representation: int) -> None:
        super().__init__(
            nn.Flatten(1),
            *(nn.Linear(width, representation, bias=False), nn.LayerNorm(representation), nn.ReLU()),
            *(nn.Linear(representation, representation, bias=False), nn.LayerNorm(representation), nn.ReLU()),
        )


def _to_float32(module: nn.Module, args: Any, output: Any) -> Any:
    """Convert the output of a head to float32. Coordinates in bfloat16 are pixels apart."""
    low = (torch.bfloat16, torch.float16)
    return tree_map(lambda value: value.float() if value.dtype in low else value, output)


class NoResizeTransform(GeneralizedRCNNTransform):
    """Transform that normalises and pads images but does not resize them.

    Attributes:
        canvas: Minimum side to which each image is padded in evaluation [pixels].
    """

    canvas: int = 0

    def max_by_axis(self, the_list: list[list[int]]) -> list[int]:
        channels, *sides = super().max_by_axis(the_list)
        return [channels, *(side if self.training else max(side, self.canvas) for side in sides)]

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        return image, target


def build_detector(chosen: DetectionModel, body: nn.Module, *, classes: int, canvas: int = 0) -> nn.Module:
    """Build a detector of `classes` kinds of objects, labelled from 1 on.

    It takes a list of images `(3, H, W)` with values from 0 to 1. In training it also takes `targets`, a
    dictionary of `boxes` `(N, 4)`, `labels` `(N,)` and `masks` `(N, H, W)` for each image, and returns its
    losses by name. In evaluation it returns a dictionary of `boxes`, `labels`, `scores` and `masks` for each
    image. Its sites on the pyramid are `fpn.p2` to `fpn.p5`.

    Args:
        chosen: The options of pyramid and heads.
        body: A classification model, which becomes the backbone.
        classes: Number of kinds of objects.
        canvas: Minimum side to which each image is padded in evaluation [pixels].

    Raises:
        InputError: The stages of the body are not sequences of blocks.
    """
    backbone = Pyramid(body, chosen)
    channels, representation, proposals = chosen.channels, chosen.representation, chosen.proposals
    box_head = TwoMLPHead if chosen.norm == "none" else NormedBoxHead
    options: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((chosen.anchor * 2**level,) for level in range(len(STRIDES) + 1)),
            (RATIOS,) * (len(STRIDES) + 1),
        ),
        "rpn_pre_nms_top_n_train": 2 * proposals,
        "rpn_post_nms_top_n_train": 2 * proposals,
        "rpn_pre_nms_top_n_test": proposals,
        "rpn_post_nms_top_n_test": proposals,
        "box_roi_pool": _regions(POOLED),
        "box_head": box_head(channels * POOLED**2, representation),
        "box_predictor": FastRCNNPredictor(representation, classes + 1),  # Label 0 is the background.
        "box_batch_size_per_image": chosen.regions,
        "box_detections_per_img": chosen.detections,
    }
    if chosen.masks:
        options["mask_roi_pool"] = _regions(MASK)
        options["mask_head"] = MaskRCNNHeads(channels, (channels,) * 4, 1, norm_layer=_layer(chosen))
        options["mask_predictor"] = MaskRCNNPredictor(channels, channels, classes + 1)
    model: Any = (MaskRCNN if chosen.masks else FasterRCNN)(backbone, **options)
    for head in (model.rpn.head, model.roi_heads.box_predictor):
        head.register_forward_hook(_to_float32)
    mean, std = (list(values) for values in find(chosen.backbone).normalisation)
    model.transform = NoResizeTransform(SIDE, SIDE, mean, std)
    model.transform.canvas = canvas
    model.site_names = {f"backbone.fpn.layer_blocks.{i}": f"fpn.p{i + 2}" for i in range(len(STRIDES))}
    module: nn.Module = model
    return module


def _regions(side: int) -> MultiScaleRoIAlign:
    """Return torchvision's pooling with fixed strides."""
    # torchvision would infer the strides from the maps and images of its first batch, and be wrong by a
    # factor of two if these are small and padded.
    names = [str(i) for i in range(len(STRIDES))]
    pooling = MultiScaleRoIAlign(featmap_names=names, output_size=side, sampling_ratio=2)
    pooling.scales = [1 / stride for stride in STRIDES]
    pooling.map_levels = LevelMapper(2, 5)  # p2 to p5
    return pooling


def _levels(body: nn.Module) -> Sequence[Site]:
    """Return the site of the last residual block at each stride."""
    maps = [site for site in sites(body, torch.empty(2, 3, SIDE, SIDE)) if site.layout == "BC*"]
    last = {s.stride: s for s in maps if ".block" in s.name and s.name.count(".") == 1}
    if not all(stride in last for stride in STRIDES):
        raise InputError(
            f"a feature pyramid needs a backbone with residual blocks at the strides "
            f"{', '.join(map(str, STRIDES))}; {type(body).__name__} has some at "
            f"{', '.join(map(str, sorted(last))) or 'none'}. Take xresnet50 or torchvision:resnet50"
        )
    return [last[stride] for stride in STRIDES]


def _stage(body: nn.Module, level: Site) -> str:
    """Return the path of the sequence that ends with a block and an inserted module after it."""
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


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a Mask R-CNN for images of 256 pixels, or of `size`."""
    size, chosen = size or 256, DetectionModel(backbone=backbone, options=options)
    if size % STRIDES[-1]:
        raise InputError(f"--size must be a multiple of {STRIDES[-1]} for a detector; got {size}")

    def example(count: int) -> Example:  # noise, so that the detector finds objects
        return list(torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0)))

    return Subject(
        name=backbone,
        build=lambda: build_detector(
            chosen, chosen.build(classes=2, size=size), classes=OBJECTS, canvas=size
        ),
        example=example,
        description=f"an image of {size}x{size} pixels: Mask R-CNN with {OBJECTS} kinds of objects",
        batch=2,
        loss=_detection_loss,
    )


def sum_losses(model: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
    """Return the sum of the losses of images and their objects, a scalar."""
    losses: dict[str, Tensor] = model(images, targets)
    return torch.stack([loss.float() for loss in losses.values()]).sum()


def _detection_loss(model: nn.Module, example: Example) -> Tensor:
    images = [image for image in example if isinstance(image, Tensor)]
    return sum_losses(model, images, [_target(image) for image in images])


def _target(image: Tensor) -> dict[str, Tensor]:
    side = image.shape[-1] // 2
    mask = torch.zeros(1, *image.shape[1:], dtype=torch.uint8, device=image.device)
    mask[:, :side, :side] = 1
    return {
        "boxes": torch.tensor([[0.0, 0.0, side, side]], device=image.device),
        "labels": torch.ones(1, dtype=torch.int64, device=image.device),
        "masks": mask,
    }
