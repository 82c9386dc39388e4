"""Attention modules on `(B, C, *spatial)` or `(B, *spatial, C)` features. A new module is the identity.

attention_table  The table of the types, without torch, and the names of timm's
attention_type   Types by name: of the table, timm's and the user's, whose modules are put behind the gate
options          Options of a module, with their types, defaults and choices
spec             A type with its options; a placement, which has one at each site
gated            The base class: a residual update behind a gate that starts at zero; `Cost`; records of maps
ssa              Simple self-attention, and its symmetric variant
sagan            Self-attention of SAGAN
decomposed       Decomposed (efficient) attention, linear in the number of positions
multihead        Multi-head attention over positions, its base class with several heads, and dot products
linear           Linear attention, with elu + 1 in place of the softmax
sliding          Multi-head attention in a window around each position
shortconv        Gated short convolution along the positions
gated_delta      Gated delta rule, whose state of a fixed size replaces values at keys; Kimi Delta Attention
decoding         Decoding of one token after another: base class of modules that can, and their wrapper
prefix_sums      Causal sums over earlier positions, in linear time, and blocks of positions
attention_map    The weights that a module computes in a forward pass
conv1x1          The control: a gated 1x1 convolution, without attention
position         Position encodings
padding          A padding mask for the attention modules inside a model
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from attention.attention_map import AttentionMap
    from attention.attention_table import ATTENTIONS, Attention
    from attention.attention_type import find_attention
    from attention.gated import Cost, Gated, Layout, attention_maps
    from attention.options import Choices
    from attention.spec import Spec

# These need torch, which takes seconds to import. `automl --help` and the process that writes to MLflow do
# not use them, so they are loaded on first use.
__getattr__ = lazily(__name__)

__all__ = [
    "ATTENTIONS", "Attention", "AttentionMap", "Choices", "Cost", "Gated", "Layout", "Spec",
    "attention_maps", "find_attention",
]  # fmt: skip
