"""The models of all tasks without a dataset: how to build each, its input, and a loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import backbones
from automl.base.errors import InputError, unknown
from automl.base.lazy import isolated, resolve
from backbones import Example, find
from backbones.example import sum_outputs
from search.config import Model
from search.config.tasks import TASKS

CLASSES = 1000  # Number of labels of classifiers of images.
OBJECTS = 90  # Kinds of objects of detectors and segmenters, as in COCO.


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model that is examined without a dataset.

    Attributes:
        build: Builds the model on the CPU.
        example: Creates a batch of so many inputs on the CPU.
        loss: Computes a loss of the model in training mode for a batch from `example`.
        description: Of its input.
        images: True if the input is one tensor of images.
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[int], Example]
    loss: Callable[[nn.Module, Example], Tensor]
    description: str
    batch: int = 8
    images: bool = False


def make_subject(
    backbone: str,
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    task: str | None = None,
) -> Subject:
    """Return the model of a backbone, a text encoder, a stereo model, or a detector on a backbone.

    `size` is the side of images [pixels], the steps of sequences, the tokens of texts, or the height of
    stereo pairs, which are twice as wide. `task` is `detection` for a detector on the backbone. By default
    they are as published, and the main task of the backbone. Raises InputError if the backbone is unknown,
    the size is out of range, or the backbone rejects an option.
    """
    options = options or {}
    fits = tasks_of(backbone)
    if task is not None and task not in TASKS:
        raise unknown("task", task, [name for name, spec in TASKS.items() if spec.subject])
    if task is not None and task not in fits:
        raise InputError(f"{backbone} is a model of the task {' or '.join(fits)}; got --task {task}")
    if size is not None and not 1 <= size <= 4096:
        raise InputError(f"--size must lie between 1 and 4096; got {size}")
    width = options.get("width")
    if isinstance(width, int | float) and not 1 / 16 <= width <= 16:
        raise InputError(f"width must lie between 1/16 and 16; got {width}")
    result: Subject = resolve(TASKS[task or fits[0]].subject)(backbone, size, options)
    return result


def tasks_of(backbone: str) -> Sequence[str]:
    """Return the tasks that a backbone can be used for. The task of the plain backbone is first."""
    for name, spec in TASKS.items():
        with isolated(name):
            if spec.models and spec.subject and backbone in resolve(spec.models):
                return (name,)
    takes = find(backbone).dimensions or 2
    fits = [name for name, spec in TASKS.items() if spec.dimensions == takes and spec.subject]
    return sorted(fits, key=lambda name: TASKS[name].model is not Model)


def image_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a classifier of images of 128 pixels, or of `size`."""
    size = size or 128
    return Subject(
        name=backbone,
        build=lambda: backbones.build(backbone, classes=CLASSES, size=size, **options),
        example=lambda count: torch.zeros(count, 3, size, size).to(memory_format=torch.channels_last),
        description=f"an image of {size}x{size} pixels, with a head of {CLASSES} labels",
        loss=sum_outputs,
        images=True,
    )
