"""Semantic segmentation: the class of each pixel of an image.

Pixels labelled IGNORE are not counted. Means over classes are over those that have pixels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.base.loading import is_user_defined
from automl.config.runtime import Runtime
from automl.data.augment import crop_boxes, draw_boxes, normalise, resample
from automl.data.pictures import SUFFIXES, open_picture
from automl.storage.trial_files import Answers
from automl.task.base import EvaluationBatch, RecordTask
from automl.task.deployment import Arrays, Deployment, read_usage, spread_indices
from automl.task.evaluator import Evaluator
from automl.task.initial import initialise
from automl.task.subject import OBJECTS, Subject, image_subject
from automl.task.task_data import Split
from automl.tasks.segmentation import SPEC, SegmentationData, SegmentationModel, SegmentationTraining
from automl.tasks.segmentation.data import IGNORE, LabelledImages, open_labelled_images, shared_name
from automl.tasks.segmentation.model import STRIDES, UNet
from backbones import find
from backbones.channels import find_crashing_layer, set_format
from backbones.libraries import Normalisation
from search.class_statistics import pseudo_values
from search.config import Model, TrialConfig


def segmentation_loss(logits: Tensor, truth: Tensor, runtime: Runtime) -> Tensor:
    """Return cross-entropy plus Dice loss of logits `(B, C, H, W)` and labels `(B, H, W)`, a scalar.

    It is computed over the pixels of all workers, and the mean of the workers' gradients is its gradient.
    Source of the Dice loss: F. Milletari et al., V-Net (2016), arXiv 1606.04797, here without squares.
    """
    hot = truth[:, None] == torch.arange(logits.shape[1], device=truth.device).view(-1, 1, 1)
    log_p = logits.log_softmax(1)
    p = log_p.exp() * (truth != IGNORE)[:, None]
    local = torch.stack([term.sum((0, 2, 3)) for term in (-log_p * hot, p * hot, p, hot.to(p.dtype))])
    total = runtime.total(local.detach().clone()) + runtime.workers * (local - local.detach())
    surprise, overlap, answered, true = total
    dice = _mean(
        2 * overlap / (answered + true).clamp(min=1), true
    ).nan_to_num()  # NaN if no pixel is counted
    y: Tensor = surprise.sum() / true.sum().clamp(min=1) + 1 - dice
    return y


def pixel_metrics(counts: Tensor) -> dict[str, Tensor]:
    """Return metrics `(...)` from right, true and answered pixels per class, `(..., 3, classes)`."""
    right, true, answered = counts.unbind(-2)
    return {
        "miou": _mean(right / (true + answered - right), true),
        "pixel_accuracy": right.sum(-1) / true.sum(-1),
        "dice": _mean(2 * right / (true + answered), true),
    }


def _mean(values: Tensor, true: Tensor) -> Tensor:
    return values.where(true > 0, 0.0).sum(-1) / (true > 0).sum(-1)


class SegmentationEvaluator(Evaluator):
    """Evaluator of the classes of pixels.

    The metrics are `miou` (mean intersection over union of the classes), `dice` (their mean Dice score) and
    `pixel_accuracy`. All are over the pixels of the whole split together. `metric` is the one whose values
    `answers` has.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.counts: list[Tensor] = []  # for each image, as in `pixel_metrics`

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits `(B, classes, H, W)` and labels `(B, H, W)`."""
        size, answered, is_counted = outputs.shape[:2], outputs.argmax(1), targets != IGNORE
        first = size[1] * torch.arange(size[0], device=targets.device).view(-1, 1, 1)
        pairs = (targets, is_counted & (answered == targets)), (targets, is_counted), (answered, is_counted)
        counts = [
            (labels + first)[selected].bincount(minlength=size.numel()).view(size)
            for labels, selected in pairs
        ]
        self.counts.append(torch.stack(counts, 1).double())

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        return pixel_metrics(runtime.total(torch.cat(self.counts).sum(0)))

    def answers(self, runtime: Runtime) -> Answers:
        """Return the pseudo-value of each image, from the metric without it."""
        gathered = runtime.gather((torch.cat(list(self.index)).cpu(), torch.cat(self.counts).cpu()))
        index, counts = (torch.cat(list(tensors)) for tensors in zip(*gathered, strict=True))
        total = counts.sum(0, keepdim=True)
        values = pixel_metrics(torch.cat([total, total - counts[index.argsort()]]))[self.metric].numpy()
        return Answers(values=pseudo_values(np.nan_to_num(values), np.isfinite(values)))


REQUEST = """
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
image = np.asarray(photo.resize(({size}, {size}), Image.Resampling.BILINEAR))
inputs = {{"images": image[None].tolist()}}  # one image, uint8, 0 to 255
"""

# Pascal VOC's palette: the bits of a label, three at a time, are bits of the colour's channels, from the
# highest on.
_BITS = (np.arange(256)[:, None] >> np.arange(24)) & 1
PALETTE = (_BITS.reshape(256, 8, 3) << np.arange(7, -1, -1)[:, None]).sum(1).astype(np.uint8).tobytes()


class Segmentation(RecordTask[SegmentationData, SegmentationModel, SegmentationTraining]):
    """Segmentation with the metrics of `SegmentationEvaluator`. The primary one is `miou`."""

    spec = SPEC
    noun = "images"
    suffixes = SUFFIXES
    tolerance = 1e-3  # fraction of pixels for which rounding decides between two classes

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.images = self.records(config)
        self.normalisation = find(self.chosen.backbone).normalisation
        self.batch_size = self.shared_batch_size()

    def size(self, split: Split) -> int:
        return len(self.images.rows(split))

    @classmethod
    def records(cls, config: TrialConfig) -> LabelledImages:
        return open_labelled_images(cls.data_of(config))

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        return shared_name(cls.data_of(config))

    @property
    def labels(self) -> list[str]:
        return self.images.classes

    def model(self) -> nn.Module:
        sizes = {"classes": len(self.labels), "size": self.data.size}
        build = partial(self.chosen.build, **sizes)
        model = self.placed(build, lambda: self.example(2).cpu(), *sizes.values())
        is_contiguous = find_crashing_layer(model) or is_user_defined(self.chosen.backbone)
        return set_format(model, torch.contiguous_format if is_contiguous else torch.channels_last)

    def initialise(self, model: nn.Module) -> list[str]:
        sizes, chosen = {"classes": len(self.labels), "size": self.data.size}, self.chosen
        body = partial(Model.build, chosen, **sizes) if isinstance(model, UNet) else None
        return initialise(model, chosen, path="body", body=body, **sizes)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this worker's images and masks of a common order, equally cropped and mirrored."""
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(self.size("train"), generator=generator)[: self.steps() * self.batch_size]
        rows, crop = self._rows("train")[order], self.training.crop
        boxes = draw_boxes(self.images.aspect[rows], scale=crop, flip=self.training.flip, generator=generator)
        for step in torch.arange(len(rows)).view(-1, self.batch_size):
            own = self.runtime.shard(step)
            images, masks = self.images.tensors(rows[own], self.runtime.device)
            crops = resample(masks[:, None].float(), boxes[own], self.data.size, "nearest")[:, 0].long()
            yield crop_boxes(images, boxes[own], self.data.size, self.normalisation), crops

    def _rows(self, split: Split) -> Tensor:
        return torch.from_numpy(self.images.rows(split))

    def example(self, count: int) -> Tensor:
        return torch.zeros(count, 3, self.data.size, self.data.size, device=self.runtime.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        with torch.autocast(self.runtime.device.type, enabled=False):
            return segmentation_loss(logits.float(), batch[1], self.runtime)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        for index in self.runtime.shard(torch.arange(self.size(split))).split(self.training.batch_size):
            images, masks = self.images.tensors(self._rows(split)[index], self.runtime.device)
            yield EvaluationBatch(index, normalise(images, self.normalisation), masks.long())

    def evaluator(self, split: Split) -> SegmentationEvaluator:
        return SegmentationEvaluator(self.metric.name)

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the graph from bytes `(N, size, size, 3)` to labels `(N, size, size)`."""
        example = self.example(2).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        return Deployment(
            module=ClassMap(model, self.normalisation),
            inputs={"images": example},
            outputs=["classes"],
            details={"labels": self.labels, "size": self.data.size},
        )

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        rows = self._rows(split)[spread_indices(self.size(split), count)]
        return {"images": self.images.tensors(rows, self.runtime.device)[0]}

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the fraction of pixels with different classes in two forms."""
        return float((ours["classes"] != theirs["classes"]).mean())

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read image files of any size."""
        square = (exported["details"]["size"],) * 2
        for path in paths:
            image = open_picture(path).image.resize(square, Image.Resampling.BILINEAR)
            yield str(path), {"images": np.asarray(image)[None]}

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the fractions of the classes, the largest first."""
        names, counts = exported["details"]["labels"], np.bincount(outputs["classes"].ravel())
        fractions = {names[i]: float(counts[i] / counts.sum()) for i in (-counts).argsort() if counts[i]}
        return ", ".join(f"{name} ({fraction:.1%})" for name, fraction in fractions.items()), {
            "shares": fractions
        }

    @classmethod
    def write(cls, exported: Mapping[str, Any], name: str, outputs: Arrays, path: Path) -> list[Path]:
        """Write `PATH.png`, labels with a palette, and `PATH-overlay.png`, in the size of image `name`."""
        picture = open_picture(name).image
        mask = Image.fromarray(outputs["classes"]).resize(picture.size, Image.Resampling.NEAREST)
        mask.putpalette(PALETTE)
        files = [path.with_name(f"{path.name}{ending}.png") for ending in ("", "-overlay")]
        for image, file in zip((mask, Image.blend(picture, mask.convert("RGB"), 0.5)), files, strict=True):
            image.save(file)
        return files

    def usage(self) -> str:
        return read_usage(__file__).format(size=self.data.size, request=self.request())

    def request(self) -> str:
        return REQUEST.format(size=self.data.size)


class ClassMap(nn.Module):
    """Normalisation, model and argmax in one graph: uint8 `(N, H, W, 3)` to uint8 `(N, H, W)`."""

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.model, self.normalisation = model, normalisation

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(normalise(images, self.normalisation).contiguous())
        return logits.argmax(1).to(torch.uint8)


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a segmentation model for images of 256 pixels, or of `size`."""
    size, chosen = size or 256, SegmentationModel(backbone=backbone, options=options)
    if size % STRIDES[-1]:
        raise InputError(f"--size must be a multiple of {STRIDES[-1]} for segmentation; got {size}")
    return replace(
        image_subject(backbone, size, options),
        build=lambda: chosen.build(classes=OBJECTS, size=size),
        description=f"an image of {size}x{size} pixels, each of one of {OBJECTS} classes",
        images=False,
    )
