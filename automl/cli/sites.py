"""Table of the sites of a backbone and the cost of each attention type."""

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from attention import ATTENTIONS, InputError, Spec
from automl.config.units import format_count
from backbones import Site
from backbones.attention_cost import attention_cost


def sites_table(sites: Sequence[Site]) -> Iterator[str]:
    """Yield the lines of the table: sites, and `parameters/MACs` of attention types with default options."""
    name, path = (max(26, *(len(getattr(site, key)) + 2 for site in sites)) for key in ("name", "path"))
    heading = f"{'site':{name}}{'module':{path}}{'channels':>9}{'stride':>7}{'size':>9}"
    yield heading + "".join(f"{a:>15}" for a in ATTENTIONS)
    for site in sites:
        resolution = "x".join(map(str, site.resolution))
        line = f"{site.name:{name}}{site.path:{path}}{site.channels:>9}{site.stride:>7}{resolution:>9}"
        yield line + "".join(f"{_cost(attention, site):>15}" for attention in ATTENTIONS)
    yield "cells: parameters / multiply-accumulates for one input, with default options"
    if any(not _fits(attention, site.channels) for attention in ATTENTIONS for site in sites):
        yield "-: the default options do not fit the number of channels"


def _cost(attention: str, site: Site) -> str:
    if not _fits(attention, site.channels):
        return "-"
    cost = attention_cost(Spec(attention), site)
    return f"{format_count(cost.parameters)}/{format_count(cost.macs)}"


@cache
def _fits(attention: str, channels: int) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            Spec(attention).build(channels)
    except InputError:
        return False
    return True
