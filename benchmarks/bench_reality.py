"""Judge the recorded trainings of published attention modules, and write their page.

Each module of `record_reality.py` is compared with the plain model, seed by seed, at equal time: p is the
verdict's (`automl.judge.statistics.paired`), and Holm's procedure covers all modules of a column. Takes a
second:

    python benchmarks/bench_reality.py

A module that was given up, because a gain was out of sight, keeps its place in the family.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import record_reality
from harness import write_values
from record_reality import differences, read, record_name, scores_of
from scipy.stats import spearmanr

from automl.tasks.image_classification.reality import BETTER, LOST, MISFIT, MOST, NAMES, OPEN, WORSE
from automl.tasks.image_classification.reality import judge as judge_rows
from automl.tasks.image_classification.study import COLUMNS, ROWS
from automl.tasks.image_classification.study import NOTHING as PLAIN

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "reality-check.md"
TITLES: Mapping[str, str] = {"nette": "Imagenette", "few": "few images", "lookup": "look-ups"}
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def judge(rows: list[dict[str, Any]], column: str) -> dict[str, dict[str, Any]]:
    """Return the facts of each module of a column, by its name."""
    facts: dict[str, dict[str, Any]] = {}
    compared = {}
    for module in ROWS:
        name = NAMES.get(module, module)
        own = [row for row in rows if (row["column"], row["module"]) == (column, record_name(module))]
        if not own or any(row["why"] for row in own):
            facts[name] = {"outcome": MISFIT, "why": own[0]["why"] if own else "not trained yet"}
            continue
        d = compared[name] = differences(rows, column, module)
        facts[name] = {
            "seeds": len(d),
            "difference": round(float(d.mean()), 2),
            "ratio": round(own[0]["ratio"], 2),
            "steps": own[0]["steps"],
            "ahead": int((d > 0).sum()),
            "differences": d.round(2).tolist(),
        }
    for name, judged in judge_rows(compared, family=len(ROWS)).items():
        facts[name]["outcome"] = judged.outcome
        if judged.test is not None:
            interval = [round(end, 2) for end in judged.test.bounds or ()]
            facts[name] |= {"p": round(judged.test.p, 4), "interval": interval, "p_holm": round(judged.p, 4)}
    return facts


def cell(fact: Mapping[str, Any]) -> str:
    """Return the text of one module in one column."""
    if fact["outcome"] == MISFIT:
        return "does not fit"
    span = f"{min(fact['differences']):.2f} to {max(fact['differences']):.2f}"
    outcome = fact["outcome"] if fact["outcome"] not in (BETTER, WORSE) else f"**{fact['outcome']}**"
    ahead = f"{fact['ahead']} of {fact['seeds']}"
    return f"{fact['difference']:+.2f} ({span}), {ahead}, {fact['ratio']:.2f} times, {outcome}"


def table(columns: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the table of the page in Markdown."""
    lines = [
        BEGIN,
        f"| module | {' | '.join(TITLES[c] for c in columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for module in ROWS:
        name = NAMES.get(module, module)
        lines.append(
            f"| {name}: {ROWS[module]} | {' | '.join(cell(facts[name]) for facts in columns.values())} |"
        )
    return "\n".join([*lines, END])


def main() -> None:
    rows = read()
    columns = {column: judge(rows, column) for column in TITLES}
    plain = {
        column: {
            "rate": next(
                r["rate"] for r in rows if r["column"] == column and r["seed"] < record_reality.TUNING
            ),
            "accuracy": round(float(np.mean(list(scores_of(rows, column, PLAIN).values()))), 2),
            "seeds": len(scores_of(rows, column, PLAIN)),
        }
        for column in TITLES
    }
    hours = round(sum(row["processor_seconds"] for row in rows) / 3600, 2)
    listed = {column: [{"module": n, **f} for n, f in facts.items()] for column, facts in columns.items()}
    outcomes = [fact["outcome"] for facts in columns.values() for fact in facts.values()]
    counts = {outcome: outcomes.count(outcome) for outcome in (BETTER, WORSE, LOST, OPEN, MISFIT)}
    correlations = {}  # of the cost of a step and the difference, over the modules of a column
    for column, facts in columns.items():
        known = [fact for fact in facts.values() if "ratio" in fact]
        ranked = spearmanr([fact["ratio"] for fact in known], [fact["difference"] for fact in known])
        correlations[column] = round(float(ranked.statistic), 2)
    values = {"most_seeds": MOST, "hours": hours, "trainings": len(rows), "plain": plain, "counts": counts}
    write_values("reality", {**values, "correlations": correlations, "modules": len(ROWS), "columns": listed})
    if PAGE.exists():
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(before + table(columns) + after, encoding="utf-8")
    assert set(COLUMNS) == set(TITLES)


if __name__ == "__main__":
    main()
