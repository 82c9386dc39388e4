"""What accuracy costs: the metric over time, latency, parameters and MACs, each with its front."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from automl.config.units import short
from automl.listeners.retention import NOISE, front
from automl.report import style
from automl.report.plot import Cell, Plot, Table, absent
from automl.report.read import Search, Trial
from search.halving import dominates

NAME, TITLE = "costs", "What it costs"

COSTS = {
    "time_ratio": "time of an epoch, times the baseline's",
    "latency": "latency of one image, ms",
    "params": "parameters",
    "macs": "MACs of one image",
}


def pareto(search: Search, cost: str) -> list[Trial]:
    """The finished trials that no other one beats in both the metric and the cost, the cheapest first.

    By more than noise, and of those that have learned something.
    """
    scores = {
        trial.number: (search.sign * search.score(trial), -trial.record.profile[cost])
        for trial in search.done
        if cost in trial.record.profile and not search.plan.guesses(trial.record)
    }
    noise = (0.0, NOISE.get(cost, 0.0))
    best = [
        trial
        for trial in search.done
        if trial.number in scores
        and not any(dominates(other, scores[trial.number], noise) for other in scores.values())
    ]
    return sorted(best, key=lambda trial: trial.record.profile[cost])


def costs(search: Search) -> Plot:
    """Four panels, a mark for each finished trial."""
    shown = [cost for cost in COSTS if any(cost in trial.record.profile for trial in search.done)]
    if not shown:
        return absent(NAME, TITLE, "No trial whose costs were measured has completed yet.")
    fronts = {cost: pareto(search, cost) for cost in shown}
    with style.style():
        figure = _draw(search, fronts)
    says = []
    for cost, trials in fronts.items():
        if not trials:
            says.append(f"{_title(cost)}: no trial beats chance, and none is on the front")
            continue
        # Along a front the metric gets better as the cost grows: its ends say how much for how much.
        cheap, best = trials[0], trials[-1]
        span = f"{search.show(cheap)} at {_cost(cheap, cost)}"
        if cheap is not best:
            span = f"from {span} to {search.show(best)} at {_cost(best, cost)}"
        says.append(f"{_title(cost)}: {len(trials)} on the front, {span}")
    note = (
        "Finished trials. The line is the Pareto front: no other trial beats those on it in both, "
        f"where latency and time are known to {NOISE['latency']:.0%}; what may be guessing is on none. Times "
        "of an epoch are ratios to the baseline's, timed in turn on the machine that trained."
    )
    if len(search.plan.objectives) > 1:
        whole = front((trial.record for trial in search.done), search.plan)
        numbers = ", ".join(str(record.number) for record in whole[:40])
        note += f" On the front of {', '.join(search.plan.objectives)} together: trials {numbers}."
    rows: list[list[Cell]] = [
        [cost, trial.number, trial.where, trial.record.profile[cost], search.score(trial)]
        for cost, trials in fronts.items()
        for trial in trials
    ]
    return Plot(
        name=NAME, title=TITLE, figure=figure, says="; ".join(says) + ".", note=note,
        table=Table(columns=["cost", "trial", "what", "value", search.label], rows=rows),
    )  # fmt: skip


def _cost(trial: Trial, cost: str) -> str:
    value = trial.record.profile[cost]
    return short(value) if cost in ("params", "macs") else f"{value:.3g}{' ms' if cost == 'latency' else '×'}"


def _title(cost: str) -> str:
    return COSTS[cost].partition(",")[0].partition(" of ")[0]


def _draw(search: Search, fronts: dict[str, list[Trial]]) -> Figure:
    rows = (len(fronts) + 1) // 2
    kinds = style.order({trial.kind for trial in search.done})
    figure = style.new(0.4 + 1.75 * rows + 0.16 * ((len(kinds) + 4) // 4))
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes in panels[len(fronts) :]:
        axes.remove()
    for i, (cost, trials) in enumerate(fronts.items()):
        axes = panels[i]
        for kind in kinds:
            some = [t for t in search.done if t.kind == kind and cost in t.record.profile]
            style.marks(axes, [t.record.profile[cost] for t in some], [search.score(t) for t in some], kind,
                        alpha=0.85)  # fmt: skip
        x, y = _steps([t.record.profile[cost] for t in trials], [search.score(t) for t in trials])
        axes.plot(x, y, color=style.INK, linewidth=1.1, zorder=2)
        axes.set_title(_title(cost))
        axes.set_xlabel({"time_ratio": "times the baseline's", "latency": "ms"}.get(cost, ""))
        if cost in ("params", "macs"):
            style.counts(axes.xaxis)
        style.few_ticks(axes, x=3, y=5)
        axes.margins(x=0.12, y=0.1)
        if i % 2:
            axes.tick_params(labelleft=False)
            axes.sharey(panels[i - 1])
        else:
            axes.set_ylabel(style.brief(search.label, 24))
    line = Line2D([], [], color=style.INK, linewidth=1.1, label="front")
    style.kind_legend(figure, kinds, line)
    return figure


def _steps(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """A front as stairs: until the next dearer trial, the cheaper one is the best that there is."""
    across, up = [], []
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        if i:
            across.append(a)
            up.append(y[i - 1])
        across.append(a)
        up.append(b)
    return across, up
