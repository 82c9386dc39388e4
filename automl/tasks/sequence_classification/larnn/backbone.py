"""LARNN, the Linear Attention Recurrent Neural Network: an LSTM whose cell attends to its own latest states.

Source: G. Chevalier, LARNN: Linear Attention Recurrent Neural Network (2018), arXiv 1808.05578, and its code.
At each step, one query is computed by a linear map of input and hidden state. It attends with several heads
to the `window` latest cell states. Keys and values are linear maps of these states, optionally concatenated
with encodings of their positions in the window, and optionally followed by an ELU and a batch norm. The
result of the attention joins input and hidden state before the gates. The equations are in
`loop`.

At step 0 there is one state to attend to, the initial one of zeros, as in the paper's code. Before step
`window - 1`, the query attends to the states that exist. All layers have the same width, after a linear map
of the input.

The paper's code has further activations and norms, which are options here. `activation="all"` and
`norm="all"` select all of them.

Departures from the paper's code:

- Every layer is trained. The paper's code never registered its cells, so it never trained them, and it ran
  the first cell in every layer.
- Without `activation="all"`, the heads have no output projection, as the linear map to the gates follows at
  once.
- There is no dropout inside the attention, and none of the hidden state that goes to the next step.
- Keys and values have a norm each. The norms' statistics for evaluation are the mean over all steps.
- Keys have no shift, by the norm or, without activation, by a bias. It would add the same to all scores of a
  query, which a softmax ignores.
"""

import torch.nn.functional as F
from torch import nn

from automl.tasks.sequence_classification.larnn.layer import (
    Activation,
    CellActivation,
    LARNNCell,
    Layer,
    Mode,
    NormKind,
)
from automl.tasks.sequence_classification.recurrent import RecurrentNetwork, Residual, check_sizes

__all__ = ["LARNNCell", "Layer", "build"]


def build(
    *,
    classes: int,
    in_channels: int,
    hidden: int = 81,
    heads: int = 27,
    window: int = 38,
    layers: int = 3,
    residual: bool = True,
    mode: Mode = "residual",
    positional: bool = False,
    activation_on_keys_and_values: bool = True,
    cell_activation: CellActivation = "elu",
    dropout: float = 0.09,
    activation: Activation = "none",
    norm: NormKind = "memory",
) -> nn.Module:
    """Build a network. The defaults are the best values that the paper's search found for UCI HAR.

    With both `positional` and `activation_on_keys_and_values`, the loop over time is several times slower.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the input.
        hidden: Units of each layer. It must be a multiple of `heads`.
        heads: Number of heads.
        window: Number of states that a layer attends to.
        layers: Number of layers.
        residual: Whether each layer has a residual connection.
        mode: `residual` adds the maps of input, hidden state and attention. `layer` maps the three
            concatenated.
        positional: Whether positions in the window are encoded in keys and values.
        activation_on_keys_and_values: Whether keys and values pass an ELU, followed by the batch norm of
            `norm`.
        cell_activation: Activation of the cell state before the output gate.
        dropout: Dropout of the output of each layer.
        activation: Further ELUs. `query` adds one on the query. `all` also adds one on the first map of the
            input and one on the result of the attention, after a linear map, as in the paper's code.
        norm: Batch norms. `memory` has one of keys and values if these have an activation. `all` also has one
            of the result of the attention, one of the cell and one of the hidden state, as in the paper's
            code.

    Raises:
        InputError: A size is out of range.
    """
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    stem = nn.Conv1d(in_channels, hidden, 1)
    stack = [
        Layer(
            hidden,
            hidden,
            heads=heads,
            window=window,
            mode=mode,
            positional=positional,
            activation_on_keys_and_values=activation_on_keys_and_values,
            cell_activation=cell_activation,
            dropout=dropout,
            activation=activation,
            norm=norm,
        )
        for _ in range(layers)
    ]
    return RecurrentNetwork(
        [Residual(layer) for layer in stack] if residual else stack,
        classes=classes,
        in_channels=in_channels,
        hidden=hidden,
        stem=stem,
        activation=F.elu if activation == "all" else None,
    )
