"""Pairwise selection among the cases of a test that has three parameters or more.

Most faults need one value or two together. So of the product of all values, cases are kept until each pair of
values is in one. With AUTOML_LONG=1 all run.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

import pytest

Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def select_pairwise(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run, in their order."""
    functions: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            functions[item.parent, item.originalname].append(item)  # type: ignore[attr-defined]
    left_out = set[int]()
    for cases in functions.values():
        chosen = choose_cases([read_values(case) for case in cases])
        left_out |= {id(case) for i, case in enumerate(cases) if i not in chosen}
    return [item for item in items if id(item) not in left_out]


def read_values(item: pytest.Item) -> dict[str, Hashable]:
    """Return what identifies the value of each parameter. Those of one `parametrize` are one."""
    params = item.callspec.params  # type: ignore[attr-defined]
    axes: dict[str, Hashable] = {}
    left = set(params)
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = [name.strip() for name in names if name.strip()]
        axes[",".join(names)] = tuple(id(params[name]) for name in names)
        left -= {*names}
    return axes | {name: id(params[name]) for name in left}  # those of fixtures


def choose_cases(cases: Sequence[Mapping[str, Hashable]]) -> set[int]:
    """Return the indices of the cases to keep. Each case has the value of each parameter."""
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
