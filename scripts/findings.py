"""Write docs/explanation/findings.md: where attention helps on Imagenette, by a search and a confirmation.

    make findings DATA=imagenette2-128.tgz

It resumes a search that was stopped. All figures on the page are results of the search and the confirmation.
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
from automl.confirm.protocol import confirmations, study_name
from automl.report.module_effects import parts
from automl.search.search import load
from automl.storage.folder import find_search
from search.study import open_study, read_history

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "findings.md"
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
    studies += [open_study(path, name=study_name(path, metadata)) for path in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    return float(sum(metrics["seconds"] for metrics in history)) / 3600


def write_page(options: argparse.Namespace, result: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    effects = parts(load(NAME, storage=STORAGE))
    lines = [
        "# Findings on Imagenette",
        "",
        f"Made by `make findings`: {options.subset:.0%} of Imagenette's training images at 64 px, "
        f"{options.epochs} epochs, {measure_core_hours():.1f} core hours of training on "
        f"{os.cpu_count()} cores ({processor()}).",
        "",
        "    " + " ".join(make_command(options)) + " --data imagenette2-128.tgz",
        "    automl confirm --controls",
        "",
        "## Is it better than the tuned baseline at the same training time?",
        "",
        *write_verdict(result["confirmation"]),
        "",
        "## Where attention helps",
        "",
        " ".join([effects.says, *effects.warnings]),
        "",
    ]
    if effects.table is not None:
        lines += table(effects.table.columns, effects.table.rows[:EFFECTS])
    lines += [
        "",
        "## The best trials of the search",
        "",
        f"{result['completed']} trials completed, {result['pruned']} were pruned. One training each, on "
        f"validation images. `expected` is the score that the model of placements expects from all trials.",
        "",
        *table(
            ["trial", "placement", "accuracy", "expected"],
            [
                [trial["number"], show_placement(trial), trial["value"], trial.get("expected")]
                for trial in result["leading"]
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def write_verdict(verdict: dict[str, Any]) -> list[str]:
    """Return the headline, a table of the variants and the remarks."""
    return [
        f"**{verdict['headline']}.** p = {verdict['p']:.2g}, {verdict['seeds']} paired seeds. Differences "
        f"are from the tuned baseline, in {verdict['unit']}.",
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
                    comparison["time"] and f"{comparison['time']['ratio']:.2f}",
                ]
                for comparison in verdict["comparisons"]
            ],
        ),
        "",
        *(f"- {remark}" for remark in verdict["remarks"]),
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
    PAGE.write_text(write_page(options, train(options)), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
