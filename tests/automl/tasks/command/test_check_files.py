"""Summaries in Markdown and test results in JUnit's XML, and the action that asks for them."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.automl.tasks.command.test_referee import ASKED, BASELINE, BROKEN, gain
from tests.helpers.confirm_cases import FakeCommands

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "scripts"))

from run_action import Ended, run_action  # noqa: E402

BENCH = "bench_pull_requests"
FILES = ("--summary", "summary.md", "--junit", "tests.xml")
PROGRAM = """#!/bin/bash
printf '%s\\n' "$@" > words
echo "{\\"verdict\\": \\"$WORD\\", \\"x\\": 1}"
exit $CODE
"""
HOSTILE = "train '| <b>`x`\x1b[2J\ufffe |' --seed {seed}"


def read_case() -> tuple[ElementTree.Element, list[str]]:
    """Return the only test of the file, and the names of what it has beside its output."""
    (case,) = ElementTree.parse("tests.xml").getroot().iter("testcase")
    return case, [child.tag for child in case if child.tag != "system-out"]


@pytest.mark.parametrize(
    ("size", "broken", "outcome", "states", "code"),
    [
        (9, (), "better", [], 0),
        (-9, (), "worse", ["failure"], 3),
        (0.1, (), "undecided", ["skipped"], 0),
        (9, BROKEN, "no verdict", ["error"], 2),
    ],
)
def test_both_files_have_the_verdict_and_its_cost(
    at_work: Any, cli: Any, size: float, broken: Any, outcome: str, states: list[str], code: int
) -> None:
    at_work(FakeCommands(gain(size), broken=broken))
    Path("summary.md").write_text("before\n")
    ended, _, _ = cli(*ASKED, "--name", "mine", "--fail-on-worse", *FILES)
    text = Path("summary.md").read_text()
    case, children = read_case()
    assert (ended, children) == (code, states)
    assert text.startswith(f"before\n## compared mine: {outcome}\n\n**")
    assert f"| baseline | `{BASELINE}` |" in text
    runs = sum(int(row.split("|")[3]) for row in text.splitlines() if row.startswith(("| base", "| cand")))
    assert f"Cost: {runs + len(broken)} runs, {runs}s of training, " in text
    assert (case.attrib["name"], float(case.attrib["time"])) == ("candidate against the baseline", runs)


def test_names_are_escaped(at_work: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdefgh")
    workers = at_work(FakeCommands(gain(9), broken=BROKEN, reason="<a & b>\x07 abcdefgh"))
    refused = cli(*ASKED, "--summary", "missing/summary.md")[2]
    assert "error: missing/summary.md cannot be written; choose a file in a folder that" in refused
    assert workers.trained == []
    asked = [HOSTILE if word == BASELINE else word for word in ASKED]
    assert cli(*asked, *FILES)[0] == 2
    case, _ = read_case()
    text = Path("summary.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| baseline")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 7
    for written in (text, str(case.attrib) + "".join(case.itertext())):
        assert "abcdefgh" not in written
        assert not re.search("[\x00-\x08\x1b]", written)
    assert "<a &" not in text


def test_a_ledger_has_a_test_for_each_change(at_work: Any, cli: Any) -> None:
    at_work(FakeCommands(gain(9)))
    asked = ASKED[: ASKED.index("--seed")]
    assert cli(*asked, "--ledger", "runs", "--any-time", "--name", "mine", *FILES)[0] == 0
    assert "runs were needed" in Path("summary.md").read_text()
    assert cli("ledger", "runs", *FILES)[0] == 0
    case, children = read_case()
    assert (case.attrib["name"], children) == ("mine", [])
    assert "- level 75% left after 1 test, 1 accepted" in Path("summary.md").read_text()


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., tuple[Ended, list[str]]]:
    """Return a function that runs the action with a program that has an answer. Return its words, too."""
    stub = tmp_path / "program"
    stub.write_text(PROGRAM)
    stub.chmod(0o755)

    def ask(code: int, word: str, **inputs: str) -> tuple[Ended, list[str]]:
        defaults = {"command": "train", "metric": "acc=(.*)", "program": str(stub)}
        environment = {**os.environ, "CODE": str(code), "WORD": word}
        ended = run_action(defaults | inputs, tmp_path, environment)
        return ended, (tmp_path / "words").read_text().splitlines()

    return ask


@pytest.mark.parametrize(("code", "word"), [(0, "better"), (3, "worse"), (2, "")])
def test_the_action_passes_inputs_as_words(ask: Any, tmp_path: Path, code: int, word: str) -> None:
    command = "python 'a b.py' \"$(touch hacked)\" `touch hacked`; touch hacked {seed}"
    options = "--any-time\n--margin=0.5\n"
    ended, words = ask(code, word, command=command, junit="tests.xml", options=options)
    assert (ended.code, ended.outputs) == (code, {"verdict": word})
    assert words[:3] == ["referee", "--json", f"--command={command}"]
    assert words[-3:] == ["--fail-on-worse", "--any-time", "--margin=0.5"]
    assert {"--baseline-ref=HEAD^1", "--candidate-ref=HEAD", "--seeds=24", "--junit=tests.xml"} < {*words}
    assert not list(tmp_path.rglob("hacked"))


def test_the_action_leaves_the_baseline_of_a_ledger_to_it(ask: Any, tmp_path: Path) -> None:
    ended, words = ask(1, "undecided", ledger="runs", **{"fail-on": "not-better"})
    assert (ended.code, words[6:]) == (1, ["--ledger=runs", "--baseline-ref=HEAD^1"])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ledger.db").touch()
    assert ask(0, "undecided", ledger="runs")[1][6:] == ["--ledger=runs", "--fail-on-worse"]
    refused, _ = ask(0, "better", **{"fail-on": "never"})
    assert (refused.code, "fail-on must be worse or not-better; got never" in refused.printed) == (2, True)


def test_the_workflow_of_the_example_is_that_of_the_page_and_fits_the_action() -> None:
    page = (ROOT / "docs" / "how-to" / "pull-requests.md").read_text()
    assert (ROOT / "docs/examples/pull-requests/.github/workflows/referee.yml").read_text() in page
    known = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for job in yaml.safe_load(text).get("jobs", {}).values():
            (options,) = [step["with"] for step in job["steps"] if "attention-automl" in step.get("uses", "")]
            assert {name for name, each in known.items() if each.get("required")} <= options.keys()
            assert options.keys() <= known.keys()


@pytest.mark.slow("two comparisons of commits with MLflow")
@pytest.mark.timeout(600)
def test_the_action_on_pull_requests_of_the_example(bench: Any, tmp_path: Path) -> None:
    """Merge a change into the base, and clone the merge with its parents alone, as a workflow does."""
    program = str(Path(sys.executable).with_name("automl"))
    inputs = {"command": f"{sys.executable} train.py --steps 40 --seed {{seed}}", "metric": "acc=(.*)"}
    inputs |= {"program": program, "options": "--any-time\n--unit=points", "junit": "tests.xml"}
    environment = {**os.environ, "AUTOML_CACHE": str(tmp_path / "cache")}
    for size, outcome, code in ((30, "better", 0), (-30, "worse", 3)):
        origin, clone = tmp_path / f"origin-{code}", tmp_path / outcome
        bench.make_repository(origin)
        bench.commit_change(origin, 0, size)
        bench.git(origin, "switch", "--quiet", "main")
        bench.git(origin, "merge", "--quiet", "--no-ff", "--message", "Merge", "-")
        bench.git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{origin}", str(clone))
        ended = run_action(inputs, clone, environment)
        assert (ended.code, ended.outputs["verdict"]) == (code, outcome), ended.printed
        assert f": {outcome}\n\n**{outcome.title()} by " in ended.summary
        assert re.search(r"mean acc, points .*\n.*\n\| baseline [0-9a-f]{7} \|", ended.summary)
        assert re.search(r"Cost: \d+ runs, \d+s of training, ", ended.summary)
        assert ("<failure" in (clone / "tests.xml").read_text()) == (code == 3)
