"""The models of all tasks without a dataset: how to build each, its input, and a loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import backbones
from automl.base.errors import InputError, unknown
from backbones import DECODERS, ENCODERS, STEREO, Example, find, find_decoder
from backbones.detector import STRIDES, build_detector
from backbones.example import sum_outputs
from backbones.hugging_face import PREFIX
from backbones.psmnet import MULTIPLE, STEP
from search.config import LanguageModel, Model, SegmentationModel
from search.config.tasks import TASKS, resolve

CLASSES = 1000  # Number of labels of image classifiers. Detectors and segmenters have COCO's objects.
OBJECTS = 90
CHANNELS = 9  # Channels of sequences, as in UCI HAR.
VOCABULARY = 10_000  # Vocabulary of text encoders.
MAX_DISPARITY = 192  # Largest disparity of stereo models.


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model that is examined without a dataset.

    Attributes:
        name: Name of its backbone.
        build: Builds the model on the CPU.
        example: Creates a batch of so many inputs on the CPU.
        loss: Computes a loss of the model in training mode for a batch from `example`.
        description: Description of its input.
        batch: Default number of inputs of a step.
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

    Args:
        backbone: Name of the backbone.
        size: Side of images [pixels], steps of sequences, tokens of texts, or height of stereo pairs, which
            are twice as wide. As published by default.
        options: Options of the backbone.
        task: Name of a task, such as `detection` for a detector on the backbone. By default the main task of
            the backbone.

    Raises:
        InputError: The backbone is unknown, the size is out of range, or the backbone rejects an option.
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
    if backbone in STEREO:
        return ("stereo",)
    if backbone in ENCODERS:
        return ("code-retrieval",)
    if backbone in DECODERS or backbone.startswith(PREFIX):
        return ("language-modelling",)
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


def sequence_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a classifier of sequences of 128 steps, or of `size`."""
    size = size or 128
    return Subject(
        name=backbone,
        build=lambda: backbones.build(backbone, classes=6, in_channels=CHANNELS, **options),
        example=lambda count: torch.zeros(count, CHANNELS, size),
        description=f"a sequence of {size} steps with {CHANNELS} channels, with a head of 6 labels",
        loss=sum_outputs,
    )


def encoder_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return an encoder of texts of 200 tokens, or of `size`."""
    size = size or 200
    backbones.check_encoder(backbone, options)

    def example(count: int) -> Example:
        return torch.zeros(count, size, dtype=torch.int64), torch.ones(count, size, dtype=torch.bool)

    return Subject(
        name=backbone,
        build=lambda: ENCODERS[backbone].build(vocabulary=VOCABULARY, length=size, **options),
        example=example,
        description=f"a text of {size} tokens from a vocabulary of {VOCABULARY:,}",
        loss=sum_outputs,
    )


def decoder_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a decoder of texts of 256 tokens or as many as it has positions, or of `size`."""
    backbones.check_decoder(backbone, options)
    shape = LanguageModel(backbone=backbone, options=options).shape
    vocabulary, length = shape.vocabulary or VOCABULARY, size or min(256, shape.context or 256)
    return Subject(
        name=backbone,
        build=lambda: find_decoder(backbone).build(vocabulary=vocabulary, length=length, **options),
        example=lambda count: torch.zeros(count, length, dtype=torch.int64),
        description=f"a text of {length} tokens from a vocabulary of {vocabulary:,}",
        loss=sum_outputs,
    )


def stereo_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a stereo model of pairs of 256 x 512 pixels, or of another height."""
    size = size or 256
    backbones.check_stereo(backbone, options)
    # A window of the pyramid must fit into the images, and the largest disparity into their width.
    least = max(STEP * {**STEREO[backbone].options, **options}["pool"], MAX_DISPARITY // 2)
    if size < least or size % MULTIPLE:
        raise InputError(f"--size must be a multiple of {MULTIPLE} from {least} for {backbone}; got {size}")

    def example(count: int) -> Example:
        image = torch.zeros(count, 3, size, 2 * size)
        return image, image.clone()

    return Subject(
        name=backbone,
        build=lambda: STEREO[backbone].build(max_disparity=MAX_DISPARITY, **options),
        example=example,
        description=f"a pair of images of {size}x{2 * size} pixels with disparities below {MAX_DISPARITY}",
        batch=2,
        loss=sum_outputs,
    )


def detector_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a Mask R-CNN for images of 256 pixels, or of `size`."""
    size = size or 256
    if size % STRIDES[-1]:
        raise InputError(f"--size must be a multiple of {STRIDES[-1]} for a detector; got {size}")

    def build() -> nn.Module:
        body = backbones.build(backbone, classes=2, size=size, **options)
        return build_detector(body, classes=OBJECTS, canvas=size, normalisation=find(backbone).normalisation)

    def example(count: int) -> Example:  # noise, so that the detector finds objects
        return list(torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0)))

    return Subject(
        name=backbone,
        build=build,
        example=example,
        description=f"an image of {size}x{size} pixels: Mask R-CNN with {OBJECTS} kinds of objects",
        batch=2,
        loss=_detection_loss,
    )


def segmenter_subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a segmentation model for images of 256 pixels, or of `size`."""
    size, chosen = size or 256, SegmentationModel(backbone=backbone, options=options)
    if size % STRIDES[-1]:
        raise InputError(f"--size must be a multiple of {STRIDES[-1]} for segmentation; got {size}")
    return replace(
        image_subject(backbone, size, options),
        build=lambda: chosen.build(classes=OBJECTS, size=size),
        description=f"an image of {size}x{size} pixels, each of one of {OBJECTS} classes",
        images=False,
    )


def _detection_loss(model: nn.Module, example: Example) -> Tensor:
    """Return the summed losses of images with one object each."""
    images = [image for image in example if isinstance(image, Tensor)]
    targets = [_target(image) for image in images]
    losses: dict[str, Tensor] = model(images, targets)
    return torch.stack([loss.float() for loss in losses.values()]).sum()


def _target(image: Tensor) -> dict[str, Tensor]:
    side = image.shape[-1] // 2
    mask = torch.zeros(1, *image.shape[1:], dtype=torch.uint8, device=image.device)
    mask[:, :side, :side] = 1
    return {
        "boxes": torch.tensor([[0.0, 0.0, side, side]], device=image.device),
        "labels": torch.ones(1, dtype=torch.int64, device=image.device),
        "masks": mask,
    }
