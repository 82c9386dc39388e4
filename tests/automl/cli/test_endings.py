"""The ending of a command is lines that fit a screen of 24 rows of 100 characters."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import automl
from automl.base.terminal import COLUMNS, ROWS, count_rows
from automl.cli import folder_commands, judge_commands, main, search_command, train_command
from automl.cli.tables import cost_table
from automl.costs.profile import ModelCost
from automl.export.checks import Speed
from automl.export.export_result import ExportResult
from automl.judge.design import COMMANDS
from automl.judge.protocol import CONFIRM_FILE
from automl.judge.verdict import ConfirmResult, Verdict
from automl.search.solve import SolvedPoint, SolveResult
from automl.tasks.command import COMMAND, CommandModel, CommandTraining
from automl.tasks.command.run_ledger import LedgerResult
from automl.trials.train import TrainResult
from search.class_metrics import ACCURACY, LOSS
from search.config import TrialConfig
from tests.helpers.report_cases import made_up, save_search, save_verdict, verdict_of
from tests.helpers.units import foreign_units

LONG = "The explanation of a verdict, in a sentence that is as long as the longest of those of the rules."
FACTS: dict[str, Any] = {
    "original": LONG,
    "gate": 0.3,
    "settling": 40,
    "seconds": 60.0,
    "steps": (400.0, 500.0),
}
OUTCOMES = ["better", "worse", "equivalent", "undecided", "cannot tell", None]
COMMAND_LINE = "python train.py --epochs 30 --model models/convolutional_with_attention.py --seed {seed}"
LOG = "\n".join(
    f'  File "/home/user/project/training/steps/module_{i}.py", line {i}, in step' for i in range(40)
)
# What does not end with a summary: lists, tables, lines for each input, a service and instructions.
OTHERS = {
    "attentions": "a table of the types",
    "check_attention": "a table of sites",
    "data": "a line for each class",
    "mcp": "a service",
    "predict": "a line for each input",
    "searches": "a list",
    "sites": "a table of sites",
    "skill": "instructions",
    "spaces": "a list",
    "studies": "a list",
    "study": "two tables",
}


def show_search(outcome: Any, folder: Path) -> None:
    search_command.print_search(automl.load("made-up"), "searches")


def show_confirm(outcome: Any, folder: Path) -> None:
    judge_commands.print_confirm(ConfirmResult(folder=folder, verdict=make_verdict(outcome)), "searches")


def show_referee(outcome: Any, folder: Path) -> None:
    """Print the end of a comparison, of which three runs failed if it has no verdict."""
    verdict = make_verdict(outcome)
    training = CommandTraining(metric="acc=(.*)")
    config = TrialConfig(task=COMMAND, model=CommandModel(command=COMMAND_LINE), training=training)
    first, second, *_ = (replace(variant, config=config) for variant in verdict.variants)
    variants = [replace(first, scores={}), replace(second, scores={})] if outcome is None else [first, second]
    verdict = replace(
        verdict,
        design=replace(verdict.design, kind=COMMANDS),
        comparisons=verdict.comparisons[:1],
        variants=variants,
    )
    logs = {f"{name}, seed {seed}": LOG for name in ("baseline", "candidate") for seed in (1000, 1001)}
    result = ConfirmResult(folder=folder, verdict=verdict, logs=logs if outcome is None else {})
    judge_commands.print_confirm(result, "searches")


def show_ledger(outcome: Any, folder: Path) -> None:
    row = {
        "name": "change-20261129-094157-4acf",
        "outcome": outcome or "not shown",
        "candidate": COMMAND_LINE,
    }
    row |= {"difference": 0.026, "interval": (0.01, 0.04), "trainings": 44}
    final = {**row, "head": row["name"], "headline": "Better on fresh seeds"}
    ledger = LedgerResult(
        folder="runs",
        metric={},
        heads=[SimpleNamespace(program=COMMAND_LINE)],
        comparisons=[row] * 5,
        tests=5,
        left=0.4,
        finals=[final],
    )
    print(repr(ledger))


def show_solve(outcome: Any, folder: Path) -> None:
    costs = {"params": 739_344.0, "macs": 2.1e9, "memory": 3.9e9, "latency": 3.456}
    placement = "ssa at stage1.block2.branch, decomposed (heads=8, normalisation=scaling) at stage3.block2"
    best = SolvedPoint(
        placement=placement,
        params={},
        gain=0.012,
        low=0.002,
        high=0.022,
        better=0.4,
        costs=costs,
        trials=2,
        outcome=outcome,
        verdict=LONG,
    )
    result = SolveResult(
        search="made-up",
        identity="1",
        storage="searches",
        metric=ACCURACY,
        trial=3,
        baseline="no attention",
        matters=0.8,
        config=TrialConfig(),
        best=best,
        limits=costs,
    )
    print("\n".join(judge_commands.lines(result, Path("answer.json"))))


def show_train(outcome: Any, folder: Path) -> None:
    last = {
        "epoch": 5.0,
        "accuracy": 0.9876,
        "loss": 0.04,
        "seconds": 61.2,
        "steps": 840.0,
        "gate.stage1": 0.2,
    }
    checkpoint = Path("searches/train-20261129-094157/checkpoint.pt")
    for run in ("0123456789abcdef0123456789abcdef", None):
        trained = TrainResult(run_id=run, checkpoint=checkpoint, history=[last], metrics=[ACCURACY, LOSS])
        train_command._print_result(trained)


def show_status(outcome: Any, folder: Path) -> None:
    folder_commands.status("made-up", "searches", as_json=False)


def show_report(outcome: Any, folder: Path) -> None:
    folder_commands.report("made-up", out=None, show=False, storage="searches")


def show_sync(outcome: Any, folder: Path) -> None:
    folder_commands.sync("made-up", "searches")


def show_export(outcome: Any, folder: Path) -> None:
    """Print the end of the export of a decoder, which has the most to say."""
    result = ExportResult(
        folder=folder,
        chosen=SimpleNamespace(origin="trial 2", choice=LONG, warning=LONG, spent=LONG),  # type: ignore[arg-type]
        differences={f"form{i}.onnx": 1e-6 for i in range(8)},
        test={f"needle@{i}x": 0.5 for i in range(6)},
        scores=None,
        speeds=dict.fromkeys(("prefill.onnx", "step.onnx"), Speed(latency=1.0, throughput=10.0, batch=32)),
        machine="a machine",
        decoding=dict.fromkeys((1024, 8192, 32_768), (1.0, 2.0)),
        left_out={"transformers": LONG, "model.pt2": LONG},
    )
    print("\n".join(f"{label:9} {text}" for label, text in result.facts()))
    print("next      automl predict exports/made-up TEXT\nor serve  mlflow models serve -m exports/made-up")


def show_cost(outcome: Any, folder: Path) -> None:
    plain = ModelCost(parameters=71_800, macs=9_860_000, activations=443_000, step=0.00198)
    placed = replace(plain, step=0.00288, step_ratio=1.45, step_low=1.41, step_high=1.49)
    print("\n".join(cost_table({"plain": plain, "placement": placed}, "an image of 128x128 pixels")))


ENDINGS: dict[str, Callable[[Any, Path], None]] = {
    name.removeprefix("show_"): function for name, function in globals().items() if name.startswith("show_")
}


def make_verdict(outcome: Any) -> Verdict:
    return verdict_of(outcome, warnings=["One seed failed.", LONG], explanation=LONG, **FACTS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a search, whose report is written. Return the folder of the search."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "index.html"
    page.write_text("<html>")
    written = SimpleNamespace(
        search="made-up", index=page, plots=[page] * 9, run_id="1" * 32, confirmed=False
    )
    monkeypatch.setattr("automl.report.run_report.run_report", lambda search, **options: written)
    monkeypatch.setattr("automl.search.driver.run_sync", lambda search, storage: 40)
    return save_search(Path("searches"), made_up(9))


def test_every_command_has_an_ending_here_or_is_none_with_a_summary() -> None:
    commands = {command.__name__ for commands in main.GROUPS.values() for command in commands}
    assert commands == ENDINGS.keys() | OTHERS.keys()
    assert not ENDINGS.keys() & OTHERS.keys()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("command", ENDINGS)
def test_commands_end_on_one_screen(
    command: str, outcome: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if outcome is not None:
        save_verdict(folder, make_verdict(outcome)).with_name(CONFIRM_FILE).touch()
    ENDINGS[command](outcome, folder)
    shown = capsys.readouterr().out
    assert 0 < count_rows(shown.splitlines()) <= ROWS, shown
    assert r"\n" not in shown
    assert not foreign_units(shown)
    if command in ("search", "confirm", "referee"):
        assert "\nnext      automl" in shown
    if command == "confirm":
        assert all(len(line) <= COLUMNS for line in shown.splitlines())
        assert all(line in " ".join(shown.split()) for line in make_verdict(outcome).lines)
