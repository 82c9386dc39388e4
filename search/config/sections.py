"""Sections of the configurations of all tasks: data, model and training, also of classifiers and own code."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import backbones
from attention.spec import Placement, as_placement, name_modules
from automl.base import loading
from automl.base.errors import InputError
from automl.base.serialise import WITHOUT_TORCH
from search.metric import Metric

if TYPE_CHECKING:
    from torch import nn

PUBLISHED = "default"  # weights

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["one-cycle", "flat-cosine", "warmup-cosine", "cosine", "step"]
Decayed = Literal["weights", "all"]

# Values that hyperparameters of a training may have, and the rule in words.
RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "epochs": (lambda value: value >= 1, "be 1 or more"),
    "batch_size": (lambda value: value >= 2, "be 2 or more, for batch norm"),
    "learning_rate": (lambda value: 0 < value < inf, "be above 0"),
    "weight_decay": (lambda value: 0 <= value < inf, "be 0 or more"),
    "beta1": (lambda value: 0 <= value < 1, "be at least 0 and below 1"),
    "beta2": (lambda value: 0 <= value < 1, "be at least 0 and below 1"),
    "eps": (lambda value: 0 < value <= 1, "be above 0 and at most 1"),
    "decay_every": (lambda value: value >= 1, "be 1 epoch or more"),
    "decay_factor": (lambda value: 0 < value <= 1, "be above 0 and at most 1"),
    "layer_decay": (lambda value: 0 < value <= 1, "be above 0 and at most 1"),
    "clip": (lambda value: 0 <= value < inf, "be 0 or more"),
    "accumulate": (lambda value: 1 <= value <= 1024, "lie between 1 and 1024"),
    "average": (lambda value: 0 <= value < 1, "be at least 0 and below 1"),
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """The dataset of a configuration.

    Attributes:
        source: The name of one of the task's sources.
        path: The path to read instead of downloading the source.
        subset: The fraction of the training and validation inputs that is used, stratified by class.
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {}  # the field that an option of another name sets

    source: str = ""
    path: str | None = None
    subset: float = 1.0

    @property
    def decoding_context(self) -> int:
        """Return the number of tokens at which the cost of decoding counts, or 0 if nothing is decoded."""
        return 0

    def problems(self) -> Iterator[str]:
        if not 0 < self.subset <= 1:
            yield f"data.subset must be above 0 and at most 1; got {self.subset}"


