"""Importance of choices by two of Optuna's evaluators, with the choices that only some trials have.

PED-ANOVA (S. Watanabe et al. (2023), arXiv 2304.10255, and its conditional form, arXiv 2601.20800) asks what
the best tenth has in common; it takes conditional choices as they are. fANOVA (F. Hutter et al. (2014)) asks
how much of the variance a choice explains; it knows only choices that every trial has, so each conditional
one is judged beside those within the trials that have it.
"""

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import (
    BaseImportanceEvaluator,
    FanovaImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)
from optuna.trial import create_trial

from automl.report import style
from automl.report.figure import Figure
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search, Trial
from automl.report.words import words

NAME, TITLE = "importance", "Importance of each choice"

LEAST = 4  # trials that an evaluator is asked about
ENOUGH = 10  # of them, for a choice that only some have: its share of few trials is whatever chance made it
MOST = 250  # trials that fANOVA is given; its cost grows faster than their number
TREES = 32


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Importance of one choice.

    Attributes:
        name: The name of the choice.
        count: The number of finished trials that have it.
        total: The number of finished trials.
        ped_anova: PED-ANOVA's fraction, or None with too few trials.
        fanova: fANOVA's fraction, or None with too few trials.
    """

    name: str
    count: int
    total: int
    ped_anova: float | None
    fanova: float | None

    @property
    def common(self) -> bool:
        """Return whether every finished trial has the choice."""
        return self.count == self.total

    @property
    def weight(self) -> float:
        """Return the sort key: fANOVA's fraction, weighted by the trials with the choice."""
        return (self.ped_anova or 0.0) + (self.fanova or 0.0) * self.count / self.total


def importances(search: Search) -> list[Importance]:
    """Return the importance of each choice that varies among finished trials, the largest first."""
    done = search.done
    if len(done) < LEAST:
        return []
    spans = domains(done)
    names = [name for name in spans if len({repr(t.params[name]) for t in done if name in t.params}) > 1]
    common = [name for name in names if all(name in trial.params for trial in done)]
    everywhere = _ask(PedAnovaImportanceEvaluator(), search, done, spans, names)
    together = _fanova(search, done, spans, common)
    result = []
    for name in names:
        having = [trial for trial in done if name in trial.params]
        if name in common:
            fanova = together.get(name)
        elif len(having) < ENOUGH:
            fanova = None
        else:
            beside = [c for c in common if len({repr(t.params[c]) for t in having}) > 1]
            fanova = _fanova(search, having, spans, [*beside, name]).get(name)
        result.append(
            Importance(
                name=name,
                count=len(having),
                total=len(done),
                ped_anova=everywhere.get(name),
                fanova=fanova,
            )
        )
    return sorted(result, key=lambda importance: -importance.weight)


def domains(trials: Sequence[Trial]) -> dict[str, BaseDistribution]:
    """Return one range for each parameter: the union of the trials' own ranges.

    A range that depends on an earlier choice, such as a site above the one before, differs between trials.
    The evaluators would take each range for a separate parameter.
    """
    spans: dict[str, BaseDistribution] = {}
    for trial in trials:
        for name, kind in trial.distributions.items():
            spans[name] = _span(spans[name], kind) if name in spans else kind
    return dict(sorted(spans.items()))


def _span(first: BaseDistribution, second: BaseDistribution) -> BaseDistribution:
    if first == second or isinstance(first, CategoricalDistribution):
        return first
    if isinstance(first, IntDistribution) and isinstance(second, IntDistribution):
        return IntDistribution(min(first.low, second.low), max(first.high, second.high), log=first.log)
    assert isinstance(first, FloatDistribution)
    assert isinstance(second, FloatDistribution)
    return FloatDistribution(min(first.low, second.low), max(first.high, second.high), log=first.log)


def _fanova(
    search: Search, trials: Sequence[Trial], spans: dict[str, BaseDistribution], names: Sequence[str]
) -> dict[str, float]:
    if len(trials) > MOST:
        trials = random.Random(0).sample(list(trials), MOST)
    return _ask(FanovaImportanceEvaluator(n_trees=TREES, seed=0), search, trials, spans, names)


