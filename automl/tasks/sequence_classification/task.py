"""Classification of sequences of sensor readings: cross-entropy with label smoothing and class weights."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.base.units import pluralize
from automl.config.runtime import Runtime
from automl.task.base import EvaluationBatch, Inputs
from automl.task.classification import Classification, spread_over_classes
from automl.task.deployment import Deployment, read_usage, spread_indices
from automl.task.initial import initialise
from automl.task.task_data import SPLITS, ShownInputs, Split
from automl.tasks.sequence_classification import SPEC, SequenceData
from automl.tasks.sequence_classification.data import (
    SequenceRecords,
    Sequences,
    fill_gaps,
    normalise,
    open_sequence_records,
    open_sequences,
    padding_mask,
    shared_name,
)
from automl.tasks.sequence_classification.data.formats import FORMATS, read_unlabelled
from backbones.example import materialise
from search.config import TrialConfig
from search.config.sections import ClassificationTraining

LABELLED = 64  # raw sequences in a batch of `labelled_inputs`

# Backbones whose exported graph works for every T. In other graphs a loop over time is unrolled.
ANY_LENGTH = ("resnet1d",)

PADDED = """
Input `lengths`: int64, shape `(N,)`, the number of real steps of each sequence, of {steps}. They are
first; values behind them are ignored. A longer sequence must be cut."""
FIXED = "All sequences have {steps} steps: this model has no other length."
FREE = "T, the number of steps, may be any from 2 on; training data had {steps}."


@lru_cache(maxsize=4)
def load_sequences(data: SequenceData, split: Split) -> Sequences:
    """Return the sequences of a split, loaded once in a process."""
    return open_sequences(data.source, split, path=data.path, subset=data.subset)


@lru_cache(maxsize=4)
def load_tensors(data: SequenceData, split: Split, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return a whole split, which is small, on the device: values (N, C, T), mask (N, T), labels (N,)."""
    sequences = load_sequences(data, split)
    values, mask = sequences.gather(torch.arange(len(sequences)))
    return values.to(device), mask.to(device), sequences.labels.to(device)


