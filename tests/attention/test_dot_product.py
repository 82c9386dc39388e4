"""Plain products in place of the fused kernel, on a CPU in bfloat16."""

import torch
import torch.nn.functional as F

from attention.dot_product import BLOCK, attend_causally


def test_products_in_blocks_equal_the_fused_kernel() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, BLOCK + 40, 8).to(torch.bfloat16).requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(*exact, is_causal=True)
    output = attend_causally(q, k, v)
    torch.testing.assert_close(output.double(), expected, atol=3e-2, rtol=0)
    direction = torch.randn_like(output)
    gradients = torch.autograd.grad(output, (q, k, v), direction)
    expected_gradients = torch.autograd.grad(expected, exact, direction.double())
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, atol=0.1, rtol=0)


def test_no_query_sees_a_later_token() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, 2, BLOCK + 40, 8).to(torch.bfloat16)
    before = attend_causally(*qkv)
    for end in (5, BLOCK, BLOCK + 20):
        changed = qkv.clone()
        changed[..., end:, :] = 9
        assert torch.equal(attend_causally(*changed)[:, :, :end], before[:, :, :end])
