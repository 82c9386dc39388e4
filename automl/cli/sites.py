"""The sites of a backbone and what each attention would cost there."""

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from attention import ATTENTIONS, InputError, Spec
from automl.config.units import format_count
from backbones import Site


def sites_table(found: Sequence[Site]) -> Iterator[str]:
    """Lines: each site with its module and `parameters/MACs` of every attention with its default options."""
    name, path = (max(26, *(len(getattr(site, key)) + 2 for site in found)) for key in ("name", "path"))
    heading = f"{'site':{name}}{'module':{path}}{'channels':>9}{'stride':>7}{'size':>9}"
    yield heading + "".join(f"{a:>15}" for a in ATTENTIONS)
    for site in found:
        resolution = "x".join(map(str, site.resolution))
        line = f"{site.name:{name}}{site.path:{path}}{site.channels:>9}{site.stride:>7}{resolution:>9}"
        yield line + "".join(f"{_cost(attention, site):>15}" for attention in ATTENTIONS)
    yield "each attention: parameters / multiply-accumulates for one input, with its default options"
    if any(not _fits(attention, site.channels) for attention in ATTENTIONS for site in found):
        yield "-: its default options do not fit the channels there"


def _cost(attention: str, site: Site) -> str:
    if not _fits(attention, site.channels):
        return "-"
    cost = Spec(attention).cost(site.channels, site.positions)
    return f"{format_count(cost.parameters)}/{format_count(cost.macs)}"


@cache
def _fits(attention: str, channels: int) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            Spec(attention).build(channels)
    except InputError:
        return False
    return True
