"""Which sites are found, on models of the table and on models that the code has never seen."""

import copy
import threading
from typing import Any

import pytest
import torch
import torchvision
from sites_models import Keeping, Net, Plain, PreActivation, Shared
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attention import ATTENTIONS, InputError, Spec
from backbones import BACKBONES, build, insert, sites


def _names(model: nn.Module, *shape: int) -> list[str]:
    return [site.name for site in sites(model, torch.empty(shape))]


XRESNET18_AT_128 = [
    # name, path, channels, stride, resolution
    ("stem", "3", 64, 4, (32, 32)),
    ("stage1.block1.branch", "4.0.convpath", 64, 4, (32, 32)),
    ("stage1.block1", "4.0", 64, 4, (32, 32)),
    ("stage1.block2.branch", "4.1.convpath", 64, 4, (32, 32)),
    ("stage1.block2", "4.1", 64, 4, (32, 32)),
    ("stage2.block1.branch", "5.0.convpath", 128, 8, (16, 16)),
    ("stage2.block1", "5.0", 128, 8, (16, 16)),
    ("stage2.block2.branch", "5.1.convpath", 128, 8, (16, 16)),
    ("stage2.block2", "5.1", 128, 8, (16, 16)),
    ("stage3.block1.branch", "6.0.convpath", 256, 16, (8, 8)),
    ("stage3.block1", "6.0", 256, 16, (8, 8)),
    ("stage3.block2.branch", "6.1.convpath", 256, 16, (8, 8)),
    ("stage3.block2", "6.1", 256, 16, (8, 8)),
    ("stage4.block1.branch", "7.0.convpath", 512, 32, (4, 4)),
    ("stage4.block1", "7.0", 512, 32, (4, 4)),
    ("stage4.block2.branch", "7.1.convpath", 512, 32, (4, 4)),
    ("stage4.block2", "7.1", 512, 32, (4, 4)),
]


def test_xresnet18_at_128() -> None:
    found = sites(build("xresnet18", classes=10), torch.empty(1, 3, 128, 128))
    assert [(s.name, s.path, s.channels, s.stride, s.resolution) for s in found] == XRESNET18_AT_128
    assert found[0].positions == 1024


# Blocks of each stage. A new backbone needs a line here.
BLOCKS = {
    "xresnet18": (2, 2, 2, 2),
    "xresnet34": (3, 4, 6, 3),
    "xresnet50": (3, 4, 6, 3),
    "xresnet101": (3, 4, 23, 3),
    "xresnet152": (3, 8, 36, 3),
}
IMAGES = [name for name, record in BACKBONES.items() if record.dimensions == 2]


@pytest.mark.parametrize("name", IMAGES)
def test_every_block_of_a_backbone_has_its_two_sites(name: str) -> None:
    expected = ["stem"]
    for i, blocks in enumerate(BLOCKS[name], start=1):
        for j in range(1, blocks + 1):
            expected += [f"stage{i}.block{j}.branch", f"stage{i}.block{j}"]
    assert _names(build(name, classes=3, width=0.25), 1, 3, 64, 64) == expected


