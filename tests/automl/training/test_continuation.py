"""Trainings that continue a plain shared partial training."""

from itertools import islice

import pytest
import torch
from torch import Tensor

from attention import Spec
from automl.base.errors import InputError
from automl.task import Task
from automl.training.loop import TrainingState, fit, start
from automl.training.shared_training import continue_training
from tests.helpers import others_slow
from tests.helpers.automl_cases import opened

PLACEMENT = {"stage1.block2.branch": Spec("ssa"), "stage2.block1": Spec("decomposed")}
TRAINING = {"epochs": 3, "schedule": "flat-cosine"}


def train_epochs(task: Task, epochs: int = 2) -> TrainingState:
    state = start(task)
    list(islice(fit(task, state), epochs))
    return state


def weights(state: TrainingState) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.model.state_dict().items()}


@pytest.mark.parametrize("more", others_slow([{}, {"optimizer": "sgd"}, {"average": 0.9}], {"average": 0.9}))
def test_a_plain_continuation_equals_an_uninterrupted_training(more: dict[str, object]) -> None:
    task = opened(training={**TRAINING, **more})
    whole = start(task)
    list(fit(task, whole))
    branch = continue_training(task, train_epochs(task))
    assert [record["epoch"] for record in fit(task, branch)] == [3]
    torch.testing.assert_close(weights(branch), weights(whole), rtol=0, atol=0)
    if branch.average is not None and whole.average is not None:
        average, expected = (s.average.module.state_dict() for s in (branch, whole) if s.average)
        torch.testing.assert_close(average, expected, rtol=0, atol=0)


def test_only_inserted_modules_are_new() -> None:
    plain = opened(training=TRAINING)
    task = opened(training=TRAINING, model={"placement": PLACEMENT})
    shared_training = train_epochs(plain)
    before = weights(shared_training)
    moments = {
        name: shared_training.optimizer.state[p]["exp_avg"].clone()
        for name, p in shared_training.model.named_parameters()
    }
    state = continue_training(task, shared_training)
    for name, parameter in state.model.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name])
            assert torch.equal(state.optimizer.state[parameter]["exp_avg"], moments[name])
        else:
            assert "site_attention" in name
            assert not state.optimizer.state[parameter]
    assert [record["epoch"] for record in fit(task, state)] == [3]
    gates = [p for name, p in state.model.named_parameters() if name.endswith("gamma")]
    assert len(gates) == 2
    assert all(gate.item() != 0 for gate in gates)
    torch.testing.assert_close(weights(shared_training), before, rtol=0, atol=0)


def test_a_perturbed_continuation_and_one_of_another_kind() -> None:
    task = opened(training=TRAINING)
    shared_training = train_epochs(task, 1)
    state, state_of_other_seed, repeated = (
        continue_training(task, shared_training, perturb=1e-6, seed=seed) for seed in (1, 2, 1)
    )
    first, second, third = (weights(s) for s in (state, state_of_other_seed, repeated))
    torch.testing.assert_close(first, third, rtol=0, atol=0)
    torch.testing.assert_close(first, weights(shared_training), rtol=1e-4, atol=1e-7)
    assert not all(torch.equal(first[name], second[name]) for name in first)
    shared_training = train_epochs(opened(training=TRAINING), 1)
    with pytest.raises(InputError, match="must be that of the shared partial training, AdamW; got SGD"):
        continue_training(opened(training={**TRAINING, "optimizer": "sgd"}), shared_training)
    wide = opened(training=TRAINING, model={"options": {"width": 0.5}})
    with pytest.raises(InputError, match="of the shared partial training do not fit"):
        continue_training(wide, shared_training)
