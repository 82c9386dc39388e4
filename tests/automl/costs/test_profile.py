"""Cost profiles. Times are measured too, but not asserted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attention import Spec
from automl.costs import profile, time_ratio
from automl.costs.profile import CostProfile, measure, measure_latencies, measure_step_memory
from automl.costs.time_ratio import TimeRatio, Timings
from automl.task import Task
from backbones.cost import count_macs
from tests.helpers.automl_cases import HERE, TINY, opened, tiny

# Attention modules at the first sites, which have the most positions.


def test_macs_equal_a_count_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # 16 x 16 positions, 8 x 3 x 9 weights
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4),  # 8 x 8 positions, 16 x 2 x 9 weights
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )
    expected = 256 * 8 * 27 + 64 * 16 * 18 + 1024 * 10
    assert count_macs(model.eval(), torch.zeros(1, 3, 16, 16)) == expected
    assert count_macs(model.eval(), torch.zeros(3, 3, 16, 16)) == 3 * expected


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the minimum number of pairs and accept every interval."""
    monkeypatch.setattr(time_ratio, "LEAST", time_ratio.ROUND)
    monkeypatch.setattr(time_ratio, "PRECISE", 9.0)
    monkeypatch.setattr(time_ratio, "BELIEVED", 9.0)


@pytest.mark.usefixtures("quick")
def test_the_baseline_has_a_ratio_of_one_and_a_latency_of_its_architecture() -> None:
    measured = measure(TINY, TINY, HERE)
    assert (measured.time_ratio, measured.time_ratio_low, measured.time_ratio_high) == (1.0, 1.0, 1.0)
    assert measured.time_ratio_imprecise == 0.0
    model = opened().model()
    assert measured.params == sum(parameter.numel() for parameter in model.parameters())
    assert measured.macs == count_macs(model.eval(), opened().example(1))
    assert min(measured.memory, measured.latency, measured.epoch, measured.validation) > 0
    # The profile does not depend on the seed or on the learning rate.
    assert measure(tiny(seed=5, training={"epochs": 9, "learning_rate": 1.0}), TINY, HERE) == measured
    measured = measure(tiny(training={"optimizer": "sgd"}), TINY, HERE)
    assert measured.latency == measure(tiny(training={"batch_size": 16}), TINY, HERE).latency
    assert measured.latency != measure(tiny(model={"backbone": "xresnet34"}), TINY, HERE).latency


def test_a_trial_is_timed_beside_its_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "measure_latencies", lambda serves, *_: [3.0, 2.0][: len(serves)])
    placed = {"stage2.block1": Spec("sagan")}
    for weights, placement, ratio in (
        ("", placed, 1.0),
        ("trained.pt", placed, 1.5),
        ("trained.pt", {}, 1.0),
    ):
        task = opened(model={"weights": weights, "placement": placement})
        assert profile._latency(task, task.model(), task.example(1))["latency_ratio"] == ratio


@pytest.mark.usefixtures("quick")
def test_profile_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(model={"placement": {"stage2.block1": Spec("ssa")}})
    first = measure(config, TINY, HERE)

    def never(*args: object) -> CostProfile:
        raise AssertionError("measured again")

    monkeypatch.setattr(profile, "_measure", never)
    assert measure(config, TINY, HERE) == first
    assert measure(config.change(seed=3, training={"learning_rate": 1e-4}), TINY, HERE) == first
    others = [
        (config.change(training={"batch_size": 16}), TINY),
        (config.change(training={"optimizer": "sgd"}), TINY),
        (config.change(training={"mixup": 0.2}), TINY),
        (config.change(data={"size": 32}), TINY),
        (config.change(model={"placement": {"stage2.block2": Spec("ssa")}}), TINY),
        (config, tiny(model={"options": {"width": 0.5}})),
        (config, tiny(training={"batch_size": 16})),
    ]
    for other, baseline in others:
        with pytest.raises(AssertionError, match="measured again"):
            measure(other, baseline, HERE)
    monkeypatch.setattr(profile, "code_digest", lambda: "other code")
    with pytest.raises(AssertionError, match="measured again"):
        measure(config, TINY, HERE)


def test_imprecise_ratio_is_not_cached_but_its_timings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ratio, "BELIEVED", 0.0)
    monkeypatch.setattr(time_ratio, "ALLOWED", 0.0)
    monkeypatch.setattr(time_ratio, "MEASURING_FRACTION", 0.0)
    lengths = []
    measure_time_ratio = profile.measure_time_ratio

    def record(task: Task, baseline: Task, timings: Timings, **options: Any) -> TimeRatio:
        lengths.append(len(timings.steps))
        return measure_time_ratio(task, baseline, timings, **options)

    monkeypatch.setattr(profile, "measure_time_ratio", record)
    config = tiny(model={"placement": {"stage3.block1": Spec("ssa")}})
    first, second = (measure(config, TINY, HERE) for _ in range(2))
    assert first.time_ratio_imprecise == second.time_ratio_imprecise == 1.0
    assert lengths == [0, time_ratio.ROUND]
    assert first.latency == second.latency, "latency is measured once per architecture"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}}}, True),
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}}, "training": {"batch_size": 16}}, False),
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}, "options": {"width": 0.5}}}, False),
        ({"model": {"backbone": "xresnet34"}}, False),
    ],
)
def test_ratio_is_bounded_only_if_modules_are_added(
    change: dict[str, Any], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = []

    def record(task: Task, baseline: Task, timings: Timings, *, floor: float, **rest: Any) -> TimeRatio:
        recorded.append(floor == 1.0)
        return TimeRatio(ratio=1.1, low=1.1, high=1.1, imprecise=True, validation=0.1, epoch=1.0)

    monkeypatch.setattr(profile, "measure_time_ratio", record)
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path))
    measure(tiny(**change), TINY, HERE)
    assert recorded == [expected]


def test_memory_and_latency_have_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [measure_step_memory(opened(training={"batch_size": size})) for size in (8, 16, 32)]
    assert sizes[0] < sizes[1] < sizes[2]
    # The memory independent of the batch is the same for all.
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.1)
    # Without a batch: weights, gradients, AdamW's two moments, and buffers of the model.
    weights = sum(parameter.nbytes for parameter in opened().model().parameters())
    assert 4 * weights < 2 * sizes[0] - sizes[1] < 5 * weights
    monkeypatch.setattr(profile, "time_lower_quartiles", lambda runs, *_: [0.002 for _ in runs])
    assert measure_latencies([lambda: None], HERE, 1) == [2.0]
