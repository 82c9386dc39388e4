"""Semantic segmentation: the class of each pixel of an image."""

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
from automl.task.base import EvaluationBatch, RecordTask
from automl.task.deployment import Arrays, Deployment, read_usage, spread_indices
from automl.task.initial import initialise
from automl.task.subject import OBJECTS, Subject, image_subject
from automl.task.task_data import Split
from automl.tasks.segmentation import SPEC, SegmentationData, SegmentationModel, SegmentationTraining
from automl.tasks.segmentation.data import LabelledImages, open_labelled_images, shared_name
from automl.tasks.segmentation.model import STRIDES, UNet
from automl.tasks.segmentation.score import SegmentationEvaluator, segmentation_loss
from backbones import find
from backbones.libraries import Normalisation
from backbones.memory_format import find_crashing_layer, set_format
from search.config import Model, TrialConfig

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
