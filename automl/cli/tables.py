"""Tables of the attention types, of their costs at the sites of a model, and of checks of their contract."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attention import ATTENTIONS, Spec
from attention.attention_table import TIMM_NAMES
from automl.base.errors import InputError
from automl.base.units import format_count
from automl.costs.profile import ModelCost
from automl.export.check_attention import AttentionCheck
from backbones import Site
from backbones.contract import CHECKS
from backbones.cost import attention_cost
from backbones.insertion import build_module

# Counts that have a column, and their units.
COUNTS = {"parameters": "", "macs": "", "activations": "B"}
MISFIT = "-"  # cell of a type that does not fit a site


def sites_table(sites: Sequence[Site], types: Sequence[str] = tuple(ATTENTIONS)) -> Iterator[str]:
    """Yield the lines of the table: sites, and `parameters/MACs` of attention types with default options."""
    specs = [Spec(name).identified() for name in types]
    name, path = (max(26, *(len(getattr(site, key)) + 2 for site in sites)) for key in ("name", "path"))
    widths = [max(15, len(spec.name) + 2) for spec in specs]
    heading = f"{'site':{name}}{'module':{path}}{'channels':>9}{'stride':>7}{'size':>9}"
    yield heading + "".join(f"{spec.name:>{width}}" for spec, width in zip(specs, widths, strict=True))
    rows = [[_cost(spec, site) for spec in specs] for site in sites]
    for site, row in zip(sites, rows, strict=True):
        resolution = "x".join(map(str, site.resolution))
        line = f"{site.name:{name}}{site.path:{path}}{site.channels:>9}{site.stride:>7}{resolution:>9}"
        yield line + "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    yield "cells: parameters / multiply-accumulates for one input, with default options"
    if any(MISFIT in row for row in rows):
        yield f"{MISFIT}: the default options do not fit the site"


def _cost(spec: Spec, site: Site) -> str:
    try:
        with torch.random.fork_rng(devices=[]):
            build_module(spec, site)
        cost = attention_cost(spec, site)
    except InputError:
        return MISFIT
    return f"{format_count(cost.parameters)}/{format_count(cost.macs)}"


def describe_attentions() -> list[dict[str, Any]]:
    """Return each type of the table in JSON's types."""
    return [
        {
            "type": attention.name,
            "cost": "counted" if attention.cost is None else "formula",
            "source": attention.source,
            "options": {
                name: {"default": option.default, "choices": list(option.allowed)}
                for name, option in attention.options.items()
            },
        }
        for attention in ATTENTIONS.values()
    ]


def attentions_table() -> Iterator[str]:
    """Yield the lines of the table. The options of a type follow it, with defaults and allowed values."""
    yield f"{'type':14}{'cost':9}source"
    for described in describe_attentions():
        yield f"{described['type']:14}{described['cost']:9}{described['source']}"
        for name, option in described["options"].items():
            choices = f" ({', '.join(map(str, option['choices']))})" if option["choices"] else ""
            yield f"  {name}={option['default']}{choices}"
    yield f"timm's modules: timm:NAME; NAME is {', '.join(TIMM_NAMES)}"
    yield "a class of your own: file.py:Class or package.module:Class; automl check-attention checks it"


def check_table(result: AttentionCheck) -> Iterator[str]:
    """Yield the lines of the table, the messages of failures, and the formats of an export."""
    names = [
        f"{first} + {len(others)} more" if others else first
        for first, *others in (site.sites for site in result.sites)
    ]
    wide, shape = max(map(len, (*names, "site"))), max(len(site.shape) for site in result.sites)
    yield f"{'site':{wide}}  {'shape':{shape}}  {'  '.join(CHECKS)}  {'ms':>5}"
    for name, site in zip(names, result.sites, strict=True):
        passed = {check.name: "ok" if check.passed else "FAILS" for check in site.checks}
        cells = "  ".join(f"{passed.get(check, '-'):{len(check)}}" for check in CHECKS)
        yield f"{name:{wide}}  {site.shape:{shape}}  {cells}  {site.milliseconds:5.0f}"
    yield from dict.fromkeys(c.message for site in result.sites for c in site.checks if not c.passed)
    if result.missing is not None:
        for file, reason in result.missing.items():
            yield f"an export leaves out {file}: {reason}"
        if not result.missing:
            yield "an export has all formats"


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


def cost_table(costs: Mapping[str, ModelCost], input_name: str) -> Iterator[str]:
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
