"""A search over a grid as the table that it is: a row or a column for each choice, scores in cells."""

from collections.abc import Sequence

from automl.report.page import Section
from automl.report.plot import Cell, Plot, Table
from automl.report.read import Search, Trial
from automl.report.words import value, words
from search.record import State

# Facts of a model, with what they are multiplied by.
COSTS = {
    "params": ("parameters", 1.0),
    "memory": ("memory, MB", 1e-6),
    "time_ratio": ("time of an epoch, times the baseline's", 1.0),
}
NONE = "none"  # of a parameter that a trial does not have


def grid(search: Search) -> list[Section]:
    """The section of a search whose sampler was `grid`, with one parameter or two; none for others."""
    names = list(dict.fromkeys(name for trial in search.trials for name in trial.params))
    if search.metadata.settings.sampler != "grid" or not 1 <= len(names) <= 2:
        return []
    table = _one(search, names[0]) if len(names) == 1 else _two(search, *names)
    refused = sum(trial.state is State.INFEASIBLE for trial in search.trials)
    says = f"{len(search.done)} trials have completed" + (
        f"; {refused} did not fit and are told in their cells." if refused else "."
    )
    plot = Plot(
        name="grid",
        title=f"{search.label} by {' and '.join(map(words, names))}",
        figure=None,
        says=says,
        note="On the validation split, the mean where a choice was tried more than once.",
        table=table,
    )
    return [Section(id="grid", title="The grid", lead="Every choice of the grid.", plots=[plot])]


def _one(search: Search, name: str) -> Table:
    """A row for each value, with the metric and what it costs."""
    by = _groups(search, [name])
    costs = [cost for cost in COSTS if any(cost in trial.record.profile for trial in search.trials)]
    rows: list[list[Cell]] = []
    for (key,), trials in by.items():
        profile = trials[0].record.profile
        facts = (COSTS[cost][1] * profile[cost] if cost in profile else None for cost in costs)
        rows.append([key, cell(search, trials), *facts])
    return Table(columns=[words(name), search.label, *(COSTS[cost][0] for cost in costs)], rows=rows)


def _two(search: Search, down: str, across: str) -> Table:
    by = _groups(search, [down, across])
    rows, columns = (list(dict.fromkeys(key[i] for key in by)) for i in range(2))
    return Table(
        columns=[f"{words(down)}, then {words(across)}", *columns],
        rows=[[row, *(cell(search, by.get((row, column), [])) for column in columns)] for row in rows],
    )


def _groups(search: Search, names: Sequence[str]) -> dict[tuple[str, ...], list[Trial]]:
    """The trials of each choice, in the order of their values."""
    order = sorted(search.trials, key=lambda trial: [_place(trial.params.get(name)) for name in names])
    found: dict[tuple[str, ...], list[Trial]] = {}
    for trial in order:
        key = tuple(value(trial.params[name]) if name in trial.params else NONE for name in names)
        found.setdefault(key, []).append(trial)
    return found


def _place(value: object) -> tuple[bool, float, str]:
    """Numbers before words, and nothing before both."""
    number = isinstance(value, int | float)
    return value is not None and not number, float(value) if number else -1.0, str(value)  # type: ignore[arg-type]


def cell(search: Search, trials: Sequence[Trial]) -> Cell:
    """The mean score of those that are done, or why there is none."""
    done = [search.score(trial) for trial in trials if trial in search.done]
    if done:
        return sum(done) / len(done)
    if not trials:
        return None
    last = trials[-1]
    if last.state is State.INFEASIBLE:
        return "out of memory" if "memory" in (last.record.reason or "") else "over a limit"
    if last.state is State.PRUNED and (score := search.final(last)) is not None:
        return f"pruned at {score:.4g}"
    return str(last.state)
