"""The ending of a command is lines that fit a screen of 24 rows of 100 characters."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import automl
from automl.base.terminal import COLUMNS, ROWS, count_rows
from automl.cli.judge_commands import print_confirm
from automl.cli.search_command import print_search
from automl.export.checks import Speed
from automl.export.export_result import ExportResult
from automl.judge.verdict import ConfirmResult
from tests.helpers.report_cases import made_up, save_search, verdict_of

LONG = "The explanation of a verdict, in a sentence that is as long as the longest of those of the rules."


@pytest.mark.parametrize("outcome", ["better", "worse", "equivalent", "undecided", "cannot tell", None])
def test_commands_end_on_one_screen(
    outcome: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = {"original": LONG, "gate": 0.3, "settling": 40, "seconds": 60.0, "steps": (400.0, 500.0)}
    verdict = verdict_of(outcome, warnings=["One seed failed.", LONG], explanation=LONG, **facts)  # type: ignore[arg-type]
    folder = save_search(Path("searches"), made_up(9))
    print_search(automl.load("made-up"), "searches")
    shown = {"search": capsys.readouterr().out}
    print_confirm(ConfirmResult(folder=folder, verdict=verdict), "searches")
    shown["confirm"] = capsys.readouterr().out
    for command, text in shown.items():
        assert count_rows(text.splitlines()) <= ROWS, command
        assert r"\n" not in text, command
        assert "\nnext      automl" in text, command
    assert all(len(line) <= COLUMNS for line in shown["confirm"].splitlines())
    assert all(line in " ".join(shown["confirm"].split()) for line in verdict.lines)


def test_the_export_of_a_decoder_ends_on_one_screen(tmp_path: Path) -> None:
    result = ExportResult(
        folder=tmp_path,
        chosen=SimpleNamespace(origin="trial 2", choice=LONG, warning=LONG, spent=LONG),  # type: ignore[arg-type]
        differences={f"form{i}.onnx": 1e-6 for i in range(8)},
        test={f"needle@{i}x": 0.5 for i in range(6)},
        scores=None,
        speeds=dict.fromkeys(("prefill.onnx", "step.onnx"), Speed(latency=1.0, throughput=10.0, batch=32)),
        machine="a machine",
        decoding=dict.fromkeys((1024, 8192, 32_768), (1.0, 2.0)),
        left_out={"transformers": LONG, "model.pt2": LONG},
    )
    commands = 2  # to predict and to serve
    assert count_rows(f"{label:9} {text}" for label, text in result.facts()) + commands <= ROWS
