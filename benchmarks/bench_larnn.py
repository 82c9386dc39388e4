"""Time LARNN's loop against a plain one: forward and backward of one layer with the shapes of UCI HAR.

The plain loop is that of the tests. It calls modules step by step and computes keys and values of all states
in the window at each step, as the paper's code does. Both sides have the same weights, and their outputs are
compared first. A CPU uses one thread, like a trial on one core.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from harness import Row, compare, milliseconds, write
from torch import Tensor, nn

from automl.config.device import find_device
from automl.tasks.sequence_classification.larnn.backbone import Layer

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.larnn_restated import Restated

DEVICE = find_device()
BATCH, LENGTH, ROUNDS = 64, 128, 7
CASES = [  # hidden, heads, window, activation on keys and values
    (64, 8, 4, False),
    (64, 8, 16, False),
    (64, 8, 16, True),
    (128, 8, 4, False),
    (128, 8, 16, False),
    (81, 27, 38, True),  # the default
]


def step(model: nn.Module, x: Tensor, direction: Tensor) -> None:
    x.grad = None
    model(x).backward(direction)


def compare_loops() -> list[Row]:
    rows = []
    for hidden, heads, window, activation in CASES:
        torch.manual_seed(0)
        layer = Layer(
            hidden,
            hidden,
            heads=heads,
            window=window,
            mode="residual",
            positional=False,
            activation_on_keys_and_values=activation,
            cell_activation="elu",
            dropout=0.0,
        ).to(DEVICE)
        plain = Restated(layer)
        x = torch.randn(BATCH, hidden, LENGTH, device=DEVICE, requires_grad=True)
        direction = torch.randn_like(x)
        torch.testing.assert_close(layer(x), plain(x), rtol=1e-3, atol=1e-3)
        ours, theirs = (partial(step, model, x, direction) for model in (layer, plain))
        rows.append(
            compare(
                f"larnn hidden={hidden} heads={heads} window={window}{' normed' if activation else ''} time",
                "step by step",
                partial(milliseconds, ours, DEVICE),
                partial(milliseconds, theirs, DEVICE),
                unit="ms",
                rounds=ROUNDS,
                higher_is_better=False,
            )
        )
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("larnn", compare_loops())
