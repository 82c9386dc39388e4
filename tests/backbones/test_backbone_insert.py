"""Insertion of placements, into backbones of the table and into other models."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from backbones import Example, Site, build, call, insert, sites
from tests.helpers import others_slow
from tests.helpers.sites_models import (
    Mixer,
    Net,
    PostActivation,
    PreActivation,
    Recurrent,
    Stereo,
    Text,
    randomise_norms,
    swin,
    vit,
)

EXAMPLE = (2, 3, 32, 32)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "xresnet18": lambda: build("xresnet18", classes=5, width=0.25),
    "torchvision resnet, basic blocks": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5),
    "torchvision resnet, bottlenecks": lambda: ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5),
    "post-activation": Net,
    "pre-activation": lambda: Net(PreActivation),
    "vision transformer": vit,
    "vit": lambda: build(
        "vit", classes=5, size=32, embed_dim=24, depth=2, heads=3, patch_size=8, pool="mean"
    ),
    "swin transformer": swin,
    "mixer": Mixer,
}


@pytest.fixture(params=others_slow(MODELS, "post-activation", "vision transformer", "mixer"))
def make(request: pytest.FixtureRequest) -> Callable[[], nn.Module]:
    """Return a function that builds one model with the same weights every time."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return MODELS[request.param]()

    return make


def _x() -> Tensor:
    return torch.randn(EXAMPLE, generator=torch.Generator().manual_seed(1))


def _sites(model: nn.Module) -> list[Site]:
    return [site for site in sites(model, torch.empty(EXAMPLE)) if not site.replaces]


def _everywhere(model: nn.Module) -> dict[str, Spec]:
    """Return a placement with a module at every site that replaces nothing, of each type in turn."""
    names = [site.name for site in _sites(model)]
    return {name: Spec(list(ATTENTIONS)[i % len(ATTENTIONS)]) for i, name in enumerate(names)}


def _inserted(model: nn.Module) -> dict[str, nn.Module]:
    """Return the inserted modules by the names of their sites."""
    modules = {
        site.name: getattr(model.get_submodule(site.path), "site_attention", None) for site in _sites(model)
    }
    return {name: module for name, module in modules.items() if module is not None}


@torch.no_grad()
def test_every_module_runs_once_and_affects_the_output(make: Callable[[], nn.Module]) -> None:
    model = randomise_norms(make())
    names = list(_everywhere(model))
    insert(model, dict.fromkeys(names, Spec("conv1x1")), torch.empty(EXAMPLE))
    before, modules = model(_x()), _inserted(model)
    assert list(modules) == names
    for name, module in modules.items():
        calls: list[str] = []
        module.gamma.fill_(1)
        handle = module.register_forward_hook(lambda *_, calls=calls: calls.append("called"))
        assert not torch.equal(model(_x()), before), name
        assert calls == ["called"], name
        handle.remove()
        module.gamma.fill_(0)
    assert torch.equal(model(_x()), before)


@torch.no_grad()
def test_new_modules_receive_the_outputs_of_their_sites_and_change_nothing(
    make: Callable[[], nn.Module],
) -> None:
    plain, model = randomise_norms(make()), randomise_norms(make())
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for site in _sites(plain):
        plain.get_submodule(site.path).register_forward_hook(
            lambda _, __, output, name=site.name: outputs.update({name: output.clone()})
        )
    assert insert(model, _everywhere(model), torch.empty(EXAMPLE)) is model
    for name, module in _inserted(model).items():
        module.register_forward_pre_hook(lambda _, args, name=name: inputs.update({name: args[0].clone()}))
    assert torch.equal(model(_x()), plain(_x()))
    assert list(inputs) == list(outputs)
    assert all(torch.equal(inputs[name], outputs[name]) for name in outputs)


@torch.no_grad()
def test_a_copy_is_independent(make: Callable[[], nn.Module]) -> None:
    model = randomise_norms(make())
    insert(model, _everywhere(model), torch.empty(EXAMPLE))
    twin, before = copy.deepcopy(model), model(_x())
    for module in _inserted(twin).values():
        module.gamma.fill_(1)
    assert torch.equal(model(_x()), before)
    assert not torch.equal(twin(_x()), before)


def test_every_gate_has_a_gradient(make: Callable[[], nn.Module]) -> None:
    """New modules have the training mode of their model, and every gate has a gradient."""
    model = randomise_norms(make()).train()
    insert(model, _everywhere(model), torch.empty(EXAMPLE))
    assert all(module.training for module in model.modules())
    nn.functional.cross_entropy(model(_x()), torch.tensor([0, 1])).backward()
    for name, module in _inserted(model).items():
        assert module.gamma.grad.isfinite(), name
        assert module.gamma.grad != 0, name


