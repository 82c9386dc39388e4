"""Costs of a placement in a model: `automl cost MODEL --place SITE=TYPE:option=value`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from attention import Spec
from automl.base.errors import InputError
from automl.base.units import format_count
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.costs.profile import ModelCost, measure_costs
from automl.tasks.checks import ModelCheck, check_model
from automl.tasks.subject import CLASSES, Subject, make_subject
from backbones import BACKBONES, insert
from backbones.memory_format import set_format


def read_placement(texts: Sequence[str]) -> dict[str, Spec]:
    """Parse texts such as `stage3.block2=decomposed:heads=8,normalisation=scaling`."""
    placement = {}
    for text in texts:
        site, equals, module = text.partition("=")
        if not equals or not site or not module:
            raise InputError(f"--place must be SITE=TYPE or SITE=TYPE:option=value,...; got {text!r}")
        if site in placement:
            raise InputError(f"--place names site {site!r} twice; give it once")
        placement[site] = Spec.parse(module, f"--place {site}")
    return placement


def measure_cost(
    backbone: str,
    placement: Mapping[str, Spec] | None = None,
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    task: str | None = None,
    batch: int | None = None,
) -> dict[str, ModelCost]:
    """Measure parameters, MACs, activations and step time of a model, plain and with a placement.

    Args:
        backbone: The model, such as `xresnet18`, `torchvision:NAME`, `timm:NAME` or `file.py:Net`.
        placement: The attention of each site.
        size: The side of images in pixels, height of stereo pairs, steps of sequences, or tokens of texts.
        options: Options of the model.
        task: The task. With `detection`, the model is a Mask R-CNN on the backbone.
        batch: The batch size of a training step.

    Returns:
        The costs of the model `plain` and, if there is a placement, of `placement`.

    Raises:
        InputError: The model, the placement, the size or the batch is invalid.

    Example:
        >>> import automl
        >>> attention = {"stage1.block2": automl.Spec("ssa")}
        >>> costs = automl.measure_cost("xresnet18", attention, size=32, options={"width": 0.25})
        >>> costs["placement"].parameters > costs["plain"].parameters
        True
    """
    return costs(make_subject(backbone, size=size, options=options, task=task), placement or {}, batch)


def costs(subject: Subject, placement: Mapping[str, Spec], batch: int | None = None) -> dict[str, ModelCost]:
    """Return the costs of the plain model and, if there is a placement, of the model with it.

    Raise InputError if the batch size, the model or the placement is invalid.
    """
    batch = _batch(subject, batch)
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
    return measure_costs(models, subject, batch, runtime)


def _batch(subject: Subject, batch: int | None) -> int:
    batch = subject.batch if batch is None else batch
    if not 2 <= batch <= 4096:
        raise InputError(f"--batch must be between 2 (for batch norm) and 4096; got {batch}")
    return batch


def lines(costs: Mapping[str, ModelCost], input_name: str) -> Iterator[str]:
    """Yield the lines of a table of the costs, with ratios to the plain model.

    `input_name` describes one input, such as `an image of 128x128 pixels`.
    """
    yield f"{'':10}{'parameters':>16}{'MACs':>16}{'activations':>16}{'step':>16}"
    plain = asdict(costs["plain"])
    for name, cost in costs.items():
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
    if "placement" in costs:
        placed = asdict(costs["placement"])
        added = [format_count(placed[key] - plain[key]) for key in ("parameters", "macs", "activations")]
        yield f"{'added':10}" + "".join(f"{text:>16}" for text in [*added[:2], f"{added[2]}B"])
    yield f"MACs, activations and step time are for {input_name}; steps were timed in turn on this machine"
