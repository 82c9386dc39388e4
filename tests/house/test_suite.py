"""The suite itself: its choice of cases, and the faults that it must find."""

import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.helpers.pairwise import choose_cases

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import mutants  # noqa: E402


def test_faults_are_listed_and_cases_have_every_pair() -> None:
    assert {*Counter(mutant.name for mutant in mutants.MUTANTS).values()} == {1}
    assert len(mutants.MUTANTS) >= 40
    sizes = {"spec": 42, "shape": 3, "layout": 2, "training": 2}
    cases = [dict(zip(sizes, values, strict=True)) for values in product(*map(range, sizes.values()))]
    kept = [cases[i] for i in choose_cases(cases)]
    assert len(kept) <= 42 * 4 < len(cases)
    for first, second in combinations(sizes, 2):
        assert len({(case[first], case[second]) for case in kept}) == sizes[first] * sizes[second]
    two = [{"a": i, "b": j, "c": j} for i in range(3) for j in range(4)]
    assert len(choose_cases(two)) == len(two), "two parameters are their pairs"


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_made(mutant: mutants.Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.text) == 1
    assert all((ROOT / test).exists() for test in mutant.tests.split())
