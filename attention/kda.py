"""Kimi Delta Attention: `y = x + gamma * P concat_h (norm(S_i^T q_i) * sigmoid(z_i))` with a state S a head.

`S_i = (1 - b_i k_i k_i^T) diag(a_i) S_(i-1) + b_i k_i v_i^T`: as in the gated delta rule, but each channel of
the keys decays at its own rate a. The decays and the gate z are projections of as few channels as a head has.

Source: Kimi Team, Kimi Linear (2025), arXiv 2510.26692, section 3, with the parameters of
`KimiLinearDeltaAttention` of transformers. The values of a head are as wide as its keys.
"""

from functools import partial

from torch import Tensor, nn

from attention import gated_delta
from attention.gated import project
from attention.gated_delta import GatedDeltaNet, draw_times
from attention.prefix_sums import precise

cost, state = partial(gated_delta.cost, by_channel=True), gated_delta.state


class KimiDeltaAttention(GatedDeltaNet):
    """Delta rule with a decay of each channel along the positions. Its arguments are those of the base."""

    def make_gates(self, channels: int) -> None:
        width = channels // self.heads
        for name in ("in_proj_z", "in_proj_a"):
            few = nn.Linear(channels, width, bias=False), nn.Linear(width, channels, bias=False)
            self.add_module(name, nn.Sequential(*few))
        self.dt_bias = draw_times(channels)

    def time(self, x: Tensor) -> Tensor:
        return precise(_project_twice(self.in_proj_a, x)) + precise(self.dt_bias)

    def gate(self, x: Tensor) -> Tensor:
        return _project_twice(self.in_proj_z, x).sigmoid()


def _project_twice(layers: nn.Module, x: Tensor) -> Tensor:
    for layer in layers.children():
        assert isinstance(layer, nn.Linear)
        x = project(layer, x)
    return x
