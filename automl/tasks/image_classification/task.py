"""Learning of classes, labels or numbers from images, with mixup and CutMix."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.base.options import advise_weights
from automl.base.units import pluralize
from automl.config.runtime import Runtime
from automl.data.augment import apply_policy, centre_crop, crop_boxes, draw_boxes, erase_boxes, normalise
from automl.data.pictures import SUFFIXES, cache_side, decode, is_picture
from automl.data.records import Records
from automl.task.base import EvaluationBatch
from automl.task.classification import Classification, spread_over_classes
from automl.task.deployment import Arrays, Deployment, read_usage, spread_indices
from automl.task.initial import initialise
from automl.task.task_data import ShownInputs, Split
from automl.tasks.image_classification import SPEC, ImageData, ImageTraining
from automl.tasks.image_classification.data import (
    SOURCES,
    Images,
    open_image_records,
    open_split,
    shared_name,
)
from automl.tasks.image_classification.data.feed import Feed, apply_cutmix
from automl.tasks.image_classification.targets import NAMED, ImageClasses, ImageTarget
from backbones import IMAGENET, Normalisation, find
from backbones.channels import set_format
from backbones.take_over import is_inserted
from backbones.torch_internals import AnyBatchNorm
from search.config import TrialConfig

CLASSES = ImageClasses()
FEW = 1000  # training images, below which random weights learn little
LABELLED = 64  # raw images in a batch of `labelled_inputs`

REQUEST = """
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
image = ImageOps.fit(photo, ({size}, {size}), Image.Resampling.BILINEAR)
inputs = {{"images": np.asarray(image)[None].tolist()}}  # one image, uint8, 0 to 255
"""


@lru_cache(maxsize=8)
def load_images(data: ImageData, split: Split) -> Images:
    """Return the images of a split, loaded once in a process."""
    return open_split(
        data.source, split, path=data.path, size=data.size, side=cache_side(data.size), subset=data.subset
    )


@lru_cache(maxsize=1)
def feed_cache(data: ImageData, device: torch.device, memory_fraction: float) -> dict[Split, Feed]:
    """Return the open feeds of one dataset at one size. The feeds of the previous dataset are dropped."""
    return {}


def open_feed(data: ImageData, split: Split, device: torch.device, memory_fraction: float) -> Feed:
    """Return the feed that copies a split to the device. All trials of a process share one copy."""
    open_feeds = feed_cache(data, device, memory_fraction)
    if split not in open_feeds:
        open_feeds[split] = Feed(load_images(data, split), device, memory_fraction)
    return open_feeds[split]


class ImageClassification(Classification[ImageData, ImageTraining]):
    """Prediction of the classes, labels or numbers of images."""

    target: ImageTarget

    spec = SPEC
    noun = "images"
    images = True
    suffixes = SUFFIXES

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        # Drops the feeds of another dataset before free memory is measured.
        feed_cache(self.data_of(config), runtime.device, runtime.memory_fraction)
        super().__init__(config, runtime)
        self.train = load_images(self.data, "train")
        self.photographs = SOURCES[self.data.source].flip
        self.normalisation = find(self.chosen.backbone).normalisation

    def opened(self, split: Split) -> Images:
        return load_images(self.data, split)

    def find_target(self) -> ImageTarget:
        train = load_images(self.data, "train")
        return train.target.scaled(train.values)

    def targets(self, split: Split) -> Tensor:
        images = load_images(self.data, split)
        return images.labels if self.labels else images.values

    def describe_data(self) -> str:
        summary = self.target.summary(self.train.values)
        return "; ".join(filter(None, [super().describe_data(), summary]))

    @classmethod
    def records(cls, config: TrialConfig) -> Records[Any]:
        data = cls.data_of(config)
        return open_image_records(data.source, path=data.path, size=data.size, subset=data.subset)

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str:
        data = cls.data_of(config)
        return shared_name(data.source, data.path, data.size)

    def model(self) -> nn.Module:
        check, size, classes = self.check(), self.data.size, len(self.target.names)
        model = self.placed(self.plain, lambda: torch.empty(2, 3, size, size), size, classes)
        return set_format(model, check.memory_format)

    def plain(self) -> nn.Module:
        return self.chosen.build(classes=len(self.target.names), size=self.data.size)

    def initialise(self, model: nn.Module) -> list[str]:
        return initialise(model, self.chosen, classes=len(self.target.names), size=self.data.size)

    def set_training(self, model: nn.Module) -> None:
        super().set_training(model)
        if self.size("train") < self.training.frozen_norms_below:
            for path, module in model.named_modules():
                if isinstance(module, AnyBatchNorm) and not is_inserted(path):
                    module.eval()

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield `(x, y)`, or for mixed images `(x, y, z, weight)`, with both targets and the weight of the
        first. Only images whose target can be mixed are.

        All random numbers are drawn for the global batch, equally by every worker. Each then computes its own
        rows.
        """
        training, runtime = self.training, self.runtime
        steps, batch = self.steps(), self.batch_size
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(self.train), generator=generator)[: steps * batch]
        boxes = draw_boxes(
            self.train.aspect[order],
            scale=SOURCES[self.data.source].least_crop,
            flip=self.photographs if training.flip is None else training.flip,
            generator=generator,
        )
        own = runtime.shard(torch.arange(batch))
        rows = own.expand(steps, -1)  # the images that this worker needs for each batch
        mix: tuple[Tensor, ...] = ()
        boxed = [False] * steps  # True for batches that CutMix mixes
        if self.target.mixes and (training.mixup > 0 or training.cutmix > 0):
            if training.cutmix > 0:
                boxed = (torch.rand(steps, generator=generator) < (0.5 if training.mixup > 0 else 1)).tolist()
            draws = [
                draw_mixup(batch, training.cutmix if is_cutmix else training.mixup, generator)
                for is_cutmix in boxed
            ]
            other, weight = (torch.stack(tensor)[:, own] for tensor in zip(*draws, strict=True))
            if runtime.workers > 1:  # the second image may be another worker's
                rows = torch.cat([rows, other], dim=1)
                other = torch.arange(len(own), 2 * len(own)).expand(steps, -1)
            mix = other.to(runtime.device), weight.to(runtime.device)
            if any(boxed):
                mix += (torch.rand(steps, batch, 2, generator=generator)[:, own].to(runtime.device),)
        seeds = None
        if training.policy != "none" or training.erasing > 0:
            drawn = torch.randint(2**31, (steps, batch), generator=generator)
            seeds = drawn[torch.arange(steps)[:, None], rows]  # equal for an image in every worker
        picked = order.view(steps, batch).gather(1, rows)  # (steps, rows)
        targets = self.targets("train")[picked].to(runtime.device)
        boxes = boxes.view(steps, batch, 4)[torch.arange(steps)[:, None], rows].to(runtime.device)
        source = open_feed(self.data, "train", runtime.device, runtime.memory_fraction)
        for i, raw in enumerate(source(picked.unbind())):
            if seeds is not None and training.policy != "none":
                raw = apply_policy(training.policy, raw, seeds[i])
            x, y = crop_boxes(raw, boxes[i], self.data.size, self.normalisation), targets[i]
            if seeds is not None and training.erasing > 0:
                x = erase_boxes(x, seeds[i], training.erasing)
            if not mix:
                yield x, y
            elif boxed[i]:
                yield apply_cutmix(x, y, *(tensor[i] for tensor in mix))
            else:
                yield mixup(x, y, mix[0][i], mix[1][i])

    def notes(self) -> Sequence[str]:
        if not self.photographs or self.chosen.weights:
            return super().notes()
        images = self.size("train")
        few = (
            f"; expect scores near chance with {pluralize(images, 'training images')}" if images < FEW else ""
        )
        note = (
            f"weights   random{few}. Pretrained ones score higher (docs/how-to/pretrained-weights.md): "
            f"{advise_weights(self.chosen.backbone)}"
        )
        return [*super().notes(), note]

    def example(self, count: int) -> Tensor:
        side = self.data.size
        x = torch.zeros(count, 3, side, side, device=self.runtime.device)
        return x.to(memory_format=torch.channels_last)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        data, targets, runtime = load_images(self.data, split), self.targets(split), self.runtime
        order = runtime.shard(torch.arange(len(data))).split(2 * self.training.batch_size)
        source = open_feed(self.data, split, runtime.device, runtime.memory_fraction)
        for index, raw in zip(order, source(order), strict=True):
            x = centre_crop(raw, data.aspect[index], self.data.size)
            own = targets[index].to(runtime.device, non_blocking=True)
            yield EvaluationBatch(index, normalise(x, self.normalisation), own)

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the graph from bytes `(N, size, size, 3)` to probabilities or numbers `(N, outputs)`."""
        size = self.data.size
        example = torch.zeros(2, size, size, 3, dtype=torch.uint8, device=self.runtime.device)
        return Deployment(
            module=ImageAnswers(model, self.normalisation, self.target),
            inputs={"images": example},
            outputs=[self.target.output],
            labels=self.labels,
            details={} if self.labels else {"target": self.target.kind, "names": list(self.target.names)},
        )

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        return super().compare(ours, theirs) / self.target.unit

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the class, the labels or the number of one image."""
        if not (details := exported["details"]):
            return super().describe(exported, outputs)
        target = NAMED[details["target"]](names=tuple(details["names"]))
        return target.show(next(iter(outputs.values())))

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Return centre crops as bytes, `(count, size, size, 3)`."""
        return {"images": self._crops(split, spread_indices(self.size(split), count))}

    def shown_inputs(self, count: int) -> ShownInputs:
        data = load_images(self.data, "test")
        index = spread_over_classes(data.labels, count)
        images = self._crops("test", index)
        return ShownInputs(
            inputs=normalise(images, self.normalisation),
            pictures=list(images.cpu().numpy()),
            names=data.captions(index.tolist()),
        )

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        data = load_images(self.data, split)
        for index in torch.arange(len(data)).split(LABELLED):
            yield {"images": self._crops(split, index)}, data.labels[index].to(self.runtime.device)

    def _crops(self, split: Split, index: Tensor) -> Tensor:
        data = load_images(self.data, split)
        return centre_crop(data.gather(index), data.aspect[index], self.data.size).to(self.runtime.device)

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read image files of any size, prepared like validation images."""
        size = exported["config"]["data"]["size"]
        for path in paths:
            yield str(path), {"images": read_image(path, size)}

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        return {split: load_images(self.data, split).file.path for split in splits}

    def describe_changes(self) -> str:
        train, validation = self.train, load_images(self.data, "validation")
        return str(train.listed + train.file.tally + validation.file.tally)

    @classmethod
    def reads(cls, file: Path) -> bool:
        return is_picture(file)

    def usage(self) -> str:
        return read_usage(__file__).format(size=self.data.size, **self.target.usage())

    def request(self) -> str:
        return REQUEST.format(size=self.data.size)


