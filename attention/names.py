"""Names of attention types. Checking one needs no torch, whose import takes seconds."""

from automl.base import loading
from automl.base.errors import InputError, unknown

NAMES = (
    *("ssa", "ssa-sym", "sagan", "decomposed", "multihead", "linear", "sliding", "shortconv", "gated-delta"),
    *("kda", "conv1x1"),
)
TIMM = "timm:"

# Names of `timm.layers.create_attn`, of modules that keep their input's shape. Tested with timm 1.0.31.
TIMM_NAMES = (
    *("bat", "bottleneck", "cbam", "ceca", "coord", "eca", "ecam", "ela", "ese", "gc", "gca", "ge", "halo"),
    *("lambda", "lcbam", "nl", "scoord", "se", "sk", "splat", "strip"),
)


def check_name(name: object) -> None:
    """Raise `InputError` unless `name` may be an attention type. Runs no user-defined code."""
    if isinstance(name, str) and (name in NAMES or loading.is_user_defined(name)):
        return
    if isinstance(name, str) and name.startswith(TIMM):
        if name.removeprefix(TIMM) not in TIMM_NAMES:
            raise unknown("attention of timm", name.removeprefix(TIMM), TIMM_NAMES)
        return
    hint = f"timm has one: {TIMM}{name}" if name in TIMM_NAMES else "Or take timm:NAME, or file.py:Class"
    raise InputError(f"{unknown('attention', name, NAMES)} {hint}")
