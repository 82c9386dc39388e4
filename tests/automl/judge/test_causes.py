"""Causes of a verdict: each rule with its examples, the facts that they rest on, and the next step."""

import string
from dataclasses import replace
from typing import Any, get_args

import pytest

from automl.judge.causes import CAUSES, Facts, Step, explain
from automl.judge.judge import judge
from automl.judge.scores import find_rise
from automl.judge.statistics import Difference, Ratio, paired
from automl.judge.verdict import Verdict
from search.class_metrics import ACCURACY
from search.record import Metrics
from tests.helpers.confirm_cases import VARIANTS, design, scores

UP, FLAT, DOWN, UNSURE = (paired([m + 0.1 * (i % 3) for i in range(9)], margin=0.5) for m in (2, -0.1, -2, 0))
UNSURE = paired([3.0 * (-1) ** i for i in range(9)], margin=0.5)
SLOW, MUCH = Ratio(mean=1.2, low=1.15, high=1.25), Ratio(mean=1.8, low=1.7, high=1.9)
FEWER: dict[str, Any] = {"slowdown": MUCH, "steps": (50, 90), "margin": 0.5}

EXAMPLES: dict[str, list[tuple[dict[str, Any], Step]]] = {
    "nothing to explain": [
        ({"outcome": "cannot tell", **FEWER, "rises": (UP, UP)}, ""),
        ({"outcome": "better", **FEWER, "rises": (UP, UP), "gate": 0.01}, ""),
    ],
    "fewer steps while it rises": [
        ({"outcome": "worse", **FEWER, "rises": (UP, UP), "gate": 0.01}, "epochs"),
        ({"outcome": "undecided", **FEWER, "slowdown": SLOW, "rises": (UP, UP)}, "epochs"),
        ({"outcome": "equivalent", **FEWER, "rises": (UP, UNSURE)}, "equal"),
    ],
    "gates closed": [
        ({"outcome": "worse", "gate": 0.049, "rises": (UP, FLAT)}, "epochs"),
        ({"outcome": "worse", "gate": 0.01, **FEWER, "rises": (FLAT, UP)}, "stop"),
        ({"outcome": "undecided", "gate": 0.01}, ""),
    ],
    "rising": [
        ({"outcome": "worse", "rises": (UP, FLAT), "gate": 0.05}, "epochs"),
        ({"outcome": "worse", **FEWER, "equal": "epochs", "rises": (UP, UP)}, "epochs"),
    ],
    "fewer steps, levelled off": [
        ({"outcome": "worse", **FEWER, "rises": (FLAT, UP), "modules": 2}, "sites"),
        ({"outcome": "worse", **FEWER, "rises": (DOWN, None)}, "larger"),
        ({"outcome": "worse", **FEWER, "slowdown": SLOW, "rises": (FLAT, UP)}, "stop"),
        ({"outcome": "undecided", **FEWER, "slowdown": SLOW, "rises": (FLAT, UP)}, ""),
    ],
    "fewer steps": [
        ({"outcome": "worse", **FEWER}, "equal"),
        ({"outcome": "worse", **FEWER, "rises": (UNSURE, UP)}, "equal"),
        ({"outcome": "worse", **FEWER, "rises": (FLAT, UP), "margin": 0.0}, "equal"),
    ],
    "levelled off": [
        ({"outcome": "worse", "rises": (FLAT, UP), "margin": 0.5}, "stop"),
        ({"outcome": "undecided", "rises": (FLAT, UP), "margin": 0.5}, ""),
    ],
    "unknown": [
        ({"outcome": "worse"}, "stop"),
        ({"outcome": "undecided", "rises": (UNSURE, UP), "margin": 0.5}, ""),
        ({"outcome": "worse", "steps": (50, 90), "slowdown": Ratio(mean=1.2, low=1.0, high=1.4)}, "stop"),
        ({"outcome": "equivalent", **FEWER, "equal": "epochs"}, "stop"),
        ({"outcome": "worse", "steps": (89, 90), "slowdown": SLOW}, "stop"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_cause_explains_its_examples(cause):
    for values, step in EXAMPLES[cause.name]:
        facts = Facts(**values)
        assert next(other.name for other in CAUSES if other.applies(facts)) == cause.name, values
        words, shown = explain(facts)
        assert shown == step, values
        assert "{" not in words


def test_the_table_says_no_more_than_its_fields():
    assert len({cause.name for cause in CAUSES}) == len(CAUSES) == len(EXAMPLES)
    assert {step for examples in EXAMPLES.values() for _, step in examples} == set(get_args(Step))
    known = Facts(outcome="worse").fields().keys() | {None}
    for cause in CAUSES:
        assert {field for _, field, *_ in string.Formatter().parse(cause.words)} <= known
        if "why" in cause.words or "explain" in cause.words:
            assert " may be " in cause.words, "one comparison shows no cause"


def history(values: list[float], *, seconds: float = 1.0, steps: int = 10) -> list[Metrics]:
    return [
        {"epoch": i, "resource": i, "accuracy": value, "seconds": seconds, "steps": steps * i}
        for i, value in enumerate(values, start=1)
    ]


def test_a_rise_is_from_three_quarters_of_the_training_on_over_all_seeds():
    rising = [history([0.5, 0.6, 0.7, 0.75 + 0.001 * seed]) for seed in range(8)]
    rise = find_rise(rising, ACCURACY, 0.5)
    assert rise is not None
    assert rise.mean == pytest.approx(100 * (0.05 + 0.0035))
    assert rise.low > 0
    loss = replace(ACCURACY, maximize=False)
    assert find_rise(rising, loss, 0.5).high < 0  # type: ignore[union-attr]
    assert find_rise([*rising, history([0.5])], ACCURACY, 0.5) is None, "one epoch has no end"
    assert find_rise(rising[:1], ACCURACY, 0.5) is None


def test_a_slowdown_is_of_steps_and_not_of_trainings():
    scored = scores(ssa=-0.03)  # each of 100 steps
    costs = {seed: replace(cost, steps=50) for seed, cost in scored["ssa"].costs.items()}
    scored["ssa"] = replace(scored["ssa"], costs=costs)
    slowdown = judge(design(), VARIANTS[:2], scored).slowdown
    assert slowdown is not None
    assert 1.98 < slowdown.low < slowdown.high < 2.02
    other = replace(VARIANTS[1], config=VARIANTS[1].config.change(training={"batch_size": 8}))
    assert judge(design(), [VARIANTS[0], other], scored).slowdown is None


def explained(rises: tuple[Difference | None, Difference | None], **more: Any) -> Verdict:
    verdict = judge(design(), VARIANTS[:2], scores(ssa=-0.03))
    command = ["automl", "search", "--space", "digits", "--epochs", "5"]
    facts = {"slowdown": MUCH, "steps": (50.0, 90.0), "command": command} | more
    return replace(verdict, search="mine", rises=rises, **facts)


def test_a_verdict_has_its_cause_and_one_command():
    verdict = explained((UP, UP), gate=0.3)
    assert verdict.cause.startswith("A step takes 1.80 times the baseline's, so equal time gave it 50 steps")
    assert verdict.next_step == (
        "Train twice as long, 2 epochs: automl search --space digits --epochs 5 --epochs 2 --name mine-epochs"
    )
    assert "50 steps against 90, each 1.80 times as long" in verdict.cost
    assert verdict.remarks[-2].startswith(
        "In the last quarter of training, the validation score changed by +2.1"
    )
    assert verdict.remarks[-1] == "The largest gate is 0.3, where 0 is a module without effect."
    assert (verdict.to_json()["cause"], verdict.to_json()["next"]) == (verdict.cause, verdict.next_step)
    equal = explained((UP, None))
    assert equal.next_step.endswith("--epochs 5 --equal epochs --name mine-equal")
    assert explained((UP, None), command=[]).next_step.endswith("automl.run_search with equal=epochs.")
    assert explained((FLAT, None)).next_step.endswith("--backbone NAME --name mine-larger")
    assert explained((None, None), slowdown=None).next_step.startswith("Stop here: ")
    assert replace(verdict, complete=False).cause == ""
