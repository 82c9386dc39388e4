"""Targets of images: classes, several labels, or numbers. Each reads, learns, scores and shows itself.

Losses: cross-entropy for classes; binary cross-entropy of each label; and Huber's loss of numbers in standard
deviations, which is squared up to one deviation (P. Huber, Robust estimation of a location parameter (1964)).
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from automl.base.errors import InputError
from automl.data.csv_table import COLUMNS, SEPARATOR, Row, Table
from automl.data.files import normalise_nfc
from automl.task.classification import Classes, Classification, Mixed, Target

LAYOUT = "one folder of images per class, or train/ and val/ or test/ that each hold one folder per class"
NONE = "none"  # an image without labels
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True}
Counts = Mapping[str, int]  # numbers of images by key


@dataclass(frozen=True, kw_only=True)
class ImageTarget(Target):
    """Target that is learned of each image.

    `parse` reads a row of `labels.csv` as a key, and `fit` learns the names of outputs from the keys of all
    images. Then `encode` converts each key. Folders of classes have their names as keys.

    Attributes:
        columns: The columns that it is read from. Empty if folders are labels.
        stratum: What the same fraction of images is held out of. Empty if the target has no effect.
        output: The name of the deployed graph's output.
        meaning: What the model card says of it.
        code: The line of Python that prints `answers`, which is in the card.
        unit: Outputs of the deployed graph are compared in this unit.
    """

    stratum: ClassVar[str] = ""
    output: ClassVar[str] = "probabilities"
    meaning: ClassVar[str] = ""
    code: ClassVar[str] = ""
    columns: tuple[str, ...] = ("label",)
    unit: float = 1.0

    @abstractmethod
    def parse(self, row: Row, where: str) -> str:
        """Return the key of a row. Raise InputError, which begins with `where`, if it has none."""

    @abstractmethod
    def fit(self, splits: Mapping[str, Counts], sources: Mapping[str, Path]) -> Self:
        """Return the target of a dataset. Raise InputError, which names a source, if it cannot be learned."""

    @abstractmethod
    def encode(self, key: str) -> tuple[int, tuple[float, ...]]:
        """Return the stratum of a key, a number from 0, and the value of each output. A class has none."""

    def scaled(self, values: Tensor) -> Self:
        """Return the target with the scale of the training values."""
        return self

    @abstractmethod
    def caption(self, label: int, values: Sequence[float]) -> str:
        """Return the target of an image as text, from the result of `encode`."""

    def summary(self, values: Tensor) -> str:
        """Return a description of the values of images."""
        return ""

    @abstractmethod
    def answer(self, outputs: Tensor) -> Tensor:
        """Return the answers of the deployed graph."""

    def usage(self) -> dict[str, str]:
        """Return what fills the explanation of the deployed model."""
        names = '["labels"]' if self.classes else '["graphs"]["model"]["details"]["names"]'
        about = {"output": self.output, "meaning": self.meaning, "width": str(len(self.names))}
        return about | {"names": f'json.load(open("config.json")){names}', "code": self.code}


@dataclass(frozen=True, kw_only=True)
class ImageClasses(Classes, ImageTarget):
    """One class an image, by folders or a column."""

    stratum = "class"
    code = "print(names[answers.argmax()], answers.max())"

    def parse(self, row: Row, where: str) -> str:
        label = normalise_nfc(row["label"].strip())
        if not label:
            raise InputError(f"{where} has no label")
        return label

    def fit(self, splits: Mapping[str, Counts], sources: Mapping[str, Path]) -> Self:
        known = sorted(splits["train"])
        for split, classes in splits.items():
            folder = sources[split]
            if not classes:
                raise InputError(f"{folder} has no folders with images in them; expected {LAYOUT}")
            if split == "train" and len(classes) == 1:
                raise InputError(
                    f"{folder} has only one class, {known[0]!r}; a dataset needs two, as {LAYOUT}"
                )
            check_known("classes", folder, classes, known)
        return replace(self, names=tuple(known))

    def encode(self, key: str) -> tuple[int, tuple[float, ...]]:
        return self.names.index(key), ()

    def caption(self, label: int, values: Sequence[float]) -> str:
        return self.names[label]

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(dim=1)


@dataclass(frozen=True, kw_only=True)
class Labels(ImageTarget):
    """Any number of labels an image: a column of lists, or a column of 0 and 1 for each label.

    Attributes:
        images: The number of training images with each label.
    """

    kind = "labels"
    stratum = "rarest label"
    meaning = ", one of each label by itself: they do not add up to 1"
    code = "print([(name, p) for name, p in zip(names, answers) if p > 0.5])"
    images: tuple[int, ...] = ()

    def parse(self, row: Row, where: str) -> str:
        if self.columns != ("label",):
            for name in self.columns:
                if row[name].strip() not in FLAGS:
                    raise InputError(
                        f"{where} needs 0 or 1 in the column {name}, as each column beside file, split and "
                        f"group is a label; got {row[name]!r}. Write 0 or 1, or remove the column"
                    )
            return SEPARATOR.join(name for name in self.columns if FLAGS[row[name].strip()])
        labels = sorted({normalise_nfc(label.strip()) for label in row["label"].split(SEPARATOR)} - {""})
        if not labels:
            raise InputError(
                f"{where} has no label; write one or more with {SEPARATOR!r} between them. If images may "
                f"have none, write a column of 0 and 1 for each label"
            )
        return SEPARATOR.join(labels)

    def fit(self, splits: Mapping[str, Counts], sources: Mapping[str, Path]) -> Self:
        counts = {split: Counter[str]() for split in splits}
        for split, keys in splits.items():
            for key, count in keys.items():
                counts[split] += Counter(dict.fromkeys(_split_key(key), count))
        train, total = counts["train"], sum(splits["train"].values())
        names = sorted(train) if self.columns in ((), ("label",)) else list(self.columns)
        for name in names:
            if train[name] in (0, total):
                has = "every image has" if train[name] else "no image has"
                raise InputError(
                    f"{sources['train']}: {has} the label {name!r}, among {total} to train on, so it cannot "
                    f"be learned; each label needs images with and without it. Remove it, or add images"
                )
        for split, labels in counts.items():
            check_known("labels", sources[split], labels, names)
        return replace(self, names=tuple(names), images=tuple(train[name] for name in names))

    def encode(self, key: str) -> tuple[int, tuple[float, ...]]:
        labels = _split_key(key)
        values = tuple(float(name in labels) for name in self.names)
        own = [i for i, value in enumerate(values) if value]
        # Images without labels are with those of the most frequent one, whose fractions they change least.
        return min(own, key=self.images.__getitem__) if own else int(np.argmax(self.images)), values

    def caption(self, label: int, values: Sequence[float]) -> str:
        return SEPARATOR.join(name for name, value in zip(self.names, values, strict=True) if value) or NONE

    def summary(self, values: Tensor) -> str:
        numbers = values.sum(1)
        return f"{numbers.min():g} to {numbers.max():g} labels an image, {numbers.mean():.2g} on average"

    def learn(self, outputs: Tensor, targets: Tensor, mixed: Mixed, task: "Classification[Any]") -> Tensor:
        """Return the binary cross-entropy. Linear in the targets, it takes the mean of mixed ones."""
        if mixed is not None:
            other, weight = mixed
            targets = weight[:, None] * targets + (1 - weight[:, None]) * other
        return F.binary_cross_entropy_with_logits(outputs, targets.float()).unsqueeze(0)

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def show(self, answers: np.ndarray) -> tuple[str, dict[str, Any]]:
        """Return the answers for one image as a line, and as values for JSON."""
        probabilities = dict(zip(self.names, map(float, answers), strict=True))
        best = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
        labels = [label for label in best if probabilities[label] > 0.5]
        shown = ", ".join(f"{label} ({probabilities[label]:.1%})" for label in labels or best[:1])
        text = shown if labels else f"{NONE}, most likely {shown}"
        return text, {"labels": labels, "probabilities": probabilities}


@dataclass(frozen=True, kw_only=True)
class Numbers(ImageTarget):
    """One number an image.

    Attributes:
        mean: The mean of the training images.
        unit: Their standard deviation.
    """

    kind = "numbers"
    output = "number"
    meaning = ", in the unit of the training data"
    code = "print(names[0], answers[0])"
    mixes = False  # the number of a mixed image is not the mean of two
    mean: float = 0.0

    def parse(self, row: Row, where: str) -> str:
        (name,) = self.columns
        if (value := _parse_number(row[name])) is None:
            raise InputError(
                f"{where} needs a number in the column {name}, such as 3.5; got {row[name]!r}. "
                f"Write one, or remove the row"
            )
        return repr(value)

    def fit(self, splits: Mapping[str, Counts], sources: Mapping[str, Path]) -> Self:
        if len(splits["train"]) == 1:
            raise InputError(
                f"{sources['train']}: all {sum(splits['train'].values())} images to train on have the number "
                f"{next(iter(splits['train']))}; a number needs two values or more to be learned"
            )
        return replace(self, names=self.columns)

    def encode(self, key: str) -> tuple[int, tuple[float, ...]]:
        return 0, (float(key),)

    def scaled(self, values: Tensor) -> Self:
        return replace(self, mean=values.mean().item(), unit=values.std(correction=0).item() or 1.0)

    def caption(self, label: int, values: Sequence[float]) -> str:
        return f"{values[0]:.15g}"

    def summary(self, values: Tensor) -> str:
        quartiles = ", ".join(f"{value:.4g}" for value in np.quantile(values.numpy(), [0.25, 0.5, 0.75]))
        return (
            f"{self.names[0]} {values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}, standard "
            f"deviation {values.std():.4g}, quartiles {quartiles}"
        )

    def learn(self, outputs: Tensor, targets: Tensor, mixed: Mixed, task: "Classification[Any]") -> Tensor:
        assert mixed is None, "numbers are not mixed"
        return F.huber_loss(outputs, ((targets - self.mean) / self.unit).float()).unsqueeze(0)

    def decode(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.unit + self.mean

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs * self.unit + self.mean

    def show(self, answers: np.ndarray) -> tuple[str, dict[str, Any]]:
        """Return the answer for one image as a line, and as values for JSON."""
        value = float(answers[0])
        return f"{self.names[0]} {value:.6g}", {"name": self.names[0], "number": value}


# Those whose answers are described by themselves. Answers of classes are described as in every task.
NAMED: Mapping[str, type[Labels | Numbers]] = {Labels.kind: Labels, Numbers.kind: Numbers}
TARGETS: Mapping[str, type[ImageTarget]] = {ImageClasses.kind: ImageClasses, **NAMED}


def find_target(table: Path, content: Table) -> ImageTarget | None:
    """Return what the columns of `labels.csv` say of each image. None if they say nothing but groups.

    A column of COLUMNS for labels or numbers decides. Otherwise it is the other columns: a single one of
    numbers, or one or more of 0 and 1, which are labels. An empty column of labels, without files or beside
    groups, says that folders are labels.

    Raises InputError if the columns have no target.
    """
    columns, rows = {*content.columns}, [row for _, row in content.rows]
    own = tuple(name for name in content.columns if name not in COLUMNS)
    if "group" in columns and not columns & {"label", "target"}:
        folders = {Path(row.get("file", "")).parent for row in rows}
        if not own or len(folders) > 1:  # folders of classes
            return None
    is_empty = "label" in columns and not any(row["label"].strip() for row in rows)
    if is_empty and ("file" not in columns or "group" in columns):
        return Labels(columns=())
    if "file" in columns and "label" in columns:
        return Labels() if any(SEPARATOR in row["label"] for row in rows) else ImageClasses()
    if "file" in columns and "target" in columns:
        return Numbers(columns=("target",))
    if "file" in columns and own and rows:
        shown = rows if len(own) == 1 else rows[:1]  # `parse` names the mistakes in several columns
        if {row[name].strip() for row in shown for name in own} <= FLAGS.keys():
            return Labels(columns=own)
        if len(own) == 1 and _parse_number(rows[0][own[0]]) is not None:
            return Numbers(columns=own)
    raise InputError(
        f"{table} needs a column {' or '.join(COLUMNS['file'])} and one {' or '.join(COLUMNS['label'])}, and "
        f"a row for each image; it has {', '.join(content.columns) or 'nothing'}. Numbers are in a column "
        f"{' or '.join(COLUMNS['target'])}, or in the only other one. Several labels are in one column with "
        f"{SEPARATOR!r} between them, or in a column of 0 and 1 each"
    )


def _parse_number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _split_key(key: str) -> list[str]:
    return key.split(SEPARATOR) if key else []


def check_known(noun: str, source: Path, names: Counts, known: Sequence[str]) -> None:
    """Raise InputError if a split has classes or labels that the train split lacks."""
    if extra := sorted(set(names) - set(known)):
        raise InputError(
            f"{noun} in {source} must be among those of the train split; {', '.join(map(repr, extra[:5]))} "
            f"({len(extra)} in all) are not. Choose from {', '.join(known[:20])}"
        )
