"""Pairwise selection among the cases of a test that has three parameters or more.

Most faults need one value or two together. So of the product of all values, cases are kept until each pair of
values is in one. With AUTOML_LONG=1 all run.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

Pair = tuple[tuple[str, int], tuple[str, int]]


def select_pairwise(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run, in their order."""
    functions: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            functions[item.parent, item.originalname].append(item)  # type: ignore[attr-defined]
    left_out = set[int]()
    for cases in functions.values():
        chosen = choose_cases([case.callspec.indices for case in cases])  # type: ignore[attr-defined]
        left_out |= {id(case) for i, case in enumerate(cases) if i not in chosen}
    return [item for item in items if id(item) not in left_out]


def choose_cases(cases: Sequence[Mapping[str, int]]) -> set[int]:
    """Return the indices of the cases to keep. Each case has the number of the value of each parameter."""
    axes = {tuple(case[name] for case in cases): name for name in cases[0]}  # together, they are one
    sizes = [len(set(values)) for values in axes]
    if sum(size > 1 for size in sizes) < 3:
        return set(range(len(cases)))
    pairs = [{*combinations([(name, case[name]) for name in axes.values()], 2)} for case in cases]
    uncovered: set[Pair] = set().union(*pairs)
    chosen, largest = set[int](), len(axes) * (len(axes) - 1) // 2
    while uncovered:
        # Cases with the most new pairs first. A case never gains any, so one pass for each number suffices.
        for i, of_case in enumerate(pairs):
            if i not in chosen and len(of_case & uncovered) >= largest:
                chosen.add(i)
                uncovered -= of_case
        largest -= 1
    return chosen
