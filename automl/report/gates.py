"""Gate of each module at the end of training. A new module has a gate of 0 and is the identity."""

from collections import defaultdict
from statistics import median

import altair as alt

from automl.report import style
from automl.report.figure import Figure
from automl.report.plot import Plot, Table, absent
from automl.report.read import SearchData
from automl.report.site_effects import natural

NAME, TITLE = "gates", "Learned gates"
PREFIX = "gate."


def gates(search: SearchData) -> Plot:
    """Plot the absolute gate of each module of the finished trials after the last epoch, by site and type."""
    values_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    modules = 0
    for trial in search.done:
        last = trial.history[-1]
        for site, spec in trial.config.model.placement.items():
            modules += 1
            if PREFIX + site in last:
                values_of[site, spec.name].append(abs(last[PREFIX + site]))
    if not values_of:
        return absent(
            NAME,
            TITLE,
            "The gates were not recorded: this search was made before they were."
            if modules
            else "No trial with attention has completed yet.",
        )
    sites = sorted({site for site, _ in values_of}, key=natural)
    middles = {
        site: median([v for (s, _), vs in values_of.items() if s == site for v in vs]) for site in sites
    }
    kinds = style.order({kind for _, kind in values_of})
    rows = [
        {"site": site, "kind": kind, "gate": float(f"{value:.4g}")}
        for (site, kind), values in values_of.items()
        for value in values
    ]
    y = alt.Y("site:N", sort=sites, title=None, scale=alt.Scale(domain=sites))
    points = (
        alt.Chart(alt.NamedData("gates"))
        .mark_point(size=30)
        .encode(
            x=alt.X("gate:Q", title="|gate| after the last epoch; bar: median"),
            y=y,
            yOffset=alt.YOffset("kind:N", scale=alt.Scale(domain=kinds)),
            tooltip=["site:N", alt.Tooltip("kind:N", title="type"), alt.Tooltip("gate:Q", title="|gate|")],
            **style.by_kind(search, kinds, columns=2),
        )
    )
    bars = (
        alt.Chart(alt.NamedData("medians"))
        .mark_tick(thickness=2, color=style.INK)
        .encode(x="median:Q", y=y, tooltip=["site:N", alt.Tooltip("median:Q", title="median |gate|")])
    )
    figure = Figure(
        charts=[style.layer(points, bars, height=24 * len(sites) + 10)],
        data={
            "gates": rows,
            "medians": [{"site": site, "median": float(f"{v:.4g}")} for site, v in middles.items()],
        },
    )
    wide = max(middles, key=lambda site: middles[site])
    narrow = min(middles, key=lambda site: middles[site])
    count = sum(map(len, values_of.values()))
    return Plot(
        name=NAME,
        title=TITLE,
        figure=figure,
        says=(
            f"{count} module{'s' * (count > 1)} of finished trials. The median |gate| is largest "
            f"at {wide} ({middles[wide]:.2g}) and smallest at {narrow} ({middles[narrow]:.2g})."
        ),
        note="A module starts with a gate of 0, as the identity; a gate that stays near 0 was not used.",
        table=Table(
            columns=["site", "type", "modules", "median |gate|", "largest"],
            rows=[
                [site, kind, len(values), median(values), max(values)]
                for (site, kind), values in sorted(values_of.items(), key=lambda item: natural(item[0][0]))
            ],
        ),
    )
