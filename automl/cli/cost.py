"""What a placement costs in a model: `automl cost MODEL --place SITE=TYPE:option=value`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import torch

from attention import InputError, Spec
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.config.units import format_count
from automl.costs.model import ModelCost, costs_of
from automl.costs.subject import CLASSES, Subject
from automl.tasks.model_check import ModelCheck, check_model
from backbones import BACKBONES, insert
from backbones.memory_format import set_format


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


def costs(subject: Subject, placement: Mapping[str, Spec], batch: int | None = None) -> dict[str, ModelCost]:
    """Of the plain model and, where there is a placement, of the model with it.

    Raises InputError for a batch that is out of range, and for whatever building and `insert` refuse.
    """
    batch = subject.batch if batch is None else batch
    if not 2 <= batch <= 4096:
        raise InputError(f"--batch must lie between 2, for batch norm, and 4096; got {batch}")
    runtime = Runtime(device=find_device())
    check = ModelCheck()
    if subject.images:
        check = check_model(
            subject.name,
            lambda: subject.build().to(runtime.device),
            lambda count: torch.rand_like(subject.example(count), device=runtime.device),  # type: ignore[arg-type]
            runtime,
            images=True,
            classes=CLASSES,
            run=subject.name not in BACKBONES,
        )
    models = {"plain": subject.build()}
    if placement:
        models["placement"] = insert(subject.build(), placement, subject.example(2))
    for model in models.values():
        set_format(model, check.memory_format)
    return costs_of(models, subject, batch, runtime)


def lines(found: Mapping[str, ModelCost], one: str) -> Iterator[str]:
    """A table of the costs, with the placement's as multiples of the plain model's.

    one: an input in words.
    """
    yield f"{'':10}{'parameters':>16}{'MACs':>16}{'activations':>16}{'step':>16}"
    plain = asdict(found["plain"])
    for name, cost in found.items():
        values = asdict(cost)
        step = f"{1e3 * cost.step:.3g} ms"
        shown = (
            format_count(cost.parameters),
            format_count(cost.macs),
            f"{format_count(cost.activations)}B",
            step,
        )
        ratios = [
            "" if name == "plain" or not plain[key] else f" {values[key] / plain[key]:.3f}x" for key in values
        ]
        yield f"{name:10}" + "".join(f"{a + b:>16}" for a, b in zip(shown, ratios, strict=True))
    yield f"all but parameters for {one}; steps timed in turn on this machine"
