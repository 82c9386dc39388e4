"""The configuration of one trial: everything that decides what a training computes.

Frozen dataclasses that round-trip through JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import backbones
from attention import InputError, unknown
from backbones import loading
from backbones.placement import Placement
from search.metric import CLASSIFICATION, DETECTION, MASK_AP, Metric
from search.serialise import fields_to_json, from_json, together

if TYPE_CHECKING:
    from torch import nn

PUBLISHED = "default"  # weights

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["one-cycle", "flat-cosine", "warmup-cosine", "step-6", "step-12", "step-25", "step-50"]
Policy = Literal["none", "trivial", "rand"]
ClassWeights = Literal["none", "balanced"]
RetrievalLoss = Literal["softmax", "hinge"]
Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learned from, whatever kind of data it is.

    source: a name of the task's sources. path: what is read instead of downloading the source.
    subset: stratified fraction of the training and validation inputs that is used.
    """

    source: str = ""
    path: str | None = None
    subset: float = 1.0

    def problems(self) -> Iterator[str]:
        if not 0 < self.subset <= 1:
            yield f"data.subset must be above 0 and at most 1; got {self.subset}"


@dataclass(frozen=True, kw_only=True)
class ImageData(Data):
    """Images. size: side of the squares in pixels. source: `folder` for user images."""

    source: str = "digits"
    size: int = 32

    def problems(self) -> Iterator[str]:
        # Backbones halve five times; with less than one position left to halve, oneDNN's bfloat16
        # gradients of a strided convolution are not even initialised (torch 2.15).
        if not 24 <= self.size <= 1024:
            yield f"data.size must lie between 24 and 1024 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class SequenceData(Data):
    """Sequences of sensor readings. source: `ucihar`, which is downloaded where there is no path."""

    source: str = "ucihar"


@dataclass(frozen=True, kw_only=True)
class CodeData(Data):
    """Functions of source code with their docstrings: CodeSearchNet's or CoSQA's files, or a folder of code.

    vocabulary: sub-tokens at most. query_length, code_length: sub-tokens after which a text is cut.
    """

    source: str = "code"
    vocabulary: int = 10_000
    query_length: int = 30
    code_length: int = 200

    def problems(self) -> Iterator[str]:
        if not 100 <= self.vocabulary <= 1_000_000:
            yield f"data.vocabulary must lie between 100 and 1,000,000; got {self.vocabulary}"
        for name in ("query_length", "code_length"):
            if not 2 <= getattr(self, name) <= 1024:
                yield f"data.{name} must lie between 2 and 1024 sub-tokens; got {getattr(self, name)}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class StereoData(Data):
    """Rectified pairs of images with disparities. source: `planes`, or `pairs` at a path.

    height, width: of the crops that are trained on, in pixels. max_disparity: only pixels below it count.
    """

    source: str = "planes"
    height: int = 64
    width: int = 128
    max_disparity: int = 48

    def problems(self) -> Iterator[str]:
        for name in ("height", "width", "max_disparity"):
            value, least = getattr(self, name), 16 if name == "max_disparity" else 32
            if not least <= value <= 4096 or value % 16:
                yield f"data.{name} must be a multiple of 16 from {least} to 4096; got {value}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class DetectionData(Data):
    """Images with objects. source: `scenes`, or `coco` for a folder of COCO's layout at a path.

    size: of the longer side of an image in pixels; larger ones are scaled down to it.
    """

    source: str = "scenes"
    size: int = 96

    def problems(self) -> Iterator[str]:
        if not 64 <= self.size <= 2048:
            yield f"data.size must lie between 64 and 2048 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class Model:
    """A backbone, its options, and the attention at each site.

    backbone: of the table, `torchvision:NAME`, `timm:NAME`, `file.py:Net` or `package.module:Net`.
    weights: that training starts from: `default` for those that its library publishes, or a file's address.
    weights_digest: hash of that file.
    code: hash of the file of a model of one's own and of what it imports beside it; found where not given.
    """

    backbone: str = "xresnet18"
    options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=dict)
    weights: str = ""
    weights_digest: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        name = loading.here(loading.absolute(self.backbone), self.code)
        object.__setattr__(self, "backbone", name)
        if not self.code:
            with suppress(InputError):  # which `problems` tells
                object.__setattr__(self, "code", loading.identity(name))

    def problems(self) -> Iterator[str]:
        try:
            if self.changed():
                return  # it is of the past, and can be read but not built
            backbones.check_options(self.backbone, self.options)
            if self.weights == PUBLISHED and backbones.find(self.backbone).published is None:
                yield (
                    f"model.weights: there are none published for backbone {self.backbone!r}; "
                    f"torchvision:NAME and timm:NAME have some, or name a file"
                )
        except InputError as error:
            yield str(error)
        width = self.options.get("width")
        if isinstance(width, int | float) and not 1 / 16 <= width <= 16:
            yield f"model.options.width must lie between 1/16 and 16; got {width}"

    def changed(self) -> str:
        """Why a model of one's own cannot be built as it was, or nothing."""
        if not self.code:
            return ""
        try:
            now = loading.identity(self.backbone)
        except InputError as error:
            return str(error)
        return "" if now == self.code else f"the code of {self.backbone} has changed since"

    def build(self, *, classes: int, in_channels: int = 3, size: int | None = None) -> "nn.Module":
        """The backbone, without its placement. Raises InputError where its code is not as it was."""
        if changed := self.changed():
            raise InputError(f"{changed}; restore it, or start anew with the model as it is")
        return backbones.build(
            self.backbone, classes=classes, in_channels=in_channels, size=size, **self.options
        )

    def dimensions(self) -> int | None:
        """Of the backbone's inputs beside batch and channels; None where they are not known."""
        with suppress(InputError):
            return None if self.changed() else backbones.find(self.backbone).dimensions
        return None


