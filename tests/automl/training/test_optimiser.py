from itertools import islice
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import Spec
from automl.task import open_task
from automl.training.optimiser import build_optimizer, compute_relative_rate
from backbones import build, insert
from search.config import Optimizer, Schedule, Training
from tests.helpers import others_slow
from tests.helpers.automl_cases import EVERY_ATTENTION, HERE, tiny

every_schedule = pytest.mark.parametrize("schedule", get_args(Schedule))
progress = st.floats(0, 1)


@pytest.mark.parametrize(
    ("schedule", "at", "expected"),
    [
        ("one-cycle", 0.0, 0.1),
        ("one-cycle", 0.3, 1.0),
        ("one-cycle", 1.0, 1e-5),
        ("flat-cosine", 0.72, 1.0),
        ("flat-cosine", 0.86, 0.5),
        ("flat-cosine", 1.0, 0.0),
        ("warmup-cosine", 0.0, 0.01),
        ("warmup-cosine", 0.05, 1.0),
        ("warmup-cosine", 1.0, 0.01),
        ("cosine", 0.25, 0.5 + 2**-1.5),
        ("cosine", 1.0, 0.0),
    ],
)
def test_schedule_equals_values_by_hand(schedule: Schedule, at: float, expected: float) -> None:
    assert compute_relative_rate(Training(schedule=schedule), at) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("epochs", "every"), [(25, 3), (25, 10), (100, 26), (7, 30)])
def test_step_schedule_equals_the_published_loop(epochs: int, every: int) -> None:
    """LARNN's `adjust_lr`: 0.75 ** (epoch // decay_each_N_epoch), at the first and the last step of each."""
    training = Training(schedule="step", epochs=epochs, decay_every=every)
    for epoch in range(epochs):
        for step in (0, 28):
            at = (epoch * 29 + step) / (epochs * 29)
            assert compute_relative_rate(training, at) == 0.75 ** (epoch // every)


def test_schedules_equal_torchs_and_the_given_factor() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)
    training = Training(schedule="cosine", epochs=25, learning_rate=3e-4)
    for epoch in range(25):
        rate = training.learning_rate * compute_relative_rate(training, epoch / 25)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()
    training = Training(schedule="step", epochs=6, decay_every=2, decay_factor=0.1)
    rates = [compute_relative_rate(training, at) for at in (0.0, 0.33, 0.34, 0.67, 1.0)]
    assert rates == pytest.approx([1, 1, 0.1, 0.01, 0.001])


@every_schedule
@given(at=progress)
def test_schedule_is_between_zero_and_one(schedule: Schedule, at: float) -> None:
    rate = compute_relative_rate(Training(schedule=schedule), at)
    assert 0 <= rate <= 1
    assert rate > 0 or at > 0.999


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_weights_decay_and_norms_biases_and_gates_do_not(optimizer: Optimizer) -> None:
    training: dict[str, Any] = {"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": 0.5}
    config = tiny(model={"placement": EVERY_ATTENTION}, training=training)
    model = open_task(config, HERE).model()
    parameters = dict(model.named_parameters())
    gates = {name for name in parameters if name.endswith("gamma")}
    assert len(gates) == len(EVERY_ATTENTION)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(1)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(model, config.training).step()
    for name, parameter in parameters.items():
        # With SGD the decay passes through Nesterov's momentum, which multiplies the first step by 1.9. Adam
        # makes a step of the whole learning rate for any gradient.
        taken = {"adamw": 0.1 * 0.5, "sgd": 0.1 * 0.5 * 1.9, "adam": 0.1}[optimizer]
        left = 1 - taken if parameter.ndim > 1 else 1.0
        torch.testing.assert_close(parameter, before[name] * left, msg=lambda text, n=name: f"{n}: {text}")
    assert all(parameters[name].ndim <= 1 for name in gates)


EMBEDDINGS = {
    "vit": {"pos_embed", "cls_token"},
    "timm:swin_tiny_patch4_window7_224": {"relative_position_bias_table"},
    "torchvision:vit_b_32": {"pos_embedding", "class_token"},
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_of_positions_do_not_decay(name: str) -> None:
    with torch.device("meta"):
        model = build(name, classes=4, size=224)
    named = {id(p): key for key, p in model.named_parameters()}
    _, stays = build_optimizer(model, tiny().training).param_groups
    tall = {named[id(p)].rpartition(".")[2] for p in stays["params"] if p.ndim > 1}
    assert tall == EMBEDDINGS[name]


def test_each_layer_has_a_fraction_of_the_next_layers_rate() -> None:
    """The head and attention, which are new, have the full rate."""
    model = build("vit", classes=4, size=16, embed_dim=12, depth=3, heads=3, patch_size=4)
    insert(model, {"stage1.block2": Spec("ssa")}, torch.empty(2, 3, 16, 16))
    training = tiny(training={"layer_decay": 0.5, "learning_rate": 0.1}).training
    optimizer = build_optimizer(model, training)
    named = {id(p): key for key, p in model.named_parameters()}
    scales = {named[id(p)]: g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    assert sorted(scales) == sorted(named.values())
    assert scales["head.weight"] == 1
    for block, scale in enumerate((0.125, 0.25, 0.5)):
        own = {key: v for key, v in scales.items() if key.startswith(f"blocks.{block}.")}
        assert {v for key, v in own.items() if "site_attention" not in key} == {scale}
    assert scales["pos_embed"] == scales["patch_embed.proj.weight"] == 0.0625
    assert scales["blocks.1.site_attention.gamma"] == 1
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(0.1 * group["lr_scale"])
    model = open_task(tiny(model={"placement": EVERY_ATTENTION}), HERE).model()
    groups = build_optimizer(model, tiny().training).param_groups
    trained = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(trained) == sorted(id(parameter) for parameter in model.parameters())


def test_blocks_are_layers_of_models_that_name_none() -> None:
    expected = {"conv1": -6, "layer1.1.conv2": -4, "layer4.0.conv1": -1, "fc": 0}
    with torch.device("meta"):
        model = build("torchvision:resnet18", classes=4)
    training = tiny(training={"layer_decay": 0.5}).training
    named = {id(p): key for key, p in model.named_parameters()}
    groups = build_optimizer(model, training).param_groups
    scales = {named[id(p)]: g["lr_scale"] for g in groups for p in g["params"]}
    assert sorted(scales) == sorted(named.values())
    assert {path: scales[f"{path}.weight"] for path in expected} == {k: 2.0**v for k, v in expected.items()}


@pytest.mark.parametrize("optimizer", others_slow(["adam", "adamw"], "adamw"))
def test_equals_torchs_optimiser_of_all_parameters(optimizer: Optimizer) -> None:
    """The published code of LARNN and of the vision transformers passes `model.parameters()`."""
    training: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate": 3e-4,
        "weight_decay": 0.01,
        "decayed": "all",
        "beta2": 0.999,
        "eps": 1e-8,
    }
    config = tiny(model={"placement": EVERY_ATTENTION}, training=training)
    task = open_task(config, HERE)
    model, reference = task.model(), task.model()
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    pairs = (
        (model, build_optimizer(model, config.training)),
        (
            reference,
            kind(
                reference.parameters(), lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True
            ),
        ),
    )
    for batch in islice(task.batches(0), 4):
        for trained, optimiser in pairs:
            optimiser.zero_grad()
            task.loss(trained.train(), batch).backward()
            optimiser.step()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
