"""Counted work compared with counts by hand."""

import torch
from torch import nn

from automl.costs.time_ratio import Work, count_work, measure_unit_costs
from tests.helpers.automl_cases import HERE


def test_operators_flops_and_bytes_of_a_product() -> None:
    a, b = torch.zeros(8, 16), torch.zeros(16, 4)
    assert count_work(lambda: a @ b) == Work(operators=1, flops=2 * 8 * 16 * 4, bytes=4 * (128 + 64 + 32))
    # A view is a call that moves no data.
    assert count_work(lambda: a.t()) == Work(operators=1, flops=0, bytes=0)


def test_the_backward_pass_counts() -> None:
    layer, x = nn.Linear(16, 4, bias=False), torch.zeros(8, 16, requires_grad=True)
    forward = count_work(lambda: layer(x))
    both = count_work(lambda: layer(x).sum().backward())
    assert both.flops == 3 * forward.flops


def test_work_is_additive_and_has_a_price() -> None:
    work = Work(operators=1, flops=10, bytes=100)
    assert work * 2 + work == Work(operators=3, flops=30, bytes=300)
    assert work.seconds(Work(operators=0.5, flops=0.25, bytes=0.125)) == 0.5 + 2.5 + 12.5
    price = measure_unit_costs(HERE)
    assert 0 < price.flops < price.operators
    assert 0 < price.bytes < price.operators
