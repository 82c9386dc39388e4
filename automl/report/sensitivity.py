"""The effect of replacing one layer of a trained decoder, beside that of placements that were trained."""

from scipy.stats import spearmanr

from automl.base.serialise import read_json
from automl.report import style
from automl.report.plot import Plot, Table
from automl.report.read import SearchData
from automl.report.site_effects import Effect, draw_cells, effects, natural

NAME, TITLE = "sensitivity", "Effect of one layer without training"
LEAST = 4  # cells of a rank correlation


def sensitivity(search: SearchData) -> list[Plot]:
    """Plot the one-layer sensitivity, if the search has measured it."""
    from automl.tasks.layer_sensitivity import FILE, FORMAT, Sensitivity  # imports torch, which takes seconds

    if not (file := search.folder / FILE).exists():
        return []
    measured = read_json(Sensitivity, file, format=FORMAT)
    scale = search.sign * search.factor
    cells = {
        (site, kind): Effect(
            mean=scale * (score - measured.original), score=search.factor * score, spread=None, count=1
        )
        for site, scores in measured.replaced.items()
        for kind, score in scores.items()
    }
    trained, _ = effects(search)
    both = [cell for cell in cells if cell in trained]
    best, worst = (choose(cells, key=lambda cell: cells[cell].mean) for choose in (max, min))
    says = (
        f"Least sensitive: {best[0]} as {best[1]}, {search.gap(cells[best].mean)}; most: {worst[0]} as "
        f"{worst[1]}, {search.gap(cells[worst].mean)}."
    )
    if len(both) >= LEAST:
        rho = spearmanr(*([values[cell].mean for cell in both] for values in (cells, trained))).statistic
        says += (
            f" Rank correlation with the mean effects in trained placements: {rho:.2f}, {len(both)} cells."
        )
    rows = [
        [*cell, effect.mean, trained[cell].mean if cell in trained else None]
        for cell, effect in sorted(cells.items(), key=lambda item: natural(item[0][0]))
    ]
    return [
        Plot(
            name=NAME,
            title=TITLE,
            figure=draw_cells(
                search,
                cells,
                sorted(measured.replaced, key=natural),
                style.order({kind for _, kind in cells}),
            ),
            says=says,
            note=(
                f"The score of the original with one layer replaced, minus the original's, on "
                f"{measured.windows} windows of the validation split. The new mixer has the projections of "
                f"the old one, and nothing was trained. This is the usual heuristic for the choice of layers."
            ),
            table=Table(
                columns=["site", "type", f"alone, {search.unit}", f"mean in trials, {search.unit}"], rows=rows
            ),
        )
    ]
