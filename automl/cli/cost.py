"""Costs of a placement in a model: `automl cost MODEL --place SITE=TYPE:option=value`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attention import Spec
from automl.base.errors import InputError
from automl.base.units import format_count
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.costs.profile import ModelCost, measure_costs
from automl.task.checks import ModelCheck, check_model
from automl.task.subject import CLASSES, Subject, make_subject
from backbones import BACKBONES, insert
from backbones.memory_format import set_format

# Counts that have a column, and their units.
COUNTS = {"parameters": "", "macs": "", "activations": "B"}


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
    batch = subject.batch if batch is None else batch
    if not 2 <= batch <= 4096:
        raise InputError(f"--batch must be between 2 (for batch norm) and 4096; got {batch}")
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


def lines(costs: Mapping[str, ModelCost], input_name: str) -> Iterator[str]:
    """Yield the lines of a table of the costs, with ratios to the plain model.

    `input_name` describes one input, such as `an image of 128x128 pixels`.
    """
    yield f"{'':10}{'parameters':>16}{'MACs':>16}{'activations':>16}{'step':>16}"
    plain, placed = costs["plain"], costs.get("placement")
    for name, cost in costs.items():
        cells = []
        for key, unit in COUNTS.items():
            value, reference = getattr(cost, key), getattr(plain, key)
            ratio = "" if cost is plain or not reference else f" {value / reference:.3f}x"
            cells.append(f"{format_count(value)}{unit}{ratio}")
        step = "not resolved" if cost.step is None else f"{1e3 * cost.step:.3g} ms"
        ratio = "" if cost is plain or cost.step_ratio is None else f" {cost.step_ratio:.2f}x"
        yield f"{name:10}" + "".join(f"{cell:>16}" for cell in [*cells, step + ratio])
    if placed is not None:
        added = (
            f"{format_count(getattr(placed, key) - getattr(plain, key))}{unit}"
            for key, unit in COUNTS.items()
        )
        yield f"{'added':10}" + "".join(f"{text:>16}" for text in added)
        ends = f"95 % interval of its ratio: {placed.step_low:.2f} to {placed.step_high:.2f}"
        yield (
            f"step time not resolved while the machine is busy ({ends}); stop other programs, and repeat it"
            if placed.step_ratio is None
            else f"step time: {ends}"
        )
    yield f"MACs, activations and step time are for {input_name}; a step has one core or GPU of this machine"
