"""Write docs/explanation/findings.md: where attention helps on Imagenette, by a search and a confirmation.

    make findings DATA=imagenette2-128.tgz

It goes on where it was ended. What is on the page, figures and sentences, is what the search and the
confirmation came to; nothing there is written by hand but the headings.
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
from automl.report.read import read_search
from automl.storage.folder import find_search
from search.study import open_study, read_history

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "findings.md"
NAME, STORAGE = "findings", "searches"
PARTS = 12  # rows of the table, the largest effects


def command(asked: argparse.Namespace) -> list[str]:
    return [
        "automl", "search", "--space", "nette", "--backbone", "xresnet18", "--size", "64",
        "--subset", str(asked.subset), "--epochs", str(asked.epochs), "--trials", str(asked.trials),
        "--confirm", "--top", str(asked.top), "--seeds", str(asked.seeds),
    ]  # fmt: skip


def found(asked: argparse.Namespace) -> dict[str, Any]:
    """What both came to, trained as far as it is not there yet."""
    options = ["--data", asked.data, "--name", NAME, "--resume", "auto"]
    value = _automl(*command(asked)[1:], *options)
    # What the controls come to is a finding, too, where there is no gain to explain.
    return {**value, "confirmation": _automl("confirm", "--search", NAME, "--controls")}


def _automl(*arguments: str) -> dict[str, Any]:
    """What a command printed as JSON."""
    automl = str(Path(sys.executable).parent / "automl")
    done = subprocess.run(
        [automl, *arguments, "--storage", STORAGE, "--json"], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def core_hours() -> float:
    """Of all epochs that were trained."""
    folder, metadata = find_search(NAME, STORAGE)
    studies = [open_study(folder, name=NAME)]
    studies += [open_study(place, name=study_name(place, metadata)) for place in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    return float(sum(metrics["seconds"] for metrics in history)) / 3600


def page(asked: argparse.Namespace, value: dict[str, Any]) -> str:
    search = read_search(NAME, STORAGE)
    verdict, effects = value["confirmation"], parts(search)
    lines = [
        "# Findings on Imagenette",
        "",
        f"Made by `make findings`: {asked.subset:.0%} of Imagenette's training images at 64 px, "
        f"{asked.epochs} epochs, {core_hours():.1f} core hours of training on {os.cpu_count()} cores "
        f"({processor()}).",
        "",
        "    " + " ".join(command(asked)) + " --data imagenette2-128.tgz",
        "    automl confirm --controls",
        "",
        "## Is it better than the tuned baseline at the same training time?",
        "",
        verdict["sentence"],
        "",
        *(f"- {one['sentence']}" for one in verdict["comparisons"]),
        *(f"- {remark}" for remark in verdict["remarks"]),
        "",
        "## Where attention helps",
        "",
        " ".join([effects.says, *effects.warnings]),
        "",
    ]
    if effects.table is not None:
        lines += table(effects.table.columns, effects.table.rows[:PARTS])
    lines += [
        "",
        "## The best trials of the search",
        "",
        f"{value['completed']} trials completed, {value['pruned']} were pruned. One training each, on "
        f"validation images; `expected` is what the model of placements makes of all trials together.",
        "",
        *table(
            ["trial", "placement", "accuracy", "expected"],
            [
                [one["number"], one["about"], one["value"], one["expected"]]
                for one in (told(trial) for trial in value["leading"])
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def told(trial: dict[str, Any]) -> dict[str, Any]:
    places = [f"{spec['type']} at {site}" for site, spec in trial["config"]["model"]["placement"].items()]
    return {**trial, "about": " + ".join(places) or "no attention", "expected": trial.get("expected")}


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
    asked = parser.parse_args()
    PAGE.write_text(page(asked, found(asked)), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
