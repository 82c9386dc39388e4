"""Streams of changes in a ledger, without running a command."""

import json
import os
import re
import shutil
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.judge.evalues import POOL, SCREEN
from automl.judge.ledger import COMPARISON, TEST, VERDICT, Ledger
from automl.judge.protocol import Confirmation
from automl.judge.run_confirm import run_confirm
from automl.judge.statistics import NO_LONGER, paired_ratio
from automl.judge.stream import _lasting_ratio, describe
from automl.judge.verdict import ConfirmResult, read_verdict
from automl.report.run_report import run_report
from automl.storage.folder import find_search
from automl.tasks.command import CommandTraining
from automl.tasks.command.referee import run_referee
from automl.tasks.command.run_ledger import run_ledger
from automl.trials.session import Stopped
from tests.helpers import others_slow
from tests.helpers.confirm_cases import FakeCommands

BASELINE, CANDIDATE = "train --seed {seed}", "train --wide --seed {seed}"
Score = Callable[[str, int], float]


def gain(size: float) -> Score:
    return lambda variant, seed: (
        float(np.random.default_rng([len(variant), seed]).normal()) + size * (variant == "candidate")
    )


def compare(candidate: str = CANDIDATE, baseline: str | None = BASELINE, **options: Any) -> ConfirmResult:
    return run_referee(baseline, candidate, **{"metric": "acc=(.*)", "ledger": "runs"} | options)


def outcomes() -> list[str]:
    verdicts = Ledger(Path("runs")).rows(VERDICT)
    return [verdicts[name]["outcome"] for name in Ledger(Path("runs")).rows(COMPARISON)]


def test_a_gain_is_accepted_and_becomes_the_head_and_baseline(at_work: Any) -> None:
    workers = at_work(FakeCommands(gain(3)))
    accepted = result = compare()
    decision = result.verdict.decision
    assert (result.verdict.final, decision.outcome, decision.index) == ("better", "accepted", 1)
    assert decision.e_value * decision.level >= 1
    assert decision.interval[0] > 0
    assert (decision.screened, decision.reused) == (SCREEN, 0)
    assert len(workers.trained) == decision.trainings == 2 * (SCREEN + decision.pairs)
    first, head = Ledger(Path("runs")).heads()
    assert (first.program.command, head.program.command) == (BASELINE, CANDIDATE)
    assert result.verdict.decision.outcome == "accepted"
    assert read_verdict(result.folder) == result.verdict
    assert run_report(result).index.exists()
    replaced = f"is not the head.*replaced it on .*in {accepted.search}.*begin another"
    with pytest.raises(InputError, match=replaced):
        compare("train --deep --seed {seed}")
    with pytest.raises(InputError, match="no accepted change"):
        compare("train --deep --seed {seed}", "train --other --seed {seed}")
    second = compare("train --deep --seed {seed}", None)
    assert second.verdict.final == "better"
    assert [head.program.command for head in Ledger(Path("runs")).heads()][-1] == "train --deep --seed {seed}"
    assert "accepted in" in second.verdict.remarks[1]


def test_a_change_without_effect_ends_early_and_reuses_runs(at_work: Any) -> None:
    workers = at_work(FakeCommands(gain(-1)))
    counts = []
    for number in range(12):
        before = len(workers.trained)
        result = compare(f"train --try {number} --seed {{seed}}")
        assert result.verdict.final == "undecided"
        assert "Undecided: no gain of candidate in sight" in result.verdict.headline
        counts.append(len(workers.trained) - before)
    pool = [seed for variant, seed in workers.trained if variant == "baseline"]
    assert len(set(pool) & {*Ledger(Path("runs")).heads()[0].seeds}) <= POOL
    assert min(counts) <= 3
    assert sum(counts[-4:]) < sum(counts[:4])


