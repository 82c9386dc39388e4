"""Effect of each module on the score, by the model of placements, with a check that scores can rank them.

Where attention belongs, and which. The model separates the effects of several modules of a trial and its
hyperparameters, with intervals. A mean over the trials with a module would mix them.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil, isfinite

import altair as alt

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import Figure, Plot, Table, absent
from automl.report.read import SearchData
from search.placement_effects import Term, parse_placement
from search.placement_posterior import EffectRow, Posterior, estimate_posterior
from search.study import open_study

NAME, TITLE = "parts", "What parts of placements add"
SHOWN = 14  # effects in the figure, the largest ones
MOST = 400  # finished trials beyond which the model takes too long for a page

Sites = dict[tuple[str, int], str]


def parts(search: SearchData) -> Plot:
    """Plot effects with 90 % intervals, and name the placements that are expected to be best."""
    if len(search.done) > MOST:
        return absent(NAME, TITLE, f"{len(search.done)} trials are more than the {MOST} it is computed for.")
    metric = search.plan.metric
    study = open_study(search.folder, name=search.metadata.name)
    try:
        posterior = estimate_posterior(study, margin=metric.margin / metric.scale)
    except InputError as error:
        return absent(NAME, TITLE, f"{str(error)[0].upper()}{str(error)[1:]}.")
    sites: Sites = {}
    for trial in search.trials:
        placement, names = parse_placement(trial.params), list(trial.config.model.placement)
        if placement is not None and len(names) == len(placement.modules):
            for module, name in zip(placement.modules, names, strict=True):
                sites[placement.prefix, module.site] = name
    rows = _name_effects(posterior.effects, sites)
    if not rows:
        return absent(NAME, TITLE, "No trial with attention has completed.")
    counts = ""
    if posterior.coefficient is not None:
        mean, low, high = posterior.coefficient
        span = f"{mean:.2f} ({low:.2f} to {high:.2f})"
        counts = f" The layers' sensitivity counts {span}: 1 is fully, 0 not at all."
    scale = search.plan.metric.scale
    table = Table(
        columns=["part", f"adds, {search.plan.metric.gap_unit}", "from", "to", "trials"],
        rows=[[name, scale * row.mean, scale * row.low, scale * row.high, row.trials] for name, row in rows],
    )
    return Plot(
        name=NAME,
        title=TITLE,
        figure=_draw(search, rows[:SHOWN]),
        says=f"{_verdict(search, posterior)} {_best(search, posterior, sites)}{counts}",
        warnings=[_audit(posterior)] if _audit(posterior) else [],
        table=table,
        note=(
            "Means and 90 % intervals of a Gaussian model in which a score is the sum of what sites, types, "
            "both together, options and pairs of them add, beside hyperparameters. Above 0 is better."
        ),
    )


def _verdict(search: SearchData, posterior: Posterior) -> str:
    sentence = posterior.verdict.replace(
        f"{posterior.margin:g}",
        f"{search.plan.metric.scale * posterior.margin:.3g} {search.plan.metric.gap_unit}",
    )
    return f"{sentence[0].upper()}{sentence[1:]}."


def _best(search: SearchData, posterior: Posterior, sites: Sites) -> str:
    first = posterior.placements[0]
    where = " + ".join(
        f"{module.type} at {sites.get((first.placement.prefix, module.site), module.site)}"
        for module in first.placement.modules
    )
    adds = f"{search.gap(search.plan.metric.scale * first.mean)}"
    span = f"{search.plan.metric.scale * first.low:+.3g} to {search.plan.metric.scale * first.high:+.3g}"
    trials = pluralize(first.trials, "trials")
    return f"Highest expectation: {where or 'no attention'}, {adds} ({span}) in {trials}."


def _audit(posterior: Posterior) -> str:
    """Return a warning if single scores cannot rank placements."""
    if posterior.reliability >= 0.5:
        return ""
    needed = (posterior.noise / posterior.spread) ** 2 if posterior.spread else float("inf")
    how = (
        f"it would take about {ceil(needed)} of each"
        if isfinite(needed) and needed < 1000
        else "no number of seeds that one could train would"
    )
    return (
        f"One seed cannot rank these placements: {posterior.reliability:.0%} of the variance of a score is "
        f"the placement's, the rest is the seed's; {how} for half."
    )


def _name_effects(effects: Sequence[EffectRow], sites: Sites) -> list[tuple[str, EffectRow]]:
    """Pair each effect with a name of its own. Sites of several backbones may have equal names."""
    titles = [_title(row, sites) for row in effects]
    count = Counter(titles)
    return [
        (f"{title} ({row.key[0]})" if count[title] > 1 and isinstance(row.key, tuple) else title, row)
        for title, row in zip(titles, effects, strict=True)
    ]


def _title(row: EffectRow, sites: Sites) -> str:
    """Return the name of an effect in words."""
    key = row.key
    if row.term == Term.COST or not isinstance(key, tuple):
        return "each module" if row.term == Term.COST else f"{key}"

    def site(index: object) -> str:
        return sites.get((key[0], index), f"site {index}")  # type: ignore[arg-type]

    if row.term == Term.SITE:
        return site(key[1])
    if row.term == Term.CELL:
        return f"{key[2]} at {site(key[1])}"
    if row.term == Term.OPTION:
        return f"{key[0]}, {key[1]} {key[2]}"
    if row.term == Term.PAIR and len(key) == 3:
        return f"{site(key[1])} with {site(key[2])}"
    return " with ".join(map(str, key)) if row.term in (Term.PAIR, Term.TYPE) else str(key)


def _draw(search: SearchData, shown: list[tuple[str, EffectRow]]) -> Figure:
    scale = search.plan.metric.scale
    rows = [
        {
            "part": name, "short": style.brief(name, 46), "mean": scale * row.mean, "low": scale * row.low,
            "high": scale * row.high, "trials": row.trials,
            "interval": f"{scale * row.low:+.3g} to {scale * row.high:+.3g}",
        }
        for name, row in shown
    ]  # fmt: skip
    title = f"adds, {search.plan.metric.gap_unit}"
    y = alt.Y("part:N", sort=[name for name, _ in shown], axis=None)
    x = alt.X("mean:Q", title=title, axis=alt.Axis(tickCount=6))
    tips = [
        alt.Tooltip("part:N"), alt.Tooltip("mean:Q", title=search.plan.metric.gap_unit, format="+.3g"),
        alt.Tooltip("interval:N", title="90 % interval"), alt.Tooltip("trials:Q"),
    ]  # fmt: skip
    base = style.chart("parts").encode(y=y, tooltip=tips)
    bars = base.mark_rule(strokeWidth=3, color=style.BLUE).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(size=60, color=style.BLUE).encode(x=x)
    names = base.mark_text(align="left", dy=-12).encode(x=alt.value(2), text="short:N")
    zero = style.chart("nothing").mark_rule(opacity=0.5).encode(x=x)
    return Figure(
        charts=[style.layer(zero, bars, points, names, height=36 * len(shown))],
        data={"parts": rows, "nothing": [{"mean": 0}]},
    )
