"""The sites of a backbone and what each attention would cost there."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attention import ATTENTIONS, InputError
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
    """Lines: each site with `parameters/MACs` of every attention with its default options."""
    yield f"{'site':26}{'channels':>9}{'stride':>7}{'size':>9}" + "".join(f"{a:>15}" for a in ATTENTIONS)
    for site in found:
        resolution = "x".join(map(str, site.resolution))
        costs = (record.cost(site.channels, site.positions) for record in ATTENTIONS.values())
        cells = (f"{short(cost.parameters)}/{short(cost.macs)}" for cost in costs)
        yield f"{site.name:26}{site.channels:>9}{site.stride:>7}{resolution:>9}" + "".join(
            f"{cell:>15}" for cell in cells
        )
    yield "each attention: parameters / multiply-accumulates for one image, with its default options"
