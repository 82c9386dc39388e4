"""Comparisons of commands from the options to the verdict, without running a command."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.judge.options import RefereeOptions
from automl.judge.run_confirm import run_confirm
from automl.judge.verdict import ConfirmResult
from automl.report.run_report import run_report
from automl.search.status import read_status
from automl.tasks.command.referee import run_referee
from automl.trials.session import Stopped
from tests.helpers.confirm_cases import FakeCommands

BASELINE, CANDIDATE = "train --seed {seed}", "train --wide --seed {seed}"
BROKEN = [("baseline", 1), ("candidate", 1)]
NO_METRIC = "the command printed no metric: no line matches --metric 'acc=(.*)'"
Score = Callable[[str, int], float]


def noise(variant: str, seed: int) -> float:
    return float(np.random.default_rng([len(variant), seed]).normal())


def gain(size: float, of: str = "candidate") -> Score:
    return lambda variant, seed: noise(variant, seed) + size * (variant == of)


ASKED = ("referee", "--baseline", BASELINE, "--candidate", CANDIDATE, "--metric", "acc=(.*)", "--seed", "1")


def compare(candidates: Any = CANDIDATE, **options: Any) -> ConfirmResult:
    return run_referee(BASELINE, candidates, **{"metric": "acc=(.*)", "name": "mine", "seed": 1} | options)


def test_commands_alternate_with_seeds_that_are_new_each_time(at_work: Any) -> None:
    workers = at_work(FakeCommands(gain(0)))
    result = compare(seeds=7, sequential=False, seed=40)
    pair = ["baseline", "candidate"]
    expected = [(name, seed) for seed in range(40, 47) for name in (pair if seed % 2 == 0 else pair[::-1])]
    assert workers.trained == expected
    assert result.verdict.headline.startswith("Undecided: ")
    assert json.loads((result.folder / "verdict.json").read_text()) == {"format": 2, **result.value}
    at_work(FakeCommands(gain(0)))
    first, second = (compare(seed=None, name=name, seeds=6).verdict.design.seeds for name in ("a", "b"))
    assert list(first) != list(second)


def test_largest_seeds_are_followed_by_the_smallest(at_work: Any) -> None:
    at_work(FakeCommands(gain(0)))
    compare(seeds=6, seed=2**32 - 6)
    again = [run_confirm("mine", again=True).verdict.design.seeds for _ in range(2)]
    assert again == [list(range(6)), list(range(6, 12))]


@pytest.mark.parametrize(
    ("size", "options", "outcome", "code"),
    [
        (9, (), "better", 0),
        (-9, (), "worse", 3),
        (-9, ("--minimize",), "better", 0),
        (9, ("--maximize",), "better", 0),
        (0.1, (), "undecided", 1),
        (0.0, ("--margin", "3", "--no-sequential"), "equivalent", 1),
        (9, ("--chance", "100"), "cannot tell", 1),
    ],
)
def test_outcomes_and_exit_codes(
    at_work: Any, cli: Any, size: float, options: tuple[str, ...], outcome: str, code: int
) -> None:
    at_work(FakeCommands(gain(size)))
    ended, out, err = cli(*ASKED, "--name", "mine", "--json", *options)
    value = json.loads(out)
    assert (value["verdict"], ended) == (outcome, code)
    assert f"compared  mine: {outcome}" in err
    assert "tuned" not in err
    status = read_status("mine")
    assert (status.state, status.outcome, status.verdict) == ("finished", outcome, value["headline"])


def test_best_of_several_candidates_wins(at_work: Any) -> None:
    at_work(FakeCommands(gain(9, of="candidate 2")))
    result = compare([CANDIDATE, "train --deep --seed {seed}"])
    assert result.value["winner"] == "candidate 2"
    assert "adjusted for 2 candidates" in result.verdict.figures


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 1, ("Undecided: better than the baseline by ", ", but takes up to 1.20 times as long. Add ")),
        (("--any-time",), 0, ("Better by ", "Any time, here 1.20 (1.20 to 1.20) of the baseline's")),
    ],
)
def test_a_gain_in_more_time_needs_a_budget_or_any_time(
    at_work: Any, cli: Any, options: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    at_work(FakeCommands(gain(9), seconds=lambda variant, seed: 1.2 if variant == "candidate" else 1.0))
    ended, out, _ = cli(*ASKED, *options)
    assert ended == code
    assert all(text in " ".join(out.split()) for text in words), out


LONGER = "baseline, 1.2 times as long"


def trained(times: float = 1.2, gained: float = 3, **how: Any) -> FakeCommands:
    """Return runs of a candidate that gains 3 in 1.15 times the baseline's time, and of a longer baseline."""
    seconds = {"candidate": 1.15, LONGER: times}
    return FakeCommands(
        lambda variant, seed: noise(variant, seed) + {"candidate": 3, LONGER: gained}.get(variant, 0),
        seconds=lambda variant, seed: seconds.get(variant, 1.0),
        **how,
    )


