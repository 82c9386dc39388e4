"""A user-defined task: regression on a table, with its model and its space."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.task import EvaluationBatch, Split, Task
from automl.task.deployment import Deployment
from automl.task.evaluator import Evaluator
from search.config import Data, Model, TaskSpec, Training, TrialConfig
from search.metric import Metric

ROWS, COLUMNS = {"train": 512, "validation": 256, "test": 256}, 4


@dataclass(frozen=True, kw_only=True)
class TableData(Data):
    """Settings of the table. `noise` is the standard deviation of the unexplained part [kg]."""

    source: str = "made up"
    noise: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Network(Model):
    """Options: `hidden`, the units of the only layer, and `products`, whether it uses products of columns."""

    backbone: str = "mlp"

    def problems(self) -> Iterator[str]:
        if self.options.get("hidden", 0) < 1:
            yield f"model.options.hidden must be 1 or more; got {self.options.get('hidden')}"


class SquaredError(Evaluator):
    """Root of the mean squared error over all workers. Each worker keeps its errors until the end."""

    def __init__(self) -> None:
        self.errors: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.errors.append((outputs.float() - targets).square().flatten())

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        gathered = torch.cat([errors.cpu() for errors in runtime.gather(torch.cat(self.errors))])
        return {"rmse": gathered.mean().sqrt()}


class Products(nn.Module):
    """A small network that may use products of its columns, from which the table is computed."""

    def __init__(self, hidden: int, products: bool) -> None:
        super().__init__()
        self.products = products
        columns = COLUMNS + products * COLUMNS**2
        self.layers = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.products:
            x = torch.cat([x, (x.unsqueeze(2) * x.unsqueeze(1)).flatten(1)], dim=1)
        weight: Tensor = self.layers(x)
        return weight


class Weights(Task[TableData, Network]):
    """Predict a weight [kg] from four measures, scored by the root of the mean squared error."""

    spec = TaskSpec(
        data=TableData,
        training=Training,
        model=Network,
        metrics=[Metric(name="rmse", maximize=False, unit="kg", margin=0.02)],
    )
    noun = "things"

    def table(self, split: Split) -> tuple[Tensor, Tensor]:
        x, y = rows(split, self.data)
        return x.to(self.runtime.device), y.to(self.runtime.device)

    def size(self, split: Split) -> int:
        return ROWS[split]

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        splits: dict[str, list[tuple[str, str, bytes]]] = {}
        for split in ROWS:
            x, y = rows(split, cls.data_of(config))
            table = torch.cat([x, y], dim=1).numpy()
            splits[split] = [
                (f"{split}/{i}", "", sha256(row.tobytes()).digest()) for i, row in enumerate(table)
            ]
        return Manifest.from_splits(splits)

    def model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        options = self.config.model.options
        return Products(options["hidden"], options["products"]).to(self.runtime.device)

    def steps(self) -> int:
        return ROWS["train"] // self.config.training.batch_size

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.table("train")
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(x), generator=generator)
        size = self.config.training.batch_size
        for index in order[: self.steps() * size].view(-1, size):
            mine = self.runtime.shard(index)
            yield x[mine], y[mine]

    def example(self, count: int) -> Tensor:
        return torch.zeros(count, COLUMNS, device=self.runtime.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return (model(x).float() - y).square().mean()

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        x, y = self.table(split)
        index = self.runtime.shard(torch.arange(len(x)))
        yield EvaluationBatch(index, x[index], y[index])

    def evaluator(self, split: Split) -> SquaredError:
        return SquaredError()

    def deployment(self, model: nn.Module) -> Deployment:
        return Deployment(module=model, inputs={"measures": torch.zeros(2, COLUMNS)}, outputs=("weight",))

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        return {"measures": self.table(split)[0][:count]}

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for path in paths:
            for i, row in enumerate(np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)):
                yield f"{path}:{i + 1}", {"measures": row[None]}


def rows(split: str, data: TableData) -> tuple[Tensor, Tensor]:
    """Return measures `(N, 4)` and weights `(N, 1)`."""
    generator = torch.Generator().manual_seed(list(ROWS).index(split))
    x = torch.randn(ROWS[split], COLUMNS, generator=generator)
    noise = data.noise * torch.randn(ROWS[split], 1, generator=generator)
    return x, x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3] + noise


def draw(trial: optuna.Trial) -> TrialConfig:
    return TrialConfig(
        task=f"{__file__}:Weights",
        data=TableData(),
        model=Network(
            options={
                "hidden": trial.suggest_int("hidden", 4, 32),
                "products": trial.suggest_categorical("products", [False, True]),
            },
        ),
        training=Training(
            epochs=9, batch_size=64, learning_rate=trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
        ),
    )


draw.baseline = {"hidden": 16, "products": False, "learning_rate": 1e-2}  # type: ignore[attr-defined]
draw.plain = {"products": False}  # type: ignore[attr-defined]
draw.as_baseline = lambda config: config.change(  # type: ignore[attr-defined]
    model={"options": {**config.model.options, "products": False}}
)