@dataclass(frozen=True, kw_only=True)
class Model:
    """The backbone, its options and the placement.

    Attributes:
        backbone: A built-in name, `torchvision:NAME`, `timm:NAME`, `file.py:Net` or `package.module:Net`.
        options: The options of the backbone.
        placement: The attention module at each site.
        weights: The initial weights: `default` for those that the backbone's library publishes, or the
            address of a file. Empty for new weights.
        weights_digest: The hash of that file.
        code: The hash of the file of a user-defined model and of the files that it imports from the same
            folder. Computed if None.
    """

    backbone: str = "xresnet18"
    options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=dict)
    weights: str = ""
    weights_digest: str = ""
    code: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", as_placement(self.placement))
        name = loading.find_local_name(loading.make_absolute(self.backbone), self.code or "")
        object.__setattr__(self, "backbone", name)
        if self.code is None:
            object.__setattr__(self, "code", "")
            with suppress(InputError):  # `misuses` reports the error
                object.__setattr__(self, "code", loading.hash_code(name))

    def problems(self) -> Iterator[str]:
        """Yield the problems of its values that this program alone decides.

        Nothing of the disk, the network, an installed library or user-defined code is asked, so a model that
        is not available here can be read.
        """
        if ":" not in self.backbone:
            yield from self.misuses()

    def misuses(self) -> Iterator[str]:
        """Yield problems of the backbone's name, options and weights. Loads its library or code."""
        width = self.options.get("width")
        if isinstance(width, int | float) and not 1 / 16 <= width <= 16:
            yield f"model.options.width must lie between 1/16 and 16; got {width}"
        try:
            if WITHOUT_TORCH.get() or self.changed():
                return  # the code has changed, so the model can be read but not built
            backbones.check_options(self.backbone, self.options)
            if self.weights == PUBLISHED and backbones.find(self.backbone).published is None:
                yield (
                    f"model.weights: backbone {self.backbone!r} has no published weights; choose a backbone "
                    f"torchvision:NAME or timm:NAME, or name a file"
                )
        except InputError as error:
            yield str(error)

    def identified(self) -> "Model":
        """Load the types of the placement, and return the model with the hashes of its code.

        Raises InputError if the code of a type cannot be loaded, has changed, or lacks an option.
        """
        placement = {site: spec.identified() for site, spec in self.placement.items()}
        return replace(self, placement=placement, code=self.code or None)

    def changed(self) -> str:
        """Return the reason why a user-defined model cannot be built as before, or an empty string."""
        if not self.code:
            return ""
        try:
            now = loading.hash_code(self.backbone)
        except InputError as error:
            return str(error)
        return "" if now == self.code else f"the code of {self.backbone} has changed"

    # The kind of the layers that the modules of a placement replace, if they do.
    own_layer: ClassVar[str] = ""

    @property
    def kinds(self) -> list[str]:
        """Return the kind of each layer, if modules replace layers: an attention type, or `own_layer`."""
        return []

    def placement_name(self, *, options: bool = True) -> str:
        """Return the short name of the placement, for people, or `plain`.

        Sites of equal modules are listed together, and of more than three modules only two: `ssa @
        stage1.block1, stage2.block1 + 3 more`. With `options`, those of the modules are included.
        """
        return name_modules(self.placement, options=options)

    def check_local(self) -> None:
        """Raise InputError if files must be downloaded to read the model."""

    def cache_bytes(self, context: int) -> int:
        """Return the bytes kept while decoding `context` tokens, 0 if not a decoder, or raise InputError."""
        return 0

    def build(self, *, classes: int, in_channels: int = 3, size: int | None = None) -> "nn.Module":
        """Build the backbone without its placement, on the CPU.

        Its images have sides of `size` pixels, if it depends on that. Raises InputError if the code of a
        user-defined backbone has changed.
        """
        if changed := self.changed():
            raise InputError(f"{changed}; restore it, or start a new search")
        return backbones.build(
            self.backbone, classes=classes, in_channels=in_channels, size=size, **self.options
        )


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hyperparameters of a training. The defaults are those published for SimpleSelfAttention.

    Attributes:
        batch_size: The number of inputs of a step, over all workers.
        optimizer: `adamw` shrinks the weights by a fraction at each step (decoupled weight decay). `adam`
            adds the penalty to the gradient (L2), like `torch.optim.Adam`. `sgd` has Nesterov momentum 0.9
            and also adds it.
        learning_rate: The largest learning rate of the schedule.
        decayed: The parameters that `weight_decay` applies to. `weights` are those of linear layers and
            convolutions; `all` are all parameters, like a torch optimiser that gets `model.parameters()`.
        beta1: Beta 1 of `adamw` and `adam`.
        beta2: Beta 2 of `adamw` and `adam`.
        eps: Epsilon of `adamw` and `adam`.
        schedule: The schedule of the learning rate, see `automl.training.optimiser.compute_relative_rate`.
        decay_every: For the schedule `step`: the number of epochs after which the rate is multiplied by
            `decay_factor`. These are epochs of the configuration: if a slower model trains fewer epochs in
            the same time, the rate falls after the same fractions of that time.
        decay_factor: That factor.
        layer_decay: The learning rate of a layer relative to the next one. The head and inserted attention
            have the full rate. Blocks are layers unless the model names its own, as those of timm do.
        clip: The largest norm of all gradients together; 0 is off.
        accumulate: The number of batches whose gradients are averaged for one step, if a larger batch does
            not fit the device. The last step of an epoch may have fewer.
        average: The decay of a running average of the weights, which is then scored and kept; 0 is off.
    """

    REMOVED: ClassVar[Mapping[str, Any]] = {"insert_at": 0, "perturb": 0.0}

    epochs: int = 5
    batch_size: int = 64
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    decayed: Decayed = "weights"
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-6
    schedule: Schedule = "one-cycle"
    decay_every: int = 10
    decay_factor: float = 0.75
    layer_decay: float = 1.0
    clip: float = 0.0
    accumulate: int = 1
    average: float = 0.0

    @property
    def reported(self) -> Metric | None:
        """Return the metric that the user's own code reports. None for a training by a task."""
        return None

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values by name, for tables."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def summary(self) -> str:
        """Return the most important values in a line."""
        return f"{self.optimizer}, learning rate {self.learning_rate:.3g}, batch size {self.batch_size}"

    def problems(self) -> Iterator[str]:
        for name, (is_valid, rule) in RULES.items():
            if not is_valid(value := getattr(self, name)):
                yield f"training.{name} must {rule}; got {value}"
        if self.decayed == "all" and self.layer_decay < 1:
            yield "training.decayed 'all' does not go with training.layer_decay; leave one of them out"


ClassWeights = Literal["none", "balanced"]


@dataclass(frozen=True, kw_only=True)
class ClassificationTraining(Training):
    """Training with cross-entropy.

    Attributes:
        label_smoothing: The label smoothing, from 0 to below 1.
        class_weights: Weights of the classes in the loss. `balanced` gives each class the same weight in an
            epoch: n / (k n_c) for n training inputs of k classes, n_c of them of class c.
    """

    label_smoothing: float = 0.1
    class_weights: ClassWeights = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 <= self.label_smoothing < 1:
            yield f"training.label_smoothing must be at least 0 and below 1; got {self.label_smoothing}"


@dataclass(frozen=True, kw_only=True)
class OwnTraining(Training):
    """Training by the user's own code, and the metric that it reports.

    Optimiser, schedule and augmentation are in that code.

    Attributes:
        batch_size: The number of inputs of a step, for measuring.
        parameters: The values of the hyperparameters that the code asked for.
        chance: The score of guessing, or None if it is unknown.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    reports: Metric = field(default_factory=lambda: Metric(name="score", maximize=True, margin=0))
    chance: float | None = None

    @property
    def reported(self) -> Metric:
        """Return the metric."""
        return self.reports

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that own code has, by name."""
        return {"epochs": self.epochs, "batch_size": self.batch_size, **self.parameters}

    def summary(self) -> str:
        """Return the values that own code has, in a line."""
        values = {**self.parameters, "batch size": self.batch_size}
        return ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"

    def to_json(self) -> dict[str, Any]:
        """Convert to dictionaries and values, without the fields that own code does not use."""
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "parameters": dict(self.parameters),
            "reports": vars(self.reports.declaration),
            "chance": self.chance,
        }
