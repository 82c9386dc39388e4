"""Vision transformers with a choice of block: plain, layer-scaled, parallel, or both.

Source: A. Dosovitskiy et al. (2020), arXiv 2010.11929, for the model; H. Touvron et al., Going deeper with
Image Transformers (2021), arXiv 2103.17239, equation 4, for layer scale; H. Touvron et al., Three things
everyone should know about Vision Transformers (2022), arXiv 2203.09795, section 3 for parallel blocks and
section 5 for the hMLP stem. The blocks are timm's, in its VisionTransformer. With f the attention and g the
MLP of a layer, each after a layer norm:

    block                   x += f(x); x += g(x)
    layer-scale             x += a f(x); x += b g(x)          a, b: one learned number per channel
    parallel                x += f_1(x) + ... + f_n(x); x += g_1(x) + ... + g_n(x)
    parallel-layer-scale    x += a_1 f_1(x) + ...; x += b_1 g_1(x) + ...
"""

from functools import partial
from typing import Literal

from torch import Tensor, nn

from automl.base.errors import InputError
from backbones.libraries import check_patches

BlockKind = Literal["block", "layer-scale", "parallel", "parallel-layer-scale"]


class HMLPStem(nn.Module):
    """Patch embedding by three convolutions that do not mix patches.

    Args:
        img_size: Side S of the images [pixels].
        patch_size: Side of a patch [pixels].
        in_chans: Number of channels C of the images.
        embed_dim: Width D of the tokens.

    Shape:
        `(B, C, S, S)` to `(B, N, D)`.
    """

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, **_: object) -> None:
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.patch_size = (patch_size, patch_size)
        narrow = embed_dim // 4
        self.layers = nn.Sequential(
            nn.Conv2d(in_chans, narrow, patch_size // 4, patch_size // 4),
            nn.BatchNorm2d(narrow),
            nn.GELU(),
            nn.Conv2d(narrow, narrow, 2, 2),
            nn.BatchNorm2d(narrow),
            nn.GELU(),
            nn.Conv2d(narrow, embed_dim, 2, 2),
            nn.BatchNorm2d(embed_dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens `(B, N, D)` of `x`, `(B, C, S, S)`."""
        y: Tensor = self.layers(x)
        return y.flatten(2).transpose(1, 2)


def build(
    *,
    classes: int,
    in_channels: int = 3,
    size: int | None = None,
    embed_dim: int = 192,
    depth: int = 12,
    heads: int = 3,
    mlp_ratio: float = 4.0,
    patch_size: int = 0,
    pool: Literal["token", "mean"] = "token",
    block: BlockKind = "block",
    branches: int = 2,
    initial_scale: float = 1e-4,
    drop: float = 0.0,
    attn_drop: float = 0.0,
    drop_path: float = 0.0,
    stem: Literal["patch", "hmlp"] = "patch",
) -> nn.Module:
    """Build a vision transformer. The defaults are those of DeiT-Ti.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the images.
        size: Side of the images [pixels]. 224 by default.
        embed_dim: Width of the tokens.
        depth: Number of consecutive blocks.
        heads: Number of heads.
        mlp_ratio: Hidden width of the MLP, relative to `embed_dim`.
        patch_size: Side of a patch [pixels]. 0 takes 16, or if that does not divide `size` the nearest
            multiple of 4 from 8 to 32 that does: 12 for 168 pixels.
        pool: Input of the head: the class token, or the mean of all tokens, without a class token.
        block: Type of block.
        branches: Number of branches of each parallel block. There are `depth * branches` layers of attention.
        initial_scale: Initial scale of layer-scaled blocks.
        drop: Dropout of the outputs of attentions and MLPs, and of the hidden units of MLPs.
        attn_drop: Dropout of the weights of attention.
        drop_path: Rate of the last block's stochastic depth. It grows from 0 at the first block.
        stem: `patch` for one linear map of each patch, or `hmlp` for three convolutions with batch norms.

    Raises:
        InputError: A size is invalid.
    """
    size = 224 if size is None else size
    patch_size = patch_size or choose_patch(size)
    check_patches("vit", size, patch_size)
    if not 1 <= heads <= embed_dim or embed_dim % heads:
        raise InputError(f"embed_dim must be a multiple of heads; got embed_dim={embed_dim}, heads={heads}")
    if stem == "hmlp" and (patch_size % 4 or embed_dim % 4):
        raise InputError(
            f"the stem hmlp needs a patch_size and an embed_dim that are multiples of 4; got "
            f"patch_size={patch_size}, embed_dim={embed_dim}"
        )
    if depth < 1 or branches < 1:
        raise InputError(f"depth and branches must be 1 or more; got depth={depth}, branches={branches}")
    for name, rate in (("drop", drop), ("attn_drop", attn_drop), ("drop_path", drop_path)):
        if not 0 <= rate < 1:
            raise InputError(f"{name} must be at least 0 and below 1; got {rate}")
    if not initial_scale > 0:
        raise InputError(f"initial_scale must be above 0; got {initial_scale}")
    if mlp_ratio * embed_dim < 1:
        raise InputError(f"mlp_ratio must leave one hidden unit; got {mlp_ratio}")
    from timm.models import vision_transformer as timm  # Importing it takes seconds.

    parallel = partial(timm.ParallelThingsBlock, num_parallel=branches)
    module: nn.Module = timm.VisionTransformer(
        img_size=size,
        patch_size=patch_size,
        in_chans=in_channels,
        num_classes=classes,
        global_pool="token" if pool == "token" else "avg",
        class_token=pool == "token",
        embed_dim=embed_dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=mlp_ratio,
        init_values=initial_scale if block.endswith("layer-scale") else None,
        proj_drop_rate=drop,
        attn_drop_rate=attn_drop,
        drop_path_rate=drop_path,
        block_fn=parallel if block.startswith("parallel") else timm.Block,
        embed_layer=HMLPStem if stem == "hmlp" else timm.PatchEmbed,
    )
    return module


def choose_patch(size: int) -> int:
    """Return the side of patches: 16, or else the nearest multiple of 4, 8 to 32, that divides `size`."""
    fits = [patch for patch in range(8, 33, 4) if size % patch == 0]
    return 16 if size % 16 == 0 or not fits else min(fits, key=lambda patch: abs(patch - 16))
