"""A training of a second and a task without images, for tests of the application."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.task import Task, open_task
from automl.task.base import EvaluationBatch
from automl.task.deployment import Deployment
from automl.task.evaluator import Evaluator
from automl.task.task_data import Split
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.sequence_classification import SequenceData
from backbones.torch_internals import AnyBatchNorm
from search.config import Model, TaskSpec, TrialConfig
from search.config.sections import ClassificationTraining
from search.metric import Metric
from search.record import Metrics

Cli = Callable[..., tuple[int, str, str]]  # of the fixture `cli`
CPU = torch.device("cpu")
HERE = Runtime(device=CPU)

# 229 digits at 24 px: seven steps an epoch, below a second.
TINY = TrialConfig(
    data=ImageData(source="digits", size=24, subset=0.2),
    model=Model(backbone="xresnet18", options={"width": 0.25}),
    training=ImageTraining(epochs=1, batch_size=32),
)

# Every attention in one model, each at a site of its own.
SITES = [f"stage{stage}.block{block}.branch" for stage in (1, 2, 3) for block in (1, 2)]
SITES += ["stage1.block1", "stage2.block1", "stage3.block1", "stage3.block2", "stage1.block2"]
SITES += ["stage2.block2", "stage4.block1", "stage4.block2", "stage4.block1.branch", "stage4.block2.branch"]
EVERY_ATTENTION = {site: Spec(name) for site, name in zip(SITES, ATTENTIONS, strict=False)}
# The placement of the model that is trained and exported once: exporting every attention takes half a minute.
LONG = bool(os.environ.get("AUTOML_LONG"))
EXPORTED = EVERY_ATTENTION if LONG else dict(list(EVERY_ATTENTION.items())[:2])


def tiny(**parts: Any) -> TrialConfig:
    return TINY.change(**parts)


TRAINED = tiny(
    model={"placement": EXPORTED},
    training={"epochs": 10 if LONG else 4, "learning_rate": 5e-3, "batch_size": 16},
)


def perturb(model: nn.Module) -> nn.Module:
    """Change all parameters in place, also those that are zero or an identity, and return the model."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def untrained(task: Task, gamma: float) -> Any:
    """Return a model whose attention has these gates, and whose norms have statistics of an epoch."""
    model: Any = task.model().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gamma"):
                parameter.fill_(gamma)
        for module in model.modules():
            if isinstance(module, AnyBatchNorm):
                module.momentum = None
        for batch in task.batches(0):
            task.loss(model, batch)
    return model.eval()


# What no two runs of one training have in common.
TIMES = ("seconds", "processor_seconds", "time")


def timeless(history: Iterable[Metrics]) -> list[Metrics]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in history]


def opened(**parts: Any) -> Task:
    return open_task(tiny(**parts), HERE)


class AbsoluteError(Evaluator):
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.errors = (outputs.float() - targets).abs()

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        return {"error": self.errors.mean()}


class Regression(Task):
    """A line through noise-free points: not an image anywhere, and a metric of which less is better."""

    spec = TaskSpec(data=ImageData, training=ImageTraining, metrics=[Metric(name="error", maximize=False)])

    def __init__(self, **training: Any) -> None:
        super().__init__(TrialConfig(training=ImageTraining(**{"batch_size": 8} | training)), HERE)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(80, 3, generator=generator)
        self.y = self.x @ torch.tensor([[1.0], [-2.0], [0.5]])
        self.modes: list[tuple[str, bool]] = []

    def model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        return nn.Linear(3, 1)

    def steps(self) -> int:
        return len(self.x) // self.config.training.batch_size

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(self.x), generator=generator)
        for index in order.split(self.config.training.batch_size):
            yield self.x[index], self.y[index]

    def example(self, count: int) -> Tensor:
        return torch.zeros(count, 3)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        self.modes.append(("loss", model.training))
        return F.mse_loss(model(batch[0]).float(), batch[1])

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        yield EvaluationBatch(torch.arange(len(self.x)), self.x, self.y)

    def evaluator(self, split: Split) -> Evaluator:
        return AbsoluteError()

    def evaluate(
        self, model: nn.Module, split: Split, evaluator: Evaluator | None = None
    ) -> dict[str, Tensor]:
        self.modes.append(("evaluate", model.training or torch.is_grad_enabled()))
        return super().evaluate(model, split, evaluator)

    def size(self, split: Split) -> int:
        return len(self.x)

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        return Manifest.from_splits({"train": [("line", "y", bytes(16))]})

    def deployment(self, model: nn.Module) -> Deployment:
        return Deployment(module=model, inputs={"x": self.x[:2]}, outputs=["y"])

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        return {"x": self.x[:count]}


def sequence_config(folder: Path, *, shortest: int, model: Mapping[str, Any]) -> TrialConfig:
    """60 and 20 made-up sequences of 12 steps or fewer, with 2 channels in 3 classes."""
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60), ("test", 20)):
        y = np.arange(count) % 3
        x = 5 + 3 * draw.normal(size=(count, 2, 12)) + y[:, None, None]
        lengths = np.append(12, draw.integers(shortest, 13, count - 1))
        arrays |= {f"x_{part}": x.astype(np.float32), f"y_{part}": y, f"lengths_{part}": lengths}
    np.savez(folder / "made.npz", **arrays)
    return TrialConfig(
        task="sequence-classification",
        data=SequenceData(path=str(folder / "made.npz")),
        model=Model(**model),
        training=ClassificationTraining(epochs=1, batch_size=8),
    )
