"""One factory for every backbone: of the table, of a library, or of the user.

    xresnet18                                  the table of this package
    torchvision:resnet50, timm:convnext_atto   a model of a library, by its name there
    mine.py:Net, package.module:function       a class or function of the user that returns a module

A class or function of the user takes the number of labels as `classes` or `num_classes`. If it has parameters
`in_channels` and `size` (side of the images in pixels), it gets these too. Its other parameters are options
of the configuration. Its model returns logits, or an object or mapping that has them as `logits`. Lazy layers
are initialised by a pass of a blank image.

The model is for images unless the class or function has an attribute `dimensions` of another value, 1 for
sequences. Images are normalised as for ImageNet unless it has an attribute `normalisation`, a
`backbones.Normalisation`.
"""

import inspect
import traceback
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from automl.base.errors import InputError, error_message, unknown
from automl.base.lazy import contributions
from automl.base.loading import load_object
from backbones.backbone_table import BACKBONES, TASK_PARAMETERS, Backbone, check_option
from backbones.example import logits, materialise
from backbones.libraries import IMAGENET, LIBRARIES, PublishedFile

COUNT = ("classes", "num_classes")  # Names of the parameter for the number of labels, in order of preference.


def find(name: str, dimensions: int | None = None) -> Backbone:
    """Return the backbone called `name`. Raise InputError if there is none.

    The message lists the backbones for inputs with so many spatial `dimensions`, or all of the table.
    """
    if name in BACKBONES:
        return BACKBONES[name]
    library, colon, model = name.partition(":")
    if not colon:
        fitting = [key for key, known in BACKBONES.items() if dimensions in (None, known.dimensions)]
        raise InputError(
            f"{unknown('backbone', name, fitting)} Or take torchvision:NAME, timm:NAME or your own as "
            f"file.py:Net."
        )
    for models in contributions("models"):  # a task may have a library of its own
        if name in models:
            result: Backbone = models[name]
            return result
    if library in LIBRARIES:
        names = LIBRARIES[library].names()
        if model not in names:
            raise unknown(f"model of {library}", model, names)
        known = LIBRARIES[library]
        return Backbone(
            name=name,
            build=partial(known.build, model),
            dimensions=2,
            source=library,
            normalisation=known.normalisation(model),
            published=partial(known.published, model) if known.published else None,
        )
    function = load_object("backbone", "function", name, BACKBONES)
    if not set(COUNT) & set(_parameters(function)):
        raise InputError(
            f"backbone {name!r} must take the number of labels as a parameter `classes` or `num_classes`"
        )
    return Backbone(
        name=name,
        build=partial(_build_own, function),
        takes=function,
        dimensions=getattr(function, "dimensions", 2),
        source=name,
        normalisation=getattr(function, "normalisation", IMAGENET),
    )


def build(
    name: str, /, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> nn.Module:
    """Build a new backbone with a head for `classes` labels.

    Args:
        size: Side of the images [pixels], for models that are built for one size.
        options: Options of the backbone. `find(name).options` has their names and defaults.

    Raises:
        InputError: The name or an option is unknown, a value is invalid, or a model of a library or of the
            user cannot be built.
    """
    check_options(name, options)
    if name in BACKBONES:
        sized = {"size": size} if BACKBONES[name].takes_size else {}
        return BACKBONES[name].build(classes=classes, in_channels=in_channels, **sized, **options)
    try:
        model = find(name).build(classes=classes, in_channels=in_channels, size=size, **options)
    except InputError:
        raise
    except Exception as error:  # A library or user code can raise any error.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        arguments = "".join(f" {key}={value!r}" for key, value in options.items())
        raise InputError(
            f"backbone {name!r} cannot be built{' with' * bool(arguments)}{arguments}: "
            f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"backbone {name!r} must return a torch.nn.Module; got {type(model).__name__}")
    if size is not None:
        materialise(model, torch.empty(2, in_channels, size, size))
    return model


def published_weights(
    name: str, /, *, classes: int, size: int | None = None, **options: Any
) -> Mapping[str, Tensor]:
    """Load the weights that a library publishes for its model. Those of the head may be for other labels.

    Args:
        name: Name of the backbone.
        classes: Number of labels.
        size: Side of the images [pixels].
        options: Options of the backbone.

    Raises:
        InputError: There are no published weights, or they cannot be loaded.
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
    except Exception as error:  # A library or the network can raise any error.
        raise InputError(
            f"the weights published for {name!r} cannot be had: {error_message(error)}. Download them "
            f"elsewhere and name the file"
        ) from error


def published_file(name: str) -> PublishedFile | None:
    """Return the file of the weights that a library publishes for its model, or None if there is none."""
    library, _, model = name.partition(":")
    return LIBRARIES[library].published_file(model) if library in LIBRARIES else None


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check names and types of a backbone's options, and raise InputError for an unknown or invalid one."""
    record = find(name)
    for option, value in options.items():
        if option in (*TASK_PARAMETERS, "name"):
            raise InputError(f"{option!r} is no option of backbone {name!r}: it is given by the task")
        if not record.is_open:  # A library reports unknown options when it builds the model.
            check_option("backbone", record, option, value)


def _parameters(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # It is not written in Python.
        return ()


def _build_own(function: Callable[..., Any], classes: int, **arguments: Any) -> Any:
    """Call `function` with the arguments that it takes. Its model returns only the logits."""
    parameters = _parameters(function)
    arguments[next(name for name in COUNT if name in parameters)] = classes
    model = function(
        **{key: value for key, value in arguments.items() if key in parameters or key not in TASK_PARAMETERS}
    )
    if isinstance(model, nn.Module):
        model.register_forward_hook(_logits)
    return model


def _logits(model: nn.Module, args: Any, output: Any) -> Any:
    return logits(output)