def test_programs_are_known_by_the_content_of_their_files(at_work: Any, tmp_path: Path) -> None:
    at_work(FakeCommands(gain(3)))
    Path("main.py").write_text("1")
    Path("change.py").write_text("1")
    main, change = "python main.py {seed}", "python change.py {seed}"
    with pytest.raises(InputError, match="is the same program as the baseline"):
        compare(change, main)
    Path("change.py").write_text("2")
    compare(change, main)
    Path("main.py").write_text("2")
    Path("change.py").write_text("3")
    with pytest.raises(InputError, match=r"have changed since: change\.py"):
        compare("python other.py {seed}", None)
    assert compare(change, main).verdict.final == "better"
    assert len(Ledger(Path("runs")).heads()) == 3


@pytest.mark.parametrize(
    "command",
    [
        "python3 'my file.py' {seed}",
        "sh -c \"python -u 'my file.py' {seed}\"",
        "sh -c 'cd pack; python main.py {seed} > log'",
        "python -m pack.main {seed}",
        "torchrun -m pack {seed}",
        "python pack {seed}",
        "python other.py --config=conf.json",
        "python other.py @conf.json",
        "env CONFIG=conf.json other",
    ],
)
def test_an_edited_program_differs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pack").mkdir()
    files = [Path(name) for name in ("my file.py", "pack/main.py", "pack/__main__.py", "conf.json")]
    for file in files:
        file.write_text("1")
    before = describe(command).identity
    assert describe(command).identity == before
    for file in files:
        file.write_text("2")
    assert describe(command).identity != before
    assert describe("python -m a").identity != describe("python -m b").identity


def tamper(*statements: str) -> Score:
    """Return scores of a candidate whose third run changes the ledger."""
    calls: list[int] = []

    def score(variant: str, seed: int) -> float:
        calls.append(seed)
        if len(calls) == 5:
            with closing(sqlite3.connect("runs/ledger.db", isolation_level=None)) as database:
                for statement in statements:
                    database.execute(statement)
        return gain(3)(variant, seed)

    return score


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            ("DROP TRIGGER no_UPDATE", "UPDATE rows SET value = '{}' WHERE kind = 'comparison'"),
            "the comparison mine in",
        ),
        (("DROP TRIGGER no_DELETE", "DELETE FROM rows WHERE kind = 'head'"), "the head 1 in .* has changed"),
        (
            ("INSERT INTO rows VALUES (99, 'verdict', 'mine', '{\"outcome\": \"accepted\"}', 0)",),
            "has a verdict on mine that a command must have written",
        ),
    ],
)
def test_editors_of_the_ledger_are_named(at_work: Any, statements: tuple[str, ...], message: str) -> None:
    at_work(FakeCommands(tamper(*statements)))
    with pytest.raises(InputError, match=message):
        compare(name="mine")


def test_a_ledger_keeps_its_evaluator(at_work: Any, tmp_path: Path) -> None:
    at_work(FakeCommands(gain(-9)))
    baseline, candidate = f"{BASELINE} {{out}}", f"{CANDIDATE} {{out}}"
    options = {"evaluate": "python eval.py {out}", "protect": "val"}
    for file in ("eval.py", "val"):
        Path(file).write_text("1")
    first, second = (compare(f"{candidate} {i}", baseline, **options) for i in range(2))
    folders = {result.verdict.leader.config.training.guard.evaluator for result in (first, second)}
    assert [Path(folder).parent for folder in folders] == [Path("runs/evaluators").absolute()]
    Path("val").write_text("2")
    with pytest.raises(InputError, match=r"^val has changed since the ledger in runs began\. Restore it, or"):
        compare(f"{candidate} 2", baseline, **options)
    Path("val").write_text("1")
    with pytest.raises(InputError, match=r"the ledger in runs has --evaluate python eval.py .* begin"):
        compare(f"{candidate} 2", baseline, protect=["val", "eval.py"])
    assert compare(f"{candidate} 2", baseline, **options).verdict.complete


