"""Image classification: cross-entropy with label smoothing and mixup, scored by accuracy."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError
from automl.data import SOURCES, Images, open_split
from automl.data.augment import centre_crop, normalise, random_crop
from automl.data.images import cache_side
from automl.tasks.base import Split, Task
from backbones import build, insert
from search.config import Data, TrialConfig


@lru_cache(maxsize=8)
def images(data: Data, split: Split) -> Images:
    """The images of a split. Opened once in a process, however many trials run in it."""
    return open_split(
        data.source, split, path=data.path, size=data.size, side=cache_side(data.size), subset=data.subset
    )


class ImageClassification(Task):
    """Classes of images, by the primary metric `accuracy`. Also reports the cross-entropy `loss`."""

    metric = "accuracy"
    direction = "maximize"

    def __init__(self, config: TrialConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.train = images(config.data, "train")
        if len(self.train) < config.training.batch_size:
            raise InputError(
                f"batch_size must be at most the number of training images; got {config.training.batch_size} "
                f"with {len(self.train)} images. Use a larger --subset or a smaller batch size."
            )
        self.photographs = SOURCES[config.data.source].flip

    @property
    def labels(self) -> list[str]:
        return list(self.train.classes)

    def model(self) -> nn.Module:
        config = self.config
        torch.manual_seed(config.seed)
        model = build(config.model.backbone, classes=len(self.labels), width=config.model.width)
        example = torch.empty(2, 3, config.data.size, config.data.size)
        model = insert(model, config.model.placement, example).to(self.device)
        return model.to(memory_format=torch.channels_last)

    def steps(self) -> int:
        return len(self.train) // self.config.training.batch_size

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """`(x, y, z, weight)`: mixed images and both labels, `weight` (B,) being the first label's share."""
        training = self.config.training
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(self.train), generator=generator)
        for step in range(self.steps()):
            index = order[step * training.batch_size : (step + 1) * training.batch_size]
            x = random_crop(
                self.train.gather(index).to(self.device, non_blocking=True),
                self.train.aspect[index],
                self.config.data.size,
                # Digits lose their meaning with the crops and mirror images that photographs bear.
                scale=0.35 if self.photographs else 0.7,
                flip=self.photographs,
                generator=generator,
            )
            y = self.train.labels[index].to(self.device, non_blocking=True)
            if training.mixup > 0:
                yield mixup(x, y, training.mixup, generator)
            else:
                yield x, y, y, torch.ones(len(y), device=self.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        x, y, z, weight = batch
        logits = model(x).float()
        smooth = self.config.training.label_smoothing
        loss = weight * F.cross_entropy(logits, y, label_smoothing=smooth, reduction="none")
        if z is not y:
            loss = loss + (1 - weight) * F.cross_entropy(logits, z, label_smoothing=smooth, reduction="none")
        return loss.mean()

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        data = images(self.config.data, split)
        sums = torch.zeros(2, device=self.device)
        for index in torch.arange(len(data)).split(2 * self.config.training.batch_size):
            x, y = self.inputs(data, index), data.labels[index].to(self.device)
            logits = model(normalise(x)).float()
            correct = (logits.argmax(1) == y).sum()
            sums += torch.stack([correct.float(), F.cross_entropy(logits, y, reduction="sum")])
        accuracy, loss = (total / len(data) for total in sums.tolist())
        return {"accuracy": accuracy, "loss": loss}

    def inputs(self, data: Images, index: Tensor) -> Tensor:
        """Centre crops as bytes, `(B, size, size, 3)`: what the deployed model takes."""
        raw = data.gather(index).to(self.device)
        return centre_crop(raw, data.aspect[index], self.config.data.size)

    def raw(self, split: Split, count: int) -> Tensor:
        data = images(self.config.data, split)
        return self.inputs(data, torch.linspace(0, len(data) - 1, min(count, len(data))).round().long())

    def artifact(self, model: nn.Module) -> tuple[nn.Module, Tensor]:
        """Bytes `(N, size, size, 3)` to probabilities `(N, classes)`."""
        size = self.config.data.size
        return Probabilities(model), torch.zeros(2, size, size, 3, dtype=torch.uint8, device=self.device)


class Probabilities(nn.Module):
    """Normalisation, the classifier and softmax in one graph, so that a user cannot get them wrong."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.classifier(normalise(images)).softmax(dim=1)
        return probabilities


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[Any, ...]:
    """Each image mixed with another of the batch: `(mixed, y, other y, share of the first)`.

    Source: H. Zhang et al., mixup (2017), arXiv 1710.09412; as in fastai, each image has a share of its
    own and the larger one is the first's.
    """
    n = len(y)
    # Beta(a, a) from two gamma draws, on a generator; torch's own distributions take none. In logarithms,
    # by G(a) = G(a + 1) U^(1/a): below a of about 0.05 draws of G(a) itself underflow to 0, and 0 / 0.
    ones = torch.ones(2, n, dtype=torch.float64)
    gamma = torch._standard_gamma(ones + alpha, generator=generator)
    uniform = 1 - torch.rand(2, n, dtype=torch.float64, generator=generator)  # not 0
    first, second = gamma.log() + uniform.log() / alpha
    share = torch.sigmoid((first - second).abs()).float().to(x.device)
    other = torch.randperm(n, generator=generator).to(x.device)
    weight = share.view(-1, *[1] * (x.ndim - 1))
    return weight * x + (1 - weight) * x[other], y, y[other], share
