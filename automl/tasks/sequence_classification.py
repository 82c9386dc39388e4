"""Classification of sequences of sensor readings: cross-entropy with label smoothing, scored by accuracy."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.data.sequences import Sequences, describe_splits, make_manifest, open_sequences, source_of
from automl.tasks.base import Inputs, Part, Split, Task
from automl.tasks.evaluator import ClassificationEvaluator
from backbones import build, call, insert
from search.config import TASK_CONFIGS, ClassificationTraining, SequenceData, TrialConfig
from search.metric import ACCURACY

SPLITS: Sequence[Split] = ("train", "validation", "test")
ANSWERED = 64  # raw sequences in a batch of `answers`


def source(data: SequenceData) -> str:
    """Where the sequences are from: what lies at a path says it by itself."""
    return data.source if data.path is None else source_of(data.path)


@lru_cache(maxsize=4)
def sequences(data: SequenceData, split: Split) -> Sequences:
    """The sequences of a split. Opened once in a process, however many trials run in it."""
    return open_sequences(source(data), split, path=data.path, subset=data.subset)


@lru_cache(maxsize=4)
def gathered(data: SequenceData, split: Split, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A whole split on the device: values (N, C, T), mask (N, T) and labels (N,). Sensor data are small."""
    found = sequences(data, split)
    values, mask = found.gather(torch.arange(len(found)))
    return values.to(device), mask.to(device), found.labels.to(device)


class SequenceClassification(Task):
    """Classes of sequences, by the primary metric `accuracy`. Also reports the cross-entropy `loss`.

    A model takes the normalised values, float32 `(B, C, T)`, and where sequences differ in length a mask,
    bool `(B, T)`, that is True at real steps. T is the same in all splits.
    """

    configs = TASK_CONFIGS["sequence-classification"]
    metric = ACCURACY
    noun = "sequences"

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.data, self.training = _typed(config)
        self.train = sequences(self.data, "train")
        # Sensor datasets can be tiny: where all of one is less than a batch, an epoch is one step.
        workers = runtime.workers
        self.batch_size = min(self.training.batch_size, len(self.train) // workers * workers)
        if self.batch_size < 2 or self.batch_size % workers:
            raise InputError(
                f"batch_size must be a multiple of the workers that share it, with 2 or more sequences; got "
                f"{self.batch_size} with {workers} workers and {len(self.train)} training sequences"
            )
        steps = self.train.steps
        self.padded = any(int(sequences(self.data, s).lengths.min()) < steps for s in SPLITS)

    def size(self, split: Split) -> int:
        return len(sequences(self.data, split))

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        data, _ = _typed(config)
        return make_manifest(source(data), path=data.path, subset=data.subset)

    @property
    def labels(self) -> list[str]:
        return list(self.train.classes)

    def model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        chosen = self.config.model
        channels = len(self.train.channels)
        model = build(chosen.backbone, classes=len(self.labels), in_channels=channels, **chosen.options)
        return insert(model, chosen.placement, self._inputs(2, "cpu")).to(self.runtime.device)

    def steps(self) -> int:
        return len(self.train) // self.batch_size

    def batches(self, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        """The model's inputs and the labels. All workers draw one order; each takes its own rows."""
        batch, runtime = self.batch_size, self.runtime
        values, mask, labels = gathered(self.data, "train", runtime.device)
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(labels), generator=generator)[: self.steps() * batch]
        for index in order.view(-1, batch):
            mine = runtime.shard(index).to(runtime.device)
            yield self._with_mask(values[mine], mask[mine]), labels[mine]

    def example(self, count: int) -> Inputs:
        return self._inputs(count, self.runtime.device)

    def loss(self, model: nn.Module, batch: tuple[Inputs, Tensor]) -> Tensor:
        inputs, labels = batch
        logits = call(model, inputs).float()
        return F.cross_entropy(logits, labels, label_smoothing=self.training.label_smoothing)

    def parts(self, split: Split) -> Iterator[Part]:
        values, mask, labels = gathered(self.data, split, self.runtime.device)
        for index in self.runtime.shard(torch.arange(len(labels))).split(2 * self.training.batch_size):
            rows = index.to(labels.device)
            yield Part(index, self._with_mask(values[rows], mask[rows]), labels[rows])

    def evaluator(self, split: Split) -> ClassificationEvaluator:
        return ClassificationEvaluator(self.size(split), self.runtime.device)

    def chance(self, split: Split) -> float:
        """The share of the largest class."""
        labels = sequences(self.data, split).labels
        return labels.bincount().max().item() / len(labels)

    def describe_splits(self) -> dict[str, str]:
        return describe_splits(source(self.data), path=self.data.path, subset=self.data.subset)

    def _with_mask(self, values: Tensor, mask: Tensor) -> Inputs:
        return (values, mask) if self.padded else values

    def _inputs(self, count: int, device: torch.device | str) -> Inputs:
        values = torch.zeros(count, len(self.train.channels), self.train.steps, device=device)
        return self._with_mask(values, torch.ones(count, self.train.steps, dtype=torch.bool, device=device))


def _typed(config: TrialConfig) -> tuple[SequenceData, ClassificationTraining]:
    assert isinstance(config.data, SequenceData)
    assert isinstance(config.training, ClassificationTraining)
    return config.data, config.training
