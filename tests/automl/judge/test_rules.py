"""The rules of a verdict, one by one: each has an example that it decides."""

import string
from typing import get_args

import numpy as np
import pytest

from automl.judge.decision import Outcome
from automl.judge.judge import judge
from automl.judge.rules import RULES, Evidence, Opponent, decide
from automl.judge.scores import Scores
from automl.judge.statistics import Difference, count_failures, paired
from automl.judge.variants import lengthen
from automl.judge.verdict import word_fields
from tests.helpers.confirm_cases import VARIANTS, design, scores


def of(mean: float) -> Difference:
    return paired(mean + np.linspace(-0.1, 0.1, 10), margin=0.5)


AHEAD, SECOND, BEHIND, EQUAL, SMALL = of(2.0), of(1.0), of(-1.0), of(0.01), of(0.3)
NOISE = paired([-3.0, 4.0], margin=0.5)
TRIED = count_failures(AHEAD, AHEAD.mean + np.linspace(-0.1, 0.1, 10), [True, True] + [False] * 8)
LOST = count_failures(BEHIND, BEHIND.mean + np.linspace(-0.1, 0.1, 10), [True, True] + [False] * 8)


def beside(*differences: Difference | None) -> list[Opponent]:
    return [Opponent(name="other", difference=each) for each in differences]


def longer(difference: Difference | None) -> list[Opponent]:
    return [Opponent(name="baseline, longer", difference=difference, is_baseline=True)]


# Evidence that each rule decides, with the finalist that the verdict is about.
EXAMPLES: dict[str, list[tuple[dict, int]]] = {
    "seed ignored": [
        ({"differences": [AHEAD], "constant": "baseline", "is_guessing": True}, 0),
        ({"differences": [EQUAL, AHEAD], "constant": "candidate"}, 1),
    ],
    "guessing": [
        ({"differences": [BEHIND, AHEAD], "is_guessing": True}, 1),
        ({"differences": [EQUAL], "is_guessing": True, "is_coarse": True}, 0),
    ],
    "better": [
        ({"differences": [SECOND, AHEAD]}, 1),
        ({"differences": [AHEAD], "opponents": [beside(of(0.5), SECOND)], "is_coarse": True}, 0),
        ({"differences": [AHEAD, SECOND], "opponents": [longer(None), []]}, 1),
        ({"differences": [AHEAD, SECOND], "opponents": [beside(SMALL, BEHIND), longer(SECOND)]}, 1),
        ({"differences": [AHEAD, SECOND], "untimed": [0]}, 1),
        ({"differences": [SMALL, BEHIND]}, 0),
        ({"differences": [AHEAD], "family": 3}, 0),
    ],
    "no time": [({"differences": [AHEAD, EQUAL], "untimed": [0]}, 0)],
    "worse": [
        ({"differences": [BEHIND]}, 0),
        ({"differences": [of(-2), BEHIND], "untimed": [0, 1], "opponents": [longer(None)] * 2}, 1),
    ],
    "tried again": [
        ({"differences": [TRIED]}, 0),
        ({"differences": [BEHIND, AHEAD], "opponents": [[], beside(TRIED)]}, 1),
        ({"differences": [LOST]}, 0),
    ],
    "equivalent": [
        ({"differences": [of(0), EQUAL], "opponents": [longer(of(-0.1)), []]}, 1),
        ({"differences": [SMALL], "opponents": [beside(of(0))]}, 0),
    ],
    "not against all": [
        ({"differences": [AHEAD], "opponents": [beside(NOISE)], "is_coarse": True}, 0),
        ({"differences": [SECOND, AHEAD], "opponents": [beside(BEHIND), longer(of(0))]}, 1),
        ({"differences": [AHEAD], "opponents": [longer(None)]}, 0),
        ({"differences": [SMALL], "opponents": [longer(BEHIND)]}, 0),
    ],
    "margin too small": [
        ({"differences": [of(0)], "is_coarse": True}, 0),
        ({"differences": [NOISE], "is_coarse": True}, 0),
    ],
    "undecided": [
        ({"differences": [NOISE], "untimed": [0]}, 0),
        ({"differences": [of(0)], "family": 2}, 0),
        ({"differences": [EQUAL], "opponents": [longer(BEHIND)]}, 0),
        ({"differences": [AHEAD], "level": lambda alpha: 1e-9}, 0),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_decides_its_examples(rule):
    for evidence, lead in EXAMPLES[rule.name]:
        shown = Evidence(**evidence)
        earlier = [other.name for other in RULES[: RULES.index(rule)] if other.applies(shown)]
        assert rule.applies(shown)
        assert not earlier, evidence
        assert decide(shown) is rule
        assert shown.lead == lead


def test_the_table_always_decides_with_known_words():
    assert {rule.outcome for rule in RULES} == set(get_args(Outcome))
    assert len({rule.name for rule in RULES}) == len(RULES) == len(EXAMPLES)
    assert len(RULES) <= 10
    assert {rule.name for rule in RULES if rule.stops} == {"seed ignored", "better", "worse", "equivalent"}
    assert RULES[-1].applies(Evidence(differences=[NOISE])), "the last rule applies to everything"
    lead = judge(design(), VARIANTS, scores()).lead
    assert lead is not None
    known = word_fields(design(), "ssa", lead, Evidence(differences=[AHEAD])).keys()
    for rule in RULES:
        used = {
            field
            for text in (rule.words, rule.explanation)
            for _, field, *_ in string.Formatter().parse(text)
        }
        assert used - {None} <= known, rule.name
        assert bool(rule.explanation) == (rule.outcome == "cannot tell"), "each reason is explained"


def test_the_opponent_that_does_as_well_is_named():
    first, second = beside(SECOND), longer(of(0))
    for others, named in (([*first, *second], second[0]), ([*second, *first], second[0]), (first, None)):
        assert Evidence(differences=[AHEAD], opponents=[others]).equal is named
    missing = longer(None)
    assert Evidence(differences=[AHEAD], opponents=[missing]).equal is missing[0]


@pytest.mark.parametrize(("begun", "awaited"), [((), 1.1), ((1.2,), 1.2), ((1.2, 1.05), 1.2)])
def test_opponents_that_have_begun_are_kept_while_they_cover_the_time(begun, awaited):
    longer = [variant for factor in begun if (variant := lengthen(VARIANTS[0], factor)) is not None]
    values = {**scores(ssa=0.03, times={"ssa": 1.06}), **{variant.name: Scores() for variant in longer}}
    verdict = judge(design(), [*VARIANTS, *longer], values)
    assert [variant.config.longer for variant in verdict.awaited] == [awaited]
