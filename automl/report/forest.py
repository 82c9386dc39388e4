"""The verdict as a forest plot: each arm's difference from the baseline with its 95 % interval."""

from statistics import mean, stdev

from matplotlib.figure import Figure

from automl.report import style
from automl.report.confirmation import ReportedArm, ReportedComparison, ReportedVerdict
from automl.report.plot import Cell, Plot, Table, absent

TITLE = "Difference from the tuned baseline"

# The position of the interval: colour and marker, so that the colour alone says nothing.
_ABOVE, _BELOW, _AROUND = (style.BLUE, "o"), (style.RED, "v"), (style.GREY, "D")


def forest(verdict: ReportedVerdict) -> Plot:
    """Of the arms of a confirmation that have an interval yet."""
    shown = [c for c in verdict.comparisons if c.difference is not None and c.interval is not None]
    table = _table(verdict)
    if not shown:
        return absent("verdict", TITLE, "No arm has been compared with the baseline on two seeds yet.")
    with style.style():
        figure = _draw(shown, verdict)
    says = "; ".join(_sentence(c, verdict.unit) for c in shown)
    return Plot(
        name="verdict",
        title=TITLE,
        figure=figure,
        says=f"{says}. {verdict.seeds} paired seeds, {verdict.split} split.",
        note=(
            f"Dots are mean differences over paired seeds, bars their 95 % intervals. An interval right of 0 "
            f"is a gain, one left of it a loss; one within the grey band of ±{verdict.margin:g} "
            f"{verdict.unit} is no difference that matters. Thin lines are over seeds and test inputs."
        ),
        table=table,
    )


def _table(verdict: ReportedVerdict) -> Table:
    """The baseline, then each arm against it. Empty columns are left out."""
    columns = ["arm", verdict.unit, "95 % interval", "over inputs too", "p"]
    columns += [f"{verdict.split} {verdict.metric}", "steps", "time", "time ratio"]
    arms = {arm.name: arm for arm in verdict.arms}
    rows: list[list[Cell]] = [
        [f"baseline: {arm.name}" if not arm.name.startswith("baseline") else arm.name, *[None] * 4,
         *_measured(arm), None]
        for arm in verdict.arms
        if arm.role == "baseline"
    ]  # fmt: skip
    rows += [
        [
            _named(c),
            None if c.difference is None else f"{c.difference:+.2f}",
            _span(c.interval),
            _span(c.interval_inputs),
            _p(c),
            *(_measured(arms[c.arm]) if c.arm in arms else [None] * 3),
            None if c.time is None else f"{c.time:.2f}",
        ]
        for c in verdict.comparisons
    ]
    there = [i for i in range(len(columns)) if i == 0 or any(row[i] is not None for row in rows)]
    return Table(columns=[columns[i] for i in there], rows=[[row[i] for i in there] for row in rows])


def _measured(arm: ReportedArm) -> list[Cell]:
    """Its score with the spread over seeds, its steps and the time of a training, by the clock."""
    scores = list(arm.scores.values())
    score = None
    if scores:
        score = f"{mean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else "")
    steps, seconds = arm.mean_cost("steps"), arm.mean_cost("seconds")
    return [score, None if steps is None else f"{steps:.0f}", None if seconds is None else f"{seconds:.1f} s"]


def _span(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _sentence(c: ReportedComparison, unit: str) -> str:
    assert c.interval is not None
    return f"{_named(c)} {c.difference:+.2f} {unit}, {c.interval[0]:+.2f} to {c.interval[1]:+.2f}"


def _named(c: ReportedComparison) -> str:
    """The arm with its role, unless its name says that already."""
    return c.arm if c.role == "ablation" or ":" in c.arm else f"{c.role}: {c.arm}"


def _p(c: ReportedComparison) -> str | None:
    """Of a finalist, Holm's: it is one of several that could have won."""
    if c.p_holm is not None:
        return f"{c.p_holm:.2g} (Holm)"
    return None if c.p is None else f"{c.p:.2g}"


def _look(c: ReportedComparison) -> tuple[str, str]:
    assert c.interval is not None
    low, high = c.interval
    return _ABOVE if low > 0 else _BELOW if high < 0 else _AROUND


def _draw(shown: list[ReportedComparison], verdict: ReportedVerdict) -> Figure:
    figure = style.new(0.6 + 0.42 * len(shown))
    axes = figure.subplots()
    axes.axvspan(-verdict.margin, verdict.margin, color="#eeeeee", zorder=0)
    axes.axvline(0, color=style.INK, linewidth=0.8, zorder=1)
    for row, c in enumerate(shown):
        assert c.interval is not None
        assert c.difference is not None
        colour, marker = _look(c)
        if c.interval_inputs is not None:
            axes.plot(c.interval_inputs, [row, row], color=colour, linewidth=0.9, zorder=2)
        axes.plot(c.interval, [row, row], color=colour, linewidth=2.2, solid_capstyle="round", zorder=2)
        axes.plot([c.difference], [row], marker=marker, color=colour, markersize=6.5, zorder=3,
                  markeredgecolor="white", markeredgewidth=0.6)  # fmt: skip
        # The name stands above its own bar: long ones take no room from the axis.
        axes.annotate(
            style.brief(_named(c), 58), (0, row), xycoords=("axes fraction", "data"), xytext=(1, 7),
            textcoords="offset points", fontsize=7.4,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axes.set_ylim(len(shown) - 0.65, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    style.few_ticks(axes, x=6)
    axes.set_xlabel(f"{verdict.metric} minus the baseline's, {verdict.unit}")
    return figure
