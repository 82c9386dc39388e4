"""What a placement costs in a model: `automl cost MODEL --place SITE=TYPE:option=value`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import torch

from attention import InputError, Spec
from automl.config.runtime import Runtime, find_device
from automl.config.units import short
from automl.costs.model import ModelCost, costs_of
from automl.tasks.model_check import check_model
from backbones import BACKBONES, build, insert
from backbones.memory_format import set_format

CLASSES = 1000


def read_places(texts: Sequence[str]) -> dict[str, Spec]:
    """A placement from texts such as `stage3.block2=decomposed:heads=8,normalisation=scaling`."""
    placement = {}
    for text in texts:
        site, equals, what = text.partition("=")
        kind, _, options = what.partition(":")
        if not equals or not site or not kind:
            raise InputError(f"--place is SITE=TYPE or SITE=TYPE:option=value,...; got {text!r}")
        if site in placement:
            raise InputError(f"--place names site {site!r} twice")
        placement[site] = Spec(kind, dict(_option(part, text) for part in options.split(",") if part))
    return placement


def _option(part: str, text: str) -> tuple[str, int | str]:
    name, equals, value = part.partition("=")
    if not equals:
        raise InputError(f"--place has options as name=value, with commas between; got {text!r}")
    return name, int(value) if value.lstrip("-").isdecimal() else value


def costs(backbone: str, size: int, placement: Mapping[str, Spec], batch: int) -> dict[str, ModelCost]:
    """Of the plain model and, where there is a placement, of the model with it.

    Raises InputError for a size or batch that is out of range, and for whatever `build` and `insert` refuse.
    """
    if not 1 <= size <= 4096:
        raise InputError(f"--size must lie between 1 and 4096 pixels; got {size}")
    if not 2 <= batch <= 4096:
        raise InputError(f"--batch must lie between 2, for batch norm, and 4096; got {batch}")
    runtime = Runtime(device=find_device())
    images = torch.zeros(batch, 3, size, size).to(memory_format=torch.channels_last)
    check = check_model(
        backbone,
        lambda: build(backbone, classes=CLASSES, size=size).to(runtime.device),
        lambda count: torch.rand(count, 3, size, size, device=runtime.device),
        runtime,
        images=True,
        classes=CLASSES,
        run=backbone not in BACKBONES,
    )
    models = {"plain": build(backbone, classes=CLASSES, size=size)}
    if placement:
        models["placement"] = insert(build(backbone, classes=CLASSES, size=size), placement, images)
    for model in models.values():
        set_format(model, check.memory_format)
    return costs_of(models, images, runtime)


def lines(found: Mapping[str, ModelCost]) -> Iterator[str]:
    """A table of the costs, with the placement's as multiples of the plain model's."""
    yield f"{'':10}{'parameters':>16}{'MACs':>16}{'activations':>16}{'step':>16}"
    plain = asdict(found["plain"])
    for name, cost in found.items():
        values = asdict(cost)
        step = f"{1e3 * cost.step:.3g} ms"
        shown = (short(cost.parameters), short(cost.macs), f"{short(cost.activations)}B", step)
        ratios = [
            "" if name == "plain" or not plain[key] else f" {values[key] / plain[key]:.3f}x" for key in values
        ]
        yield f"{name:10}" + "".join(f"{a + b:>16}" for a, b in zip(shown, ratios, strict=True))
    yield f"all but parameters for one image; a head of {CLASSES} labels; steps timed in turn on this machine"
