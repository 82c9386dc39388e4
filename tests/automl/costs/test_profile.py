"""What is measured before a training. Times are measured, too, but none is asserted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from automl_cases import HERE, TINY, opened, tiny
from torch import nn

from attention import Spec
from automl.costs import profile, time_ratio
from automl.costs.profile import CostProfile, measure, step_memory
from automl.costs.time_ratio import TimeRatio, Timings
from automl.tasks import Task
from backbones.macs import count_macs

# Attentions at the first sites, which have the most positions.
HEAVY = {"stage1.block1": Spec("multihead"), "stage1.block2": Spec("multihead")}


def test_macs_of_a_model_that_can_be_counted_by_hand() -> None:
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
    """As few pairs as there may be, all of which are believed."""
    monkeypatch.setattr(time_ratio, "LEAST", time_ratio.ROUND)
    monkeypatch.setattr(time_ratio, "PRECISE", 9.0)
    monkeypatch.setattr(time_ratio, "BELIEVED", 9.0)


@pytest.mark.usefixtures("quick")
def test_the_baseline_has_a_pace_of_exactly_one() -> None:
    measured = measure(TINY, TINY, HERE)
    assert (measured.time_ratio, measured.time_ratio_low, measured.time_ratio_high) == (1.0, 1.0, 1.0)
    assert measured.time_ratio_counted == 0.0
    model = opened().model()
    assert measured.params == sum(parameter.numel() for parameter in model.parameters())
    assert measured.macs == count_macs(model.eval(), opened().example(1))
    assert min(measured.memory, measured.latency, measured.epoch, measured.validation) > 0
    # Whatever the trial's seed, however it is tuned.
    assert measure(tiny(seed=5, training={"epochs": 9, "learning_rate": 1.0}), TINY, HERE) == measured


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_not_precise_is_not_kept_but_what_was_timed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ratio, "BELIEVED", 0.0)
    monkeypatch.setattr(time_ratio, "ALLOWED", 0.0)
    monkeypatch.setattr(time_ratio, "MEASURING_FRACTION", 0.0)
    taken = []
    measured = profile.measure_time_ratio

    def note(task: Task, baseline: Task, timings: Timings, **options: Any) -> TimeRatio:
        taken.append(len(timings.steps))
        return measured(task, baseline, timings, **options)

    monkeypatch.setattr(profile, "measure_time_ratio", note)
    config = tiny(model={"placement": {"stage3.block1": Spec("ssa")}})
    first, second = (measure(config, TINY, HERE) for _ in range(2))
    assert first.time_ratio_counted == second.time_ratio_counted == 1.0
    assert taken == [0, time_ratio.ROUND]
    assert first.latency == second.latency, "one architecture, one latency"


@pytest.mark.usefixtures("quick")
def test_one_architecture_has_one_latency() -> None:
    one = measure(tiny(training={"optimizer": "sgd"}), TINY, HERE)
    assert one.latency == measure(tiny(training={"batch_size": 16}), TINY, HERE).latency
    assert one.latency != measure(tiny(model={"backbone": "xresnet34"}), TINY, HERE).latency


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}}}, True),
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}}, "training": {"batch_size": 16}}, False),
        ({"model": {"placement": {"stage1.block1": Spec("ssa")}, "options": {"width": 0.5}}}, False),
        ({"model": {"backbone": "xresnet34"}}, False),
    ],
)
def test_only_modules_that_are_added_bound_a_ratio(
    ours: dict[str, Any], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def note(task: Task, baseline: Task, timings: Timings, *, at_least_one: bool, **rest: Any) -> TimeRatio:
        asked.append(at_least_one)
        return TimeRatio(ratio=1.1, low=1.1, high=1.1, counted=True, validation=0.1, epoch=1.0)

    monkeypatch.setattr(profile, "measure_time_ratio", note)
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path))
    measure(tiny(**ours), TINY, HERE)
    assert asked == [expected]


@pytest.mark.usefixtures("quick")
def test_an_attended_model_costs_more() -> None:
    plain, attended = (measure(tiny(model={"placement": p}), TINY, HERE) for p in ({}, HEAVY))
    assert attended.params > plain.params
    assert attended.macs > plain.macs
    assert attended.memory > plain.memory
    assert attended.time_ratio_low <= attended.time_ratio <= attended.time_ratio_high


def test_memory_grows_with_the_batch() -> None:
    sizes = [step_memory(opened(training={"batch_size": size})) for size in (8, 16, 32)]
    assert sizes[0] < sizes[1] < sizes[2]
    # What does not depend on the batch is the same for all.
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.1)