@pytest.mark.parametrize("name", IMAGES)
def test_a_site_tells_the_truth(name: str) -> None:
    """Its channels, stride and resolution are those of what its submodule really returns."""
    model, seen = build(name, classes=3, width=0.25).eval(), {}
    found = sites(model, torch.empty(1, 3, 32, 48))
    for site in found:
        model.get_submodule(site.path).register_forward_hook(
            lambda _, __, output, name=site.name: seen.update({name: output.shape})
        )
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 48))
    assert list(seen) == [site.name for site in found]
    for site in found:
        assert seen[site.name] == (1, site.channels, *site.resolution)
        assert site.stride == -(-32 // site.resolution[0])


@pytest.mark.parametrize(("in_channels", "classes"), [(1, 2), (4, 7)])
@pytest.mark.parametrize("name", ["xresnet18", "xresnet50"])
def test_builds_what_is_asked_for(name: str, in_channels: int, classes: int) -> None:
    model = build(name, classes=classes, in_channels=in_channels, width=0.25)
    assert model(torch.zeros(2, in_channels, 32, 32)).shape == (2, classes)


def test_width_multiplies_the_channels() -> None:
    narrow, wide = (
        sites(build("xresnet18", classes=2, width=width), torch.empty(1, 3, 64, 64)) for width in (0.25, 0.5)
    )
    assert [2 * s.channels for s in narrow if s.name != "stem"] == [
        s.channels for s in wide if s.name != "stem"
    ]


@pytest.mark.parametrize("width", [0, -1.0, 1 / 17, 17, float("nan")])
def test_refuses_a_width(width: float) -> None:
    with pytest.raises(InputError, match="width must lie between 1/16 and 16; got"):
        build("xresnet18", classes=2, width=width)


@pytest.mark.parametrize("width", [1 / 16, 0.3, 1.7])
def test_takes_odd_widths(width: float) -> None:
    assert build("xresnet18", classes=2, width=width)(torch.zeros(2, 3, 32, 32)).shape == (2, 2)


def test_refuses_an_unknown_backbone() -> None:
    with pytest.raises(
        InputError, match=r"unknown backbone 'xresnet19'; choose from .*Did you mean 'xresnet1"
    ):
        build("xresnet19", classes=2)


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3")])
def test_torchvisions_branch_ends_at_the_blocks_last_norm(name: str, last: str) -> None:
    found = {s.name: s for s in sites(torchvision.models.get_model(name), torch.empty(1, 3, 64, 64))}
    assert found["stem"].path == "maxpool"
    assert found["stage1.block1.branch"].path == f"layer1.0.{last}"
    assert found["stage1.block1"].path == "layer1.0"
    assert found["stage3.block2.branch"].path == f"layer3.1.{last}"
    assert len(found) == 1 + 2 * sum({"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}[name])


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_finds_blocks_of_any_dimension(dimensions: int) -> None:
    found = sites(Net(dimensions=dimensions), torch.empty(1, 3, *[16] * dimensions))
    rows = [(s.name, s.path, s.channels, s.stride, s.resolution) for s in found]
    assert rows == [
        ("stem", "stem", 8, 2, (8,) * dimensions),
        ("stage1.block1.branch", "layer1.0.branch", 8, 2, (8,) * dimensions),
        ("stage1.block1", "layer1.0", 8, 2, (8,) * dimensions),
        ("stage1.block2.branch", "layer1.1.branch", 8, 2, (8,) * dimensions),
        ("stage1.block2", "layer1.1", 8, 2, (8,) * dimensions),
        ("stage2.block1.branch", "layer2.0.branch", 16, 4, (4,) * dimensions),
        ("stage2.block1", "layer2.0", 16, 4, (4,) * dimensions),
        ("stage2.block2.branch", "layer2.1.branch", 16, 4, (4,) * dimensions),
        ("stage2.block2", "layer2.1", 16, 4, (4,) * dimensions),
    ]


def test_finds_pre_activation_blocks() -> None:
    paths = {s.name: s.path for s in sites(Net(PreActivation), torch.empty(1, 3, 16, 16))}
    assert paths["stage1.block1.branch"] == "layer1.0.conv2"
    assert paths["stage2.block1.branch"] == "layer2.0.conv2"
    assert paths["stage2.block2"] == "layer2.1"
    assert len(paths) == 9


def test_a_block_that_runs_twice_is_no_site() -> None:
    assert _names(Shared(), 1, 3, 16, 16) == ["stem", "stage1.block1.branch", "stage1.block1"]


def test_without_residual_blocks_sites_are_paths() -> None:
    """`own` runs its children in its own way, and what comes after it are no feature maps."""
    assert _names(Plain(), 1, 3, 8, 8) == ["features.0", "features.1", "features", "own.0", "own.1"]


def test_finding_sites_leaves_the_model_as_it_was() -> None:
    model = Net().train()
    model.layer1[0].eval()  # a mixture, as in a model with frozen norms
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
    """All that the model's modules hold, and what it is worth."""
    held = tree_leaves([vars(module) for module in model.modules()])
    return [(one, one.detach().clone() if isinstance(one, Tensor) else one) for one in held]


def test_what_a_forward_keeps_is_not_kept() -> None:
    model = Keeping()
    model(torch.ones(2, 3, 16, 16))
    before = _held(model)
    assert len(sites(model, torch.empty(1, 3, 16, 16))) == 9
    after = _held(model)
    assert len(after) == len(before)
    for (one, worth), (same, now) in zip(before, after, strict=True):
        assert same is one
        assert torch.equal(now, worth) if isinstance(worth, Tensor) else now == worth
    model(torch.ones(2, 3, 16, 16))
    assert (model.calls, model.seen.item()) == (2, 4)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_sites_of_a_model_with_attention_are_the_same(name: str) -> None:
    """Hooks and parametrised weights are copied with the model."""
    plain, model = Net(), Net()
    found = sites(plain, torch.empty(1, 3, 16, 16))
    insert(model, {site.name: Spec(name) for site in found})
    assert sites(model, torch.empty(1, 3, 16, 16)) == found


def test_finding_sites_copies_no_memory() -> None:
    model = Net()
    model.huge = nn.Parameter(torch.zeros(1).expand(2**30, 2**30))  # more than any machine has
    assert _names(model, 1, 3, 16, 16) == _names(Net(), 1, 3, 16, 16)


def test_what_cannot_be_copied_is_refused() -> None:
    model = Net()
    model.lock = threading.Lock()
    with pytest.raises(InputError, match=r"Net must be one that copy.deepcopy can copy.*lock.*Keep what can"):
        sites(model, torch.empty(1, 3, 16, 16))


def test_finding_sites_needs_no_data() -> None:
    assert _names(Net().to("meta"), 1, 3, 16, 16) == _names(Net(), 1, 3, 16, 16)
    assert _names(Net(), 4, 3, 4096, 4096) == _names(Net(), 1, 3, 16, 16)


def test_finding_sites_draws_no_random_numbers() -> None:
    model, state = Net(), torch.get_rng_state()
    sites(model, torch.empty(1, 3, 16, 16))
    assert torch.equal(torch.get_rng_state(), state)