def test_a_baseline_without_a_score_can_be_replaced(at_work: Any) -> None:
    at_work(FakeCommands(gain(0), broken=[("baseline", seed) for seed in range(99)], most=0))
    with pytest.raises(Stopped):
        compare(baseline="mistaken {seed}")
    at_work(FakeCommands(gain(3)))
    assert compare().verdict.final == "better"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"metric": "f1=(.*)"}, "has --metric acc=.* and not --metric f1="),
    ({"minimize": True}, "has --no-minimize and not --minimize"),
    ({"unit": "%"}, "and not --unit %"),
    ({"any_time": True}, "has --no-any-time and not --any-time"),
    ({"seed": 3}, "decides seeds, stopping and storage itself; leave --seed 3 out"),
    ({"seeds": 5}, "--seeds must be 14 or more"),
    ({"candidates": ["a {seed}", "b {seed}"]}, "one change at a time"),
    *(
        ({"ledger": folder}, "--ledger must be a folder on this machine that can be written; got")
        for folder in ("s3://bucket/runs", "", "runs/ledger.db", "runs/ledger.db/below")
    ),
    ({"noise": True}, "trains the baseline alone"),
]


def test_mistakes(at_work: Any) -> None:
    at_work(FakeCommands(gain(-9)))
    result = compare()
    assert result.verdict.headline.endswith("in sight after 2 pairs, 2 of the screen")
    assert re.search(r"'train --wide --seed \{seed\}', -[\d.]+ acc, 4 runs", str(run_ledger("runs")))
    assert Ledger(Path("runs")).rows(TEST) == {}
    assert "The screen spent nothing of the level; 100% of the level is left." in result.verdict.remarks
    asked = {"baseline": BASELINE, "candidates": CANDIDATE, "metric": "acc=(.*)", "ledger": "runs"}
    for options, message in MISTAKES:
        with pytest.raises(InputError, match=message):
            run_referee(**asked | options)
    assert len(Ledger(Path("runs")).rows(COMPARISON)) == 1


def test_a_command_that_fails_until_it_is_lucky_is_not_accepted(lucky: Any) -> None:
    verdicts = [lucky(lambda i=i: compare(f"train --try {i} --seed {{seed}}")).verdict for i in range(4)]
    assert "accepted" not in outcomes()
    assert sum(verdict.failed_attempts.get("candidate", 0) for verdict in verdicts) > 4


@pytest.mark.parametrize(
    ("spread", "any_time", "outcome"),
    others_slow(
        [(0.15, False, "unequal time"), (0.15, True, "accepted"), (-0.02, False, "accepted")],
        *[(0.15, False, "unequal time"), (-0.02, False, "accepted")],
        rows=True,
    ),
)
def test_a_change_takes_no_more_time(at_work: Any, spread: float, any_time: bool, outcome: str) -> None:
    at_work(FakeCommands(gain(3), seconds=lambda variant, seed: 1 + spread * (variant == "candidate")))
    verdict = compare(any_time=any_time).verdict
    assert outcomes() == [outcome]
    if outcome == "unequal time":
        assert (verdict.final, verdict.winner) == ("undecided", None)
        first = r"Undecided: better than the baseline by .*, but takes up to 1\.15 times"
        assert re.match(first, verdict.lines[0])
        assert "Add {budget}" in verdict.advice


def test_the_interval_of_a_time_ratio_allows_for_repeated_looks() -> None:
    times = np.exp(0.02 * np.random.default_rng(2).normal(size=15))
    once, always = (find(times, np.ones(15), 0.05) for find in (paired_ratio, _lasting_ratio))
    assert always.low < once.low < always.mean < once.high < NO_LONGER < always.high


