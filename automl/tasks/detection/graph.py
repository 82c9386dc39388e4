"""A trained detector as a graph of fixed shapes, for torch.export and ONNX.

It returns the detections of torchvision's detector in evaluation. There the shapes depend on the number of
detections. Here the numbers of proposals and detections are fixed, and missing ones have a score of 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou, roi_align

from automl.tasks.detection.model import MASK
from backbones.libraries import Normalisation
from backbones.torch_internals import scan

# Maximum number of boxes of an image, one for each category, from which detections are selected.
CANDIDATES = 1000
RPN_LEAST, BOX_LEAST = 1e-3, 1e-2  # Minimum side of a box [pixels].


class Boxes(NamedTuple):
    """Boxes with scores.

    Attributes:
        boxes: Corners `(N, K, 4)`.
        scores: Scores `(N, K)`, minus infinity for missing boxes.
    """

    boxes: Tensor
    scores: Tensor


class DetectorGraph(nn.Module):
    """Detector with outputs of fixed shapes.

    Args:
        detector: A detector of `build_detector`.
        canvas: Side S of the padded images, a multiple of 32 [pixels].

    Shape:
        - images: uint8 `(N, S, S, 3)`, padded with any values
        - sizes: int64 `(N, 2)`, height and width
        - boxes: `(N, D, 4)`, corners in pixels. D is the maximum number of detections
        - labels: int64 `(N, D)`, from 1 on
        - scores: `(N, D)`, in falling order, 0 where there is no detection
        - masks, of Mask R-CNN: `(N, D, 28, 28)`, probabilities from corner to corner of a box
    """

    anchors: Tensor

    def __init__(self, detector: Any, canvas: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.backbone: Any = detector.backbone
        self.rpn: Any = detector.rpn
        self.roi_heads: Any = detector.roi_heads
        self.canvas, self.normalisation = canvas, normalisation
        self.has_masks = self.roi_heads.has_mask()
        image = next(detector.parameters()).new_zeros(1, 3, canvas, canvas)
        with torch.no_grad():
            maps = list(detector.eval().backbone(image).values())
            anchors = self.rpn.anchor_generator(ImageList(image, [(canvas, canvas)]), maps)[0]
        self.counts = [
            level.shape[2] * level.shape[3] * per
            for level, per in zip(maps, self.rpn.anchor_generator.num_anchors_per_location(), strict=True)
        ]
        self.register_buffer("anchors", anchors.clone(), persistent=False)

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        """Return boxes, labels, scores and, for Mask R-CNN, masks."""
        x = self._normalise(images, sizes)
        maps = list(self.backbone(x).values())
        proposals = self._proposals(maps, sizes)
        boxes, labels, scores = self._detections(maps, proposals, sizes)
        if not self.has_masks:
            return boxes, labels, scores
        return boxes, labels, scores, self._masks(maps, boxes, labels)

    def _normalise(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Return normalised images with zeros beyond the size of each."""
        x = images.permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in self.normalisation)
        positions = torch.arange(self.canvas, device=x.device)
        rows, columns = (positions < side.unsqueeze(1) for side in sizes.unbind(1))  # (N, S)
        return (x - mean) / std * (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1).float()

    def _proposals(self, maps: Sequence[Tensor], sizes: Tensor) -> Boxes:
        rpn = self.rpn
        logits, deltas = rpn.head(list(maps))
        anchors = self.anchors.split(self.counts)
        levels = []
        for level in range(len(maps)):
            score = logits[level].permute(0, 2, 3, 1).flatten(1)  # (N, anchors)
            delta = _by_anchor(deltas[level], 4)
            score, chosen = score.topk(min(rpn.pre_nms_top_n(), self.counts[level]), dim=1)
            delta = delta.gather(1, chosen.unsqueeze(2).expand(-1, -1, 4))
            boxes = _decode(rpn.box_coder, delta, anchors[level][chosen])
            boxes = _clip(boxes, sizes)
            # Logits and their sigmoids give proposals the same order.
            score = score.sigmoid()
            score = score.masked_fill(~_has_area(boxes, RPN_LEAST), -torch.inf)
            levels.append(Boxes(boxes, _suppress(boxes, score, None, rpn.nms_thresh)))
        boxes, scores = (torch.cat(values, 1) for values in zip(*levels, strict=True))
        return _best(Boxes(boxes, scores), min(rpn.post_nms_top_n(), scores.shape[1]))[0]

    def _detections(
        self, maps: Sequence[Tensor], proposals: Boxes, sizes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.roi_heads
        count = proposals.boxes.shape[1]
        logits, deltas = heads.box_predictor(
            heads.box_head(_pooled(heads.box_roi_pool, maps, proposals.boxes))
        )
        classes = logits.shape[1]
        scores = logits.softmax(1).view(-1, count, classes)[:, :, 1:]  # without the background
        deltas = deltas.view(-1, count, classes, 4)[:, :, 1:].flatten(1, 2)
        scores = scores.masked_fill(proposals.scores.isinf().unsqueeze(2), -torch.inf).flatten(1)
        most = min(CANDIDATES, scores.shape[1])
        scores, chosen = scores.masked_fill(scores <= heads.score_thresh, -torch.inf).topk(most, dim=1)
        labels = chosen % (classes - 1) + 1
        proposal = (chosen // (classes - 1)).unsqueeze(2).expand(-1, -1, 4)
        deltas = deltas.gather(1, chosen.unsqueeze(2).expand(-1, -1, 4))
        boxes = _clip(_decode(heads.box_coder, deltas, proposals.boxes.gather(1, proposal)), sizes)
        scores = scores.masked_fill(~_has_area(boxes, BOX_LEAST), -torch.inf)
        kept = _suppress(boxes, scores, labels, heads.nms_thresh)
        best, order = _best(Boxes(boxes, kept), min(heads.detections_per_img, most))
        exists = ~best.scores.isinf()
        return (
            best.boxes * exists.unsqueeze(2),
            labels.gather(1, order) * exists,
            best.scores.masked_fill(~exists, 0.0),
        )

    def _masks(self, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
        heads = self.roi_heads
        logits = heads.mask_predictor(heads.mask_head(_pooled(heads.mask_roi_pool, maps, boxes)))
        own = labels.flatten().view(-1, 1, 1, 1).expand(-1, 1, 2 * MASK, 2 * MASK)
        y: Tensor = logits.gather(1, own).sigmoid().view(-1, boxes.shape[1], 2 * MASK, 2 * MASK)
        return y


def _by_anchor(values: Tensor, each: int) -> Tensor:
    """Reshape `(N, anchors of a position * each, H, W)` to `(N, anchors, each)`, in torchvision's order."""
    _, channels, height, width = values.shape
    split = values.view(-1, channels // each, each, height, width)
    return split.permute(0, 3, 4, 1, 2).reshape(-1, height * width * (channels // each), each)


def _decode(coder: Any, deltas: Tensor, anchors: Tensor) -> Tensor:
    """Return the boxes `(N, K, 4)` that torchvision computes from `deltas` and `anchors`."""
    boxes: Tensor = coder.decode_single(deltas.reshape(-1, 4), anchors.reshape(-1, 4))
    return boxes.view(-1, deltas.shape[1], 4)


def _clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Clip boxes to the image."""
    most = sizes.flip(1).repeat(1, 2).unsqueeze(1).to(boxes.dtype)  # width, height, width, height
    return torch.minimum(boxes.clamp(min=0), most)


def _has_area(boxes: Tensor, least: float) -> Tensor:
    return ((boxes[..., 2:] - boxes[..., :2]) >= least).all(-1)


def _best(candidates: Boxes, count: int) -> tuple[Boxes, Tensor]:
    """Return the `count` boxes of the highest scores, and their indices `(N, count)`."""
    scores, order = candidates.scores.topk(count, dim=1)
    return Boxes(candidates.boxes.gather(1, order.unsqueeze(2).expand(-1, -1, 4)), scores), order


def _suppress(boxes: Tensor, scores: Tensor, labels: Tensor | None, threshold: float) -> Tensor:
    """Return the scores `(N, K)` with minus infinity for boxes that overlap a better one."""
    # Non-maximum suppression: a suppressed box does not suppress others. The scores must be in falling order.
    # With `labels`, only boxes of the same label suppress each other.
    near = box_iou(boxes, boxes) > threshold  # (N, K, K)
    if labels is not None:
        near &= labels.unsqueeze(2) == labels.unsqueeze(1)
    count = boxes.shape[1]
    near = near & torch.ones(count, count, dtype=torch.bool, device=boxes.device).triu(1)
    each = near.permute(1, 0, 2).to(boxes.dtype)  # (K, N, K): later boxes that box k suppresses
    own = torch.eye(count, dtype=boxes.dtype, device=boxes.device)

    def step(suppressed: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        later, this = inputs
        kept = 1 - (suppressed * this).sum(1, keepdim=True)  # (N, 1)
        return torch.maximum(suppressed, kept * later), kept.clone()

    start = scores.masked_fill(~scores.isinf(), 0.0).masked_fill(scores.isinf(), 1.0)
    kept = scan(step, start, (each, own))[1]  # (K, N, 1)
    return scores.masked_fill(kept.squeeze(2).transpose(0, 1) < 0.5, -torch.inf)


def _pooled(pool: Any, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Pool each box for the heads, `(N * K, C, side, side)`, from the level that fits its size."""
    images, count = boxes.shape[0], boxes.shape[1]
    flat = boxes.reshape(-1, 4)
    number = torch.arange(images, device=boxes.device).repeat_interleave(count).to(boxes.dtype)
    regions = torch.cat([number.unsqueeze(1), flat], 1)
    level = pool.map_levels([flat])
    pooled = [
        roi_align(maps[i], regions, pool.output_size, scale, pool.sampling_ratio)
        * (level == i).to(boxes.dtype).view(-1, 1, 1, 1)
        for i, scale in enumerate(pool.scales)
    ]
    return torch.stack(pooled).sum(0)
