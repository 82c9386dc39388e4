"""Sites of models of the table and of unknown models."""

import copy
from collections.abc import Callable
from itertools import cycle, islice, product
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from backbones import BACKBONES, Example, build, insert, sites
from backbones.torch_internals import tree_leaves
from tests.helpers import others_slow
from tests.helpers.sites_models import (
    Keeping,
    Mixer,
    Net,
    Plain,
    PreActivation,
    Recurrent,
    Shared,
    Stereo,
    Text,
    swin,
    vit,
)


def _names(model: nn.Module, *shape: int) -> list[str]:
    return [site.name for site in sites(model, torch.empty(shape))]


# Blocks of each stage. A new backbone needs a line here.
BLOCKS = {
    "xresnet18": (2, 2, 2, 2),
    "xresnet34": (3, 4, 6, 3),
    "xresnet50": (3, 4, 6, 3),
    "xresnet101": (3, 4, 23, 3),
    "xresnet152": (3, 8, 36, 3),
}
XRESNETS = [name for name in BACKBONES if name.startswith("xresnet")]


@pytest.mark.parametrize("name", others_slow(XRESNETS, "xresnet18", "xresnet50"))
def test_every_block_of_a_backbone_has_its_two_sites(name: str) -> None:
    """Channels, stride and resolution are those of the submodule's actual output."""
    model, shapes = build(name, classes=3, width=0.25).eval(), {}
    found_sites = sites(model, torch.empty(1, 3, 32, 48))
    blocks = [f"stage{i}.block{j + 1}" for i, count in enumerate(BLOCKS[name], start=1) for j in range(count)]
    expected = [name for block in blocks for name in (f"{block}.branch", block)]
    assert [site.name for site in found_sites] == ["stem", *expected]
    for site in found_sites:
        model.get_submodule(site.path).register_forward_hook(
            lambda _, __, output, name=site.name: shapes.update({name: output.shape})
        )
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 48))
    assert list(shapes) == [site.name for site in found_sites]
    for site in found_sites:
        assert shapes[site.name] == (1, site.channels, *site.resolution)
        assert site.stride == -(-32 // site.resolution[0])


@pytest.mark.parametrize(("in_channels", "classes"), [(1, 2), (4, 7)])
@pytest.mark.parametrize("name", ["xresnet18", "xresnet50"])
def test_backbones_have_the_requested_channels_and_classes(name: str, in_channels: int, classes: int) -> None:
    model = build(name, classes=classes, in_channels=in_channels, width=0.25)
    assert model(torch.zeros(2, in_channels, 32, 32)).shape == (2, classes)


@pytest.mark.parametrize("name", others_slow(["xresnet18", "xresnet50"], "xresnet18"))
def test_the_stem_of_simple_self_attention_has_27712_more_parameters(name: str) -> None:
    fastais, authors = (build(name, classes=10, stem=stem) for stem in ("32-32-64", "32-64-64"))
    counts = [sum(p.numel() for p in model.parameters()) for model in (fastais, authors)]
    assert counts[1] - counts[0] == 27_712
    convolutions = [m for m in authors.modules() if isinstance(m, torch.nn.Conv2d)][:3]
    assert [(m.in_channels, m.out_channels, m.stride) for m in convolutions] == [
        (3, 32, (2, 2)),
        (32, 64, (1, 1)),
        (64, 64, (1, 1)),
    ]
    assert sum(p.numel() for p in build(name, classes=10).parameters()) == counts[0]


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3")])
def test_torchvisions_branch_ends_at_the_blocks_last_norm(name: str, last: str) -> None:
    found_sites = {s.name: s for s in sites(torchvision.models.get_model(name), torch.empty(1, 3, 64, 64))}
    assert found_sites["stem"].path == "maxpool"
    assert found_sites["stage1.block1.branch"].path == f"layer1.0.{last}"
    assert found_sites["stage1.block1"].path == "layer1.0"
    assert found_sites["stage3.block2.branch"].path == f"layer3.1.{last}"
    assert len(found_sites) == 1 + 2 * sum({"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}[name])


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_finds_blocks_of_any_dimension(dimensions: int) -> None:
    found_sites = sites(Net(dimensions=dimensions), torch.empty(1, 3, *[16] * dimensions))
    rows = [(s.name, s.path, s.channels, s.stride, s.resolution) for s in found_sites]
    assert rows == [
        ("stem", "stem", 8, 2, (8,) * dimensions),
        *(
            (f"stage{i}.block{j + 1}{end}", f"layer{i}.{j}{end}", 8 * i, 2 * i, (8 // i,) * dimensions)
            for i, j, end in product((1, 2), (0, 1), (".branch", ""))
        ),
    ]


def test_finds_pre_activation_blocks() -> None:
    paths = {s.name: s.path for s in sites(Net(PreActivation), torch.empty(1, 3, 16, 16))}
    assert paths["stage1.block1.branch"] == "layer1.0.conv2"
    assert paths["stage2.block1.branch"] == "layer2.0.conv2"
    assert paths["stage2.block2"] == "layer2.1"
    assert len(paths) == 9


class Joined(nn.Module):
    """Block that joins its branch to the shortcut in a given way."""

    def __init__(self, join: Callable[["Joined", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.join = join
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.gate, self.scale = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(8, 1, 1))
        self.halves = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x, self.norm(self.conv(x)))


JOINS: dict[str, Callable[[Joined, Tensor, Tensor], Tensor]] = {
    "scaled": lambda block, x, y: x + 0.1 * y,
    "ReZero": lambda block, x, y: x + block.gate * y,
    "layer scale": lambda block, x, y: block.scale * y + x,
    "activation": lambda block, x, y: x + torch.relu(y),
    "dropout": lambda block, x, y: x + nn.functional.dropout(0.5 * y, 0.1, block.training),
    "shortcut scaled": lambda block, x, y: 0.9 * x + y,
    "alpha": lambda block, x, y: torch.add(x, y, alpha=0.2),
    "lerp": lambda block, x, y: torch.lerp(x, y, 0.5),
    "difference": lambda block, x, y: x - y,
    "addcmul": lambda block, x, y: torch.addcmul(x, y, block.scale),
}
PARTS: dict[str, Callable[[Joined, Tensor, Tensor], Tensor]] = {
    "cat": lambda block, x, y: (
        x + torch.cat([f(z) for f, z in zip(block.halves, y.chunk(2, 1), strict=True)], 1)
    ),
    "stack": lambda block, x, y: x + torch.stack([y, y]).sum(0),
}


@pytest.mark.parametrize("parametrised", [False, True])
@pytest.mark.parametrize("join", [*JOINS, *PARTS])
def test_a_branch_is_detected_for_every_kind_of_join(join: str, parametrised: bool) -> None:
    """The branch ends with the last submodule before the scale. Of several parts none is the branch."""
    blocks = [Joined((JOINS | PARTS)[join]) for _ in range(2)]
    if parametrised:
        for block in blocks:
            nn.utils.parametrizations.weight_norm(block.conv)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Sequential(*blocks))
    paths = {site.name: site.path for site in sites(model, torch.empty(2, 3, 16, 16))}
    expected = {"stem": "0"}
    for i, name in enumerate(("stage1.block1", "stage1.block2")):
        expected |= {f"{name}.branch": f"1.{i}.norm"} if join in JOINS else {}
        expected |= {name: f"1.{i}"}
    assert paths == expected


def test_a_block_that_runs_twice_is_no_site() -> None:
    assert _names(Shared(), 1, 3, 16, 16) == ["stem", "stage1.block1.branch", "stage1.block1"]


def test_without_residual_blocks_sites_are_paths() -> None:
    """`own` runs its children itself. The last two modules of the head have no positions."""
    names = ["features", "own.1", "head.0", "head.1"]
    assert _names(Plain(), 1, 3, 8, 8) == names


def _rows(model: nn.Module, example: Example) -> list[tuple[Any, ...]]:
    return [(s.name, s.path, s.channels, s.stride, s.resolution, s.layout) for s in sites(model, example)]


def test_the_tokens_of_a_vision_transformer() -> None:
    """Its last block reads only the class token, which attention ignores."""
    layer = "encoder.layers.encoder_layer"
    assert _rows(vit(), torch.empty(2, 3, 32, 32)) == [
        ("stem", "encoder.dropout", 16, 8, (17,), "B*C"),
        ("stage1.block1.mixer", f"{layer}_0.self_attention", 16, 8, (17,), "B*C"),
        ("stage1.block1.attention.branch", f"{layer}_0.dropout", 16, 8, (17,), "B*C"),
        ("stage1.block1.mlp.branch", f"{layer}_0.mlp", 16, 8, (17,), "B*C"),
        ("stage1.block1", f"{layer}_0", 16, 8, (17,), "B*C"),
    ]


def test_class_tokens_are_counted_separately() -> None:
    """Models with and without class tokens. A batch of one makes no residual block of the embedding."""
    for batch in (1, 2):
        found_sites = sites(vit(), torch.empty(batch, 3, 32, 32))
        assert {(site.class_tokens, site.positions) for site in found_sites} == {(1, 16)}
        assert len(found_sites) == 5
    assert {site.class_tokens for site in sites(swin(), torch.empty(2, 3, 32, 48))} == {0}


def test_a_swin_transformer_has_its_channels_last() -> None:
    """Its stochastic depth runs twice a block and returns its input, so branches end before it."""
    rows = _rows(swin(), torch.empty(2, 3, 32, 48))
    assert rows[:5] == [
        ("stem", "features.0", 16, 4, (8, 12), "B*C"),
        ("stage1.block1.mixer", "features.1.0.attn", 16, 4, (8, 12), "B*C"),
        ("stage1.block1.attention.branch", "features.1.0.attn", 16, 4, (8, 12), "B*C"),
        ("stage1.block1.mlp.branch", "features.1.0.mlp", 16, 4, (8, 12), "B*C"),
        ("stage1.block1", "features.1.0", 16, 4, (8, 12), "B*C"),
    ]
    assert rows[-1] == ("stage2.block2", "features.3.1", 32, 8, (4, 6), "B*C")
    assert len(rows) == 18  # This includes the merging of patches.


def test_convnexts_channels_move_to_the_last_dimension_and_back() -> None:
    with torch.device("meta"):
        model = torchvision.models.convnext_tiny()
    rows = _rows(model, torch.empty(2, 3, 64, 64))
    assert rows[1] == ("stage1.block1.branch", "features.1.0.stochastic_depth", 96, 4, (16, 16), "BC*")
    assert rows[-1] == ("stage4.block3", "features.7.2", 768, 32, (2, 2), "BC*")


def test_the_sequence_that_an_lstm_returns() -> None:
    assert _rows(Recurrent(), torch.zeros(3, 7, dtype=torch.int64)) == [
        ("embedding", "embedding", 8, 1, (7,), "B*C"),
        ("lstm", "lstm", 12, 1, (7,), "B*C"),
    ]


def test_positions_before_the_batch_are_rejected() -> None:
    """The shapes (T, B) and (B, T) do not differ, but the layers do."""
    with pytest.raises(InputError, match=r"'lstm' of Recurrent has batch_first=False and takes 7 positions"):
        sites(Recurrent(batch_first=False), torch.zeros(7, 3, dtype=torch.int64))


IDS = torch.zeros(3, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    "example", [(IDS, IDS > 0), {"ids": IDS, "mask": IDS > 0}, {"mask": IDS > 0, "ids": IDS}], ids=str
)
def test_a_text_encoder_with_a_mask(example: Example) -> None:
    model = Text()
    rows = _rows(model, example)
    assert [row[:2] for row in rows] == [
        ("stem", "embedding"),
        ("stage1.block1.attention.branch", "encoder.layers.0.dropout1"),
        ("stage1.block1.mlp.branch", "encoder.layers.0.dropout2"),
        ("stage1.block1", "encoder.layers.0"),
        ("stage1.block2.attention.branch", "encoder.layers.1.dropout1"),
        ("stage1.block2.mlp.branch", "encoder.layers.1.dropout2"),
        ("stage1.block2", "encoder.layers.1"),
    ]
    assert {row[2:] for row in rows} == {(8, 1, (7,), "B*C")}
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_cost_volume_is_a_feature_map() -> None:
    """Its positions are disparities, rows and columns. The stride is that of the rows."""
    assert _rows(Stereo(), (torch.empty(2, 3, 32, 64), torch.empty(2, 3, 32, 64))) == [
        ("volume", "volume", 6, 4, (5, 8, 16), "BC*"),
    ]


def test_a_branch_has_its_channels_where_the_shortcut_has_them() -> None:
    rows = _rows(Mixer(), torch.empty(2, 3, 32, 32))
    assert [row[1] for row in rows] == ["block.drop", "block.drop2", "block"]
    assert {row[2:] for row in rows} == {(8, 8, (16,), "B*C")}


def test_finding_sites_leaves_the_model_as_it_was() -> None:
    model = Net().train()
    model.layer1[0].eval()  # A mixture, as in a model with frozen norms.
    flags = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    sites(model, torch.empty(1, 3, 16, 16))
    with pytest.raises(InputError, match=r"Net cannot take an input of shape \(1, 4, 16, 16\): .*channels"):
        sites(model, torch.empty(1, 4, 16, 16))
    assert [module.training for module in model.modules()] == flags
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(parameter.grad is not None for parameter in model.parameters())


def _held(model: nn.Module) -> list[tuple[Any, Any]]:
    """Return all objects in the model's modules, with copies of their values."""
    leaves = tree_leaves([vars(module) for module in model.modules()])
    return [(leaf, leaf.detach().clone() if isinstance(leaf, Tensor) else leaf) for leaf in leaves]


def test_tracing_does_not_change_the_models_state() -> None:
    model = Keeping()
    model(torch.ones(2, 3, 16, 16))
    before = _held(model)
    assert len(sites(model, torch.empty(1, 3, 16, 16))) == 9
    after = _held(model)
    assert len(after) == len(before)
    for (leaf, value), (new_leaf, new_value) in zip(before, after, strict=True):
        assert new_leaf is leaf
        assert torch.equal(new_value, value) if isinstance(value, Tensor) else new_value == value
    model(torch.ones(2, 3, 16, 16))
    assert (model.calls, model.seen.item()) == (2, 4)


IMAGES = {Net: torch.empty(1, 3, 16, 16), Plain: torch.empty(2, 3, 8, 8), vit: torch.empty(2, 3, 32, 32)}


@pytest.mark.parametrize("make", IMAGES)
@pytest.mark.parametrize("first", others_slow(range(len(ATTENTIONS)), 0, 6))
def test_sites_of_a_model_with_attention_are_the_same(first: int, make: Callable[[], nn.Module]) -> None:
    """Each site has another type. Hooks and parametrised weights are copied with the model."""
    plain, model, example = make(), make(), IMAGES[make]
    found_sites = sites(plain, example)
    types = islice(cycle(ATTENTIONS), first, None)
    placed = [site.name for site in found_sites if site.channels > 1]
    insert(model, {name: Spec(kind) for name, kind in zip(placed, types, strict=False)}, example)
    assert sites(model, example) == found_sites
