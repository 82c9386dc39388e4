"""Ranks in the report of a code search, compared with figures computed in other ways."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.study import StudyDirection

from automl.confirm.protocol import study_name
from automl.confirm.statistics import reach_over_inputs
from automl.report.figure import save
from automl.report.forest import forest
from automl.report.per_class import per_class
from automl.report.ranks import BINS, interval, ranks
from automl.report.read import SearchData, read_search
from automl.report.run_report import sections, write_page
from automl.storage.trial_files import EXAMPLES, Answers, Example, select_examples
from automl.tasks.code_retrieval.config import MRR
from search.record import TrialRecord
from search.study import VARIANT, create_study, read_records
from tests.helpers.report_cases import SSA, frozen, made_up, plan_of, save_search, save_verdict, verdict_of

QUERIES = 400
SEED = 3  # of a made-up search whose best trial has attention
PLAN: dict[str, Any] = {"metric": MRR, "objectives": ["mrr"]}


def make_search(storage: Path, count: int = 60) -> SearchData:
    plan = plan_of(**PLAN)
    save_search(storage, made_up(count, plan=plan, seed=SEED), plan=plan)
    return read_search("made-up", str(storage))


def drawn(seed: int, *, first: float = 0.3) -> np.ndarray:
    """Ranks of a made-up model; `first` of them, or a few more, are 1."""
    generator = np.random.default_rng(seed)
    ranks = np.ceil(1000 ** generator.random(QUERIES)).astype(np.int64)
    return np.where(generator.random(QUERIES) < first, 1, ranks)


def answers_of(ranks: np.ndarray) -> Answers:
    examples = [
        Example(
            query=f"close <b>{i}</b>\n now", wanted=f"f{i} (a.py:{i})", rank=int(ranks[i]), first="g (b.py:1)"
        )
        for i in select_examples(ranks)
    ]
    return Answers(values=1 / ranks, examples=examples)


def leave(search: SearchData, trial: TrialRecord | None, ranks: np.ndarray) -> None:
    answers_of(ranks).save(search.metadata.location / trial.folder)


def test_the_mean_and_the_shares_are_those_of_the_ranks(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    assert ranks(search) == [], "no trial has left its answers"
    of = {"best": drawn(1), "baseline": drawn(2, first=0.1)}
    leave(search, search.best, of["best"])
    leave(search, search.baseline, of["baseline"])
    (section,) = ranks(search)
    assert "on the validation split" in section.lead
    plot, hits, misses = section.plots
    assert plot.figure is not None
    assert len(plot.table.rows) == 2
    for row, ranks_of in zip(plot.table.rows, of.values(), strict=True):
        _, seeds, queries, mean, low, high, middle, *fractions = row
        assert (seeds, queries) == (1, QUERIES)
        assert mean == pytest.approx(sum(1 / int(rank) for rank in ranks_of) / QUERIES, rel=1e-6)
        assert f"MRR {mean:.4f} (95 % CI {low:.4f} to {high:.4f} over queries)" in plot.says
        assert middle == np.median(ranks_of)
        counts, _ = np.histogram(ranks_of, [low for low, _ in BINS] + [np.inf])
        assert fractions == pytest.approx(counts / QUERIES)
    assert len(hits.table.rows) + len(misses.table.rows) == EXAMPLES
    worst = misses.table.rows[-1]
    assert worst[2] == of["best"].max()
    assert "\n" not in str(worst[0])


def test_no_ranks_of_classes_and_no_classes_of_ranks(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    leave(search, search.best, drawn(1))
    assert per_class(search) == []
    labels = Answers(
        labels=["cat"], true=np.zeros(3, np.int64), answered=np.zeros(3, np.int64), values=np.ones(3)
    )
    labels.save(search.metadata.location / search.best.folder)
    assert ranks(search) == []
    assert len(per_class(search)) == 1


@pytest.mark.parametrize("seeds", [1, 6, 20])
def test_the_bootstrap_agrees_with_the_closed_form(seeds: int) -> None:
    """On values with effects of seeds and of queries, for which `reach_over_inputs` has it."""
    generator = np.random.default_rng(seeds)
    of_seed, of_query = 0.02 * generator.standard_normal(seeds), 0.3 * generator.standard_normal(QUERIES)
    values = 0.5 + of_seed[:, None] + of_query + 0.02 * generator.standard_normal((seeds, QUERIES))
    low, high = interval(values)
    assert low < values.mean() < high
    # A bootstrap of n has (n - 1) / n of the variance, and the closed form a quantile of t, which is wider.
    assert (high - low) / 2 == pytest.approx(reach_over_inputs(values), rel=0.25 if seeds == 6 else 0.1)
    assert interval(values) == (low, high)


def test_more_seeds_do_not_make_up_for_few_queries() -> None:
    reciprocal = 1 / drawn(0)[None, :20]
    low, high = interval(reciprocal)
    again = interval(np.repeat(reciprocal, 50, axis=0))
    assert again == pytest.approx((low, high), abs=0.1 * (high - low))


def test_the_interval_covers_the_truth() -> None:
    """In about 95 % of made-up trainings with seeds and queries that are drawn anew."""
    inside = 0
    for repetition in range(50):
        generator = np.random.default_rng(repetition)
        values = 0.5 + 0.03 * generator.standard_normal((12, 1)) + 0.2 * generator.standard_normal((1, 150))
        low, high = interval(values + 0.05 * generator.standard_normal((12, 150)))
        inside += low <= 0.5 <= high
    assert inside >= 42


def test_trials_that_differ_by_the_seed_alone_count_together(tmp_path: Path) -> None:
    plan = plan_of(**PLAN)
    trials = made_up(40, plan=plan)
    save_search(tmp_path / "one", trials, plan=plan)
    best = read_search("made-up", str(tmp_path / "one")).best
    record = best
    again = frozen(
        {}, {}, record.config.change(seed=77), plan, best.state,
        [{**metrics, "mrr": metrics["mrr"] - 0.01} for metrics in record.history],
    )  # fmt: skip
    save_search(tmp_path / "two", [*trials, again], plan=plan)
    search = read_search("made-up", str(tmp_path / "two"))
    assert search.best.number == best.number
    leave(search, search.best, drawn(1))
    leave(search, search.trials[-1], drawn(2))
    (section,) = ranks(search)
    table = section.plots[0].table
    assert table.rows[0][1] == 2
    assert table.rows[0][3] == pytest.approx(np.mean([1 / drawn(1), 1 / drawn(2)]), rel=1e-6)
    assert section.plots[0].warnings, "two seeds do not show their spread"


def test_a_confirmation_is_on_the_test_split_over_its_seeds(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    assert search.best is not None
    leave(search, search.best, drawn(1))
    value = verdict_of(metric="mrr", unit="mrr", margin=0.01)
    file = save_verdict(search.folder, value)
    folder = file.parent
    plan = plan_of(**PLAN)
    name = study_name(folder, search.metadata)
    study = create_study(folder, name=name, directions=[StudyDirection.MAXIMIZE])
    seeds = [1000 + i for i in range(6)]
    for variant in (SSA, "baseline"):
        for seed in seeds:
            record = search.best
            trial = frozen({}, {}, record.config.change(seed=seed), plan, record.state, record.history)
            trial.set_user_attr(VARIANT, variant)
            study.add_trial(trial)
    for record in read_records(folder, name):
        answers_of(drawn(record.config.seed, first=0.5 if record.variant == SSA else 0.2)).save(
            search.metadata.location / folder.name / record.folder
        )
    search = read_search("made-up", str(tmp_path))
    (section,) = ranks(search)
    assert "on the test split" in section.lead
    table = section.plots[0].table
    assert [row[1] for row in table.rows] == [6, 6]
    expected = np.mean([1 / drawn(seed, first=0.5) for seed in seeds])
    assert table.rows[0][3] == pytest.approx(expected, rel=1e-6)
    assert "over queries and 6 seeds" in section.plots[0].says


def test_the_page_has_ranks_hits_and_misses(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    leave(search, search.best, drawn(1))
    leave(search, search.baseline, drawn(2))
    page = write_page(search, None, sections(search))
    for text in ("What was found", "came first", "close &lt;b&gt;", "MRR"):
        assert text in page
    assert "close <b>" not in page
    figure = ranks(search)[0].plots[0].figure
    assert figure is not None
    save(figure, tmp_path, "ranks")
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")


def test_the_verdict_of_mrr_is_not_rounded_away(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    value = verdict_of(metric="mrr", unit="mrr", margin=0.01)
    for comparison in value["comparisons"]:
        comparison["difference"], comparison["interval"] = 0.0123, [0.0021, 0.0225]
    save_verdict(search.folder, value)
    shown = read_search("made-up", str(tmp_path))
    assert "+0.012 mrr, +0.002 to +0.022" in forest(shown.verdicts[0], shown.plan.metric).says
