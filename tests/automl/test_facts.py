"""What is measured before a training. Times are measured, too, but none is asserted."""

import random
from dataclasses import replace

import pytest
import torch
from automl_cases import HERE, opened, tiny
from torch import nn

from attention import Spec
from automl import facts
from automl.facts import Facts, count_macs, interval, measure, measure_pace, step_memory
from search.config import Model

PLAIN = Model(backbone="xresnet18", width=0.25)
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


@pytest.mark.parametrize("count", [5, 6, 9, 15, 31])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    drawn = random.Random(count)
    held, tries = 0, 3000
    for _ in range(tries):
        middle, low, high = interval([drawn.expovariate(1) for _ in range(count)])
        assert low <= middle <= high
        held += low <= 0.6931471805599453 <= high
    expected = 0.9375 if count == 5 else 0.95
    assert held / tries > expected - 0.015
    assert held / tries < 0.99


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few pairs as there may be."""
    monkeypatch.setattr(facts, "PAIRS", (5, 5))


@pytest.mark.usefixtures("quick")
def test_the_plain_reference_has_a_pace_of_exactly_one() -> None:
    measured = measure(tiny(), PLAIN, HERE)
    assert (measured.pace, measured.pace_low, measured.pace_high) == (1.0, 1.0, 1.0)
    model = opened().model()
    assert measured.params == sum(parameter.numel() for parameter in model.parameters())
    assert measured.macs == count_macs(model.eval(), opened().example(1))
    assert min(measured.memory, measured.latency, measured.step) > 0
    # Whatever the trial's seed, whoever asks.
    assert measure(tiny(seed=5, training={"epochs": 9}), PLAIN, HERE) == measured


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(model={"placement": {"stage2.block1": Spec("ssa")}})
    first = measure(config, PLAIN, HERE)

    def never(*args: object) -> Facts:
        raise AssertionError("measured again")

    monkeypatch.setattr(facts, "_measure", never)
    assert measure(config, PLAIN, HERE) == first
    assert measure(config.change(seed=3, training={"learning_rate": 1e-4}), PLAIN, HERE) == first
    others = [
        (config.change(training={"batch_size": 16}), PLAIN),
        (config.change(training={"optimizer": "sgd"}), PLAIN),
        (config.change(training={"mixup": 0.2}), PLAIN),
        (config.change(data={"size": 32}), PLAIN),
        (config.change(model={"placement": {"stage2.block2": Spec("ssa")}}), PLAIN),
        (config, replace(PLAIN, width=0.5)),
    ]
    for other, reference in others:
        with pytest.raises(AssertionError, match="measured again"):
            measure(other, reference, HERE)


@pytest.mark.usefixtures("quick")
def test_an_attended_model_costs_more() -> None:
    plain, attended = (measure(tiny(model={"placement": p}), PLAIN, HERE) for p in ({}, HEAVY))
    assert attended.params > plain.params
    assert attended.macs > plain.macs
    assert attended.memory > plain.memory
    assert attended.pace_low <= attended.pace <= attended.pace_high


def test_a_model_of_far_more_work_has_a_pace_far_above_one() -> None:
    """Four times the width is some ten times the work; a loaded machine slows both."""
    wide, narrow = (opened(model={"width": width}, data={"size": 32}) for width in (1.0, 0.25))
    (pace, low, high), step = measure_pace(wide, narrow)
    assert pace > 1.4
    assert low <= pace <= high
    assert step > 0


def test_memory_grows_with_the_batch() -> None:
    sizes = [step_memory(opened(training={"batch_size": size})) for size in (8, 16, 32)]
    assert sizes[0] < sizes[1] < sizes[2]
    # What does not depend on the batch is the same for all.
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.1)


def test_facts_are_numbers_alone() -> None:
    values = Facts(
        params=1, macs=2, memory=3, latency=4.0, pace=1.5, pace_low=1.25, pace_high=2.0, step=0.5
    ).to_json()
    assert list(values.values()) == [1, 2, 3, 4.0, 1.5, 1.25, 2.0, 0.5]
