"""Attention modules on `(B, C, *spatial)` or `(B, *spatial, C)` features. A new module is the identity.

attention_table  The table of attention types
spec             An attention type with its options
gated            The base class: a residual update behind a scalar gate that starts at zero; `Cost`
ssa              Simple self-attention, and its symmetric variant
sagan            Self-attention of SAGAN
decomposed       Decomposed (efficient) attention, linear in the number of positions
multihead        Multi-head attention over positions
linear           Linear attention, with elu + 1 in place of the softmax
sliding          Multi-head attention in a window around each position
heads            The base class of attention whose heads split all channels
prefix_sums      Causal sums over earlier positions, in linear time
blocks           Positions in blocks of one size
maps             Records what the inserted modules of a model attend to
attention_map    The weights that a module computed in one forward pass
conv1x1          The control: a gated 1x1 convolution, without attention
position         Position encodings
padding          A padding mask for the attention modules inside a model
loading          Loads user-defined objects, and sends their code to other machines
lazy             Exports that are loaded on first use
errors           `InputError`, for mistakes of the user
"""

from typing import TYPE_CHECKING

from attention.errors import InputError, check_utf8, unknown
from attention.lazy import lazily

if TYPE_CHECKING:
    from attention.attention_map import AttentionMap
    from attention.attention_table import ATTENTIONS, Attention
    from attention.gated import Cost, Gated, Layout
    from attention.maps import attention_maps
    from attention.spec import Spec

# These need torch, which takes seconds to import. `automl --help` and the process that writes to MLflow do
# not use them, so they are loaded on first use.
__getattr__ = lazily(
    __name__,
    {
        "Cost": "gated",
        "Gated": "gated",
        "Layout": "gated",
        "Spec": "spec",
        "ATTENTIONS": "attention_table",
        "Attention": "attention_table",
        "AttentionMap": "attention_map",
        "attention_maps": "maps",
    },
)

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionMap",
    "Cost",
    "Gated",
    "InputError",
    "Layout",
    "Spec",
    "attention_maps",
    "check_utf8",
    "unknown",
]