class ImageAnswers(nn.Module):
    """Normalisation, model and the target's answers in one graph, so that users cannot normalise wrongly."""

    def __init__(
        self, model: nn.Module, normalisation: Normalisation = IMAGENET, target: ImageTarget = CLASSES
    ) -> None:
        super().__init__()
        self.model, self.normalisation, self.target = model, normalisation, target

    def forward(self, images: Tensor) -> Tensor:
        return self.target.answer(self.model(normalise(images, self.normalisation)))


def read_image(path: str | Path, size: int) -> np.ndarray:
    """Read an image as the deployed model takes it, `(1, size, size, 3)`. Raises InputError if it is none."""
    try:
        squashed, aspect = decode(path, cache_side(size))
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    return centre_crop(torch.tensor(squashed)[None], torch.tensor([aspect]), size).numpy()


def draw_mixup(count: int, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw, for each image of a batch of `count`, the image to mix it with and its own weight, 1/2 to 1.

    Source: H. Zhang et al., mixup (2017), arXiv 1710.09412. As in fastai, each image has its own weight from
    Beta(alpha, alpha), and the larger weight is its own.
    """
    # torch's own distributions take no generator.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    own = np.random.default_rng(seed).beta(alpha, alpha, count)
    weight = torch.from_numpy(np.maximum(own, 1 - own)).float()
    return torch.randperm(count, generator=generator), weight


def mixup(x: Tensor, y: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mix each of the first `len(weight)` images with that at `other`: `(mixed, y, other's y, weight)`."""
    factor = weight.view(-1, *[1] * (x.ndim - 1))
    own = slice(len(weight))
    return factor * x[own] + (1 - factor) * x[other], y[own], y[other], weight
