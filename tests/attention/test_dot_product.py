"""Plain products in place of the fused kernel, on a CPU in bfloat16."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention.multihead import BLOCK, attend_causally, attend_where

N = BLOCK + 40
EARLIER = torch.ones(N, N, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "attend", [attend_causally, lambda q, k, v: attend_where(q, k, v, EARLIER)], ids=["blocks", "mask"]
)
def test_plain_products_equal_the_fused_kernel(attend: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 2, 2, N, 8).to(torch.bfloat16).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    output, expected = attend(*qkv), F.scaled_dot_product_attention(*exact, is_causal=True)
    torch.testing.assert_close(output.double(), expected, atol=3e-2, rtol=0)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction.double())
    assert exact.grad is not None
    torch.testing.assert_close(qkv.grad.double(), exact.grad, atol=0.1, rtol=0)


def test_no_query_sees_a_later_token() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, 2, N, 8).to(torch.bfloat16)
    before = attend_causally(*qkv)
    for end in (5, BLOCK, BLOCK + 20):
        changed = qkv.clone()
        changed[..., end:, :] = 9
        assert torch.equal(attend_causally(*changed)[:, :, :end], before[:, :, :end])
