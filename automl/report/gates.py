"""How far each module's gate has opened: new ones are the identity, with a gate of 0."""

from collections import defaultdict
from statistics import median

from automl.report import style
from automl.report.placement import natural
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search

NAME, TITLE = "gates", "Learned gates"
PREFIX = "gate."


def gates(search: Search) -> Plot:
    """|gate| after the last epoch of each module of the finished trials, by site and type."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    modules = 0
    for trial in search.done:
        last = trial.record.history[-1]
        for site, spec in trial.record.config.model.placement.items():
            modules += 1
            if PREFIX + site in last:
                found[site, spec.type].append(abs(last[PREFIX + site]))
    if not found:
        return absent(
            NAME,
            TITLE,
            "The gates were not recorded: this search was made before they were."
            if modules
            else "No trial with attention has completed yet.",
        )
    sites = sorted({site for site, _ in found}, key=natural)
    middles = {site: median([v for (s, _), vs in found.items() if s == site for v in vs]) for site in sites}
    with style.style():
        kinds = {kind for _, kind in found}
        figure = style.new(0.65 + 0.18 * len(sites) + 0.16 * ((len(kinds) + 4) // 4))
        axes = figure.subplots()
        for kind in style.order(kinds):
            points = [(v, sites.index(s)) for (s, k), values in found.items() if k == kind for v in values]
            # Types stand beside each other on their site's line, so that none hides another.
            shift = (
                0.5 * (style.order(kinds).index(kind) / max(1, len(kinds) - 1) - 0.5) if len(kinds) > 1 else 0
            )
            style.marks(axes, [x for x, _ in points], [y + shift for _, y in points], kind, markersize=4.5)
        for site, middle in middles.items():
            row = sites.index(site)
            axes.plot([middle, middle], [row - 0.38, row + 0.38], color=style.INK, linewidth=1.2, zorder=2)
        axes.set_yticks(range(len(sites)), [style.brief(site, 21) for site in sites])
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.set_xlim(left=-0.02 * axes.get_xlim()[1])  # a gate of 0 is a point like any other
        style.few_ticks(axes, x=5)
        axes.set_xlabel("|gate| after the last epoch; bar: median")
        style.kind_legend(figure, kinds)
    wide = max(middles, key=lambda site: middles[site])
    narrow = min(middles, key=lambda site: middles[site])
    count = sum(map(len, found.values()))
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
                for (site, kind), values in sorted(found.items(), key=lambda item: natural(item[0][0]))
            ],
        ),
    )
