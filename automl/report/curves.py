"""Learning curves with the rungs, and the trials of each kind by the rung they reached."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from automl.config.units import counted
from automl.report import style
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search, Trial
from search.record import State
from search.trial_scheduler import RESOURCE

CURVES = 120  # of a kind that are drawn at most
POINTS = 40  # of a curve


def curves(search: Search) -> Plot:
    """The metric over the resource: trials that ended, that were pruned, the best and the best baseline."""
    title = "Learning curves"
    ways = {
        "trained to the end": (search.done, style.SKY, 0.8, 0.75),
        "pruned at a rung": (search.pruned, style.ORANGE, 0.7, 0.55),
        "still running": ([t for t in search.trials if t.state is State.RUNNING and t.record.history],
                          style.PURPLE, 0.9, 0.9),
    }  # fmt: skip
    if not any(trials for trials, *_ in ways.values()):
        return absent("curves", title, "No trial has come to the end of its first epoch yet.")
    rows = [
        [trial.number, trial.where, str(trial.state), trial.resource, search.final(trial)]
        for trial in [search.baseline, search.best]
        if trial is not None
    ]
    left_out = 0
    with style.style():
        figure = style.new(2.9)
        axes = figure.subplots()
        handles = []
        seen: list[float] = []
        for what, (trials, colour, width, alpha) in ways.items():
            if not trials:
                continue
            drawn = _spread(search, trials)
            left_out += len(trials) - len(drawn)
            lines = [line for trial in drawn if len(line := _curve(search, trial))]
            seen += [float(value) for line in lines for value in line[:, 1]]
            axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, alpha=alpha))
            ends = np.array([line[-1] for line in lines if what != "trained to the end"])
            if len(ends):
                axes.plot(*ends.T, linestyle="none", marker="x", markersize=3, color=colour, zorder=3)
            marker = "" if what == "trained to the end" else "x"
            handles.append(Line2D([], [], color=colour, marker=marker, markersize=3,
                                  label=f"{what} ({len(trials)})"))  # fmt: skip
        for trial, colour, dashes, name in (
            (search.baseline, style.BLACK, "-", "best baseline"),
            (search.best, style.BLUE, (0, (4, 1.5)), "best"),
        ):
            if trial is not None:
                (thick,) = axes.plot(
                    *_curve(search, trial).T, color=colour, linestyle=dashes, linewidth=1.8, zorder=4,
                    label=f"{name} (trial {trial.number})",
                )  # fmt: skip
                handles.append(thick)
        for milestone in search.milestones:
            axes.axvline(milestone, color=style.INK, linewidth=0.8, linestyle=":", zorder=1)
        axes.autoscale_view()
        low, high = _window(seen, best_high=search.plan.metric.maximize)
        axes.set_ylim(low, high)
        axes.set_xlim(left=0)
        style.few_ticks(axes, x=6, y=5)
        axes.set_xlabel("epochs of the baseline's time" if _by_time(search) else "epochs")
        axes.set_ylabel(search.label)
        if search.milestones:
            handles.append(Line2D([], [], color=style.INK, linewidth=0.8, linestyle=":", label="rung"))
        figure.legend(handles=handles, loc="outside upper left", ncols=2, borderaxespad=0.1)
    said = [f"{len(search.done)} trials completed and {len(search.pruned)} were pruned"]
    if search.milestones:
        rungs = ", ".join(f"{milestone:g}" for milestone in search.milestones)
        said.append(f"the rungs stand at {rungs} of {counted(search.plan.budget, 'epoch')}")
    for trial, name in ((search.best, "best"), (search.baseline, "best baseline")):
        if trial is not None:
            said.append(f"the {name} ended at {search.metric} {search.show(trial)}")
    note = "A cross is where a trial was pruned or stands."
    if left_out:
        note += (
            f" {left_out} curves are left out, evenly over the final scores, so that the others can be seen."
        )
    return Plot(
        name="curves", title=title, figure=figure, says="; ".join(said) + ".", note=note,
        table=Table(columns=["trial", "what", "state", "epochs", search.label], rows=rows),
    )  # fmt: skip


def _by_time(search: Search) -> bool:
    return search.metadata.settings.equal == "time"


def _curve(search: Search, trial: Trial) -> NDArray[np.float64]:
    """Resource and metric, at most POINTS of them with the last one."""
    history = [m for m in trial.record.history if search.metric in m]
    values: NDArray[np.float64] = np.array(
        [(m[RESOURCE], search.factor * m[search.metric]) for m in history], dtype=float
    ).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) > POINTS:
        values = values[np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))]
    return values


def _spread(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """At most CURVES of the trials, evenly over their last scores."""
    if len(trials) <= CURVES:
        return list(trials)
    ranked = sorted(trials, key=lambda trial: search.final(trial) or 0.0)
    return [ranked[i] for i in np.linspace(0, len(ranked) - 1, CURVES).round().astype(int)]


def _window(values: Sequence[float], *, best_high: bool) -> tuple[float, float]:
    """Where the curves are; the worst twentieth may leave the picture, so that the rest stays readable."""
    low, high = np.quantile(values, [0.05, 1.0] if best_high else [0.0, 0.95])
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def fates(search: Search) -> Plot:
    """How many trials of each kind reached which rung."""
    title = "Trials by rung reached"
    ends = _ends(search)
    kinds = style.order(trial.kind for trial in search.trials)
    table = {
        kind: Counter(ends[trial.number] for trial in search.trials if trial.kind == kind) for kind in kinds
    }
    order = [
        *(f"pruned at {milestone:g}" for milestone in search.milestones),
        "pruned", "complete", "running", "infeasible", "error",
    ]  # fmt: skip
    order = [end for end in order if any(count[end] for count in table.values())]
    looks = _looks(order)
    with style.style():
        figure = style.new(0.75 + 0.2 * len(kinds) + 0.15 * ((len(order) + 2) // 3))
        axes = figure.subplots()
        left = np.zeros(len(kinds))
        for end in order:
            widths = np.array([table[kind][end] for kind in kinds], dtype=float)
            colour, hatch = looks[end]
            axes.barh(kinds, widths, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5)
            left += widths
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("trials")
        style.few_ticks(axes, x=6)
        handles = [Patch(facecolor=looks[e][0], hatch=looks[e][1], edgecolor="white", label=e) for e in order]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, borderaxespad=0.1)
    total = Counter(ends.values())
    parts = ", ".join(f"{total[end]} {'with an error' if end == 'error' else end}" for end in order)
    finished = [f"{kind} {table[kind]['complete']} of {sum(table[kind].values())}" for kind in kinds]
    return Plot(
        name="fates",
        title=title,
        figure=figure,
        says=f"Of {len(search.trials)} trials: {parts}. Trained to the end: {', '.join(finished)}.",
        note="mixed: modules of several types in one trial. Rungs are in epochs.",
        table=Table(
            columns=["kind", "trials", *order],
            rows=[[k, sum(table[k].values()), *(table[k][end] for end in order)] for k in kinds],
        ),
    )


def _ends(search: Search) -> dict[int, str]:
    """By the number of each trial, how it ended."""
    ends = {}
    for trial in search.trials:
        end = str(trial.state)
        if trial.state is State.PRUNED:
            rung = search.rung(trial)
            end = "pruned" if rung is None else f"pruned at {search.milestones[rung]:g}"
        ends[trial.number] = end
    return ends


def _looks(order: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and hatch of each end."""
    at_rungs = [end for end in order if end.startswith("pruned")]
    shades = ["#f6d58a", style.ORANGE, "#a06e00"]
    looks = {end: (shades[min(i, 2)], "") for i, end in enumerate(at_rungs)}
    return looks | {
        "complete": (style.BLUE, ""),
        "running": (style.PURPLE, ""),
        "infeasible": (style.PALE, "////"),
        "error": (style.INK, ""),
    }
