"""A grid trains every cell once for each seed, even if runs are interrupted."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automl.base.errors import InputError
from automl.tasks.image_classification import ImageData, ImageTraining
from search.config import TrialConfig
from search.fixed_scheduler import GridScheduler, find_missing
from search.grid import MOST_CELLS, grid_cells
from search.record import Report, State
from search.space import SPACES, Space
from search.study import CELLS, open_study
from tests.helpers.search_cases import EPOCHS, PUBLISHED, SMALL, ask_trial, make_plan, make_study, report

# A tree of choices: the name of a parameter and what follows each of its values; None ends a combination, and
# "refused" ends one that the space refuses.
Tree = Any
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from([None, None, None, "refused"]),
    lambda below: st.tuples(
        st.sampled_from(["categorical", "int", "float"]), st.lists(below, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
ENDS = ("complete", "complete", "weak", "error", "diverged", "killed", "running")


def suggest(trial: optuna.Trial, kind: str, name: str, count: int) -> int:
    if kind == "categorical":  # not in the order of numbers
        return int(trial.suggest_categorical(name, [str(count - 1 - i) for i in range(count)]))
    if kind == "int":
        return trial.suggest_int(name, 0, 2 * (count - 1), step=2) // 2
    return round(trial.suggest_float(name, 0.0, 0.1 * (count - 1), step=0.1) / 0.1)


def space_of(tree: Tree, has_fraction: bool = False) -> Space:
    def draw(trial: optuna.Trial) -> TrialConfig:
        node, path = tree, "c"
        while node is not None:
            if node == "refused":
                raise optuna.TrialPruned
            kind, branches = node
            index = suggest(trial, kind, path, len(branches))
            node, path = branches[index], f"{path}{index}"
        # With `share`, all cells make the same configuration, which a search would not repeat.
        name = "folder" if has_fraction else path
        return TrialConfig(data=ImageData(source=name, size=32), training=ImageTraining(epochs=EPOCHS))

    return Space(name="tree", draw=draw, baseline={}, free=lambda: PUBLISHED, summary="")


def combinations(tree: Tree, path: str = "c") -> list[dict[str, Any]]:
    """Return the parameters of each cell, in order, by recursion."""
    if tree is None:
        return [{}]
    if tree == "refused":
        return []
    kind, branches = tree
    cells = []
    order = range(len(branches)) if kind != "categorical" else reversed(range(len(branches)))
    values: Mapping[str, Any] = {"categorical": str, "int": lambda i: 2 * i, "float": lambda i: i * 0.1}
    for index in order:
        cells += [
            {path: values[kind](index), **below} for below in combinations(branches[index], f"{path}{index}")
        ]
    return cells


@given(TREES)
@settings(max_examples=100, deadline=None)
def test_the_cells_are_all_combinations_in_order(tree: Tree) -> None:
    expected = combinations(tree)
    if not expected:
        with pytest.raises(InputError, match="rejected all"):
            grid_cells(space_of(tree))
        return
    cells = grid_cells(space_of(tree))
    assert [dict(cell.params) for cell in cells] == expected
    assert len({cell.label for cell in cells}) == len(cells)


@given(
    TREES.filter(combinations),
    st.integers(1, 3),
    st.booleans(),
    st.floats(0, 1),
    st.lists(st.tuples(st.sampled_from(ENDS), st.booleans()), max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_each_cell_is_trained_once_for_each_seed(
    tree: Tree, seeds: int, has_fraction: bool, baseline_share: float, ends: list[tuple[str, bool]]
) -> None:
    """Test any space, seeds, fractions and ends of trials, with the run killed and resumed at any point."""
    space = space_of(tree, has_fraction)
    cells = grid_cells(space)
    asked = [(cell.label, seed) for seed in range(7, 7 + seeds) for cell in cells]
    with tempfile.TemporaryDirectory() as folder:
        study = make_study(Path(folder))
        plan = make_plan(trials=None, baseline_share=baseline_share)

        def make() -> GridScheduler:
            stored = open_study(Path(folder), name="s")
            return GridScheduler(stored, space, plan, cells, seeds=range(7, 7 + seeds))

        del study
        scheduler, script = make(), iter(ends)
        for _ in range(1000):
            end, again = next(script, ("complete", False))
            if again:
                scheduler = make()  # the process was killed
            record = scheduler.ask()
            if record is None:
                if not missing(scheduler):
                    break
                scheduler = make()  # which begins what ended in an error, or was running
                continue
            number = record.number
            done = [0.9] * EPOCHS if end == "complete" else [0.01] * EPOCHS
            if end in ("complete", "weak"):
                for i in range(len(record.history), EPOCHS):
                    assert scheduler.report(number, report(*done[: i + 1])), "nothing is pruned"
                scheduler.end(number, report(*done, finished=True))
            elif end == "diverged":
                scheduler.end(number, Report(infeasible="the training loss became nan in epoch 1, step 3"))
            elif end == "error":
                scheduler.end(number, Report(error="boom"))
            elif end == "killed":
                scheduler.report(number, report(*done[:1]))
                scheduler = make()
        final = make()
        ended = [r for r in final.records.values() if r.state in (State.COMPLETE, State.INFEASIBLE)]
        assert Counter((r.variant, r.config.seed) for r in ended) == Counter(asked)
        assert {r.state for r in final.records.values()} <= {State.COMPLETE, State.INFEASIBLE, State.ERROR}
        assert not missing(final)
        assert final.ask() is None
        params = {cell.label: dict(cell.params) for cell in cells}
        for trial in final.study.trials:
            assert trial.params == params[trial.user_attrs["variant"]]
        assert list(final.study.user_attrs[CELLS].items()) == [*params.items()]


def wide(trial: optuna.Trial) -> TrialConfig:
    return TrialConfig(seed=trial.suggest_int("seed", 0, 10**6))


def make(folder: Path, seeds: int = 1, space: Space = SMALL) -> GridScheduler:
    return GridScheduler(make_study(folder), space, make_plan(), grid_cells(space), seeds=range(seeds))


def missing(scheduler: GridScheduler) -> list[str]:
    return find_missing(scheduler.records.values(), [cell.label for cell in scheduler.cells], scheduler.seeds)


def test_errors_of_one_cell_do_not_end_the_others(tmp_path: Path) -> None:
    scheduler = make(tmp_path, seeds=3)
    ends = ["fine", "boom", "boom", "boom"]
    for end in ends:
        record = ask_trial(scheduler)
        done = report(*[0.5] * EPOCHS, finished=True)
        scheduler.end(record.number, done if end == "fine" else Report(error=end))
    assert not scheduler.repeated_failure
    assert scheduler.ask() is not None
    other = make(Path(tempfile.mkdtemp(dir=tmp_path)))
    for _ in range(3):
        other.end(ask_trial(other).number, Report(error="boom"))
    assert other.repeated_failure, "where nothing works, the run ends"


def test_spaces_without_a_finite_grid_are_rejected() -> None:
    with pytest.raises(InputError, match=r"adamw.learning_rate of space 'digits' has no step"):
        grid_cells(SPACES["digits"])
    with pytest.raises(InputError, match=f"at most {MOST_CELLS:,} combinations"):
        grid_cells(Space(name="wide", draw=wide, baseline={}, summary=""))
