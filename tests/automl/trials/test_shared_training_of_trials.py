"""Trials whose placement goes into a plain training that another trial has left."""

from pathlib import Path
from typing import Any

import pytest
import torch
from automl_cases import CPU, HERE, timeless, tiny

from attention import InputError, Spec
from automl.config.limits import Limits
from automl.costs.profile import CostProfile
from automl.storage.storage import Storage
from automl.training import checkpoint, shared_training
from automl.trials import trial
from automl.trials.trial import assignment, reports
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE

EPOCHS, AT, STEPS = 4, 2, 7
PLAIN = tiny(training={"epochs": EPOCHS, "insert_at": AT, "schedule": "flat-cosine"})
PLACED = PLAIN.change(model={"placement": {"stage1.block2.branch": Spec("ssa")}})


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One module makes an epoch take 1.3 times as long."""

    def measure(config: TrialConfig, *args: Any) -> CostProfile:
        ratio = 1.3 if config.model.placement else 1.0
        return CostProfile(
            params=1, macs=1, memory=1, latency=1.0, time_ratio=ratio, time_ratio_low=ratio,
            time_ratio_high=ratio, time_ratio_counted=0.0, validation=0.0, epoch=0.5,
        )  # fmt: skip

    monkeypatch.setattr(trial, "measure", measure)


def sent(folder: Path, name: str, config: TrialConfig) -> dict[str, Any]:
    return assignment(
        config,
        Storage(folder / name),
        shared_trainings=Storage(folder / "shared_trainings"),
        baseline=PLAIN,
        equal="time",
        limits=Limits(),
        precision="auto",
        compile="auto",
    )


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return dict(checkpoint.read(Storage(folder / name), CPU)["model"])


def test_a_placement_goes_into_the_shared_training_and_has_the_rest_of_the_time(tmp_path: Path) -> None:
    plain = list(reports(sent(tmp_path, "0", PLAIN), HERE))[-1]
    assert [record["epoch"] for record in plain.history] == [1, 2, 3, 4]
    place = shared_training.place(Storage(tmp_path / "shared_trainings"), PLACED)
    assert checkpoint.read(place, CPU)["epoch"] == AT
    said = list(reports(sent(tmp_path, "1", PLACED), HERE))[-1]
    assert said.finished
    assert [record["epoch"] for record in said.history] == [3, 4]
    left = round(2 * STEPS / 1.3)
    assert [record["steps"] for record in said.history] == [AT * STEPS + STEPS, AT * STEPS + left]
    resources = [record["resource"] for record in said.history]
    assert resources == pytest.approx([AT + 2 * STEPS / left, EPOCHS])
    assert said.history[-1]["learning_rate"] < 0.1 * PLACED.training.learning_rate
    # Where nothing is left of the shared partial training it is trained, and comes to the same.
    (place.local / CHECKPOINT_FILE).unlink()  # type: ignore[operator]
    again = list(reports(sent(tmp_path, "2", PLACED), HERE))[-1]
    assert timeless(again.history) == timeless(said.history)
    assert checkpoint.read(place, CPU)["epoch"] == AT
    # Killed after its first epoch, it goes on without the shared partial training.
    first = next(iter(reports(sent(tmp_path, "3", PLACED), HERE)))
    (place.local / CHECKPOINT_FILE).unlink()  # type: ignore[operator]
    rest = list(reports(sent(tmp_path, "3", PLACED), HERE))[-1]
    assert timeless(rest.history) == timeless(said.history)
    assert timeless(rest.history[:1]) == timeless(first.history)
    assert not place.exists(CHECKPOINT_FILE)
    one, other = weights(tmp_path, "1"), weights(tmp_path, "3")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_replicate_goes_on_from_nearly_the_shared_training(tmp_path: Path) -> None:
    plain = list(reports(sent(tmp_path, "0", PLAIN), HERE))[-1]
    config = PLAIN.change(training={"perturb": 1e-6})
    replicate = list(reports(sent(tmp_path, "1", config), HERE))[-1]
    assert [record["epoch"] for record in replicate.history] == [3, 4]
    assert replicate.history[0]["train_loss"] == pytest.approx(plain.history[2]["train_loss"], rel=0.1)
    one, other = weights(tmp_path, "0"), weights(tmp_path, "1")
    assert not all(torch.equal(one[name], other[name]) for name in one)
    place = shared_training.place(Storage(tmp_path / "shared_trainings"), config)
    assert shared_training.plain(TrialConfig.from_json(checkpoint.read(place, CPU)["config"])) == PLAIN, (
        "left by none"
    )
    with pytest.raises(
        InputError, match=r"training\.perturb must be 0 or more, below 1, and 0 without insert_at"
    ):
        tiny(training={"perturb": 1e-6})


def test_a_shared_training_that_is_damaged_or_another_trainings(tmp_path: Path) -> None:
    place = shared_training.place(Storage(tmp_path / "shared_trainings"), PLACED)
    place.write(CHECKPOINT_FILE, b"damaged")
    with pytest.raises(
        InputError, match="the shared partial training cannot be read; delete it, and it is trained again: "
    ):
        list(reports(sent(tmp_path, "0", PLACED), HERE))
    other = PLAIN.change(data={"subset": 0.1}, model={"options": {"width": 0.5}})
    list(reports(sent(tmp_path / "other", "0", other), HERE))
    found = shared_training.place(Storage(tmp_path / "other" / "shared_trainings"), other).read(
        CHECKPOINT_FILE
    )
    place.write(CHECKPOINT_FILE, found)
    with pytest.raises(InputError, match="is of another training, with another data and model; delete it"):
        list(reports(sent(tmp_path, "0", PLACED), HERE))


@pytest.mark.parametrize("at", [-1, EPOCHS])
def test_there_is_no_time_before_or_after_the_training(at: int) -> None:
    with pytest.raises(InputError, match=r"insert_at must be 0 or more and less than epochs, 4"):
        tiny(training={"epochs": EPOCHS, "insert_at": at})