@pytest.mark.parametrize("dimensions", [1, 3])
@torch.no_grad()
def test_inserts_into_other_dimensions(dimensions: int) -> None:
    model, x = randomise_norms(Net(dimensions=dimensions)), torch.randn(2, 3, *[16] * dimensions)
    before = model(x)
    insert(model, dict.fromkeys(["stem", "stage2.block1.branch", "stage2.block2"], Spec("ssa")))
    assert torch.equal(model(x), before)
    model.stem.site_attention.gamma.fill_(1)
    assert not torch.equal(model(x), before)


IDS = torch.arange(21).view(3, 7) % 11


MASK = torch.arange(7) < torch.tensor([[7], [4], [1]])


LEFT, RIGHT = (torch.randn(EXAMPLE, generator=torch.Generator().manual_seed(i)) for i in (1, 2))


@pytest.mark.parametrize(
    ("make_model", "example"),
    [(Recurrent, IDS), (Text, {"ids": IDS, "mask": MASK}), (Stereo, (LEFT, RIGHT))],
    ids=["lstm", "text", "stereo"],
)
def test_any_input(make_model: Callable[[], nn.Module], example: Example) -> None:
    """The output changes only when a gate opens, and each gate has an effect. Tuples stay tuples."""
    model = randomise_norms(make_model())
    before, state = call(model, example), torch.get_rng_state()
    known = [site for site in sites(model, example) if site.channels > 1 and not site.replaces]
    insert(model, {site.name: Spec("multihead", {"heads": 2}) for site in known}, example)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(call(model, example), before)
    assert known
    for site in known:
        module = model.get_submodule(site.path).site_attention
        assert (module.site, module.layout, module.channels) == (site.name, site.layout, site.channels)
        with torch.no_grad():
            module.gamma.fill_(1)
            assert not torch.equal(call(model, example), before), site.name
            module.gamma.fill_(0)


@torch.no_grad()
def test_the_other_outputs_of_a_tuple_stay() -> None:
    model = Recurrent().eval()
    x = torch.randn(3, 7, 8)
    outputs, states = model.lstm(x)
    insert(model, {"lstm": Spec("ssa")}, IDS).lstm.site_attention.gamma.fill_(1)
    transformed, new_states = model.lstm(x)
    assert not torch.equal(transformed, outputs)
    assert torch.equal(transformed, model.lstm.site_attention(outputs))
    assert all(torch.equal(a, b) for a, b in zip(new_states, states, strict=True))


@pytest.mark.parametrize("name", ATTENTIONS)
@torch.no_grad()
def test_a_transformer_encoder_ignores_padding(name: str) -> None:
    """In evaluation torch would run fused layers on nested tensors, which skip inserted modules."""
    plain, model = Text().double().eval(), Text().double().eval()
    model.load_state_dict(plain.state_dict())
    example = {"ids": IDS, "mask": MASK}
    insert(model, {site.name: Spec(name) for site in sites(model, example)}, example)
    torch.testing.assert_close(model(IDS, MASK), plain(IDS, MASK), rtol=1e-10, atol=1e-10)
    for parameter in (p for n, p in model.named_parameters() if n.endswith("gamma")):
        parameter.fill_(0.5)
    y = model(IDS, MASK)
    assert not torch.allclose(y, plain(IDS, MASK))
    longer = torch.nn.functional.pad(IDS, (0, 14), value=10), torch.nn.functional.pad(MASK, (0, 14))
    torch.testing.assert_close(model(*longer), y, rtol=1e-10, atol=1e-10)


def test_an_unknown_site_is_rejected() -> None:
    message = r"unknown site of Net 'stage1\.blok1'; choose from .*Did you mean 'stage1\.block1'"
    with pytest.raises(InputError, match=message):
        insert(Net(), {"stage1.blok1": Spec("ssa")})