@pytest.mark.parametrize(("gained", "outcome"), [(0.3, "accepted"), (3, "unequal time")])
def test_a_head_with_a_budget_gets_the_time_of_the_change(at_work: Any, gained: float, outcome: str) -> None:
    longer, budget = "baseline, 1.2 times as long", f"{BASELINE} {{budget:100}}"

    def score(variant: str, seed: int) -> float:
        first.most = 0 if variant == longer else first.most
        return gain(3)(variant, seed) + gained * (variant == longer)

    own = {"candidate": 1.15, longer: 1.2}
    first, second = (FakeCommands(score, seconds=lambda name, seed: own.get(name, 1.0)) for _ in range(2))
    at_work(first)
    with pytest.raises(Stopped):
        compare(baseline=budget, name="mine")
    assert first.trained[-1][0] == longer
    at_work(second)
    verdict = run_referee(resume="mine", ledger="runs").verdict
    assert outcomes() == [outcome]
    assert len({*first.trained, *second.trained}) == len(first.trained) + len(second.trained)
    assert {seed for variant, seed in second.trained if variant == longer} <= {*verdict.used}
    assert "Against the baseline trained 1.2 times as long" in verdict.figures
    if outcome == "accepted":
        assert Ledger(Path("runs")).heads()[-1].program.identity == describe(CANDIDATE).identity
    else:
        assert "but the baseline trained 1.2 times as long " in verdict.headline
    assert run_referee(resume="mine", ledger="runs").verdict.lines == verdict.lines


def test_a_stopped_test_resumes_with_its_level(at_work: Any, cli: Any) -> None:
    workers = at_work(FakeCommands(gain(3), most=17))
    with pytest.raises(Stopped):
        compare(name="mine")
    assert Ledger(Path("runs")).rows(TEST) == {"mine": 1}
    workers = at_work(FakeCommands(gain(3)))
    code, out, err = cli("referee", "--resume", "mine", "--ledger", "runs")
    assert code == 0, out + err
    assert re.search(r"Test 1 of the ledger at level 0\.0\d+; \d+% of the level is left", out)
    assert Ledger(Path("runs")).rows(TEST) == {"mine": 1}
    assert len(workers.trained) < 60
    again = run_referee(resume="mine", ledger="runs")
    assert again.value == run_referee(resume="mine", storage="runs").value
    with pytest.raises(InputError, match="which decides once"):
        run_confirm("mine", storage="runs", again=True)


