"""The sites of a backbone and what each attention would cost there."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from attention import ATTENTIONS, InputError, Spec
from automl.config.units import short
from backbones import Site, build, sites


def list_sites(backbone: str, *, size: int = 128, width: float | None = None) -> list[Site]:
    """The sites of `backbone` for square images of `size` pixels. Raises InputError for bad arguments."""
    if not 1 <= size <= 4096:
        raise InputError(f"--size must lie between 1 and 4096 pixels; got {size}")
    if width is not None and not 1 / 16 <= width <= 16:
        raise InputError(f"--width must lie between 1/16 and 16; got {width:g}")
    options: dict[str, Any] = {} if width is None else {"width": width}
    return sites(build(backbone, classes=2, size=size, **options), torch.empty(2, 3, size, size))


def sites_table(found: Sequence[Site]) -> Iterator[str]:
    """Lines: each site with its module and `parameters/MACs` of every attention with its default options."""
    name, path = (max(26, *(len(getattr(site, key)) + 2 for site in found)) for key in ("name", "path"))
    heading = f"{'site':{name}}{'module':{path}}{'channels':>9}{'stride':>7}{'size':>9}"
    yield heading + "".join(f"{a:>15}" for a in ATTENTIONS)
    for site in found:
        resolution = "x".join(map(str, site.resolution))
        line = f"{site.name:{name}}{site.path:{path}}{site.channels:>9}{site.stride:>7}{resolution:>9}"
        yield line + "".join(f"{_cost(attention, site):>15}" for attention in ATTENTIONS)
    yield "each attention: parameters / multiply-accumulates for one image, with its default options"
    if any(not _fits(attention, site.channels) for attention in ATTENTIONS for site in found):
        yield "-: its default options do not fit the channels there"


def _cost(attention: str, site: Site) -> str:
    if not _fits(attention, site.channels):
        return "-"
    cost = Spec(attention).cost(site.channels, site.positions)
    return f"{short(cost.parameters)}/{short(cost.macs)}"


@cache
def _fits(attention: str, channels: int) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            Spec(attention).build(channels)
    except InputError:
        return False
    return True
