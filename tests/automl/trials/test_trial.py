"""What a trial's process reports, without the process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from automl_cases import CPU, HERE, TINY, timeless, tiny

from attention import Spec
from automl.config.limits import Limits
from automl.costs import profile
from automl.costs.profile import CostProfile
from automl.storage.answers import read_answers
from automl.storage.storage import Storage
from automl.tasks import open_task
from automl.training import checkpoint
from automl.training.loop import evaluate
from automl.trials import trial
from automl.trials.trial import assignment, reports
from search.config import TrialConfig
from search.serialise import to_json

PACE = 1.3
MEASURED = CostProfile(
    params=1000,
    macs=5000,
    memory=10**9,
    latency=2.0,
    time_ratio=PACE,
    time_ratio_low=1.28,
    time_ratio_high=1.33,
    time_ratio_counted=0.0,
    validation=0.0,
    epoch=0.5,
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[TrialConfig]:
    """Facts that do not depend on how fast this machine is; and what was measured."""
    asked: list[TrialConfig] = []

    def measure(config: TrialConfig, *args: Any) -> CostProfile:
        asked.append(config)
        return MEASURED

    monkeypatch.setattr(trial, "measure", measure)
    return asked


def sent(
    folder: Path, config: TrialConfig, equal: str = "time", test: bool = False, **limits: float
) -> dict[str, Any]:
    return assignment(
        config,
        folder,
        shared_trainings=folder.parent / "shared_trainings",
        baseline=TINY,
        equal=equal,
        limits=Limits(**limits),
        precision="auto",
        compile="auto",
        test=test,
    )


@pytest.mark.parametrize(("equal", "steps"), [("time", 22), ("epochs", 28)])  # 7 an epoch
def test_a_report_an_epoch_that_says_everything(
    equal: str, steps: int, measured: list[TrialConfig], tmp_path: Path
) -> None:
    config = tiny(training={"epochs": 4}, data={"subset": 0.2})
    said = list(reports(sent(tmp_path / "0", config, equal, params=2000), HERE))
    assert [len(one.history) for one in said] == [1, 2, 3, 4]
    assert timeless(said[0].history) == timeless(said[-1].history)[:1]
    assert [one.finished for one in said] == [False] * (len(said) - 1) + [True]
    resources = [metrics["resource"] for metrics in said[-1].history]
    assert resources == [pytest.approx(4 * 7 * i / steps) for i in (1, 2, 3)] + [4]
    for one in said:
        assert one.profile == to_json(MEASURED)
        assert one.violations == {"params": -0.5}
    content = checkpoint.read(Storage(tmp_path / "0"), CPU)
    assert content["history"] == said[-1].history
    assert content["profile"] == to_json(MEASURED)


def test_another_process_goes_on_where_the_first_was_killed(
    measured: list[TrialConfig], tmp_path: Path
) -> None:
    config = tiny(training={"epochs": 3, "mixup": 0.2}, model={"placement": {"stage2.block1": Spec("ssa")}})
    whole = list(reports(sent(tmp_path / "whole", config), HERE))
    work = reports(sent(tmp_path / "0", config), HERE)
    first = next(work)
    work.close()
    torch.manual_seed(4711)
    rest = list(reports(sent(tmp_path / "0", config), HERE))
    assert len(measured) == 2, "what was measured is kept with the checkpoint"
    assert rest[0].history[:1] == first.history
    assert timeless(rest[-1].history) == timeless(whole[-1].history)
    weights, expected = (checkpoint.read(Storage(tmp_path / name), CPU)["model"] for name in ("0", "whole"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    # Killed after its last epoch, before anybody heard: it says so again.
    (again,) = reports(sent(tmp_path / "0", config), HERE)
    assert again.finished
    assert again.history == rest[-1].history


def test_what_goes_on_needs_no_weights_to_start_from(measured: list[TrialConfig], tmp_path: Path) -> None:
    file = tmp_path / "shared_training.pt"
    torch.save(open_task(tiny(), HERE).model().state_dict(), file)
    config = tiny(training={"epochs": 2}, model={"weights": str(file)})
    work = reports(sent(tmp_path / "0", config, "epochs"), HERE)
    next(work)
    work.close()
    file.unlink()
    *_, last = reports(sent(tmp_path / "0", config, "epochs"), HERE)
    assert last.finished
    assert last.error is None


def test_the_answers_to_each_test_image_stay(measured: list[TrialConfig], tmp_path: Path) -> None:
    config, folder = tiny(training={"epochs": 2}), Storage(tmp_path / "0")
    *_, said = reports(sent(tmp_path / "0", config, test=True), HERE)
    assert said.device
    found = read_answers(folder)
    assert found is not None
    task = open_task(config, HERE)
    assert found.values.shape == (task.size("test"),)
    assert found.values.mean() == pytest.approx(said.history[-1]["test_accuracy"])
    assert found.card.counts.tolist() == task.class_counts("test")
    model = task.model()
    model.load_state_dict(checkpoint.read(folder, CPU)["model"])
    evaluator = task.evaluator("test")
    evaluate(task, model, "test", evaluator)
    again = evaluator.answers(HERE)
    assert again is not None
    assert np.array_equal(again.answered, found.answered)
    folder.remove(checkpoint.CHECKPOINT_FILE)  # as the retention does
    assert read_answers(folder) is not None


def test_without_the_test_split_the_answers_are_to_validation(
    measured: list[TrialConfig], tmp_path: Path
) -> None:
    *_, said = reports(sent(tmp_path / "0", tiny()), HERE)
    found = read_answers(Storage(tmp_path / "0"))
    assert found is not None
    assert found.card.accuracy == pytest.approx(said.history[-1]["accuracy"])


def test_what_exceeds_a_limit_is_not_trained(measured: list[TrialConfig], tmp_path: Path) -> None:
    (said,) = reports(sent(tmp_path / "0", tiny(), params=500, latency=4), HERE)
    assert said.infeasible == "params 1k exceeds the limit of 500"
    assert said.violations == {"params": 1.0, "latency": -0.5}
    assert said.profile == to_json(MEASURED)
    assert said.last
    assert not (tmp_path / "0").exists()


LATE = {"epochs": 4, "insert_at": 3, "schedule": "flat-cosine"}


@pytest.mark.parametrize(
    ("time_ratio", "training", "equal", "test", "steps"),
    [
        (7.9, {}, "time", False, "1 of the 7 steps"),
        (2.2, {}, "time", False, "3 of the 7 steps"),
        (
            7.9,
            LATE,
            "time",
            False,
            "1 of the 7 steps of an epoch fit into it after the shared partial training",
        ),
        (7.9, {}, "time", True, "1 of the 7 steps"),
        (1.9, {}, "time", False, 4),
        (7.9, {"epochs": 4}, "time", False, 4),
        (2.9, {}, "time", True, 2),  # a finalist whose time ratio varies from seed to seed
        (7.9, {}, "epochs", False, 7),
    ],
)
def test_less_than_half_an_epoch_is_too_slow(
    time_ratio: float, training: dict[str, Any], equal: str, test: bool, steps: str | int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    measured = replace(MEASURED, time_ratio=time_ratio)
    monkeypatch.setattr(trial, "measure", lambda *args: measured)
    config = tiny(
        training=training, model={"placement": {"stage2.block1": Spec("ssa")}}, data={"subset": 0.2}
    )
    *_, last = reports(sent(tmp_path / "0", config, equal, test), HERE)
    if isinstance(steps, int):
        assert last.finished
        assert last.history[-1]["steps"] == steps
    else:
        assert last.infeasible is not None
        assert last.infeasible.startswith("too slow for this budget")
        assert steps in last.infeasible
        assert last.violations["steps"] > 0
        assert not list(tmp_path.iterdir()), "not even the shared partial training is made"


def test_what_diverges_is_infeasible(measured: list[TrialConfig], tmp_path: Path) -> None:
    *_, said = reports(sent(tmp_path / "0", tiny(training={"learning_rate": 1e30})), HERE)
    assert said.infeasible is not None
    assert "became nan" in said.infeasible
    assert said.profile == to_json(MEASURED)


def test_what_does_not_fit_is_infeasible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args: Any) -> CostProfile:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nand more")

    monkeypatch.setattr(profile, "_measure", measure)
    (said,) = reports(sent(tmp_path / "0", tiny(training={"batch_size": 40})), HERE)
    assert said.infeasible == "out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 3 GiB"