@pytest.mark.parametrize(
    ("workers", "outcome", "words"),
    [
        (trained(gained=0.3), "better", "Against the baseline trained 1.2 times as long +"),
        (trained(), "undecided", "but the baseline trained 1.2 times as long "),
        (trained(times=1.0, gained=0), "undecided", "but takes up to 1.15 times as long"),
    ],
    ids=["really better", "only trained longer", "a baseline that ignores its budget"],
)
def test_a_budget_gets_the_candidates_time(
    at_work: Any, workers: FakeCommands, outcome: str, words: str
) -> None:
    at_work(workers)
    result = run_referee(f"{BASELINE} {{budget}}", CANDIDATE, metric="acc=(.*)", seed=1)
    assert result.verdict.final == outcome
    assert words in " ".join(result.verdict.lines)
    (longer,) = [variant for variant in result.value["variants"] if variant["name"] == LONGER]
    assert longer["config"]["longer"] == 1.2
    assert longer["config"]["model"]["command"] == f"{BASELINE} {{budget}}"


def test_longer_runs_resume_without_doubling(at_work: Any) -> None:
    first, budget = at_work(trained(gained=0.3, most=20)), BASELINE + " {budget:10}"
    with pytest.raises(Stopped):
        run_referee(budget, CANDIDATE, metric="acc=(.*)", seed=1, name="mine")
    second = at_work(trained(gained=0.3, broken=[(LONGER, 6)]))
    broken = run_referee(resume="mine")
    assert not broken.verdict.complete, "a crash of the longer baseline leaves the verdict open"
    third = at_work(trained(gained=0.3))
    assert run_referee(resume="mine").verdict.failed_attempts == {LONGER: 1}
    runs = [*first.trained, *second.trained, *third.trained]
    assert first.trained[-1][0] == LONGER
    assert third.trained[0] == (LONGER, 6)
    assert len(runs) == len(set(runs)) + 1


@pytest.mark.parametrize(("clock", "is_doubtful"), [(10.1, True), (9.9, False)])
def test_time_that_is_not_seen_is_a_warning(at_work: Any, clock: float, is_doubtful: bool) -> None:
    at_work(FakeCommands(gain(0), clock=clock, seconds=lambda variant, seed: 0.1))
    warnings = compare(seeds=6).value["warnings"]
    assert [text.split(":")[0] for text in warnings] == [
        f"Do not rely on the time of {name}" for name in ("baseline", "candidate") if is_doubtful
    ]


