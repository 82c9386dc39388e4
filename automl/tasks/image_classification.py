"""Image classification: cross-entropy with label smoothing, class weights, mixup and CutMix."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attention import InputError
from automl.config.runtime import Runtime
from automl.data.images import (
    SOURCES,
    Images,
    open_image_records,
    open_split,
    shared_name,
)
from automl.data.images.decode import cache_side, decode
from automl.data.images.feed import Feed
from automl.data.images.image_augment import centre_crop, crop_boxes, draw_boxes, normalise
from automl.data.images.image_formats import SUFFIXES, is_picture
from automl.data.images.policy import apply_cutmix, make_erasing, make_policy
from automl.data.records import Records
from automl.tasks.base import EvaluationBatch, Split
from automl.tasks.classification import Classification
from automl.tasks.deployment import Deployment, spread_indices
from automl.tasks.initial import initialise
from backbones import IMAGENET, Normalisation, find
from backbones.memory_format import set_format
from backbones.torch_internals import standard_gamma
from search.config import TASKS, ImageData, ImageTraining, TrialConfig

LABELLED = 64  # raw images in a batch of `labelled_inputs`

USAGE = """Input `images`: uint8 RGB, shape `(N, {size}, {size}, 3)`, N from 1 on. Output `probabilities`:
float32, shape `(N, {classes})`. Normalisation is inside. Images of other sizes: cut the largest centred
square, resize it to {size} x {size}. Scale images of more than 8 bits to 8 first, as `automl predict` does.

