"""Trials that continue a shared partial training stored by another trial."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import Spec
from automl.base.errors import InputError
from automl.config.nouns import Terms
from automl.costs.profile import CostProfile
from automl.storage.storage import Storage
from automl.task import Task
from automl.training import checkpoint, shared_training
from automl.training.loop import TrainingState, fit, start
from automl.training.shared_training import continue_training
from automl.trials import trial
from automl.trials.trial import Trainings, build_assignment, train_trial
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE
from tests.helpers import others_slow
from tests.helpers.automl_cases import CPU, HERE, opened, timeless, tiny

EPOCHS, INSERT_AT, STEPS = 4, 2, 7
PLAIN = tiny(training={"epochs": EPOCHS, "insert_at": INSERT_AT, "schedule": "flat-cosine"})
PLACED = PLAIN.change(model={"placement": {"stage1.block2.branch": Spec("ssa")}})


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate costs: one module makes an epoch take 1.3 times as long."""

    def measure(config: TrialConfig, *args: Any) -> CostProfile:
        ratio = 1.3 if config.model.placement else 1.0
        return CostProfile(
            params=1, macs=1, memory=1, latency=1.0, time_ratio=ratio, time_ratio_low=ratio,
            time_ratio_high=ratio, time_ratio_counted=0.0, validation=0.0, epoch=0.5,
        )  # fmt: skip

    monkeypatch.setattr(trial, "measure", measure)


def make_assignment(folder: Path, name: str, config: TrialConfig) -> dict[str, Any]:
    trainings = Trainings(location=Storage(folder), baseline=PLAIN, terms=Terms())
    return build_assignment(config, Storage(folder / name), trainings)


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return dict(checkpoint.read(Storage(folder / name), CPU)["model"])


@pytest.mark.slow("a shared training")
def test_a_placement_continues_the_shared_training_for_the_remaining_time(tmp_path: Path) -> None:
    plain = list(train_trial(make_assignment(tmp_path, "0", PLAIN), HERE))[-1]
    assert [record["epoch"] for record in plain.history] == [1, 2, 3, 4]
    folder = shared_training.locate_folder(Storage(tmp_path / "shared_trainings"), PLACED)
    assert checkpoint.read(folder, CPU)["epoch"] == INSERT_AT
    placed = list(train_trial(make_assignment(tmp_path, "1", PLACED), HERE))[-1]
    assert placed.finished
    assert [record["epoch"] for record in placed.history] == [3, 4]
    steps_left = round(2 * STEPS / 1.3)
    assert [record["steps"] for record in placed.history] == [
        INSERT_AT * STEPS + STEPS,
        INSERT_AT * STEPS + steps_left,
    ]
    resources = [record["resource"] for record in placed.history]
    assert resources == pytest.approx([INSERT_AT + 2 * STEPS / steps_left, EPOCHS])
    assert placed.history[-1]["learning_rate"] < 0.1 * PLACED.training.learning_rate
    # If the shared partial training is missing, it is trained again with the same result.
    (folder.local / CHECKPOINT_FILE).unlink()  # type: ignore[operator]
    retrained = list(train_trial(make_assignment(tmp_path, "2", PLACED), HERE))[-1]
    assert timeless(retrained.history) == timeless(placed.history)
    assert checkpoint.read(folder, CPU)["epoch"] == INSERT_AT
    # After a kill in its first epoch, the trial resumes without the shared partial training.
    first = next(iter(train_trial(make_assignment(tmp_path, "3", PLACED), HERE)))
    (folder.local / CHECKPOINT_FILE).unlink()  # type: ignore[operator]
    rest = list(train_trial(make_assignment(tmp_path, "3", PLACED), HERE))[-1]
    assert timeless(rest.history) == timeless(placed.history)
    assert timeless(rest.history[:1]) == timeless(first.history)
    assert not folder.exists(CHECKPOINT_FILE)
    weights_of_continued, weights_of_resumed = weights(tmp_path, "1"), weights(tmp_path, "3")
    assert all(
        torch.equal(weights_of_continued[name], weights_of_resumed[name]) for name in weights_of_continued
    )