def _ask(
    evaluator: BaseImportanceEvaluator,
    search: Search,
    trials: Sequence[Trial],
    spans: dict[str, BaseDistribution],
    names: Sequence[str],
) -> dict[str, float]:
    """Return the fraction of each name, which add up to 1. Return nothing if the evaluator has no result."""
    scores = {round(search.score(trial), 12) for trial in trials}
    if len(trials) < LEAST or len(scores) < 2 or not names:
        return {}
    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        # One metric, whatever the objectives; both evaluators then need no target.
        study = optuna.create_study(direction="maximize" if search.plan.metric.maximize else "minimize")
        for trial in trials:
            params = {key: value for key, value in trial.params.items() if key in names}
            study.add_trial(
                create_trial(
                    params=params,
                    distributions={key: spans[key] for key in params},
                    value=search.score(trial),
                )
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few trials; their number stands beside each bar
            fractions = get_param_importances(study, evaluator=evaluator, params=list(names), normalize=False)
    except (ValueError, RuntimeError, ZeroDivisionError):
        return {}  # Optuna's way to say that these trials do not suffice
    finally:
        optuna.logging.set_verbosity(loud)
    total = sum(fractions.values())
    if not math.isfinite(total) or total <= 0:
        return {}
    return {name: float(fraction) / total for name, fraction in fractions.items()}


def importance(search: Search, importances: Sequence[Importance]) -> Plot:
    """Plot PED-ANOVA as bars and fANOVA as diamonds."""
    shown = [i for i in importances if i.ped_anova is not None or i.fanova is not None]
    if not shown:
        return absent(
            NAME,
            TITLE,
            f"Optuna's evaluators cannot rank choices from {len(search.done)} finished trials: they need "
            f"{LEAST} or more that differ in their choices and scores.",
        )
    figure = _draw(shown)
    conditional = [i for i in shown if not i.common]
    top = ", ".join(f"{words(i.name)} ({_both(i)})" for i in shown[:3])
    says = f"The most important choices, by PED-ANOVA and fANOVA: {top}."
    if conditional:
        says += f" {len(conditional)} of {len(shown)} choices exist in some trials only."
    few = len(search.done) < 50
    return Plot(
        name=NAME, title=TITLE, figure=figure, says=says,
        note=(
            "Bars: PED-ANOVA, the share in what distinguishes the best tenth of finished trials. Diamonds: "
            f"fANOVA ({TREES} trees), the share of the explained variance. Paler: choices that only n "
            f"trials have; fANOVA judges each beside the common ones within those, from {ENOUGH} on."
            + (f" fANOVA is given {MOST} trials at most, drawn at random." if len(search.done) > MOST else "")
            + (f" Of {len(search.done)} finished trials, all of this is a rough guess." if few else "")
        ),
        table=Table(
            columns=["choice", "in", "finished trials", "PED-ANOVA", "fANOVA"],
            rows=[
                [words(i.name), "every trial" if i.common else "some trials", i.count, i.ped_anova, i.fanova]
                for i in shown
            ],
        ),
    )  # fmt: skip


def _both(item: Importance) -> str:
    values = [value for value in (item.ped_anova, item.fanova) if value is not None]
    return " and ".join(f"{value:.0%}" for value in values)


def _draw(shown: Sequence[Importance]) -> Figure:
    labels = {i.name: style.brief(words(i.name), 26) + ("" if i.common else f" (n={i.count})") for i in shown}
    order = list(labels.values())
    rows = [
        {
            "choice": labels[i.name],
            "by": by,
            "share": round(fraction, 4),
            "trials": i.count,
            "common": i.common,
        }
        for i in shown
        for by, fraction in (("PED-ANOVA", i.ped_anova), ("fANOVA", i.fanova))
        if fraction is not None
    ]
    axis = alt.Axis(labelLimit=190)
    base = alt.Chart(alt.NamedData("shares")).encode(
        x=alt.X("share:Q", title="share of the importance", axis=alt.Axis(format="%", tickCount=5)),
        y=alt.Y("choice:N", sort=order, title=None, scale=alt.Scale(domain=order), axis=axis),
        color=alt.Color("by:N", scale=style.named({"PED-ANOVA": style.SKY, "fANOVA": style.VERMILION})),
        tooltip=[
            alt.Tooltip("choice:N"), alt.Tooltip("by:N", title="evaluator"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
            alt.Tooltip("trials:Q", title="finished trials"),
        ],
    )  # fmt: skip
    bars = (
        base.transform_filter("datum.by === 'PED-ANOVA'")
        .mark_bar(height={"band": 0.66})
        .encode(opacity=alt.condition("datum.common", alt.value(1), alt.value(0.5)))
    )
    points = base.transform_filter("datum.by === 'fANOVA'").mark_point(shape="diamond", size=55)
    return Figure(charts=[style.layer(bars, points, height=19 * len(shown) + 12)], data={"shares": rows})
