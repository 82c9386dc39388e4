"""Write docs/explanation/findings.md: where attention helps on Imagenette, by a search and a confirmation.

    make findings DATA=imagenette2-128.tgz

It resumes a search that was stopped. All figures on the page are in its record, which it writes, too.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from automl.config.device import processor
from automl.judge.protocol import confirmations, study_name
from automl.report.module_effects import parts
from automl.search.run_search import load
from automl.storage.folder import find_search
from search.study import open_study, read_history

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "findings.md"
RECORD = ROOT / "benchmarks" / "results" / "findings.json"
NAME, STORAGE = "findings", "searches"
EFFECTS = 12  # rows of the table, the largest effects


def make_command(options: argparse.Namespace) -> list[str]:
    return [
        "automl", "search", "--space", "nette", "--backbone", "xresnet18", "--size", "64",
        "--subset", str(options.subset), "--epochs", str(options.epochs), "--trials", str(options.trials),
        "--confirm", "--top", str(options.top), "--seeds", str(options.seeds),
    ]  # fmt: skip


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train what is missing. Return the result of the search, with that of its confirmation."""
    command = [*make_command(options)[1:], "--data", options.data, "--name", NAME, "--resume", "auto"]
    result = run_command(*command)
    # The controls are of interest here even where there is no gain to explain.
    return {**result, "confirmation": run_command("confirm", "--search", NAME, "--controls")}


def run_command(*arguments: str) -> dict[str, Any]:
    """Run a command of `automl` and return what it printed as JSON."""
    automl = str(Path(sys.executable).parent / "automl")
    process = subprocess.run(
        [automl, *arguments, "--storage", STORAGE, "--json"], stdout=subprocess.PIPE, text=True
    )
    if process.returncode:
        raise SystemExit(process.returncode)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def measure_core_hours() -> float:
    """Return the core hours of all epochs that were trained."""
    folder, metadata = find_search(NAME, STORAGE)
    studies = [open_study(folder, name=NAME)]
    studies += [open_study(path, name=study_name(path, metadata.name)) for path in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    return float(sum(metrics["seconds"] for metrics in history)) / 3600


def make_record(options: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    """Return all that the page shows."""
    effects = parts(load(NAME, storage=STORAGE))
    table = effects.table
    return {
        "name": "findings",
        "command": " ".join(make_command(options)),
        "device": f"{os.cpu_count()} cores, {processor()}",
        "subset": options.subset,
        "epochs": options.epochs,
        "core_hours": measure_core_hours(),
        "confirmation": select_shown(result["confirmation"]),
        "says": " ".join([effects.says, *effects.warnings]),
        "columns": list(table.columns) if table else [],
        "effects": [list(row) for row in table.rows[:EFFECTS]] if table else [],
        "completed": result["completed"],
        "pruned": result["pruned"],
        "leading": [
            [trial["number"], show_placement(trial), trial["value"], trial.get("expected")]
            for trial in result["leading"]
        ],
    }


def select_shown(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a verdict."""
    shown = {key: verdict[key] for key in ("headline", "p", "seeds", "unit", "remarks")}
    shown["comparisons"] = [
        {
            "variant": row["variant"],
            "role": row["role"],
            "difference": row["difference"]["mean"],
            "interval": row["difference"]["interval"],
            "interval_inputs": row["images"],
            "time_ratio": row["time"] and row["time"]["mean"],
        }
        for row in verdict["comparisons"]
    ]
    return shown


def make_page(record: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Findings on Imagenette",
        "",
        f"Made by `make findings`: {record['subset']:.0%} of Imagenette's training images at 64 px, "
        f"{record['epochs']} epochs, {record['core_hours']:.1f} hours of training over all cores "
        f"({record['device']}). {name_record('subset', 'core_hours')}",
        "",
        f"    {record['command']} --data imagenette2-128.tgz",
        "    automl confirm --controls",
        "",
        "## Is it better than the tuned baseline at the same training time?",
        "",
        *write_verdict(record["confirmation"]),
        "",
        "## Where attention helps",
        "",
        f"{record['says']} {name_record('says')}",
        "",
        name_record("effects/*"),
        "",
        *table(record["columns"], record["effects"]),
        "",
        "## The best trials of the search",
        "",
        f"{record['completed']} trials completed, {record['pruned']} were pruned. One training each, on "
        f"validation images. `expected` is the score that the model of placements expects from all trials.",
        "",
        name_record("leading/*"),
        "",
        *table(["trial", "placement", "accuracy", "expected"], record["leading"]),
    ]
    return "\n".join(lines) + "\n"


def name_record(*paths: str) -> str:
    """Return the comment that names where figures are recorded, for `figures.py`."""
    return f"<!-- record: {RECORD.name}:{'; '.join(paths)} -->"


def write_verdict(verdict: dict[str, Any]) -> list[str]:
    """Return the headline, a table of the variants and the remarks."""
    return [
        f"**{verdict['headline']}.** p = {verdict['p']:.2g}, {verdict['seeds']} paired seeds. Differences "
        f"are from the tuned baseline, in {verdict['unit']}. "
        f"{name_record('confirmation/headline', 'confirmation/p')}",
        "",
        name_record("confirmation/comparisons/*"),
        "",
        *table(
            ["variant", "role", "difference", "95 % CI", "over seeds and test examples", "time ratio"],
            [
                [
                    comparison["variant"],
                    comparison["role"],
                    f"{comparison['difference']:+.2f}",
                    show_interval(comparison["interval"]),
                    show_interval(comparison["interval_inputs"]),
                    comparison["time_ratio"] and f"{comparison['time_ratio']:.2f}",
                ]
                for comparison in verdict["comparisons"]
            ],
        ),
        "",
        *(
            f"- {remark} {name_record(f'confirmation/remarks/{i}')}"
            for i, remark in enumerate(verdict["remarks"])
        ),
    ]


def show_interval(interval: Sequence[float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def show_placement(trial: dict[str, Any]) -> str:
    placement = trial["config"]["model"]["placement"]
    return " + ".join(f"{spec['type']} @ {site}" for site, spec in placement.items()) or "no attention"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)

    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="Imagenette: its archive or folder")
    parser.add_argument("--subset", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--top", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    record = make_record(options, train(options))
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(make_page(record), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
