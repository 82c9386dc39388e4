"""Attention modules on `(B, C, *spatial)` or `(B, *spatial, C)` features. A new module is the identity.

attention_table  The table of attention types
attention_type   The record of a type, and of a class that somebody else wrote
references       Types by name: of the table, of timm, of the user
options          Options of a module, with their types, defaults and choices
wrapped          A module that somebody else wrote, behind the gate
spec             An attention type with its options
gated            The base class: a residual update behind a scalar gate that starts at zero; `Cost`
ssa              Simple self-attention, and its symmetric variant
sagan            Self-attention of SAGAN
decomposed       Decomposed (efficient) attention, linear in the number of positions
multihead        Multi-head attention over positions
linear           Linear attention, with elu + 1 in place of the softmax
sliding          Multi-head attention in a window around each position
dot_product      Dot-product attention, fused or as plain products
shortconv        Gated short convolution along the positions
heads            The base class of attention whose heads split all channels
decoding         Decoding of one token after another with a state, and the base class of modules that can
prefix_sums      Causal sums over earlier positions, in linear time
blocks           Positions in blocks of one size
maps             Records what the inserted modules of a model attend to
attention_map    The weights that a module computed in one forward pass
conv1x1          The control: a gated 1x1 convolution, without attention
position         Position encodings
padding          A padding mask for the attention modules inside a model
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from attention.attention_map import AttentionMap
    from attention.attention_table import ATTENTIONS
    from attention.attention_type import Attention
    from attention.gated import Cost, Gated, Layout
    from attention.maps import attention_maps
    from attention.options import Choices
    from attention.references import find_attention
    from attention.spec import Spec

# These need torch, which takes seconds to import. `automl --help` and the process that writes to MLflow do
# not use them, so they are loaded on first use.
__getattr__ = lazily(__name__)

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionMap",
    "Choices",
    "Cost",
    "Gated",
    "Layout",
    "Spec",
    "attention_maps",
    "find_attention",
]
