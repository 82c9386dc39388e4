"""Write docs/reference/timm-attention.md, the contract of timm's attention modules at typical sites.

Run `make attention-table`. It takes about two minutes on two cores. A cell is `yes` if the module passes all
checks of `backbones.contract` there. `bitwise` compares the module behind its gate with timm's own: equal at
gate 1, and equal to its input at gate 0.
"""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from timm.layers import get_attn
from torch import Tensor

from attention import Spec
from attention.attention_table import TIMM, TIMM_NAMES
from attention.gated import Gated
from automl.export.formats import find_missing_formats
from backbones import Site
from backbones.contract import check_contract
from backbones.insertion import build_module
from backbones.site import features

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "timm-attention.md"


def _site(channels: int, *resolution: int, class_tokens: int = 0) -> Site:
    return Site(
        name="site",
        path="site",
        channels=channels,
        stride=1,
        resolution=resolution,
        layout="B*C" if class_tokens else "BC*",
        class_tokens=class_tokens,
    )


# Images of 224 pixels in a ResNet, sequences of one length and of several, and a ViT.
SITES = {
    "64x56x56": (_site(64, 56, 56), False),
    "256x14x14": (_site(256, 14, 14), False),
    "512x7x7": (_site(512, 7, 7), False),
    "64x128": (_site(64, 128), False),
    "padded": (_site(64, 128), True),
    "tokens": (_site(192, 197, class_tokens=1), False),
}
FIRST = SITES["64x56x56"][0]  # Its extents are multiples of 7 and of 8, the windows of some modules.

HEAD = """# timm's attention modules

```sh
automl attentions
automl check-attention timm:halo --backbone xresnet18 --size 256
automl search --data photos --attention timm:se,timm:eca,timm:cbam
```

Each of timm's modules that keep the shape of their input is a type, `timm:NAME`. They rescale their input,
so the model computes `x + gate * (m(x) - x)`: exactly `x` at gate 0, and exactly timm's module at gate 1. A
search keeps the defaults of their options; `--place` and `--option` set them.

The table has the [contract](../how-to/own-attention.md#the-check) at sites of a ResNet at 224 px (channels x
height x width), of sequences of 128 steps with 64 channels, of such sequences that differ in length
(`padded`), and of a ViT (`tokens`). Sequences and tokens have width 1 there. `bitwise` is the comparison with
timm's own module at both ends of the gate. `formats` are the files of an export.
`make attention-table` writes this page; timm {version}.

"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one type: for each site None or the message of its failure, and the other two columns."""

    name: str
    sites: dict[str, str | None]
    is_bitwise: bool | None
    missing: dict[str, str] | None

    def line(self) -> str:
        cells = ["yes" if self.sites[site] is None else "no" for site in SITES]
        bitwise = {None: "-", True: "yes", False: "no"}[self.is_bitwise]
        formats = (
            "-" if self.missing is None else "all" if not self.missing else f"no {', '.join(self.missing)}"
        )
        return f"| {' | '.join([f'`{TIMM}{self.name}`', *cells, bitwise, formats])} |"

    def reasons(self) -> dict[str, str]:
        """Return the reason of each failure, by site or file."""
        failures = {site: _without_names(message) for site, message in self.sites.items() if message}
        return failures | (self.missing or {})


def _without_names(message: str) -> str:
    """Return a message of a failure without type, site and shape."""
    for start in (" channels: ", " memory: ", "): "):
        if start in message:
            return message.partition(start)[2]
    return message.partition(" at site ")[2]


def check_type(name: str) -> Row:
    """Check one of timm's modules in all columns."""
    spec = Spec(TIMM + name)
    failures: dict[str, str | None] = {}
    for label, (site, padded) in SITES.items():
        checks = check_contract(spec, site, padded=padded)
        failures[label] = next((check.message for check in checks if not check.passed), None)
    if failures["64x56x56"] is not None:
        return Row(name=name, sites=failures, is_bitwise=None, missing=None)
    return Row(
        name=name, sites=failures, is_bitwise=is_bitwise(name), missing=find_missing_formats(spec, FIRST)
    )


def is_bitwise(name: str) -> bool:
    """Return whether the module is its input at gate 0 and timm's module at gate 1, to the last bit."""
    torch.manual_seed(0)
    side = 14 if name == "bat" else 16  # Multiples of the windows.
    site = _site(32, side, side)
    module = build_module(Spec(TIMM + name), site).eval()
    sizes = {"feat_size": site.spatial} if name in ("bottleneck", "lambda") else {}
    own = get_attn(name)(site.channels, **sizes).eval()
    x = torch.randn_like(features(site, 2))
    with torch.no_grad():
        for parameter in own.parameters():  # A scale of zero would hide what is behind it.
            parameter.add_(0.1 * torch.randn_like(parameter))
        module.get_submodule("module").load_state_dict(own.state_dict())
        return all(
            torch.equal(_at_gate(module, gate, y), expected)
            for y in (x, x.contiguous())
            for gate, expected in ((0, y), (1, own(y)))
        )


def _at_gate(module: Gated, gate: float, x: Tensor) -> Tensor:
    torch.nn.init.constant_(module.gamma, gate)
    y: Tensor = module(x)
    return y


def page(rows: list[Row]) -> str:
    """Return the content of the document."""
    heading = ["type", *SITES, "bitwise", "formats"]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|", *(row.line() for row in rows)]
    types_by_reason: dict[str, list[str]] = {}
    for row in rows:
        for reason in dict.fromkeys(row.reasons().values()):
            where = [column for column, other in row.reasons().items() if other == reason]
            types_by_reason.setdefault(reason, []).append(f"`{TIMM}{row.name}` ({', '.join(where)})")
    lines += ["", "## Why the others fail", ""]
    for reason, types in types_by_reason.items():
        lines += [f"- {reason}:", *(f"  - {line}" for line in types)]
    return HEAD.format(version=timm.__version__) + "\n".join([*lines, ""])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = []
    for name in TIMM_NAMES:
        rows.append(check_type(name))
        print(rows[-1].line(), rows[-1].reasons() or "", file=sys.stderr)
    DOCUMENT.write_text(page(rows))