@dataclass(frozen=True, kw_only=True)
class CodeModel(Model):
    """An encoder of queries and one of code, each of the kind `backbone` with the same options.

    The placement is in the encoder of code. shared: one encoder is both, and has the placement.
    """

    backbone: str = "selfattention"
    shared: bool = False

    def problems(self) -> Iterator[str]:
        try:
            backbones.check_encoder(self.backbone, self.options)
        except InputError as error:
            yield str(error)
        if self.weights:
            yield f"model.weights: text encoders start from new weights; got {self.weights!r}"

    def dimensions(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class StereoModel(Model):
    """A model of two rectified images, of `backbones.STEREO`."""

    backbone: str = "psmnet"

    def problems(self) -> Iterator[str]:
        try:
            backbones.check_stereo(self.backbone, self.options)
        except InputError as error:
            yield str(error)
        if self.weights:
            yield f"model.weights: stereo models start from new weights; got {self.weights!r}"

    def dimensions(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class DetectionModel(Model):
    """Faster R-CNN over a backbone with a feature pyramid, or Mask R-CNN, which finds masks, too.

    masks: whether it finds masks where the data have some.
    channels, representation, anchor, proposals, regions, detections: as `build_detector` has them.
    frozen_stages: of the trunk from its stem on, whose weights stay as they are. frozen_norms: whether batch
        norms of the trunk stay as they are. Both are for a trunk that was trained.
    norm: in the pyramid and the heads: `group`, with which a detector learns sooner from new weights, or
        `none`, as torchvision has them.
    """

    masks: bool = True
    channels: int = 256
    representation: int = 1024
    anchor: int = 32
    proposals: int = 1000
    regions: int = 512
    detections: int = 100
    frozen_stages: int = 0
    frozen_norms: bool = False
    norm: Literal["none", "group"] = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("channels", "representation", "anchor", "proposals", "regions", "detections"):
            if not 1 <= getattr(self, name) <= 10_000:
                yield f"model.{name} must lie between 1 and 10,000; got {getattr(self, name)}"
        if not 0 <= self.frozen_stages <= 4:
            yield f"model.frozen_stages must lie between 0 and 4; got {self.frozen_stages}"
        if (self.frozen_stages or self.frozen_norms) and not self.weights:
            yield "model.frozen_stages and model.frozen_norms need model.weights; new ones would not learn"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is learned, whatever the task. The defaults are the published ones of SimpleSelfAttention.

    layer_decay: the learning rate of a layer as a part of the next one's, of models that name their layers.
    clip: the largest norm of all gradients together; 0 is off.
    accumulate: batches whose gradients are averaged for one step of the optimiser, where a larger batch does
        not fit the device; the last step of an epoch may have fewer.
    average: decay of a running average of the weights, which is then scored and kept; 0 is off.
    """

    epochs: int = 5
    batch_size: int = 64
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    schedule: Schedule = "one-cycle"
    layer_decay: float = 1.0
    clip: float = 0.0
    accumulate: int = 1
    average: float = 0.0

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"
        if self.batch_size < 2:
            yield f"training.batch_size must be 2 or more, for batch norm; got {self.batch_size}"
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            yield f"training.learning_rate must be above 0; got {self.learning_rate}"
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            yield f"training.weight_decay must be 0 or more; got {self.weight_decay}"
        if not 0 < self.layer_decay <= 1:
            yield f"training.layer_decay must be above 0 and at most 1; got {self.layer_decay}"
        if not (isfinite(self.clip) and self.clip >= 0):
            yield f"training.clip must be 0 or more; got {self.clip}"
        if not 1 <= self.accumulate <= 1024:
            yield f"training.accumulate must lie between 1 and 1024; got {self.accumulate}"
        if not 0 <= self.average < 1:
            yield f"training.average must be at least 0 and below 1; got {self.average}"


@dataclass(frozen=True, kw_only=True)
class ClassificationTraining(Training):
    """With cross-entropy.

    class_weights: of classes in the loss; `balanced` is n / (k n_c) of n training inputs of k classes, n_c
        of them of class c, so that each class weighs the same in an epoch.
    """

    label_smoothing: float = 0.1
    class_weights: ClassWeights = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 <= self.label_smoothing < 1:
            yield f"training.label_smoothing must be at least 0 and below 1; got {self.label_smoothing}"


@dataclass(frozen=True, kw_only=True)
class ImageTraining(ClassificationTraining):
    """Augmentation beside crops and mirror images.

    mixup, cutmix: alpha of the beta distribution that mixing weights are drawn from; 0 is off. Where both are
        on, every batch is mixed in one of the two ways.
    flip: half of the images are mirrored; None: where the source is one of photographs.
    policy: of colours and shapes, `trivial` for TrivialAugment or `rand` for RandAugment. erasing: the
        probability that a box of an image is erased.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    flip: bool | None = None
    policy: Policy = "none"
    erasing: float = 0.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not (isfinite(self.mixup) and self.mixup >= 0):
            yield f"training.mixup must be 0 or more; got {self.mixup}"
        if not (isfinite(self.cutmix) and self.cutmix >= 0):
            yield f"training.cutmix must be 0 or more; got {self.cutmix}"
        if not 0 <= self.erasing <= 1:
            yield f"training.erasing must lie between 0 and 1; got {self.erasing}"


@dataclass(frozen=True, kw_only=True)
class RetrievalTraining(Training):
    """Each query of a batch is to be nearer to its own code than to that of all others in the batch.

    loss: `softmax` is the cross-entropy of the similarities divided by `temperature`; `hinge` is what others
        come nearer than `margin` below the query's own. similarity: of two vectors.
    """

    loss: RetrievalLoss = "softmax"
    similarity: Similarity = "cosine"
    temperature: float = 0.05
    margin: float = 0.5

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not (isfinite(self.temperature) and self.temperature > 0):
            yield f"training.temperature must be above 0; got {self.temperature}"
        if not (isfinite(self.margin) and self.margin > 0):
            yield f"training.margin must be above 0; got {self.margin}"


@dataclass(frozen=True, kw_only=True)
class StereoTraining(Training):
    """With the smooth L1 loss of disparities. The defaults are the published ones of PSMNet on Scene Flow."""

    epochs: int = 10
    batch_size: int = 12
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Schedule = "flat-cosine"


@dataclass(frozen=True, kw_only=True)
class DetectionTraining(Training):
    """With the losses of proposals, boxes and masks, each with weight 1.

    flip: half of the images are mirrored. smallest, largest: of the factors that images are scaled by, each
        drawn; what is then larger than `data.size` is cropped at random.
    """

    batch_size: int = 16
    flip: bool = True
    smallest: float = 1.0
    largest: float = 1.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0.1 <= self.smallest <= self.largest <= 10:
            yield (
                f"training.smallest and training.largest must lie between 0.1 and 10, in this order; got "
                f"{self.smallest} and {self.largest}"
            )


@dataclass(frozen=True, kw_only=True)
class TaskConfigs:
    """The types of a task's configuration.

    dimensions: of the inputs of backbones that fit the task; None for a task that makes its own models,
        with a custom `model` type, whose `problems` check its values.
    metrics: from which the primary one may be chosen, the default first; nothing where there is but one.
    """

    data: type[Data]
    training: type[Training]
    dimensions: int | None
    model: type[Model] = Model
    metrics: Sequence[Metric] = ()


# A user-defined task, `file.py:Class`, has such a value as its attribute `configs`.
TASK_CONFIGS: Mapping[str, TaskConfigs] = {
    "image-classification": TaskConfigs(
        data=ImageData, training=ImageTraining, dimensions=2, metrics=CLASSIFICATION
    ),
    "sequence-classification": TaskConfigs(
        data=SequenceData, training=ClassificationTraining, dimensions=1, metrics=CLASSIFICATION
    ),
    "code-retrieval": TaskConfigs(
        data=CodeData, model=CodeModel, training=RetrievalTraining, dimensions=None
    ),
    "stereo": TaskConfigs(data=StereoData, model=StereoModel, training=StereoTraining, dimensions=None),
    "detection": TaskConfigs(
        data=DetectionData, model=DetectionModel, training=DetectionTraining, dimensions=2, metrics=DETECTION
    ),
}


def configs_of(task: str) -> TaskConfigs:
    """The types of the configuration of `task`. Raises InputError when there is no such task."""
    if task in TASK_CONFIGS:
        return TASK_CONFIGS[task]
    found = getattr(loading.load_object("task", "Class", task, TASK_CONFIGS), "configs", None)
    if not isinstance(found, TaskConfigs):
        raise InputError(f"task {task!r} must have an attribute `configs`, a search.config.TaskConfigs")
    return found


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """One trial. Raises InputError, naming every problem, when a value cannot work.

    task: `image-classification`, `sequence-classification`, `code-retrieval`, `stereo`, `detection`,
        `file.py:Class` or `package.module:Class`. It decides which types `data`, `model` and `training` are
        of, whose defaults stand where they are not given.
    metric: by which trials are compared, one of the task's; its default where not given.
    seed: decides initial weights, data order and augmentation.
    """

    task: str = "image-classification"
    data: Data = None  # type: ignore[assignment]
    model: Model = None  # type: ignore[assignment]
    training: Training = None  # type: ignore[assignment]
    metric: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", loading.absolute(self.task))
        try:
            configs, problems = configs_of(self.task), []
        except InputError as error:
            raise InputError(together("configuration", [str(error)])) from None
        for name, kind in self._types(configs).items():
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(value, kind):
                problems.append(f"{name} of task {self.task} must be a {kind.__name__}; got {value!r}")
        if not problems:
            problems += [p for part in (self.data, self.model, self.training) for p in part.problems()]
        takes = self.model.dimensions() if configs.dimensions is not None else None
        if takes not in (None, configs.dimensions):
            fit = [
                name for name, other in backbones.BACKBONES.items() if other.dimensions == configs.dimensions
            ]
            problems.append(
                f"backbone {self.model.backbone} takes inputs with {takes} spatial dimensions, "
                f"and those of task {self.task} have {configs.dimensions}; choose from {', '.join(fit)}"
            )
        if self.metric == MASK_AP.name and isinstance(self.model, DetectionModel) and not self.model.masks:
            problems.append("metric mask_ap needs model.masks")
        names = [metric.name for metric in configs.metrics]
        if self.metric and self.metric not in names:
            one = f"task {self.task} has one metric alone, and takes none; got {self.metric!r}"
            problems.append(str(unknown("metric", self.metric, names)) if names else one)
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if problems:
            raise InputError(together("configuration", problems))

    @classmethod
    def json_types(cls, value: Mapping[str, Any]) -> dict[str, type]:
        """The types that the task decides on. Raises InputError when there is no such task."""
        task = value.get("task", cls.task)
        configs = configs_of(task if isinstance(task, str) else cls.task)
        return cls._types(configs)

    @staticmethod
    def _types(configs: TaskConfigs) -> dict[str, type]:
        return {"data": configs.data, "model": configs.model, "training": configs.training}

    def code(self) -> loading.Code:
        """The files of what is user-defined in it, for machines that do not have them."""
        return {**loading.code(self.task), **loading.code(self.model.backbone)}

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return fields_to_json(self)

    @classmethod
    def from_json(cls, value: object) -> "TrialConfig":
        """The inverse of `to_json`; what is left out takes its default."""
        return from_json(cls, value, "configuration")

    def __reduce__(self) -> Any:
        """Pickled as JSON: the types of a user-defined task are in a file, not in a module."""
        return TrialConfig.from_json, (self.to_json(),)

    def change(self, **parts: Mapping[str, Any] | Any) -> "TrialConfig":
        """A copy with some values changed: `config.change(data={"size": 64}, seed=1)`."""
        new = {}
        for name, value in parts.items():
            part = getattr(self, name)
            if not isinstance(value, Mapping):
                new[name] = value
                continue
            if "backbone" in value and isinstance(part, Model):
                value = {"code": "", **value}
            known = [f.name for f in fields(part)]
            for key in value:
                if key not in known:
                    raise unknown(f"key of the {name} of task {self.task}", key, known)
            new[name] = replace(part, **value)
        return replace(self, **new)
