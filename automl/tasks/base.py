"""What a task is: everything that the loop, the search and the tracking need to know of what is learned."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from search.config import TrialConfig

Batch = Any  # whatever the task's own `loss` takes
Split = Literal["train", "validation", "test"]
Direction = Literal["maximize", "minimize"]


class Task(ABC):
    """What is learned and how it is scored, for one configuration on one device.

    metric, direction: the primary metric, one of the keys that `evaluate` returns, and which way is better.
    """

    metric: str
    direction: Direction

    def __init__(self, config: TrialConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model with the configuration's placement and seed, on the device."""

    @abstractmethod
    def steps(self) -> int:
        """Training batches in an epoch."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Batch]:
        """The training batches of an epoch, on the device: a function of the seed and the epoch alone."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of a batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The metrics of a whole split. The search asks for validation; test is for the final word."""

    @property
    @abstractmethod
    def labels(self) -> list[str]:
        """The names of what a deployed model's last dimension counts."""

    @abstractmethod
    def raw(self, split: Split, count: int) -> Tensor:
        """Up to `count` raw inputs spread over a split, as a deployed model takes them."""

    @abstractmethod
    def artifact(self, model: nn.Module) -> tuple[nn.Module, Tensor]:
        """What is deployed: a module from raw inputs to answers, and an example batch of raw inputs."""
