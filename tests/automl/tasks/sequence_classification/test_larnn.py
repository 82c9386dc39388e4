"""LARNN compared with a restatement of its paper, in float64, and further properties."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from automl.tasks.sequence_classification.larnn import loop as larnn_loop
from automl.tasks.sequence_classification.larnn.backbone import LARNNCell, Layer
from automl.tasks.sequence_classification.recurrent import RecurrentNetwork
from backbones import build
from tests.helpers import others_slow
from tests.helpers.larnn_restated import Restated

MODES = ("residual", "layer")
CASES = [
    dict(zip(("mode", "positional", "activation_on_keys_and_values", "cell_activation"), case, strict=True))
    for case in itertools.product(MODES, (False, True), (False, True), ("elu", "tanh"))
]
FORMS = [
    {"activation": activation, "norm": norm}
    for activation, norm in (("query", "memory"), ("all", "none"), ("none", "all"), ("all", "all"))
]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form.values()))
HALF = [case for case in CASES if case["cell_activation"] == "elu"]
every_other = pytest.mark.parametrize("case", HALF, ids=lambda case: "-".join(map(str, case.values())))
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))


def layer(channels: int = 5, hidden: int = 6, **options: object) -> Layer:
    torch.manual_seed(0)
    new_layer = Layer(
        channels,
        hidden,
        **{
            "heads": 3,
            "window": 4,
            "mode": "residual",
            "positional": False,
            "activation_on_keys_and_values": False,
            "cell_activation": "elu",
            "dropout": 0.0,
            **options,
        },
    ).double()
    return randomise_norms(new_layer)


def randomise_norms(module: Layer) -> Layer:
    for norm in (module.norm, module.cell_norm):
        if norm is not None:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)
    return module


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def results(model: Callable[[Tensor], Tensor], weights: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the states, and the gradients of the input and of each weight."""
    x = x.clone().requires_grad_()
    y = model(x)
    loss = (y * values(*y.shape)).sum()
    return [y, *torch.autograd.grad(loss, [x, *weights.parameters()])]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_case