def test_passwords_are_not_shown(at_work: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    at_work(FakeCommands(gain(0)))
    database = " --db postgres://me:planted@host/db"
    compared = run_referee(BASELINE + database, CANDIDATE + database, metric="acc=(.*)", name="mine", seeds=6)
    run_referee(resume="mine")
    run_report("mine")
    assert "planted" not in str(compared.value) + "".join(capsys.readouterr())
    texts = {path: path.read_bytes() for path in compared.folder.parent.rglob("*") if path.is_file()}
    names = {path.name for path, text in texts.items() if b"planted" in text}
    assert names == {"confirm.json", "study.journal"}
    assert any(b"postgres://***@host/db" in text for text in texts.values())


@pytest.mark.parametrize("name", ["baseline", "candidate"])
def test_a_command_that_ignores_its_seed_is_a_mistake(at_work: Any, cli: Any, name: str) -> None:
    workers = at_work(FakeCommands(lambda variant, seed: 0.5 if variant == name else noise(variant, seed)))
    code, out, _ = cli(*ASKED)
    assert code == 2
    assert f"Cannot tell: {name} gives the same score with every seed" in out
    assert len(workers.trained) <= 13, "it stops at the first analysis"


def test_equal_scores_are_a_warning_at_first(at_work: Any) -> None:
    at_work(FakeCommands(lambda variant, seed: float(seed)))
    result = compare(seeds=6)
    assert any("Check that candidate differs from baseline" in text for text in result.value["warnings"])
    at_work(
        FakeCommands(lambda variant, seed: 0.5 if variant == "baseline" else noise(variant, seed), most=7)
    )
    with pytest.raises(Stopped):
        compare(name="early")
    warnings = json.loads(Path("searches/early/confirm/verdict.json").read_text())["warnings"]
    assert any("Check that baseline uses its seed" in text for text in warnings)


def test_a_seed_that_fails_leaves_the_verdict_open(at_work: Any, cli: Any) -> None:
    """Otherwise a candidate could end early wherever its score is low."""
    at_work(FakeCommands(gain(9), broken=[("candidate", 3)]))
    code, out, _ = cli(*ASKED, "--name", "mine")
    assert code == 2
    assert "compared  mine: no verdict" in out
    assert "warning   candidate failed with seed 3: exit code 1: boom" in out
    assert "          | boom" in out
    assert "resume    automl referee --resume mine" in out
    assert "or correct the command or --metric, if that was wrong, and compare anew" in out
    assert read_status("mine").state == "stopped"
    workers = at_work(FakeCommands(gain(9)))
    code, out, _ = cli("referee", "--resume", "mine")
    assert code == 0
    assert workers.trained[0] == ("candidate", 3)


def test_a_command_that_fails_until_it_is_lucky_does_not_win(lucky: Any, cli: Any) -> None:
    result = lucky(lambda: compare(any_time=True))
    failed = result.value["failed_attempts"]["candidate"]
    assert failed > 3
    assert result.verdict.lead.difference.mean > 0.3
    assert (result.value["verdict"], result.value["winner"]) != ("better", "candidate")
    page = run_report("mine").index.read_text()
    for text in (result.verdict.figures, cli("status", "mine")[1], page):
        assert f"Failed attempts: {failed} of candidate" in text


@pytest.mark.parametrize(
    ("broken", "shuffled", "code"),
    [([("candidate", seed) for seed in range(99)], False, 2), ([("candidate", 10)], True, 0)],
    ids=["all fail without output", "a later seed fails, after the verdict is certain"],
)
def test_exit_codes_with_failures(at_work: Any, cli: Any, broken: Any, shuffled: bool, code: int) -> None:
    at_work(FakeCommands(gain(9), broken=broken, shuffled=shuffled, output=""))
    ended, out, _ = cli(*ASKED, "--name", "mine")
    assert ended == code, out
    assert "output " not in out


def test_repeated_failures_end_the_comparison(at_work: Any) -> None:
    workers = at_work(FakeCommands(gain(0), broken=[("candidate", seed) for seed in range(99)]))
    result = compare()
    assert len(workers.trained) < 6
    assert len(result.logs) == 2
    page = run_report("mine").index.read_text()
    assert all(text in page for text in ("Comparison under way", "exit code 1: boom", "2 runs failed")), page


def test_a_mistake_in_an_option_ends_the_comparison_at_once(at_work: Any) -> None:
    workers = at_work(FakeCommands(gain(0), broken=BROKEN, reason=NO_METRIC))
    assert not compare(concurrent=1).verdict.complete
    assert len(workers.trained) == 1


def test_a_comparison_keeps_its_options(at_work: Any) -> None:
    at_work(FakeCommands(gain(0), broken=BROKEN, reason=NO_METRIC))
    compare(concurrent=1)
    with pytest.raises(InputError, match="with resume give storage alone"):
        run_referee(resume="mine", metric="acc=([0-9.]+)")
    with pytest.raises(InputError, match="or resume it: automl referee --resume mine"):
        compare()


def test_resume_and_again(at_work: Any, capsys: pytest.CaptureFixture[str]) -> None:
    at_work(FakeCommands(gain(0), most=5))
    with pytest.raises(Stopped):
        compare(seeds=7)
    assert read_status("mine").resume == "automl referee --resume mine"
    later = at_work(FakeCommands(gain(0)))
    capsys.readouterr()
    result = run_referee(resume="mine")
    names = [repr(f"the command in {Path.cwd()}: {command}") for command in (BASELINE, CANDIDATE)]
    assert f"comparing 'mine' runs {', '.join(names)}" in capsys.readouterr().err
    assert result.verdict.complete
    assert len(later.trained) == 2 * 7 - 5
    again = run_confirm("mine", again=True)
    assert list(again.verdict.design.seeds) == list(range(8, 15))
    assert again.number == 2
    with pytest.raises(InputError, match="compares commands; leave --top, --ablate out"):
        run_confirm("mine", again=True, top=5, ablate=True)


def test_the_answer_names_the_evaluator_and_its_hash(at_work: Any, cli: Any) -> None:
    Path("eval.py").write_text("print('acc=1')")
    Path("val").write_text("1 0")
    at_work(FakeCommands(gain(9)))
    asked = [text.replace("{seed}", "{seed} {out}") for text in ASKED]
    code, out, _ = cli(*asked, "--evaluate", "python eval.py {out}", "--protect", "val")
    assert code == 0
    digest = r"\nevaluator (\w{16}), a copy in \S+/evaluators/\1\w+\nprotected eval.py \w{16}, val"
    assert re.search(digest, out), out


def test_commands_of_searches_reject_comparisons(at_work: Any, cli: Any) -> None:
    at_work(FakeCommands(gain(9)))
    compare()
    for command in (
        ("search", "--resume", "mine"),
        ("export", "--best", "--search", "mine"),
        ("export", "--baseline", "--search", "mine"),
        ("solve", "mine", "--max-params", "1M"),
        ("train", "--like", "mine"),
    ):
        code, _, err = cli(*command)
        assert (code, "'mine' compares commands" in err, "Traceback" in err) == (2, True, False), err
    assert cli("referee")[0] == 2


TEXTS = [
    f.name for f in fields(RefereeOptions) if "str" in str(f.type) and f.name not in ("resume", "callbacks")
]


@pytest.mark.parametrize("value", ["", " ", "file", "file/below", 300 * "x"], ids=range(5))
def test_any_text_is_an_answer_or_a_mistake(at_work: Any, value: str) -> None:
    """Find no defect for an empty text, a file, a path below it, and a name that is too long."""
    at_work(FakeCommands(gain(0), most=0))
    Path("file").write_text("1")
    asked = {"baseline": BASELINE, "candidates": CANDIDATE, "metric": "acc=(.*)"}
    for name in TEXTS:
        with suppress(InputError, Stopped):
            run_referee(**{**asked, name: value})
    with suppress(InputError):
        run_referee(resume="mine", ledger=value)