def test_a_replicate_starts_nearly_at_the_shared_training(tmp_path: Path) -> None:
    plain = list(train_trial(make_assignment(tmp_path, "0", PLAIN), HERE))[-1]
    config = PLAIN.change(training={"perturb": 1e-6})
    replicate = list(train_trial(make_assignment(tmp_path, "1", config), HERE))[-1]
    assert [record["epoch"] for record in replicate.history] == [3, 4]
    assert replicate.history[0]["train_loss"] == pytest.approx(plain.history[2]["train_loss"], rel=0.1)
    plain_weights, replicate_weights = weights(tmp_path, "0"), weights(tmp_path, "1")
    assert not all(torch.equal(plain_weights[name], replicate_weights[name]) for name in plain_weights)
    folder = shared_training.locate_folder(Storage(tmp_path / "shared_trainings"), config)
    assert (
        shared_training.make_shared_config(TrialConfig.from_json(checkpoint.read(folder, CPU)["config"]))
        == PLAIN
    ), "the replicate does not store its own"
    with pytest.raises(
        InputError, match=r"training\.perturb must be 0 or more, below 1, and 0 without insert_at"
    ):
        tiny(training={"perturb": 1e-6})


def test_a_damaged_or_foreign_shared_training_is_rejected(tmp_path: Path) -> None:
    folder = shared_training.locate_folder(Storage(tmp_path / "shared_trainings"), PLACED)
    folder.write(CHECKPOINT_FILE, b"damaged")
    with pytest.raises(
        InputError, match="the shared partial training cannot be read; delete it, and it is trained again: "
    ):
        list(train_trial(make_assignment(tmp_path, "0", PLACED), HERE))
    other = PLAIN.change(data={"subset": 0.1}, model={"options": {"width": 0.5}})
    list(train_trial(make_assignment(tmp_path / "other", "0", other), HERE))
    content = shared_training.locate_folder(Storage(tmp_path / "other" / "shared_trainings"), other).read(
        CHECKPOINT_FILE
    )
    folder.write(CHECKPOINT_FILE, content)
    with pytest.raises(InputError, match="is of another training, with another data and model; delete it"):
        list(train_trial(make_assignment(tmp_path, "0", PLACED), HERE))


PLACEMENT = {"stage1.block2.branch": Spec("ssa"), "stage2.block1": Spec("decomposed")}
TRAINING = {"epochs": 3, "schedule": "flat-cosine"}


def train_epochs(task: Task, epochs: int = 2) -> TrainingState:
    state = start(task)
    list(islice(fit(task, state), epochs))
    return state


def copy_weights(state: TrainingState) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.model.state_dict().items()}


@pytest.mark.parametrize("more", others_slow([{}, {"optimizer": "sgd"}, {"average": 0.9}], {"average": 0.9}))
def test_a_plain_continuation_equals_an_uninterrupted_training(more: dict[str, object]) -> None:
    task = opened(training={**TRAINING, **more})
    whole = start(task)
    list(fit(task, whole))
    branch = continue_training(task, train_epochs(task))
    assert [record["epoch"] for record in fit(task, branch)] == [3]
    torch.testing.assert_close(copy_weights(branch), copy_weights(whole), rtol=0, atol=0)
    if branch.average is not None and whole.average is not None:
        average, expected = (s.average.module.state_dict() for s in (branch, whole) if s.average)
        torch.testing.assert_close(average, expected, rtol=0, atol=0)


def test_only_inserted_modules_are_new() -> None:
    plain = opened(training=TRAINING)
    task = opened(training=TRAINING, model={"placement": PLACEMENT})
    shared_training = train_epochs(plain)
    before = copy_weights(shared_training)
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
    torch.testing.assert_close(copy_weights(shared_training), before, rtol=0, atol=0)


def test_a_perturbed_continuation_and_one_of_another_kind() -> None:
    task = opened(training=TRAINING)
    shared_training = train_epochs(task, 1)
    state, state_of_other_seed, repeated = (
        continue_training(task, shared_training, perturb=1e-6, seed=seed) for seed in (1, 2, 1)
    )
    first, second, third = (copy_weights(s) for s in (state, state_of_other_seed, repeated))
    torch.testing.assert_close(first, third, rtol=0, atol=0)
    torch.testing.assert_close(first, copy_weights(shared_training), rtol=1e-4, atol=1e-7)
    assert not all(torch.equal(first[name], second[name]) for name in first)
    shared_training = train_epochs(opened(training=TRAINING), 1)
    with pytest.raises(InputError, match="must be that of the shared partial training, AdamW; got SGD"):
        continue_training(opened(training={**TRAINING, "optimizer": "sgd"}), shared_training)
    wide = opened(training=TRAINING, model={"options": {"width": 0.5}})
    with pytest.raises(InputError, match="of the shared partial training do not fit"):
        continue_training(wide, shared_training)