def test_an_occupied_site_is_rejected_without_other_changes() -> None:
    model = insert(Net(), {"stem": Spec("ssa")})
    names = list(model.state_dict())
    with pytest.raises(InputError, match="site 'stem' has an attention already"):
        insert(model, {"stage1.block1": Spec("ssa"), "stem": Spec("sagan")})
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_modules_have_the_models_dtype_and_device(dtype: torch.dtype) -> None:
    model = randomise_norms(Net()).to(dtype)
    x = _x().to(dtype)
    before = model(x)
    insert(model, _everywhere(Net()))
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert not any(module.training for module in model.modules())
    assert torch.equal(model(x), before)
    model = insert(Net().to("meta"), _everywhere(Net()))
    assert {p.device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize("plain_weights", others_slow([True, False], False), ids=["removed", "parametrized"])
@pytest.mark.parametrize("types", others_slow([" ".join(ATTENTIONS), "sagan sliding"], "sagan sliding"))
def test_exports(types: str, plain_weights: bool) -> None:
    """Several types at once, with spectral norms as parametrizations, and with their final weights."""
    model = Net().eval()
    kinds = types.split()
    while len(_everywhere(model)) < len(kinds):
        model.layer2.append(PostActivation(16, 16, stride=1, dimensions=2).eval())
    insert(model, dict(zip(_everywhere(model), map(Spec, kinds), strict=False)), torch.empty(EXAMPLE))
    assert len(_inserted(model)) == len(kinds)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if n.endswith("gamma")):
            parameter.fill_(0.1)
        expected = model(x)
        if plain_weights:
            for module in list(model.modules()):
                if parametrize.is_parametrized(module):
                    parametrize.remove_parametrizations(module, "weight")
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        torch.testing.assert_close(program.module()(x), expected, rtol=1e-4, atol=1e-4)
        assert program.module()(x[:1]).shape == (1, 5)


B, C = 2, 6


class LayerAndFunction(nn.Module):
    """Model of a layer, a function, and a module that returns the function's result."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function, self.identity = layer, function, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.identity(self.function(self.layer(x))).sum()


def find_layout(
    layer: nn.Module, function: Callable[[Tensor], Tensor], *shape: int
) -> tuple[int, str] | None:
    layouts = {
        s.path: (s.channels, s.layout) for s in sites(LayerAndFunction(layer, function), torch.empty(shape))
    }
    return layouts.get("identity")


IMAGE = (B, 3, 4, 4)  # -> (B, C, 4, 4). Only the layers determine the dimensions.


TOKENS = (B, 4, 3)  # -> (B, 4, C)


FUNCTIONS: list[tuple[Callable[[Tensor], Tensor], str | None]] = [
    (lambda x: x, "first"),
    (lambda x: x.relu() * 2 + 1, "first"),
    (lambda x: x.permute(0, 2, 3, 1), "last"),
    (lambda x: torch.permute(input=x, dims=(0, 2, 3, 1)), "last"),
    (lambda x: x.movedim(1, -1).contiguous(), "last"),
    (lambda x: x.permute(0, 2, 1, 3), None),  # Neither first nor last.
    (lambda x: x.flatten(2).mT, "last"),
    (lambda x: x.flatten(2).transpose(1, 2).unflatten(1, (2, 8)), "last"),
    (lambda x: x[:, :, 1:, ::2], "first"),
    (lambda x: torch.stack([x.movedim(1, -1)] * 5, dim=1), "last"),
    (lambda x: x.chunk(2, dim=1)[0], "first"),
    (lambda x: F.interpolate(x, scale_factor=2), "first"),
    (lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 2), "first"),
    (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (C,)).permute(0, 3, 1, 2), "first"),
    (lambda x: x.movedim(1, -1).reshape(B, 2, 2, 4, C).permute(0, 2, 1, 3, 4).reshape(B, 4, 4, C), "last"),
    (lambda x: x.flatten(1).view(B, 3, 32), None),  # Channels and positions are mixed.
    (lambda x: x.mean(1, keepdim=True), None),
    (lambda x: x.flatten(2).mT @ nn.Parameter(torch.empty(C, C)), "last"),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_channels_are_followed(function: Callable[[Tensor], Tensor], expected: str | None) -> None:
    layout = find_layout(nn.Conv2d(3, C, 1), function, *IMAGE)
    assert (layout and layout[1]) == {"first": "BC*", "last": "B*C", None: None}[expected]
    y = function(torch.empty(B, C, 4, 4))
    if layout is not None:
        assert layout[0] == y.shape[1 if expected == "first" else -1]


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv1d(3, C, 1), (B, 3, 4), (C, "BC*")),
        (nn.ConvTranspose2d(3, C, 2), IMAGE, (C, "BC*")),
        (nn.BatchNorm1d(4), TOKENS, (4, "BC*")),
        (nn.Linear(3, C), TOKENS, (C, "B*C")),
        (nn.Linear(4, C), IMAGE, (C, "B*C")),
        (nn.LayerNorm(3), TOKENS, (3, "B*C")),
        (nn.LayerNorm([3, 4, 4]), IMAGE, None),  # Over all dimensions, so it determines nothing.
        (nn.Identity(), TOKENS, None),
    ],
    ids=str,
)
def test_layers_determine_the_dimension(
    layer: nn.Module, shape: tuple[int, ...], expected: tuple[int, str] | None
) -> None:
    assert find_layout(layer, lambda x: x, *shape) == expected
