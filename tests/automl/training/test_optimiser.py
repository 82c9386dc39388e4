from typing import Any, get_args

import pytest
import torch
from automl_cases import EVERY_ATTENTION, HERE, tiny
from hypothesis import given
from hypothesis import strategies as st

from automl.tasks import open_task
from automl.training.optimiser import build_optimizer, learning_rate
from search.config import Optimizer, Schedule

every_schedule = pytest.mark.parametrize("schedule", get_args(Schedule))
progress = st.floats(0, 1)


@pytest.mark.parametrize(
    ("schedule", "at", "share"),
    [
        ("one-cycle", 0.0, 0.1),
        ("one-cycle", 0.15, 0.55),
        ("one-cycle", 0.3, 1.0),
        ("one-cycle", 0.65, 0.500005),
        ("one-cycle", 1.0, 1e-5),
        ("flat-cosine", 0.0, 1.0),
        ("flat-cosine", 0.72, 1.0),
        ("flat-cosine", 0.86, 0.5),
        ("flat-cosine", 1.0, 0.0),
        ("step-25", 0.2499, 1.0),
        ("step-25", 0.25, 0.75),
        ("step-6", 0.13, 0.75**2),
        ("step-50", 1.0, 0.75**2),
    ],
)
def test_schedule_by_hand(schedule: Schedule, at: float, share: float) -> None:
    assert learning_rate(schedule, at) == pytest.approx(share, abs=1e-9)


@every_schedule
@given(at=progress)
def test_schedule_is_a_share(schedule: Schedule, at: float) -> None:
    share = learning_rate(schedule, at)
    assert 0 <= share <= 1
    assert share > 0 or at > 0.999


@pytest.mark.parametrize("schedule", ["one-cycle", "flat-cosine"])
@given(at=progress, step=st.floats(0, 1e-3))
def test_schedule_is_continuous(schedule: Schedule, at: float, step: float) -> None:
    change = learning_rate(schedule, min(1.0, at + step)) - learning_rate(schedule, at)
    assert abs(change) <= 6 * step + 1e-12  # the steepest cosine spans 0.28, so pi/2 / 0.28 = 5.6


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
        # With SGD the decay goes through Nesterov's momentum, which takes 1.9 times the first step.
        left = 1 - 0.1 * 0.5 * (1 if optimizer == "adamw" else 1.9) if parameter.ndim > 1 else 1.0
        torch.testing.assert_close(parameter, before[name] * left, msg=lambda text, n=name: f"{n}: {text}")
    assert all(parameters[name].ndim <= 1 for name in gates)


def test_every_parameter_is_trained_once() -> None:
    model = open_task(tiny(model={"placement": EVERY_ATTENTION}), HERE).model()
    groups = build_optimizer(model, tiny().training).param_groups
    trained = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(trained) == sorted(id(parameter) for parameter in model.parameters())
