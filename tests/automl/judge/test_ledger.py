"""The store of a ledger: each step once, with callers in parallel and callers that are killed."""

import itertools
import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.judge import ledger as ledger_file
from automl.judge.ledger import (
    ACCEPTED,
    COMPARISON,
    HEAD,
    POOL,
    STALE,
    TEST,
    VERDICT,
    Decision,
    Ledger,
    Program,
)

FORK = multiprocessing.get_context("fork")
BASE = Program(command="train {seed}", folder="/")


def program(name: str) -> Program:
    return Program(command=f"train {name} {{seed}}", folder="/")


def begin(folder: Path) -> Ledger:
    ledger = Ledger(folder, create=True)
    ledger.begin_head(BASE)
    return ledger


def walk(folder: Path, names: list[str]) -> None:
    """Take each comparison through all of its steps, the even ones to an acceptance."""
    ledger = begin(folder)
    for name in names:
        if ledger.decision(name) is None:
            head = ledger.heads()[-1]
            ledger.set_once(name, {"head": head.number, "candidate": vars(program(name))}, COMPARISON)
            ledger.set_once("7", name, POOL.format(ledger.rows(COMPARISON)[name]["head"]))
            index = ledger.begin_test(name)
            outcome = ACCEPTED if int(name.split()[1]) % 2 == 0 else "not shown"
            ledger.decide(name, Decision(outcome=outcome, index=index))


def check(ledger: Ledger, names: list[str]) -> None:
    rows, verdicts = ledger.rows(COMPARISON), ledger.rows(VERDICT)
    assert sorted(rows) == sorted(verdicts) == sorted(names)
    assert sorted(ledger.rows(TEST).values()) == list(range(1, len(names) + 1))
    accepted = [name for name, verdict in verdicts.items() if verdict["outcome"] == ACCEPTED]
    heads = ledger.heads()
    assert sorted(head.comparison for head in heads[1:]) == sorted(accepted)
    assert [head.number for head in heads] == list(range(1, len(accepted) + 2))
    for before, head in itertools.pairwise(heads):
        assert rows[head.comparison]["head"] == before.number, "each was compared with the head"


def test_killed_callers_lose_nothing(tmp_path: Path) -> None:
    """Two callers at once, killed ten times in the middle, and then left to finish."""
    names = [f"caller {i}" for i in range(40)]
    for number in range(10):
        callers = [FORK.Process(target=walk, args=(tmp_path, names[i::2])) for i in range(2)]
        for caller in callers:
            caller.start()
        time.sleep(0.02 + 0.013 * number)
        for caller in callers:
            if caller.pid is not None and caller.is_alive():
                os.kill(caller.pid, signal.SIGKILL)
            caller.join()
    for i in range(2):
        walk(tmp_path, names[i::2])
    check(Ledger(tmp_path), names)


def test_each_step_counts_once_and_facts_are_set_once(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    ledger.set_once("7", "a", POOL.format(1))
    assert ledger.begin_head(program("other")).program == BASE
    for _ in range(2):
        ledger.set_once("a", {"head": 1, "candidate": vars(program("a"))}, COMPARISON)
        assert ledger.begin_test("a") == 1
        assert ledger.decide("a", Decision(outcome="not shown", interval=(1.0, 2.0))).interval == [1.0, 2.0]
    assert ledger.decide("a", Decision(outcome=ACCEPTED)).outcome == "not shown"
    assert (len(ledger.rows(TEST)), len(ledger.heads())) == (1, 1)
    ledger = begin(tmp_path)
    assert ledger.rows("fact") == {}
    assert ledger.set_once("metric", {"name": "acc"}) == {"name": "acc"}
    assert ledger.set_once("metric", {"name": "loss"}) == {"name": "acc"}


def test_nobody_else_writes_during_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may have read the ledger before it writes."""
    ledger, add = begin(tmp_path), ledger_file._add
    kinds: set[str] = set()

    def alone(database: sqlite3.Connection, kind: str, *row: Any) -> Any:
        with closing(sqlite3.connect(ledger.file, timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            kinds.add(kind)
        return add(database, kind, *row)

    monkeypatch.setattr(ledger_file, "_add", alone)
    ledger.begin_head(program("other"))
    assert kinds == {HEAD}
    ledger.set_once("a", {"head": 2, "candidate": vars(program("a"))}, COMPARISON)
    ledger.begin_test("a")
    ledger.decide("a", Decision(outcome=ACCEPTED))
    assert kinds == {HEAD, COMPARISON, TEST, VERDICT}


def test_two_changes_of_one_head(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    for name in "ab":
        ledger.set_once(name, {"head": 1, "candidate": vars(program(name))}, COMPARISON)
        ledger.begin_test(name)
    outcomes = [ledger.decide(name, Decision(outcome=ACCEPTED)).outcome for name in "ab"]
    assert outcomes == [ACCEPTED, STALE]
    first, head = ledger.heads()
    assert (head.comparison, head.program) == ("a", program("a"))
    assert len(set(head.seeds)) == 10
    assert head.seeds != first.seeds


def test_a_ledger_only_grows(tmp_path: Path) -> None:
    begin(tmp_path).set_once("metric", 1)
    database = sqlite3.connect(tmp_path / "ledger.db")
    for change in ("UPDATE rows SET value = 2", "DELETE FROM rows"):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            database.execute(change)


def test_missing_damaged_and_growing_ledgers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no ledger in"):
        Ledger(tmp_path)
    (tmp_path / "ledger.db").write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="cannot be used"):
        Ledger(tmp_path).heads()


def test_programs_are_equal_by_the_content_of_their_files() -> None:
    first = Program(command="python a.py --seed {seed}", folder="/a", files={"a.py": "1"})
    second = Program(command="python b.py --seed {seed}", folder="/b", files={"b.py": "1"})
    third = Program(command="python a.py --seed {seed}", folder="/a", files={"a.py": "2"})
    assert first.identity == second.identity != third.identity
