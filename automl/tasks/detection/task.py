"""Detection: boxes, categories and masks of the objects in images."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.data.records import Records
from automl.task.base import EvaluationBatch, RecordTask
from automl.task.checks import ModelCheck, check_backbone
from automl.task.deployment import Deployment, read_usage, spread_indices
from automl.task.initial import initialise
from automl.task.task_data import Split
from automl.tasks.detection import BOX_AP, SPEC, DetectionData, DetectionModel, DetectionTraining
from automl.tasks.detection.data import DetectionImages, open_detection_records, open_split, shared_name
from automl.tasks.detection.data.augment import augment, draw_augmentations
from automl.tasks.detection.data.masks import decode_masks
from automl.tasks.detection.deploy import IMAGES, OUTPUTS, REQUEST, SIZES, DetectionDeployment, pad_images
from automl.tasks.detection.graph import DetectorGraph
from automl.tasks.detection.model import STRIDES, build_detector, sum_losses
from automl.tasks.detection.score import DetectionEvaluator, Truth, metric_names
from backbones import find
from backbones.channels import set_format
from backbones.libraries import LIBRARIES
from search.config import TrialConfig

Target = dict[str, Tensor]


load_images = lru_cache(maxsize=8)(open_split)  # once in a process


class Detection(DetectionDeployment, RecordTask[DetectionData, DetectionModel, DetectionTraining]):
    """Detection of boxes and masks.

    Its metrics are those of `DetectionEvaluator`, the primary one `box_ap` or `mask_ap`. A training batch is
    a list of images of different sizes and a list of their objects; torchvision pads the images. In
    validation and test every image is padded to the same size, so that no answer depends on other images.
    """

    spec = SPEC
    noun = "images"

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.train = load_images(self.data, "train")
        self.masks = self.chosen.masks and self.train.has_masks
        computed = metric_names("bbox") + (metric_names("segm") if self.masks else [])
        if self.metric.name not in computed:
            raise InputError(
                f"metric {self.metric.name} needs model.masks, and a mask of every object in the data; "
                f"choose {BOX_AP.name}"
            )
        self.may_be_nan: Collection[str] = computed
        self.batch_size = self.shared_batch_size(least=1)

    @property
    def labels(self) -> list[str]:
        return list(self.train.classes)

    def size(self, split: Split) -> int:
        return len(load_images(self.data, split))

    @classmethod
    def records(cls, config: TrialConfig) -> Records[Any]:
        return open_detection_records(cls.data_of(config))

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str:
        return shared_name(cls.data_of(config))

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        return {split: load_images(self.data, split).file.path for split in splits}

    @property
    def canvas(self) -> int:
        """Return the side in pixels of evaluated and deployed images."""
        return -(-self.data.size // STRIDES[-1]) * STRIDES[-1]

    def model(self) -> nn.Module:
        check = self.check()
        example = [image.cpu() for image in self.example(2)]
        model = self.placed(self._plain, lambda: example, self.canvas, len(self.labels))
        return set_format(model, check.memory_format)

    def check(self) -> ModelCheck:
        """Try backbone and pyramid, once in a process, if the backbone is not built in."""
        return check_backbone(
            self.chosen,
            [self.canvas, len(self.labels)],
            lambda: self._plain().get_submodule("backbone"),
            lambda count: torch.stack(self.example(count)),
            self.runtime,
            images=True,
            run=self.chosen.backbone.partition(":")[0] not in LIBRARIES,
        )

    def notes(self) -> Sequence[str]:
        return self.check().notes

    def _body(self) -> nn.Module:
        return self.chosen.build(classes=len(self.labels), size=self.canvas)

    def _plain(self) -> nn.Module:
        chosen = replace(self.chosen, masks=self.masks)
        return build_detector(chosen, self._body(), classes=len(self.labels), canvas=self.canvas)

    def initialise(self, model: nn.Module) -> list[str]:
        sizes = {"classes": len(self.labels), "size": self.canvas}
        return initialise(model, self.chosen, path="backbone.body", body=self._body, **sizes)

    def batches(self, epoch: int) -> Iterator[tuple[list[Tensor], list[Target]]]:
        """Yield images `(3, H, W)` from 0 to 1, and their objects without crowds, in torchvision's format.

        All workers draw the same order and augmentation, and each computes its own images.
        """
        generator = np.random.default_rng([self.config.seed, epoch])
        count = self.steps() * self.batch_size
        order = generator.permutation(len(self.train))[:count]
        scale = self.training.smallest, self.training.largest
        drawn = draw_augmentations(count, generator, flip=self.training.flip, scale=scale)
        for indices in torch.arange(count).view(-1, self.batch_size):
            examples = []
            for i in self.runtime.shard(indices).tolist():
                image, target = self._image(self.train, int(order[i])), self._target(int(order[i]))
                examples.append(augment(image, target, drawn[i], self.data.size))
            yield [image for image, _ in examples], [target for _, target in examples]

    def _image(self, split: DetectionImages, index: int) -> Tensor:
        raw = torch.from_numpy(split.image(index).copy()).to(self.runtime.device, non_blocking=True)
        return raw.permute(2, 0, 1).float() / 255

    def _target(self, index: int) -> Target:
        """Return the objects of a training image: boxes as corners, at the size of the stored image."""
        objects, (width, height) = self.train.objects(index), self.train.stored(index)
        objects_alone = np.flatnonzero(~objects.crowd)
        corners = objects.boxes[objects_alone]
        corners[:, 2:] += corners[:, :2]
        scale = np.array([width, height]) / self.train.original(index)
        corners = (corners * np.tile(scale, 2)).clip(0, [width, height] * 2)
        is_valid = ((corners[:, 2:] - corners[:, :2]) > 0).all(1)
        target: Target = {
            "boxes": torch.from_numpy(corners[is_valid].astype(np.float32)),
            "labels": torch.from_numpy(objects.labels[objects_alone][is_valid]),
        }
        if self.masks:
            assert objects.masks is not None
            masks = decode_masks([objects.masks[i] for i in objects_alone[is_valid]], height, width)
            target["masks"] = torch.from_numpy(masks)
        return {name: value.to(self.runtime.device) for name, value in target.items()}

    def example(self, count: int) -> list[Tensor]:
        # Random images, so that the detector has something to find.
        generator = torch.Generator().manual_seed(0)
        return list(
            torch.rand(count, 3, self.canvas, self.canvas, generator=generator).to(self.runtime.device)
        )

    def loss(self, model: nn.Module, batch: tuple[list[Tensor], list[Target]]) -> Tensor:
        return sum_losses(model, *batch)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        data = load_images(self.data, split)
        for index in self.runtime.shard(torch.arange(len(data))).split(self.training.batch_size):
            truths = [
                Truth(index=i, objects=data.objects(i), original=data.original(i), stored=data.stored(i))
                for i in index.tolist()
            ]
            yield EvaluationBatch(index, [self._image(data, i) for i in index.tolist()], truths)

    def evaluator(self, split: Split) -> DetectionEvaluator:
        return DetectionEvaluator(len(self.labels), masks=self.masks, device=self.runtime.device)

    def describe_changes(self) -> str:
        train, validation = self.train, load_images(self.data, "validation")
        return str(train.listed + train.file.count_changes() + validation.file.count_changes())

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the graph from bytes `(N, S, S, 3)` and image sizes to boxes, labels, scores and masks."""
        device = self.runtime.device
        graph = DetectorGraph(model, self.canvas, find(self.chosen.backbone).normalisation)
        images = torch.zeros(2, self.canvas, self.canvas, 3, dtype=torch.uint8, device=device)
        return Deployment(
            module=graph,
            inputs={IMAGES: images, SIZES: torch.full((2, 2), self.canvas, device=device)},
            outputs=OUTPUTS if graph.has_masks else OUTPUTS[:-1],
            details={
                "labels": self.labels,
                "category_ids": list(self.train.categories),
                "canvas": self.canvas,
                "size": self.data.size,
            },
        )

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        data = load_images(self.data, split)
        chosen = [data.image(i) for i in spread_indices(len(data), count).tolist()]
        return {
            name: value.to(self.runtime.device) for name, value in pad_images(chosen, self.canvas).items()
        }

    def usage(self) -> str:
        return read_usage(__file__).format(canvas=self.canvas, size=self.data.size)

    def request(self) -> str:
        return REQUEST.format(canvas=self.canvas, size=self.data.size)
