"""The contract of attention modules: types of the table keep it, and each way to break it has one message."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Attention, Gated, Layout, Spec
from attention.attention_table import RECORDS
from backbones import Site
from backbones.contract import CHECKS, check_contract


def site(channels: int, *resolution: int, layout: Layout = "BC*", class_tokens: int = 0) -> Site:
    at = Site(name="stage2.block1", path="1.0", channels=channels, stride=1, resolution=resolution)
    return replace(at, layout=layout, class_tokens=class_tokens)


SITES = [
    site(16, 8, 8),
    site(16, 1, 1),
    site(32, 7, 9),
    site(16, 512, 512),  # Too large for values at this shape.
    site(8, 4, 6, 8),
    site(24, 17, layout="B*C", class_tokens=1),
    site(16, 6, 5, layout="B*C"),
    site(16, 30),
]


CASES = [
    pytest.param(name, at, marks=[pytest.mark.slow("another case")] * ((i + j) % len(SITES)))
    for i, name in enumerate(ATTENTIONS)
    for j, at in enumerate(SITES)
]


@pytest.mark.parametrize(("name", "at"), CASES, ids=str)
def test_types_of_the_table_keep_it(name: str, at: Site) -> None:
    at = site(16, 128, 128) if ATTENTIONS[name].loops and at.positions > 1e5 else at  # It takes minutes.
    state = torch.random.get_rng_state()
    checks = check_contract(Spec(name), at, padded=len(at.resolution) == 1)
    assert [check.message for check in checks if not check.passed] == []
    assert {check.name for check in checks} >= set(CHECKS) - {"padding", "gradient", "causal"}
    assert torch.equal(torch.random.get_rng_state(), state)


class Scale(Gated):
    """A correct module, which each faulty one below changes in one way."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.scale = nn.Linear(channels, channels)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return self.scale(x).tanh()  # type: ignore[no-any-return]


class Dead(Scale):
    """A gate whose hidden units are off for common inputs."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.hidden = nn.Linear(channels, 2)
        self.out = nn.Linear(2, channels)
        nn.init.constant_(self.hidden.bias, -0.5)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend(x, mask, spatial) * self.out(self.hidden(x.mean(1, keepdim=True)).relu())


class Halves(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, ::2]


class Views(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(len(x), -1).view(x.shape))


class Reads(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend(x, mask, spatial) if x.sum() > 0 else x


class Overflows(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend((1000 * x).exp(), mask, spatial)


class Ungated(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.0001


class InPlace(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend(x.detach().relu_(), mask, spatial)


class Random(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return torch.nn.functional.dropout(super().attend(x, mask, spatial), 0.1)


class Mixes(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend(x.cumsum(0), mask, spatial)


class Unused(Scale):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.unused = nn.Linear(channels, channels)


class Averages(Scale):
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return super().attend(x.mean(1, keepdim=True).expand_as(x), mask, spatial)


FAULTS = [
    (Halves, "shape", r"returns \(1, 8, 7, 6\) for \(1, 16, 7, 6\); a module must keep the shape"),
    (Views, "shape", r"fails for \(1, 16, 7, 6\), with the channels innermost in memory: .*view"),
    (Reads, "shape", "needs the values of its input to choose what to compute"),
    (Overflows, "finite", "returns infinite values or NaN"),
    (Ungated, "identity", "is not the identity while its gate is 0"),
    (InPlace, "finite", "changes its input in place"),
    (Random, "deterministic", "returns different values for the same features in evaluation mode"),
    (Mixes, "samples", "mixes the examples of a batch in evaluation mode"),
    (Unused, "gradient", "has parameters without a gradient: unused.bias, unused.weight"),
    (Averages, "padding", "depends on the number of padded positions"),
]


@pytest.mark.parametrize("module", [Scale, Dead])
def test_correct_modules_keep_it(module: type[Gated], monkeypatch: pytest.MonkeyPatch) -> None:
    record = Attention(name="own", module=module, cost=None, source="test")
    monkeypatch.setitem(RECORDS, "own", record)
    checks = check_contract(Spec("own"), site(16, 16, 16))
    assert [check.message for check in checks if not check.passed] == []


@pytest.mark.parametrize(("module", "name", "message"), FAULTS, ids=[case[0].__name__ for case in FAULTS])
def test_each_fault_has_one_message(
    module: type[Gated], name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Attention(name="own", module=module, cost=None, source="test")
    monkeypatch.setitem(RECORDS, "own", record)
    failed = [check for check in check_contract(Spec("own"), site(16, 7, 6), padded=True) if not check.passed]
    assert [check.name for check in failed] == [name]
    assert re.match(f"own at stage2.block1 {message}", failed[0].message), failed[0].message