@pytest.mark.parametrize("step", ["storage.folder.write_metadata", "tasks.command.referee.run_trainings"])
def test_a_comparison_killed_as_it_begins(step: str, at_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work(FakeCommands(gain(3)))
    with monkeypatch.context() as patch:
        patch.setattr(f"automl.{step}", Mock(side_effect=Stopped(signal.SIGTERM)))
        with pytest.raises(Stopped):
            compare(name="c0")
    call(["c0"])
    assert outcomes() == ["accepted"]


def test_a_name_is_judged_once(at_work: Any) -> None:
    at_work(FakeCommands(gain(3)))
    compare(name="mine")
    shutil.rmtree("runs/mine")
    with pytest.raises(InputError, match="has a comparison 'mine', whose folder was removed; choose another"):
        compare("train --other --seed {seed}", baseline=None, name="mine")
    assert not Path("runs/mine").exists()


def test_a_change_that_another_overtook_is_not_accepted(at_work: Any) -> None:
    at_work(FakeCommands(gain(3), most=20))
    with pytest.raises(Stopped):
        compare(name="slow")
    at_work(FakeCommands(gain(3)))
    compare("train --fast --seed {seed}", name="fast")
    slow = run_referee(resume="slow", ledger="runs")
    assert slow.verdict.final == "cannot tell"
    assert "another change became the head" in slow.verdict.headline
    assert outcomes() == ["another head", "accepted"]


def test_noise_of_a_baseline(at_work: Any, cli: Any) -> None:
    workers = at_work(FakeCommands(gain(0), clock=30.0))
    asked = ("referee", "--noise", "--baseline", BASELINE, "--metric", "acc=(.*)", "--name")
    code, out, err = cli(*asked, "mine")
    assert code == 0, out + err
    assert len(workers.trained) == 5
    shown = " ".join(out.split())
    difference = r"10 pairs show a difference of [0-9.]+ acc with 80% power, in 20 runs of 30s each"
    assert re.search(difference, shown)
    assert run_report("mine").index.exists()
    assert cli("status", "mine")[0] == 0
    at_work(FakeCommands(lambda variant, seed: 0.5))
    assert cli(*asked, "b")[0] == 2


def call(names: list[str]) -> None:
    """Judge changes one after the other in a process of its own, and resume what was begun."""
    os.environ["MLFLOW_TRACKING_URI"] = ""
    for name in names:
        if Path("runs", name, "search.json").exists():
            run_referee(resume=name, ledger="runs")
        else:
            compare(f"train --{name} --seed {{seed}}", None if int(name[1:]) else BASELINE, name=name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts callers by fork")
@pytest.mark.parametrize("kills", others_slow([2, 10], 2))
@pytest.mark.heavy("killed callers of a ledger")
def test_two_callers_killed_again_and_again(at_work: Any, kills: int) -> None:
    """Nothing is lost and nothing is counted twice, and each test keeps its part of the level."""

    def slow(variant: str, seed: int) -> float:
        time.sleep(0.004)
        return gain(0.7)(variant, seed)

    at_work(FakeCommands(slow))
    compare("train --c0 --seed {seed}", name="c0")
    count = 3 + kills // 2
    work = [[f"c{i}" for i in range(1 + caller, count, 2)] for caller in range(2)]
    levels: dict[str, int] = {}
    for number in range(kills + 1):
        callers = []
        for names in work:
            if not (process := os.fork()):
                code = 1
                try:
                    call(names)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            callers.append(process)
        if number < kills:
            time.sleep(0.1 + 0.6 * number / kills)
            for process in callers:
                os.kill(process, signal.SIGKILL)
        codes = [os.waitpid(process, 0)[1] for process in callers]
        tested = Ledger(Path("runs")).rows(TEST)
        assert {name: tested[name] for name in levels} == levels
        levels = tested
    assert codes == [0, 0]
    verdicts = Ledger(Path("runs")).rows(VERDICT)
    assert sorted(verdicts) == sorted(f"c{i}" for i in range(count))
    assert sorted(levels.values()) == list(range(1, len(levels) + 1))
    for name, recorded in verdicts.items():
        verdict = json.loads(Path("runs", name, "confirm", "verdict.json").read_text())
        assert verdict["complete"]
        assert verdict["decision"]["outcome"] == recorded["outcome"]
        scores = {variant["name"]: variant["scores"] for variant in verdict["variants"]}
        for name, kept in recorded["scores"].items():
            assert kept.items() <= scores[name].items()


@pytest.mark.slow("comparisons of commands")
def test_a_ledger_lists_and_exports(at_work: Any, cli: Any, tmp_path: Path) -> None:
    at_work(FakeCommands(gain(3)))
    for number in range(2):
        options = {"cpus_per_trial": 1 + number, "label": [f"run={number}"], "cache": f"kept-{number}"}
        compare(f"train --better {number} --seed {{seed}}", BASELINE if not number else None, **options)
    at_work(FakeCommands(gain(-3)))
    compare("train --worse --seed {seed}", None)
    at_work(FakeCommands(gain(6)))
    code, out, err = cli("ledger", "runs", "--final", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert [head["program"]["command"] for head in value["heads"]] == [
        BASELINE, "train --better 0 --seed {seed}", "train --better 1 --seed {seed}",
    ]  # fmt: skip
    assert [entry["outcome"] for entry in value["comparisons"]] == [
        "accepted", "accepted", "no gain in sight",
    ]  # fmt: skip
    final, metadata = find_search(value["finals"][0]["name"], "runs")
    kept = metadata.settings.place
    assert (kept.cpus_per_trial, kept.label) == (2, ("run=1",)), "those of the head"
    training = Confirmation.read(final / "confirm").variant_set.variants[0].config.training
    assert isinstance(training, CommandTraining)
    assert [*training.guard.ignored[:-1]] == ["kept-1"]
    assert value["finals"][0]["difference"] > 3
    assert "Better by " in value["finals"][0]["headline"]
    assert "left after 2 tests, 2 accepted" in err
    assert cli("ledger", "nothing")[0] == 2
