"""Attention modules on `(B, C, *spatial)` or `(B, *spatial, C)` features, each the identity when new."""

from attention.errors import InputError, unknown
from attention.gated import Cost, Gated, Layout
from attention.spec import Spec
from attention.table import ATTENTIONS, Attention

__all__ = ["ATTENTIONS", "Attention", "Cost", "Gated", "InputError", "Layout", "Spec", "unknown"]
