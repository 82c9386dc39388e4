"""What the configurations of all tasks have: data, model and training."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import backbones
from attention import InputError
from backbones import loading
from backbones.placement import Placement, as_placement

if TYPE_CHECKING:
    from torch import nn

PUBLISHED = "default"  # weights

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["one-cycle", "flat-cosine", "warmup-cosine", "cosine", "step"]
Decayed = Literal["weights", "all"]


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
class Model:
    """A backbone, its options, and the attention at each site.

    backbone: of the table, `torchvision:NAME`, `timm:NAME`, `file.py:Net` or `package.module:Net`.
    weights: that training starts from: `default` for those that its library publishes, or a file's address.
    weights_digest: hash of that file.
    code: hash of the file of a user-defined model and of what it imports beside it; computed if None.
    """

    backbone: str = "xresnet18"
    options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=dict)
    weights: str = ""
    weights_digest: str = ""
    code: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", as_placement(self.placement))
        name = loading.here(loading.absolute(self.backbone), self.code or "")
        object.__setattr__(self, "backbone", name)
        if self.code is None:
            object.__setattr__(self, "code", "")
            with suppress(InputError):  # `misuses` names it
                object.__setattr__(self, "code", loading.identity(name))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with its values, as far as that shows without running user-defined code."""
        if not loading.is_user_defined(self.backbone):
            yield from self.misuses()
        width = self.options.get("width")
        if isinstance(width, int | float) and not 1 / 16 <= width <= 16:
            yield f"model.options.width must lie between 1/16 and 16; got {width}"

    def misuses(self) -> Iterator[str]:
        """Yield what is wrong with the backbone's name, options and weights; loads user-defined code."""
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

    def identified(self) -> "Model":
        """Return the model with the hash of its code, where that was left out."""
        return self if self.code else replace(self, code=None)

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
class Training:
    """How it is learned, whatever the task. The defaults are the published ones of SimpleSelfAttention.

    optimizer: `adamw` takes a part of the weights away at each step; `adam` adds the penalty to the gradient
        (L2), as `torch.optim.Adam` does; `sgd` has Nesterov's momentum of 0.9 and adds it, too.
    beta1, beta2, eps: of `adamw` and `adam`.
    decayed: what `weight_decay` applies to. `weights` are those of linear layers and convolutions; `all` are
        all parameters, as an optimiser of torch has it that is given `model.parameters()`.
    schedule: of the learning rate, see `automl.training.optimiser.learning_rate`.
    decay_every, decay_factor: of the schedule `step`, which multiplies the rate after each so many epochs.
        They are the configuration's epochs: where a slower model gets fewer of its own for the same time,
        the rate falls after the same parts of that time.
    layer_decay: the learning rate of a layer as a part of the next one's, of models that name their layers.
    clip: the largest norm of all gradients together; 0 is off.
    accumulate: batches whose gradients are averaged for one step of the optimiser, where a larger batch does
        not fit the device; the last step of an epoch may have fewer.
    average: decay of a running average of the weights, which is then scored and kept; 0 is off.
    insert_at: the epoch after which the placement is put into the model, which was without attention until
        then; with 0 it is there from the start.
    perturb: relative size of normal noise on the weights at that epoch; 0 is none. A training without a
        placement but with 1e-6 is a replicate: it differs from the one without noise by chance alone.
    """

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
    insert_at: int = 0
    perturb: float = 0.0

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"
        if self.batch_size < 2:
            yield f"training.batch_size must be 2 or more, for batch norm; got {self.batch_size}"
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            yield f"training.learning_rate must be above 0; got {self.learning_rate}"
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            yield f"training.weight_decay must be 0 or more; got {self.weight_decay}"
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                yield f"training.{name} must be at least 0 and below 1; got {getattr(self, name)}"
        if not 0 < self.eps <= 1:
            yield f"training.eps must be above 0 and at most 1; got {self.eps}"
        if self.decay_every < 1:
            yield f"training.decay_every must be 1 epoch or more; got {self.decay_every}"
        if not 0 < self.decay_factor <= 1:
            yield f"training.decay_factor must be above 0 and at most 1; got {self.decay_factor}"
        if self.decayed == "all" and self.layer_decay < 1:
            yield "training.decayed 'all' does not go with training.layer_decay; leave one of them out"
        if not 0 < self.layer_decay <= 1:
            yield f"training.layer_decay must be above 0 and at most 1; got {self.layer_decay}"
        if not (isfinite(self.clip) and self.clip >= 0):
            yield f"training.clip must be 0 or more; got {self.clip}"
        if not 1 <= self.accumulate <= 1024:
            yield f"training.accumulate must lie between 1 and 1024; got {self.accumulate}"
        if not 0 <= self.average < 1:
            yield f"training.average must be at least 0 and below 1; got {self.average}"
        if not 0 <= self.insert_at < max(1, self.epochs):
            yield f"insert_at must be 0 or more and less than epochs, {self.epochs}; got {self.insert_at}"
        if not 0 <= self.perturb < 1 or (self.perturb and not self.insert_at):
            yield f"training.perturb must be 0 or more, below 1, and 0 without insert_at; got {self.perturb}"