class SequenceClassification(Classification[SequenceData, ClassificationTraining]):
    """Classification of sequences.

    A model takes normalised values, float32 `(B, C, T)`. If sequences differ in length it also takes a mask,
    bool `(B, T)`, which is True at real steps. T is the same in all splits.
    """

    spec = SPEC
    noun = "sequences"
    suffixes = tuple(form.suffix for form in FORMATS.values() if form.suffix)

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.train = load_sequences(self.data, "train")
        steps = self.train.steps
        self.padded = any(int(load_sequences(self.data, split).lengths.min()) < steps for split in SPLITS)

    def opened(self, split: Split) -> Sequences:
        return load_sequences(self.data, split)

    @classmethod
    def records(cls, config: TrialConfig) -> SequenceRecords:
        data = cls.data_of(config)
        return open_sequence_records(data.source, path=data.path, subset=data.subset)

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str:
        return shared_name(config.data.source, config.data.path)

    @property
    def any_length(self) -> bool:
        """Return True if a deployed model takes sequences of any T. With padding it does not."""
        return not self.padded and self.chosen.backbone in ANY_LENGTH

    def model(self) -> nn.Module:
        self.check()
        return self.placed(self.plain, lambda: self._inputs(2, "cpu"), to_json(self.data))

    def plain(self) -> nn.Module:
        model = self.chosen.build(classes=len(self.labels), in_channels=len(self.train.channels))
        materialise(model, self._inputs(2, "cpu"))
        return model

    def initialise(self, model: nn.Module) -> list[str]:
        return initialise(model, self.chosen, classes=len(self.labels))

    def batches(self, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the inputs and labels of this worker's rows, in an order that all workers share."""
        batch, runtime = self.batch_size, self.runtime
        values, mask, labels = load_tensors(self.data, "train", runtime.device)
        generator = torch.Generator().manual_seed((self.config.seed << 20) + epoch)
        order = torch.randperm(len(labels), generator=generator)[: self.steps() * batch]
        for index in order.view(-1, batch):
            own = runtime.shard(index).to(runtime.device)
            yield self._with_mask(values[own], mask[own]), labels[own]

    def example(self, count: int) -> Inputs:
        return self._inputs(count, self.runtime.device)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        values, mask, labels = load_tensors(self.data, split, self.runtime.device)
        for index in self.runtime.shard(torch.arange(len(labels))).split(2 * self.training.batch_size):
            rows = index.to(labels.device)
            yield EvaluationBatch(index, self._with_mask(values[rows], mask[rows]), labels[rows])

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the graph from values `(N, C, T)`, with `lengths` `(N,)` if padded, to probabilities."""
        train = self.train
        example = {"values": torch.zeros(2, len(train.channels), train.steps)}
        if self.padded:
            example["lengths"] = torch.tensor([train.steps, max(1, train.steps // 2)])
        device = self.runtime.device
        module = Probabilities(model, train.mean, train.std, padded=self.padded).to(device)
        return Deployment(
            module=module,
            inputs={name: value.to(device) for name, value in example.items()},
            outputs=["probabilities"],
            dynamic={"values": {2: "T"}} if self.any_length else {},
            labels=self.labels,
            details={
                "channels": list(train.channels),
                "steps": train.steps,
                "any_length": self.any_length,
                "mean": train.mean.tolist(),
                "std": train.std.tolist(),
            },
        )

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        return self._raw(split, spread_indices(self.size(split), count))

    def shown_inputs(self, count: int) -> ShownInputs:
        values, mask, labels = load_tensors(self.data, "test", self.runtime.device)
        index = spread_over_classes(labels.cpu(), count)
        rows = index.to(labels.device)
        raw, real = load_sequences(self.data, "test").raw(index)
        return ShownInputs(
            inputs=self._with_mask(values[rows], mask[rows]),
            pictures=[x[:, kept].numpy() for x, kept in zip(raw, real, strict=True)],
            names=[self.labels[label] for label in labels[rows]],
            padded=raw.shape[-1],
        )

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        labels = load_sequences(self.data, split).labels
        for index in torch.arange(len(labels)).split(LABELLED):
            yield self._raw(split, index), labels[index].to(self.runtime.device)

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read the sequences of `.ts`, CSV and NPZ files, with or without labels, and fill their gaps."""
        details = exported["details"]
        padded = any(entry["name"] == "lengths" for entry in exported["inputs"])
        for path in paths:
            for name, values in read_unlabelled(path, details["channels"]):
                steps, trained_steps = values.shape[1], details["steps"]
                if steps > trained_steps if padded else steps != trained_steps and not details["any_length"]:
                    limit = f"at most {trained_steps}" if padded else str(trained_steps)
                    raise InputError(
                        f"{name} has {pluralize(steps, 'steps')}; this model takes {limit}. Cut it first."
                    )
                arrays = {"values": fill_gaps(values)[None]}
                if padded:
                    arrays["values"] = np.pad(arrays["values"], ((0, 0), (0, 0), (0, trained_steps - steps)))
                    arrays["lengths"] = np.array([steps], np.int64)
                yield name, arrays

    def usage(self) -> str:
        steps = self.train.steps
        length = PADDED if self.padded else FREE if self.any_length else FIXED
        return read_usage(__file__).format(
            channels=len(self.train.channels),
            steps="T" if self.any_length else steps,
            names=", ".join(self.train.channels),
            length=length.format(steps=steps),
            classes=len(self.labels),
            inputs="values and lengths" if self.padded else "values",
        )

    def _raw(self, split: Split, index: Tensor) -> dict[str, Tensor]:
        values, mask = load_sequences(self.data, split).raw(index)
        inputs = {"values": values, "lengths": mask.sum(1)} if self.padded else {"values": values}
        return {name: value.to(self.runtime.device) for name, value in inputs.items()}

    def _with_mask(self, values: Tensor, mask: Tensor) -> Inputs:
        return (values, mask) if self.padded else values

    def _inputs(self, count: int, device: torch.device | str) -> Inputs:
        values = torch.zeros(count, len(self.train.channels), self.train.steps, device=device)
        return self._with_mask(values, torch.ones(count, self.train.steps, dtype=torch.bool, device=device))


class Probabilities(nn.Module):
    """Normalisation, classifier and softmax in one graph. `mean` and `std` of training data are `(C,)`."""

    mean: Tensor
    std: Tensor

    def __init__(self, classifier: nn.Module, mean: Tensor, std: Tensor, *, padded: bool) -> None:
        super().__init__()
        self.classifier, self.padded = classifier, padded
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return probabilities `(N, classes)` of values `(N, C, T)`, of padded ones with lengths `(N,)`."""
        if lengths is None:
            mask = torch.ones_like(values[:, 0], dtype=torch.bool)
        else:
            mask = padding_mask(lengths, values.shape[2])
        x = normalise(values, mask, self.mean, self.std)
        logits: Tensor = self.classifier(x, mask) if self.padded else self.classifier(x)
        return logits.softmax(dim=1)