```python
import json, numpy as np, onnxruntime
from PIL import Image, ImageOps

labels = json.load(open("config.json"))["labels"]
session = onnxruntime.InferenceSession("model.onnx")
photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
image = ImageOps.fit(photo, ({size}, {size}), Image.Resampling.BILINEAR)
probabilities = session.run(None, {{"images": np.asarray(image)[None]}})[0][0]
print(labels[probabilities.argmax()], probabilities.max())
```
"""

REQUEST = """
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
image = ImageOps.fit(photo, ({size}, {size}), Image.Resampling.BILINEAR)
inputs = {{"images": np.asarray(image)[None].tolist()}}  # one image, uint8, 0 to 255
"""


@lru_cache(maxsize=8)
def load_images(data: ImageData, split: Split) -> Images:
    """The images of a split. Opened once in a process, however many trials run in it."""
    return open_split(
        data.source, split, path=data.path, size=data.size, side=cache_side(data.size), subset=data.subset
    )


@lru_cache(maxsize=1)
def feed_cache(data: ImageData, device: torch.device, memory_fraction: float) -> dict[Split, Feed]:
    """The splits of one dataset at one size, as far as they were asked for; those of the last one go."""
    return {}


def open_feed(data: ImageData, split: Split, device: torch.device, memory_fraction: float) -> Feed:
    """The split on its way to the device; all trials of a process with these data have one copy there."""
    there = feed_cache(data, device, memory_fraction)
    if split not in there:
        there[split] = Feed(load_images(data, split), device, memory_fraction)
    return there[split]


LEAST_CROP = 0.35  # of a photograph's area, which a random crop keeps


class ImageClassification(Classification[ImageData, ImageTraining]):
    """Classes of images."""

    spec = TASKS["image-classification"]
    noun = "images"
    images = True
    suffixes = SUFFIXES

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        # Before anything asks how much memory is free.
        feed_cache(self.data_of(config), runtime.device, runtime.memory_fraction)
        super().__init__(config, runtime)
        self.train = load_images(self.data, "train")
        self.photographs = SOURCES[self.data.source].flip
        self.normalisation = find(self.chosen.backbone).normalisation

    def opened(self, split: Split) -> Images:
        return load_images(self.data, split)

    @classmethod
    def records(cls, config: TrialConfig) -> Records[Any]:
        data = cls.data_of(config)
        return open_image_records(data.source, path=data.path, size=data.size, subset=data.subset)

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str:
        data = cls.data_of(config)
        return shared_name(data.source, data.path, data.size)

    def model(self) -> nn.Module:
        check, size, classes = self.check(), self.data.size, len(self.labels)
        model = self.placed(self.plain, lambda: torch.empty(2, 3, size, size), size, classes)
        return set_format(model, check.memory_format)

    def plain(self) -> nn.Module:
        return self.chosen.build(classes=len(self.labels), size=self.data.size)

    def initialise(self, model: nn.Module) -> list[str]:
        return initialise(model, self.chosen, classes=len(self.labels), size=self.data.size)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """`(x, y)`, or where images are mixed `(x, y, z, weight)`: these, both labels, the first one's share.

        All numbers are drawn for the global batch, by every worker alike; each then makes its own rows.
        """
        training, runtime = self.training, self.runtime
        steps, batch = self.steps(), self.batch_size
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(self.train), generator=generator)[: steps * batch]
        boxes = draw_boxes(
            self.train.aspect[order],
            # Digits lose their meaning with the crops and mirror images that photographs bear.
            scale=LEAST_CROP if self.photographs else 0.7,
            flip=self.photographs if training.flip is None else training.flip,
            generator=generator,
        )
        mine = runtime.shard(torch.arange(batch))
        rows = mine.expand(steps, -1)  # what this worker looks at in each batch
        mix: tuple[Tensor, ...] = ()
        boxed = [False] * steps  # batches that CutMix mixes
        if training.mixup > 0 or training.cutmix > 0:
            if training.cutmix > 0:
                boxed = (torch.rand(steps, generator=generator) < (0.5 if training.mixup > 0 else 1)).tolist()
            draws = [
                draw_mixup(batch, training.cutmix if box else training.mixup, generator) for box in boxed
            ]
            other, share = (torch.stack(part)[:, mine] for part in zip(*draws, strict=True))
            if runtime.workers > 1:  # the other image may be another worker's
                rows = torch.cat([rows, other], dim=1)
                other = torch.arange(len(mine), 2 * len(mine)).expand(steps, -1)
            mix = other.to(runtime.device), share.to(runtime.device)
            if any(boxed):
                mix += (torch.rand(steps, batch, 2, generator=generator)[:, mine].to(runtime.device),)
        seeds = None
        if training.policy != "none" or training.erasing > 0:
            drawn = torch.randint(2**31, (steps, batch), generator=generator)
            seeds = drawn[torch.arange(steps)[:, None], rows]  # what an image becomes, in any worker
        picked = order.view(steps, batch).gather(1, rows)  # (steps, rows)
        labels = self.train.labels[picked].to(runtime.device)
        boxes = boxes.view(steps, batch, 4)[torch.arange(steps)[:, None], rows].to(runtime.device)
        source = open_feed(self.data, "train", runtime.device, runtime.memory_fraction)
        for i, raw in enumerate(source(picked.unbind())):
            if seeds is not None and training.policy != "none":
                raw = make_policy(training.policy)(raw, seeds[i])
            x, y = crop_boxes(raw, boxes[i], self.data.size, self.normalisation), labels[i]
            if seeds is not None and training.erasing > 0:
                x = make_erasing(training.erasing)(x, seeds[i])
            if not mix:
                yield x, y
            elif boxed[i]:
                yield apply_cutmix(x, y, *(part[i] for part in mix))
            else:
                yield mixup(x, y, mix[0][i], mix[1][i])

    def example(self, count: int) -> Tensor:
        side = self.data.size
        x = torch.zeros(count, 3, side, side, device=self.runtime.device)
        return x.to(memory_format=torch.channels_last)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        data, runtime = load_images(self.data, split), self.runtime
        order = runtime.shard(torch.arange(len(data))).split(2 * self.training.batch_size)
        source = open_feed(self.data, split, runtime.device, runtime.memory_fraction)
        for index, raw in zip(order, source(order), strict=True):
            x = centre_crop(raw, data.aspect[index], self.data.size)
            labels = data.labels[index].to(runtime.device, non_blocking=True)
            yield EvaluationBatch(index, normalise(x, self.normalisation), labels)

    def deployment(self, model: nn.Module) -> Deployment:
        """Bytes `(N, size, size, 3)` to probabilities `(N, classes)`."""
        size = self.data.size
        example = torch.zeros(2, size, size, 3, dtype=torch.uint8, device=self.runtime.device)
        return Deployment(
            module=Probabilities(model, self.normalisation),
            inputs={"images": example},
            outputs=["probabilities"],
            labels=self.labels,
        )

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Centre crops as bytes, `(count, size, size, 3)`."""
        return {"images": self._crops(split, spread_indices(self.size(split), count))}

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        data = load_images(self.data, split)
        for index in torch.arange(len(data)).split(LABELLED):
            yield {"images": self._crops(split, index)}, data.labels[index].to(self.runtime.device)

    def _crops(self, split: Split, index: Tensor) -> Tensor:
        data = load_images(self.data, split)
        crops = centre_crop(data.gather(index), data.aspect[index], self.data.size)
        return crops.to(self.runtime.device)

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Image files of any size, prepared as validation images are."""
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
        return USAGE.format(size=self.data.size, classes=len(self.labels))

    def request(self) -> str:
        return REQUEST.format(size=self.data.size)


class Probabilities(nn.Module):
    """Normalisation, the classifier and softmax in one graph, so that a user cannot get them wrong."""

    def __init__(self, classifier: nn.Module, normalisation: Normalisation = IMAGENET) -> None:
        super().__init__()
        self.classifier, self.normalisation = classifier, normalisation

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.classifier(normalise(images, self.normalisation)).softmax(dim=1)
        return probabilities


def read_image(path: str | Path, size: int) -> np.ndarray:
    """An image as the deployed model takes it, `(1, size, size, 3)`. Raises InputError where it is none."""
    try:
        squashed, aspect = decode(path, cache_side(size))
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except Exception as error:  # Pillow's decoders raise errors of every kind
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    return centre_crop(torch.tensor(squashed)[None], torch.tensor([aspect]), size).numpy()


def draw_mixup(count: int, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each image of a batch of `count`: the image it is mixed with, and its own share, 1/2 to 1.

    Source: H. Zhang et al., mixup (2017), arXiv 1710.09412; as in fastai, each image has a share of its
    own from Beta(alpha, alpha), and the larger part is its own.
    """
    # Beta(a, a) from two gamma draws, on a generator; torch's own distributions take none. In logarithms,
    # by G(a) = G(a + 1) U^(1/a): below a of about 0.05 draws of G(a) itself underflow to 0, and 0 / 0.
    ones = torch.ones(2, count, dtype=torch.float64)
    gamma = standard_gamma(ones + alpha, generator)
    uniform = 1 - torch.rand(2, count, dtype=torch.float64, generator=generator)  # not 0
    first, second = gamma.log() + uniform.log() / alpha
    return torch.randperm(count, generator=generator), torch.sigmoid((first - second).abs()).float()


def mixup(x: Tensor, y: Tensor, other: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first `len(share)` images, each mixed with that at `other`: `(mixed, y, other's y, share)`."""
    weight = share.view(-1, *[1] * (x.ndim - 1))
    own = slice(len(share))
    return weight * x[own] + (1 - weight) * x[other], y[own], y[other], share
