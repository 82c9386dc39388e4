"""The rules of a verdict, one by one: each has an example that it decides."""

import string
from typing import get_args

import numpy as np
import pytest
from confirm_cases import VARIANTS, design, scores

from automl.confirm import wording
from automl.confirm.decision import Outcome
from automl.confirm.judge import judge
from automl.confirm.rules import RULES, Evidence, decide
from automl.confirm.statistics import Difference, Ratio, count_failures, paired


def of(mean: float) -> Difference:
    return paired(mean + np.linspace(-0.1, 0.1, 10), margin=0.5)


AHEAD, SECOND, BEHIND, EQUAL, SMALL = of(2.0), of(1.0), of(-1.0), of(0.01), of(0.3)
NOISE = paired([-3.0, 4.0], margin=0.5)
TRIED = count_failures(AHEAD, AHEAD.mean + np.linspace(-0.1, 0.1, 10), [True, True] + [False] * 8)
LOST = count_failures(BEHIND, BEHIND.mean + np.linspace(-0.1, 0.1, 10), [True, True] + [False] * 8)
SAME, LONGER, SHORTER = (Ratio(mean=m, low=m - 0.01, high=m + 0.01) for m in (1.0, 1.2, 0.8))

# Evidence that each rule decides, with the finalist that the verdict is about.
EXAMPLES: dict[str, list[tuple[dict, int]]] = {
    "seed ignored": [
        ({"differences": [AHEAD], "constant": "baseline", "is_guessing": True}, 0),
        ({"differences": [EQUAL, AHEAD], "constant": "candidate", "of_commands": True}, 1),
    ],
    "guessing": [
        ({"differences": [BEHIND, AHEAD], "is_guessing": True}, 1),
        ({"differences": [EQUAL], "is_guessing": True, "is_coarse": True}, 0),
    ],
    "better": [
        ({"differences": [SECOND, AHEAD]}, 1),
        ({"differences": [AHEAD], "plain": [of(0.5)], "times": [SHORTER], "is_coarse": True}, 0),
        ({"differences": [AHEAD, SECOND], "times": [LONGER, SAME]}, 1),
        ({"differences": [AHEAD, SECOND], "plain": [BEHIND, None]}, 1),
        ({"differences": [SMALL, BEHIND]}, 0),
        ({"differences": [AHEAD], "family": 3}, 0),
    ],
    "gain in unmeasured time": [({"differences": [AHEAD, EQUAL], "times": [LONGER, None]}, 0)],
    "gain in more time": [({"differences": [AHEAD, SECOND], "times": [LONGER, LONGER]}, 0)],
    "worse": [
        ({"differences": [BEHIND]}, 0),
        ({"differences": [of(-2), BEHIND], "times": [None, LONGER]}, 1),
    ],
    "loss in unmeasured time": [({"differences": [BEHIND], "times": [None]}, 0)],
    "loss in less time": [({"differences": [BEHIND], "times": [SHORTER]}, 0)],
    "equivalent in unmeasured time": [({"differences": [of(0), of(0)], "times": [SAME, None]}, 0)],
    "equivalent in other time": [({"differences": [of(0), of(0)], "times": [SAME, SHORTER]}, 0)],
    "hyperparameters": [
        ({"differences": [AHEAD], "plain": [NOISE], "is_coarse": True}, 0),
        ({"differences": [SECOND, AHEAD], "plain": [BEHIND, of(0)], "times": [SAME, LONGER]}, 0),
    ],
    "margin too small": [
        ({"differences": [of(0)], "is_coarse": True}, 0),
        ({"differences": [NOISE], "is_coarse": True}, 0),
    ],
    "equivalent": [
        ({"differences": [of(0), EQUAL], "times": [SAME, SAME]}, 1),
        ({"differences": [SMALL], "plain": [of(0)]}, 0),
    ],
    "tried again": [
        ({"differences": [TRIED], "of_commands": True}, 0),
        ({"differences": [BEHIND, AHEAD], "plain": [None, TRIED]}, 1),
        ({"differences": [LOST], "times": [SAME]}, 0),
    ],
    "undecided between commands": [({"differences": [NOISE], "of_commands": True}, 0)],
    "undecided": [
        ({"differences": [NOISE], "times": [None]}, 0),
        ({"differences": [of(0)], "family": 2}, 0),
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


def test_the_table_has_every_outcome_and_always_decides():
    assert {rule.outcome for rule in RULES} == set(get_args(Outcome))
    assert len({rule.name for rule in RULES}) == len(RULES) == len(EXAMPLES)
    assert {rule.name for rule in RULES if rule.stops} == {"seed ignored", "better", "worse", "equivalent"}
    assert RULES[-1].applies(Evidence(differences=[NOISE])), "the last rule applies to everything"


def test_words_have_known_fields_only():
    lead = judge(design(), VARIANTS, scores()).lead
    assert lead is not None
    known = wording.fields(design(), lead, "").keys()
    for rule in RULES:
        used = {
            field
            for text in (rule.words, rule.explanation)
            for _, field, *_ in string.Formatter().parse(text)
        }
        assert used - {None} <= known, rule.name
        assert bool(rule.explanation) == (rule.outcome == "cannot tell"), "each reason is explained"
