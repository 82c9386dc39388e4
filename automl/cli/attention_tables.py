"""Tables of the attention types, and of the sites of a backbone with the cost of each type."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attention import ATTENTIONS, Spec
from attention.attention_table import TIMM_NAMES
from automl.base.errors import InputError
from automl.base.units import format_count
from backbones import Site
from backbones.cost import attention_cost
from backbones.insertion import build_module

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
