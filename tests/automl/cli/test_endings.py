"""The ending of a command is lines that fit a screen of 24 rows of 100 characters."""

from pathlib import Path
from typing import Any

import pytest

import automl
from automl.base.terminal import COLUMNS, ROWS, count_rows, wrap
from automl.cli.judge_commands import print_confirm
from automl.cli.search_command import print_search
from automl.judge.verdict import ConfirmResult
from search.class_metrics import ACCURACY
from tests.helpers.automl_cases import Cli
from tests.helpers.report_cases import made_up, plan_of, save_search, save_verdict, verdict_of

LONG = (
    "The explanation of a verdict, in a sentence that is as long as the longest of those that the rules have."
)
OUTCOMES = ["better", "worse", "equivalent", "undecided", "cannot tell", None]


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Any:
    original = "accuracy 80 %, 2M parameters, 4MB of memory, 2 ms of latency; ssa has 5 % more parameters"
    more = {"explanation": LONG, "original": original, "gate": 0.3, "settling": 40, "seconds": 60.0}
    return verdict_of(request.param, warnings=["One seed failed.", LONG], steps=(400.0, 500.0), **more)


@pytest.mark.parametrize("verdict", OUTCOMES, indirect=True)
def test_a_confirmation_ends_on_one_screen(
    verdict: Any,
    tmp_path: Path,
    cli: Cli,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_verdict(save_search(Path("searches"), made_up(9)), verdict).parent
    print_confirm(ConfirmResult(folder=folder, verdict=verdict), "searches")
    shown = capsys.readouterr().out
    code, status, err = cli("status")
    assert code == 0, err
    for text in (shown, status):
        lines = text.splitlines()
        assert count_rows(lines) <= ROWS
        assert all(len(line) <= COLUMNS for line in lines)
        assert all(joined(line) in joined(text) for line in verdict.lines)
        assert r"\n" not in text
    assert lines[0] != shown.splitlines()[0]
    assert "\nnext      automl" in shown or "\nresume    automl" in shown


def test_a_search_ends_on_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_search(Path("searches"), made_up(60), plan=plan_of(metric=ACCURACY))
    print_search(automl.load("made-up"), "searches")
    shown = capsys.readouterr().out
    assert count_rows(shown.splitlines()) <= ROWS
    assert "\nnext      automl confirm --search made-up" in shown


def test_a_text_is_wrapped_behind_its_name() -> None:
    lines = wrap("cause", f"{LONG} {LONG}\x1b")
    assert joined(" ".join(lines)) == joined(f"cause {LONG} {LONG}\\x1b")
    assert [line[:10].strip() for line in lines] == ["cause", "", ""]
    assert wrap("cause", "") == []
    assert count_rows(["", "a" * 100, "a" * 101]) == 4