def test_equals_the_restatement(case: dict[str, object], training: bool) -> None:
    module = layer(**case).train(training)
    x = values(7, 5, 11)  # longer than the window
    expected = results(Restated(module, positional=bool(case["positional"])), module, x)
    names = ["states", "input", *dict(module.named_parameters())]
    for name, a, b in zip(names, results(module, module, x), expected, strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_form
@every_other
def test_options_equal_the_restatement(case: dict[str, object], form: dict[str, str], training: bool) -> None:
    module = layer(**case, **form).train(training)
    x = values(4, 5, 6)
    expected = results(Restated(module, positional=bool(case["positional"])), module, x)
    for a, b in zip(results(module, module, x), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("form", [{}, FORMS[-1]], ids=["default", "all"])
@every_other
def test_a_loop_over_cells_equals_it(case: dict[str, object], form: dict[str, str], training: bool) -> None:
    cell = LARNNCell(5, 6, heads=3, window=4, **case, **form).double().train(training)
    randomise_norms(cell.layer)
    x = values(4, 5, 6)
    expected = results(cell.layer, cell, x)

    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            state, outputs = None, []
            for x_t in x.unbind(2):
                y, state = cell(x_t, state)
                outputs.append(y)
            return torch.stack(outputs, 2)

    for a, b in zip(results(Loop(), cell, x), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_cells_state_has_the_latest_steps_and_can_be_detached() -> None:
    cell = LARNNCell(5, 6, heads=3, window=4)
    state = None
    for x in values(9, 7, 5).float():
        y, state = cell(x, state)
        assert torch.equal(y, state.hidden)
        assert len(state.memory) <= 3
        assert {m.shape for m in state.memory} == {(7, 12)}
        assert y.requires_grad
    assert len(state.memory) == 3
    cut = state.detach()
    assert not any(t.requires_grad for t in (cut.hidden, cut.cell, *cut.memory))
    torch.testing.assert_close(cell(x, cut)[0], cell(x, state)[0])


def test_dropout_and_norms_of_a_cell() -> None:
    cell = LARNNCell(5, 6, heads=3, dropout=0.5)
    torch.manual_seed(0)
    y, state = cell(values(50, 5).float())
    dropped = y == 0
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(y[~dropped], 2 * state.hidden[~dropped])
    assert (state.hidden[dropped] != 0).all()
    cell = LARNNCell(5, 6, heads=3, norm="all")
    before = [norm.running_mean.clone() for norm in (cell.layer.norm, cell.layer.cell_norm)]
    cell(values(7, 5).float())
    for norm, mean in zip((cell.layer.norm, cell.layer.cell_norm), before, strict=True):
        assert not torch.equal(norm.running_mean, mean)


EVERY = {"activation_on_keys_and_values": True, "activation": "all", "norm": "all", "positional": True}


@pytest.mark.parametrize(
    "options",
    others_slow(
        [{}, {**EVERY, "activation": "none", "norm": "memory"}, EVERY, {"activation": "all", "norm": "none"}],
        EVERY,
    ),
    ids=["plain", "normed, with encodings", "all", "all, not normed"],
)
def test_the_exported_loop_equals_the_plain_one(options: dict[str, object]) -> None:
    module = layer(**options).eval().requires_grad_(False)
    x = values(7, 5, 11)
    program = torch.export.export(module, (x[:2],), dynamic_shapes=({0: torch.export.Dim("N", min=1)},))
    assert "scan" in program.graph_module.code
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-10, atol=1e-10)


def measure_kept(model: nn.Module, length: int) -> int:
    """Return the memory [bytes] kept for the backward pass, besides the weights."""
    storages: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = values(2, 5, length)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x).sum()
    return sum(storages.values())


@pytest.mark.parametrize(
    "options", others_slow([{}, {"activation_on_keys_and_values": True}, EVERY], {}), ids=str
)
def test_memory_grows_with_the_length_and_not_with_the_window(options: dict[str, object]) -> None:
    small, large = (layer(window=k, **options) for k in (2, 64))
    by_length = [measure_kept(large, length) for length in (100, 200, 300)]
    steps = [b - a for a, b in itertools.pairwise(by_length)]
    assert abs(steps[0] - steps[1]) < 0.01 * steps[0]
    assert measure_kept(large, 200) == pytest.approx(measure_kept(small, 200), rel=0.02)


@pytest.mark.slow("a training")
def test_norms_track_their_statistics() -> None:
    module = layer(norm="all")
    x = values(6, 5, 12)
    for _ in range(200):
        module.train()(x)
    norm = module.cell_norm
    _, seen = larnn_loop.run(x, module._weights(), module.kind, None, norm.for_training(x, None))
    torch.testing.assert_close(norm.running_mean, seen.cell_mean.mean(0))
    torch.testing.assert_close(norm.running_var, seen.cell_variance.mean(0))


@pytest.mark.parametrize(
    "options", [{}, *({"activation_on_keys_and_values": True, **form} for form in [{}, *FORMS])], ids=str
)
def test_padding_changes_no_gradient(options: dict[str, object]) -> None:
    """States at padding affect neither the norm's statistics nor any gradient."""
    module = layer(**options)
    x = values(3, 5, 9)
    mask = torch.arange(9) < torch.tensor([[9], [4], [1]])
    outcomes = []
    for noise in (0.0, 3.0):
        y = module(x + noise * ~mask.unsqueeze(1), mask)
        loss = (y * mask.unsqueeze(1)).square().sum()
        outcomes.append([loss, *torch.autograd.grad(loss, module.parameters())])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b)


def test_layers_are_stacked_with_and_without_residual_connections() -> None:
    for residual in (True, False):
        torch.manual_seed(0)
        model = build("larnn", classes=2, hidden=6, heads=3, window=4, layers=2, residual=residual).eval()
        assert isinstance(model, RecurrentNetwork)
        x = values(2, 3, 5).float()
        y = model.stem(x)
        for stacked in model.layers:
            y = y + stacked.branch(y) if residual else stacked(y)
        torch.testing.assert_close(model(x), model.head(y[:, :, -1]))
