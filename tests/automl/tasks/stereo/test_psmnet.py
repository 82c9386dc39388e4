"""PSMNet: its components compared with plain restatements, its sites, and the effect of zero gates."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention import ATTENTIONS, Spec
from automl.tasks.stereo.model import (
    PSMNet,
    correlations,
    cost_volume,
    interpolation_weights,
    resize_costs,
    soft_argmin,
)
from backbones import insert, sites
from backbones.torch_internals import AnyBatchNorm
from tests.helpers import others_slow

KINDS = ("hourglass", "basic")
SMALL: dict[str, Any] = {"width": 0.25, "blocks": 2, "pool": 8}
GENERATOR = np.random.default_rng(0)
EXAMPLE = (torch.zeros(2, 3, 32, 48), torch.zeros(2, 3, 32, 48))


def small(aggregation: str = "hourglass", **options: Any) -> PSMNet:
    torch.manual_seed(0)
    return PSMNet(max_disparity=16, aggregation=aggregation, **{**SMALL, **options})


def views(count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(2, count, 3, 32, 48, generator=generator)
    return left, right


def calibrate_norms(model: PSMNet) -> PSMNet:
    """Set the norms to the images' statistics, as after training."""
    for module in model.modules():
        if isinstance(module, AnyBatchNorm):
            module.momentum = None  # None averages over all batches.
    with torch.no_grad():
        model.train()(*views())
    return model


def test_volumes_match_their_definitions():
    left, right = GENERATOR.normal(size=(2, 3, 5, 4, 9))
    result = cost_volume(torch.from_numpy(left), torch.from_numpy(right), 6).numpy()
    assert result.shape == (3, 10, 6, 4, 9)
    for d in range(6):
        for x in range(9):
            expected = np.zeros((3, 10, 4))
            if x >= d:
                expected[:, :5], expected[:, 5:] = left[..., x], right[..., x - d]
            assert np.abs(result[:, :, d, :, x] - expected).max() < 1e-10
    left, right = GENERATOR.normal(size=(2, 3, 6, 4, 9))
    result = correlations(torch.from_numpy(left), torch.from_numpy(right), 5, groups=2).numpy()
    assert result.shape == (3, 2, 5, 4, 9)
    for d in range(5):
        for x in range(9):
            expected = np.zeros((3, 2, 4))
            if x >= d:
                products = left[..., x] * right[..., x - d]  # (3, 6, 4)
                expected[:, 0], expected[:, 1] = products[:, :3].mean(1), products[:, 3:].mean(1)
            assert np.abs(result[:, :, d, :, x] - expected).max() < 1e-10


@pytest.mark.parametrize("aggregation", ["basic", "hourglass"])
def test_correlations_are_joined_to_the_volume(aggregation):
    model, plain = small(aggregation, groups=4).eval(), small(aggregation).eval()
    assert model.aggregation.entry[0].in_channels == plain.aggregation.entry[0].in_channels + 4
    left, right = views()
    of_left, of_right = model.backbone(left, right)
    volumes = []
    model.aggregation.entry.register_forward_pre_hook(lambda module, args: volumes.append(args[0]))
    assert model(left, right).shape == left.shape[:1] + left.shape[2:]
    expected = torch.cat([cost_volume(of_left, of_right, 4), correlations(of_left, of_right, 4, 4)], 1)
    torch.testing.assert_close(volumes[0], expected)


def test_costs_become_disparities():
    costs = GENERATOR.normal(size=(2, 12, 3, 4)) * 5
    expected = np.zeros((2, 3, 4))
    for b, y, x in np.ndindex(2, 3, 4):
        column = costs[b, :, y, x]
        weights = np.exp(column - column.max())
        expected[b, y, x] = sum(d * w for d, w in enumerate(weights / weights.sum()))
    assert np.abs(soft_argmin(torch.from_numpy(costs)).numpy() - expected).max() < 1e-10
    costs = torch.from_numpy(GENERATOR.normal(size=(2, 4, 5, 6)))
    result = resize_costs(costs, interpolation_weights(4, 16), (20, 24))
    expected = F.interpolate(costs[:, None], size=(16, 20, 24), mode="trilinear")[:, 0]
    assert (result - expected).abs().max() < 1e-10


def test_the_published_model_has_the_published_number_of_parameters():
    """The authors' code prints 5,224,768."""
    assert sum(parameter.numel() for parameter in PSMNet(max_disparity=192).parameters()) == 5_224_768


@pytest.mark.parametrize(
    ("name", "aggregation"),
    others_slow(product(ATTENTIONS, KINDS), ("decomposed", "hourglass"), ("ssa", "basic"), rows=True),
)
def test_zero_gates_at_all_sites_change_nothing(name, aggregation):
    model = calibrate_norms(small(aggregation)).eval()
    names = [site.name for site in sites(model, EXAMPLE) if site.channels > 1]
    with torch.no_grad():
        before = model(*views())
        after = insert(model, {site: Spec(name) for site in names}, EXAMPLE)(*views())
    assert torch.equal(before, after)


OPENED = ["stage1.block1", "backbone.pyramid", "stage5.block1", "stage6.block1"]


@pytest.mark.parametrize("site", others_slow(OPENED, *OPENED[1::2]))
def test_an_open_gate_changes_the_disparities_and_learns(site):
    model, left_right = calibrate_norms(small()).eval(), views()
    with torch.no_grad():
        before = model(*left_right)
    insert(model, {site: Spec("decomposed")}, EXAMPLE)
    module = next(m for m in model.modules() if getattr(m, "site", "") == site)
    with torch.no_grad():
        module.gamma.fill_(1.0)
    after = model(*left_right)
    assert not torch.equal(before, after)
    after.square().sum().backward()
    assert all(parameter.grad.norm() > 0 for parameter in module.parameters())
