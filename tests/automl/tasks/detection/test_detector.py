"""Detectors equal torchvision's for any backbone, and accept attention in it and on the pyramid."""

from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

import backbones
from attention import Gated, Spec
from automl.tasks.detection import DetectionModel
from automl.tasks.detection.model import build_detector
from backbones import insert
from tests.helpers import others_slow

SIDE = 96
WIDTH, PROPOSALS, RATIOS = 16, (("train", 100), ("test", 50)), (0.5, 1.0, 2.0)  # Sizes for a short pass.
NARROW = {"channels": WIDTH, "representation": 32, "proposals": 50, "regions": 16}


def body(name: str = "torchvision:resnet18", **options: Any) -> nn.Module:
    return backbones.build(name, classes=5, size=SIDE, **options)


def small(name: str = "xresnet18", **options: Any) -> nn.Module:
    """Return a detector whose pass takes a few hundredths of a second."""
    torch.manual_seed(0)
    backbone_options = {"width": 0.25} if name == "xresnet18" else {}
    chosen = DetectionModel(detections=20, anchor=12, **{**NARROW, **options})
    return build_detector(chosen, body(name, **backbone_options), classes=4)


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, SIDE, SIDE, generator=generator) for _ in range(2)]


def targets() -> list[dict[str, Tensor]]:
    boxes = torch.tensor([[10.0, 12, 50, 60], [40, 30, 90, 80]])
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    for i, (left, top, right, bottom) in enumerate(boxes.int().tolist()):
        masks[i, top:bottom, left:right] = 1
    first = {"boxes": boxes, "labels": torch.tensor([1, 3]), "masks": masks}
    second = {"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.int64), "masks": masks[:0]}
    return [first, second]


def reference(masks: bool) -> nn.Module:
    """Build a detector as in torchvision's documentation, over another backbone and with narrow heads."""
    levels = {f"layer{i + 1}": str(i) for i in range(4)}
    backbone = BackboneWithFPN(torchvision.models.resnet18(), levels, [64, 128, 256, 512], WIDTH)
    options: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(tuple((a,) for a in (32, 64, 128, 256, 512)), (RATIOS,) * 5),
        "box_head": TwoMLPHead(WIDTH * 49, 32),
        "box_predictor": FastRCNNPredictor(32, 5),
        "box_batch_size_per_image": 16,
        **{f"rpn_{when}_nms_top_n_{mode}": n for when in ("pre", "post") for mode, n in PROPOSALS},
    }
    if masks:
        options["mask_head"] = MaskRCNNHeads(WIDTH, (WIDTH,) * 4, 1)
        options["mask_predictor"] = MaskRCNNPredictor(WIDTH, WIDTH, 5)
    # `_skip_resize` and equal sizes avoid random resizing in training and resizing in evaluation.
    kind = MaskRCNN if masks else FasterRCNN
    model: nn.Module = kind(backbone, min_size=SIDE, max_size=SIDE, _skip_resize=True, **options)
    return model


def test_default_weights_match_torchvisions() -> None:
    with torch.device("meta"):
        expected = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).state_dict()
    state = build_detector(DetectionModel(), body("torchvision:resnet50"), classes=4).state_dict()
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in expected.items()}


@pytest.mark.parametrize("masks", others_slow([True, False], True), ids=["masks", "boxes"])
def test_losses_and_detections_equal_torchvisions(masks: bool) -> None:
    torch.manual_seed(0)
    expected_model = reference(masks).double()
    model_under_test = build_detector(DetectionModel(masks=masks, **NARROW), body(), classes=4).double()
    model_under_test.load_state_dict(expected_model.state_dict())  # The names are equal.
    outcomes: list[Any] = []
    for model in (model_under_test, expected_model):
        batch = [image.double() for image in images()]
        answers = [{**t, "boxes": t["boxes"].double()} for t in targets()]
        torch.manual_seed(3)  # Anchors and proposals for training are drawn at random.
        losses = model.train()(batch, answers)
        sum(losses.values()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        with torch.no_grad():
            outcomes.append((losses, gradients, model.eval()(batch)))
    (losses, gradients, detections), (expected_losses, expected_gradients, expected_detections) = outcomes
    assert set(losses) == set(expected_losses)
    assert "loss_mask" in losses or not masks
    torch.testing.assert_close(dict(losses), dict(expected_losses), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-8, atol=1e-8)
    assert len(detections[0]["boxes"]) > 0
    torch.testing.assert_close(detections, expected_detections, rtol=1e-8, atol=1e-8)


EVERYWHERE = {
    **{f"fpn.p{level}": Spec("decomposed") for level in (2, 3, 4, 5)},
    "stage2.block2": Spec("ssa"),
    "stage3.block2": Spec("sagan"),
}


@pytest.mark.parametrize("norm", others_slow(["none", "group"], "none"))
def test_zero_gates_change_nothing(norm: str) -> None:
    plain, model = small(norm=norm), small(norm=norm)
    insert(model, EVERYWHERE, images())
    assert sum(isinstance(module, Gated) for module in model.modules()) == len(EVERYWHERE)
    outcomes = []
    for detector in (plain, model):
        torch.manual_seed(2)
        losses = detector.train()(images(), targets())
        with torch.no_grad():
            outcomes.append((dict(losses), detector.eval()(images())))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


def test_an_open_gate_changes_the_feature_maps() -> None:
    model, x = small().eval(), torch.stack(images())
    before = model.backbone(x)
    insert(model, EVERYWHERE, images())
    for module in model.modules():
        if isinstance(module, Gated):
            nn.init.ones_(module.gamma)
            after = model.backbone(x)
            assert any(not torch.equal(before[name], after[name]) for name in before), module.site
            nn.init.zeros_(module.gamma)


def test_thin_boxes_have_finite_losses_in_low_precision() -> None:
    """In bfloat16 both edges of such a box would be at one position, and its loss NaN."""
    thin = targets()
    thin[0]["boxes"] = torch.tensor([[85.2, 12, 85.6, 60], [40, 30, 90, 80]])
    torch.manual_seed(0)
    model = small(proposals=200).train()
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(images(), thin)
        assert all(torch.isfinite(loss) and loss.dtype == torch.float32 for loss in losses.values())
