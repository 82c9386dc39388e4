"""Vision transformers: their blocks compared with a restatement in float64, sites and options."""

from itertools import product

import pytest
import timm
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from backbones import build, gates, insert, sites
from tests.helpers import others_slow


class Attention(nn.Module):
    def __init__(self, returns_weights: bool) -> None:
        super().__init__()
        self.scale, self.returns_weights, self.value = 1.0, returns_weights, nn.Linear(8, 8)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        weights = (hidden_states @ hidden_states.mT).softmax(-1)
        y = weights @ self.value(hidden_states)
        return (y, weights) if self.returns_weights else y


class Block(nn.Module):
    """Transformer block that takes its attention from a tuple, or uses its weights or an attribute."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.attn = Attention(kind in ("tuple", "weights"))
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn(hidden_states=x)
        if self.kind in ("tuple", "weights"):
            y = y[0] if self.kind == "tuple" else y[1] @ y[0]
        x = x + (y * self.attn.scale if self.kind == "attribute" else y)
        return x + self.mlp(x)


class Tokens(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.block = nn.Linear(8, 8), Block(kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.embed(x)).mean(1)


SMALL = {"embed_dim": 12, "depth": 3, "heads": 3, "mlp_ratio": 2.0, "patch_size": 4}
KINDS = ("block", "layer-scale", "parallel", "parallel-layer-scale")


def norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return torch.einsum("bnc,dc->bnd", x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]


def attend(
    x: Tensor, weights: dict[str, Tensor], name: str, drop: float, heads: int, attn_drop: float
) -> Tensor:
    B, N, C = x.shape
    q, k, v = linear(x, weights, f"{name}.qkv").view(B, N, 3, heads, C // heads).unbind(2)
    p = (torch.einsum("bnhd,bmhd->bhnm", q, k) / (C // heads) ** 0.5).softmax(-1)
    y = torch.einsum("bhnm,bmhd->bnhd", nn.functional.dropout(p, attn_drop), v).reshape(B, N, C)
    return nn.functional.dropout(linear(y, weights, f"{name}.proj"), drop)


def perceive(x: Tensor, weights: dict[str, Tensor], name: str, drop: float) -> Tensor:
    y = linear(x, weights, f"{name}.fc1")
    y = nn.functional.dropout(0.5 * y * (1 + torch.erf(y / 2**0.5)), drop)
    return nn.functional.dropout(linear(y, weights, f"{name}.fc2"), drop)


def compute_blocks(
    kind: str, x: Tensor, weights: dict[str, Tensor], branches: int, drop: float, attn_drop: float
) -> Tensor:
    """Compute the blocks by the formulas of backbones.vit, with dropout as in the published code."""
    parallel = kind.startswith("parallel")
    for i in range(SMALL["depth"]):
        for branch, function in (("attn", attend), ("mlp", perceive)):
            total = torch.zeros_like(x)
            for n in range(branches if parallel else 1):
                if parallel:
                    prefix = f"blocks.{i}.{'attns' if branch == 'attn' else 'ffns'}.{n}"
                    names = f"{prefix}.norm", f"{prefix}.{branch}", f"{prefix}.ls.gamma"
                else:
                    k = 1 if branch == "attn" else 2
                    names = f"blocks.{i}.norm{k}", f"blocks.{i}.{branch}", f"blocks.{i}.ls{k}.gamma"
                y = norm(x, weights, names[0])
                more = (SMALL["heads"], attn_drop) if branch == "attn" else ()
                y = function(y, weights, names[1], drop, *more)
                total = total + (y * weights[names[2]] if kind.endswith("layer-scale") else y)
            x = x + total
    return x


@pytest.mark.parametrize(("drop", "attn_drop"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.1, 0.4)])
@pytest.mark.parametrize("branches", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_blocks_match_their_formulas(kind: str, branches: int, drop: float, attn_drop: float) -> None:
    torch.manual_seed(0)
    options = {"block": kind, "branches": branches, "drop": drop, "attn_drop": attn_drop, **SMALL}
    model = build("vit", classes=4, size=16, initial_scale=0.3, **options).double().train()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(2, 17, 12, dtype=torch.float64)
    torch.manual_seed(1)
    expected = compute_blocks(kind, x, dict(model.state_dict()), branches, drop, attn_drop)
    torch.manual_seed(1)
    torch.testing.assert_close(model.blocks(x), expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_default_equals_timms_deit_tiny() -> None:
    torch.manual_seed(0)
    expected = timm.create_model("deit_tiny_patch16_224", num_classes=5, img_size=64).eval()
    model = build("vit", classes=5, size=64).eval()
    model.load_state_dict(expected.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(images), expected(images))


@pytest.mark.parametrize(
    ("kind", "pool", "stem"),
    others_slow(
        product(KINDS, ("token", "mean"), ("patch", "hmlp")),
        *zip(KINDS, ("token", "mean") * 2, ("patch", "hmlp", "hmlp", "patch"), strict=True),
        rows=True,
    ),
)
def test_every_parameter_learns_and_new_attention_is_the_identity(kind: str, pool: str, stem: str) -> None:
    torch.manual_seed(0)
    options = {"block": kind, "pool": pool, "stem": stem, **SMALL}
    model = build("vit", classes=4, size=16, drop_path=0.0, **options)
    images = torch.randn(3, 3, 16, 16)
    before = model.eval()(images)
    known = sites(model, images)
    blocks = [site.name for site in known if site.path.count(".") == 1 and site.path.startswith("blocks.")]
    assert len(blocks) == SMALL["depth"] - (pool == "token")
    assert {site.layout for site in known if site.path.startswith("blocks.")} == {"B*C"}
    insert(model, {blocks[1]: Spec("multihead", {"heads": 2})}, images)
    assert torch.equal(model(images), before)
    model.train()
    nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert silent == []


@pytest.mark.parametrize(
    ("attention", "pool"),
    others_slow(product(ATTENTIONS, ("token", "mean")), ("multihead", "token"), ("ssa", "mean"), rows=True),
)
def test_attention_replaces_a_mixer(attention: str, pool: str) -> None:
    torch.manual_seed(0)
    model = build("vit", classes=4, size=16, pool=pool, **SMALL)
    images = torch.randn(3, 3, 16, 16)
    backbone, before = set(model.state_dict()), model.eval()(images)
    insert(
        model, {"stage1.block2.mixer": Spec(attention), "stage1.block2.attention.branch": Spec("ssa")}, images
    )
    removed = {f"blocks.1.attn.{layer}.{kind}" for layer in ("qkv", "proj") for kind in ("weight", "bias")}
    assert backbone - set(model.state_dict()) == removed
    assert float(gates(model)["stage1.block2.mixer"]) == 1
    assert not torch.equal(model(images), before)
    names = [site.name for site in sites(model, images)]
    assert names == [
        site.name for site in sites(build("vit", classes=4, size=16, pool=pool, **SMALL), images)
    ]
    with pytest.raises(InputError, match="has an attention already"):
        insert(model, {"stage1.block2.mixer": Spec("ssa")}, images)
    outputs: list[Tensor] = []
    model.blocks[1].attn.register_forward_hook(lambda module, args, output: outputs.append(output))
    nn.functional.cross_entropy(model.train()(images), torch.tensor([0, 1, 2])).backward()
    (mixed,) = outputs
    assert (mixed[:, :1] == 0).all() == (pool == "token"), "attention ignores the class token"
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@torch.no_grad()
def test_attention_ignores_class_tokens() -> None:
    torch.manual_seed(0)
    model = build("vit", classes=4, size=16, **SMALL)
    images = torch.randn(3, 3, 16, 16)
    insert(model, {"stage1.block2": Spec("multihead")}, images)
    added = model.blocks[1].site_attention
    added.gamma.fill_(1.0)
    x = torch.randn(2, 17, 12)
    other = x.clone()
    other[:, 0] += 1
    assert torch.equal(added(x)[:, 0], x[:, 0])
    assert torch.equal(added(other)[:, 1:], added(x)[:, 1:])
    added.class_tokens = 0
    assert not torch.equal(added(other)[:, 1:], added(x)[:, 1:])


def test_patches_of_the_hmlp_stem_do_not_mix() -> None:
    stem = build("vit", classes=4, size=32, stem="hmlp", **{**SMALL, "patch_size": 16}).eval().patch_embed
    images = torch.randn(2, 3, 32, 32)
    other = images.clone()
    other[:, :, 16:, :16] += 1  # the third patch
    changed = (stem(other) != stem(images)).any(2)
    assert changed.tolist() == [[False, False, True, False]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 5}, "multiple of its patches of 5 pixels; got 16"),
        ({"heads": 5}, "embed_dim must be a multiple of heads; got embed_dim=12, heads=5"),
        ({"drop": -0.1}, "drop must be at least 0 and below 1; got -0.1"),
        ({"block": "serial"}, "unknown block of backbone 'vit' 'serial'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("vit", classes=4, size=16, **{**SMALL, **options})


@pytest.mark.parametrize("kind", ["alone", "tuple", "weights", "attribute"])
def test_a_mixer_is_replaced_only_if_the_model_uses_no_more_than_its_output(kind: str) -> None:
    model, example = Tokens(kind), torch.randn(4, 6, 8)
    known = sites(model, example)
    names = {site.name for site in known}
    assert "stage1.block1.mlp.branch" in names
    assert ("stage1.block1.mixer" in names) == (kind != "weights")
    if kind in ("alone", "tuple"):
        insert(model, {"stage1.block1.mixer": Spec("ssa")}, example)
        assert model(example).shape == (4, 8)
        assert sites(model, example) == known
    elif kind == "attribute":
        message = r"no module can take the place of the one at 'stage1\.block1\.mixer'"
        with pytest.raises(InputError, match=message):
            insert(model, {"stage1.block1.mixer": Spec("ssa")}, example)


@pytest.mark.parametrize(
    ("size", "patch"), [(224, 16), (32, 16), (168, 12), (60, 12), (100, 20), (24, 12), (56, 8)]
)
def test_patches_that_divide_the_images_are_chosen(size: int, patch: int) -> None:
    options = {key: value for key, value in SMALL.items() if key != "patch_size"}
    for stem in ("patch", "hmlp"):
        model = build("vit", classes=4, size=size, stem=stem, **{**options, "depth": 1}).eval()
        assert model.patch_embed.patch_size == (patch, patch)
        assert model(torch.zeros(1, 3, size, size)).shape == (1, 4)
