"""The task stereo: loss and metrics against numpy, crops, and invalid settings."""

from typing import Any

import numpy as np
import pytest
import torch

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.stereo import StereoData, StereoModel, StereoTraining
from automl.tasks.stereo.data import planes
from automl.tasks.stereo.task import METRICS, Stereo, StereoEvaluator, disparity_loss
from automl.training.loop import evaluate
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE

SMALL = StereoModel(options={"width": 0.25, "blocks": 1, "pool": 8, "aggregation": "basic"})
MAXIMUM = 192


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "COUNTS", {"train": 5, "validation": 3, "test": 3})


def opened(runtime: Runtime = HERE, **parts: Any) -> Stereo:
    config = TrialConfig(
        task="stereo",
        data=StereoData(height=32, width=48, max_disparity=32),
        model=SMALL,
        training=StereoTraining(epochs=1, batch_size=2),
    ).change(**parts)
    task = open_task(config, runtime)
    assert isinstance(task, Stereo)
    return task


def truths(count: int = 6) -> np.ndarray:
    """Return disparities of which some are unknown, and some at the maximum or above."""
    draw = np.random.default_rng(3)
    predicted = draw.uniform(0, 1.3 * MAXIMUM, (count, 9, 12)).astype(np.float32)
    predicted[draw.random(predicted.shape) < 0.3] = np.inf
    predicted[0, 0, :3] = 0, MAXIMUM, np.nan
    predicted[1] = np.inf  # a pair in which nothing counts
    return predicted


def restated(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    wrong, true = [], []
    for pixel in np.ndindex(*truth.shape):
        if 0 <= truth[pixel] < MAXIMUM:
            wrong.append(abs(float(predicted[pixel]) - float(truth[pixel])))
            true.append(float(truth[pixel]))
    errors, at = np.array(wrong), np.array(true)
    return {
        "epe": errors.mean(),
        "error_1px": (errors > 1).mean(),
        "error_3px": (errors > 3).mean(),
        "d1": ((errors > 3) & (errors / np.maximum(at, 1e-9) > 0.05)).mean(),
    }


def test_metrics_match_their_definitions():
    truth, draw = truths(), np.random.default_rng(4)
    predicted = (np.nan_to_num(truth, posinf=5) + draw.normal(0, 4, truth.shape)).astype(np.float32)
    evaluator = StereoEvaluator(MAXIMUM, torch.device("cpu"))
    for part in (slice(0, 4), slice(4, 6)):
        larger = np.pad(predicted[part], ((0, 0), (0, 3), (0, 4)), constant_values=99)  # as the model pads
        evaluator.update(torch.from_numpy(larger), torch.from_numpy(truth[part]))
    metrics = {name: float(value) for name, value in evaluator.compute(HERE).items()}
    assert metrics == pytest.approx(restated(predicted, truth), abs=1e-10)
    assert metrics["d1"] < metrics["error_3px"] < metrics["error_1px"]
    evaluator = StereoEvaluator(MAXIMUM, torch.device("cpu"))
    evaluator.update(torch.tensor([[[13.0, 14.0, 4.5]]]), torch.tensor([[[10.0, 10.0, 1.0]]]))
    metrics = {name: float(value) for name, value in evaluator.compute(HERE).items()}
    assert metrics == pytest.approx({"epe": 3.5, "error_1px": 1.0, "error_3px": 2 / 3, "d1": 2 / 3})


@pytest.mark.parametrize("weights", [(1.0,), (0.5, 0.7, 1.0)])
def test_the_loss_is_the_weighted_smooth_l1_of_pixels_that_count(weights):
    truth, draw = truths().astype(np.float64), np.random.default_rng(5)
    outputs = draw.uniform(0, MAXIMUM, (len(weights), *truth.shape))
    loss = disparity_loss(list(torch.from_numpy(outputs)), torch.from_numpy(truth), MAXIMUM, HERE)
    wanted = 0.0
    for weight, output in zip(weights, outputs, strict=True):
        losses = []
        for pixel in np.ndindex(*truth.shape):
            if 0 <= truth[pixel] < MAXIMUM:
                error = abs(output[pixel] - truth[pixel])
                losses.append(0.5 * error**2 if error < 1 else error - 0.5)
        wanted += weight * np.mean(losses)
    assert float(loss) == pytest.approx(wanted, abs=1e-10)


def test_ignored_pixels_have_no_gradient():
    truth = torch.from_numpy(truths())
    output = torch.full(truth.shape, 7.0, requires_grad=True)
    disparity_loss([output], truth, MAXIMUM, HERE).backward()
    assert output.grad is not None
    assert torch.isfinite(output.grad).all()
    assert torch.equal(output.grad != 0, (truth >= 0) & (truth < MAXIMUM))
    nothing = torch.full_like(truth, float("inf"))
    assert float(disparity_loss([output], nothing, MAXIMUM, HERE).detach()) == 0


class Half:
    """Runtime of one of two workers. `total` adds the value of the other worker."""

    workers = 2

    def __init__(self, other: float) -> None:
        self.other = other

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.other


def test_two_workers_have_the_loss_of_one():
    truth = torch.from_numpy(truths())
    output = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0)) * MAXIMUM
    whole = disparity_loss([output], truth, MAXIMUM, HERE)
    counts = [float(((truth[i::2] >= 0) & (truth[i::2] < MAXIMUM)).sum()) for i in range(2)]
    parts = [
        disparity_loss([output[i::2]], truth[i::2], MAXIMUM, Half(counts[1 - i]))  # type: ignore[arg-type]
        for i in range(2)
    ]
    assert float(sum(parts) / 2) == pytest.approx(float(whole), rel=1e-6)


def test_the_batches_of_two_workers_are_those_of_one():
    whole = list(opened(training={"batch_size": 4}).batches(3))
    workers = [Runtime(device=torch.device("cpu"), rank=rank, workers=2) for rank in range(2)]
    parts = [list(opened(worker, training={"batch_size": 4}).batches(3)) for worker in workers]
    for i, batch in enumerate(whole):
        for j, leaf in enumerate(batch):
            assert torch.equal(leaf[0::2], parts[0][i][j])
            assert torch.equal(leaf[1::2], parts[1][i][j])


def test_whole_pairs_are_padded_for_validation():
    task = opened(data={"height": 96, "width": 96}, model={"options": {**SMALL.options, "pool": 24}})
    part = next(task.parts("validation"))
    assert part.inputs[0].shape[2:] == (96, 176)
    assert part.targets.shape[1:] == (80, 176)
    assert set(evaluate(task, task.model())) == {*METRICS}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"options": {"pool": 16}}}, "data.height must be 64 pixels or more"),
        ({"model": {"weights": "default"}}, "stereo models start from new weights"),
        ({"data": {"source": "kitti"}}, "unknown source of stereo pairs 'kitti'"),
    ],
)
def test_invalid_settings_are_reported(parts, message):
    with pytest.raises(InputError, match=message):
        opened(**parts)
