"""One factory for every backbone: of the table, of torchvision or timm, or a person's own.

    xresnet18                                  the table of this package
    torchvision:resnet50, timm:convnext_atto   a model of a library, by its name there
    mine.py:Net, package.module:function       a class or function of one's own that returns a module

A class or function of one's own takes the number of labels as `classes` or `num_classes`, and where it names
them `in_channels` and `size`, the side of images in pixels; its other parameters are options of the
configuration. Its model returns logits, or an object or mapping that has them as `logits`. Lazy layers get
their weights from the first pass of a blank image.
It is for images unless it has an attribute `dimensions` of another value: 1 of sequences. Images are
normalised as ImageNet's are unless it has an attribute `normalisation`, a `backbones.Normalisation`.
"""

import inspect
import traceback
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention import InputError, unknown
from backbones.backbone_table import BACKBONES, GIVEN, Backbone, check_value
from backbones.lazy_layers import materialise
from backbones.libraries import LIBRARIES
from backbones.loading import load_object
from backbones.normalisation import IMAGENET
from backbones.output import logits

COUNT = ("classes", "num_classes")  # names of the number of labels, the first that a model takes


def find(name: str) -> Backbone:
    """The record of the backbone called `name`. Raises InputError where there is none."""
    if name in BACKBONES:
        return BACKBONES[name]
    library, colon, model = name.partition(":")
    if not colon:
        raise InputError(
            f"{unknown('backbone', name, BACKBONES)} Or take torchvision:NAME, timm:NAME or your own as "
            f"file.py:Net."
        )
    if library in LIBRARIES:
        known = LIBRARIES[library].names()
        if model not in known:
            raise unknown(f"model of {library}", model, known)
        record = LIBRARIES[library]
        return Backbone(
            name=name,
            build=partial(record.build, model),
            dimensions=2,
            source=library,
            normalisation=record.normalisation(model),
            published=partial(record.published, model) if record.published else None,
        )
    own = load_object("backbone", "function", name, BACKBONES)
    if not set(COUNT) & set(_parameters(own)):
        raise InputError(
            f"backbone {name!r} must take the number of labels as a parameter `classes` or `num_classes`"
        )
    return Backbone(
        name=name,
        build=partial(_own, own),
        takes=own,
        dimensions=getattr(own, "dimensions", 2),
        source=name,
        normalisation=getattr(own, "normalisation", IMAGENET),
    )


def build(
    name: str, /, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> nn.Module:
    """A new backbone with a head for `classes` labels.

    size: side of the images in pixels, for models that are made for one size.
    options: of that backbone; `find(name).options` has their names and defaults.
    Raises InputError for an unknown name, an unknown option and a value that it cannot have, and where a
    model of a library or of one's own cannot be built.
    """
    check_options(name, options)
    if name in BACKBONES:
        sized = {"size": size} if BACKBONES[name].takes_size else {}
        return BACKBONES[name].build(classes=classes, in_channels=in_channels, **sized, **options)
    try:
        model = find(name).build(classes=classes, in_channels=in_channels, size=size, **options)
    except InputError:
        raise
    except Exception as error:  # whatever a library or a person raises
        where = traceback.extract_tb(error.__traceback__)[-1]
        given = "".join(f" {key}={value!r}" for key, value in options.items())
        raise InputError(
            f"backbone {name!r} cannot be built{' with' * bool(given)}{given}: {type(error).__name__}: "
            f"{error} ({Path(where.filename).name}, line {where.lineno})"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"backbone {name!r} must return a torch.nn.Module; got {type(model).__name__}")
    if size is not None:
        materialise(model, torch.empty(2, in_channels, size, size))
    return model


def published_weights(
    name: str, /, *, classes: int, size: int | None = None, **options: Any
) -> Mapping[str, Tensor]:
    """The weights that a library publishes for its model; those of the head may be for other labels.

    Raises InputError where there are none, and where they cannot be had.
    """
    published = find(name).published
    if published is None:
        raise InputError(
            f"there are no published weights for backbone {name!r}; torchvision:NAME and timm:NAME have "
            f"some. Name a file of weights"
        )
    try:
        return published(classes=classes, size=size, **options)
    except InputError:
        raise
    except Exception as error:  # whatever a library or the network raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the weights published for {name!r} cannot be had: {reason}. Download them "
            f"elsewhere and name the file"
        ) from error


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises InputError for an unknown backbone, an option that it lacks, and one of another type."""
    record = find(name)
    for option, value in options.items():
        if option in (*GIVEN, "name"):
            raise InputError(f"{option!r} is no option of backbone {name!r}: it is given by the task")
        if record.is_open:  # what a library's model lacks, it tells when it is built
            continue
        if option not in record.options:
            raise unknown(f"option of backbone {name!r}", option, record.options)
        check_value(record, option, value)


def _parameters(make: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(make).parameters
    except ValueError:  # it is not written in Python
        return ()


def _own(make: Callable[..., Any], classes: int, **given: Any) -> Any:
    """`make` with what it takes, whose model returns its logits alone."""
    parameters = _parameters(make)
    given[next(name for name in COUNT if name in parameters)] = classes
    model = make(**{key: value for key, value in given.items() if key in parameters or key not in GIVEN})
    if isinstance(model, nn.Module):
        model.register_forward_hook(_logits)
    return model


def _logits(model: nn.Module, args: Any, output: Any) -> Any:
    return logits(output)
