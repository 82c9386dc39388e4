"""The ledger of a stream of changes: `ledger.db` in a folder, which every comparison of it reads and writes.

It is one table of rows that are added once and never changed. Each step is one transaction, which has the
lock for writing from its beginning. So callers in parallel see one order of steps, and a caller that was
killed repeats its last step without effect.
"""

import hashlib
import json
import os
import re
import secrets
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.judge import evalues

LEDGER_FILE = "ledger.db"
WAIT = 60.0  # for other callers, each of which writes for milliseconds [s]
SCHEMA = """
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL,
        value TEXT NOT NULL, time REAL NOT NULL, UNIQUE (kind, key));
    CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON rows
        BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
    CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON rows
        BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
    COMMIT;
"""
# Kinds of rows. The key of a fact is its name, of a head its number, of a run in the pool of a head its seed,
# and of the others the name of a comparison.
FACT, HEAD, POOL, COMPARISON = "fact", "head", "pool {}", "comparison"
TEST, VERDICT, FINAL = "test", "verdict", "final"
PART = re.compile(r"""[^\s=,:;|&<>()@'"]+""")  # of a word of a command, which may be the name of a file
ACCEPTED, STALE = "accepted", "another head"  # outcomes that the ledger itself decides


def split_command(command: str) -> Iterator[str]:
    """Yield the words of a command, and the parts of each word, which may be a command itself."""
    for word in shlex.split(command):
        yield word
        if re.search(r"\s", word):
            with suppress(ValueError):  # no command
                yield from split_command(word)
        yield from (part for part in PART.findall(word) if part != word)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command and what it runs.

    Attributes:
        folder: The folder in which it runs.
        files: The digest of each file that the command names, by the part of the command that names it.
        changed: The digest of each file of the repository that differs from its commit.
        commit: The commit that it runs in a copy of, if any, and the digest of that commit's files.
    """

    command: str
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    tree: str = ""

    @property
    def identity(self) -> str:
        """Digest that is the same for programs with the same words and contents of files."""
        words = [self.files.get(word) or PART.sub(self._content, word) for word in shlex.split(self.command)]
        contents = sorted(set(self.files.values()))
        return hashlib.sha256(json.dumps([words, self.tree, contents]).encode()).hexdigest()

    def _content(self, part: re.Match[str]) -> str:
        return self.files.get(part[0], part[0])

    def __str__(self) -> str:
        return f"{self.command!r}" + (f" at commit {self.commit[:7]}" if self.commit else "")


@dataclass(frozen=True, kw_only=True)
class Head:
    """A baseline of the ledger, the seeds of its screens, and the comparison that accepted it, if any."""

    number: int
    program: Program
    seeds: Sequence[int]
    comparison: str | None
    time: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The verdict of a comparison.

    Attributes:
        outcome: `accepted`, or the reason why it was not.
        pairs: Pairs of the test, 0 if the screen ended the comparison, which had `screened` pairs.
        index: The number of the test, or None without one. Its level is `level`.
        e_value: The evidence. The change is accepted from `1 / level` on.
        difference: The mean difference, above 0 if the candidate is better, with its `interval`.
        left: The share of the level that was left.
        trainings: How many runs were needed, besides `reused` ones of the baseline.
        head: The head of the ledger after it.
        scores: The score of each run, by command and seed.
    """

    outcome: str = ""
    pairs: int = 0
    screened: int = 0
    index: int | None = None
    level: float | None = None
    e_value: float | None = None
    difference: float | None = None
    interval: Sequence[float] | None = None
    left: float = 1.0
    trainings: int = 0
    reused: int = 0
    head: str = ""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def evidence(self) -> str:
        """Return the e-value of the test, beside the one at which the change is accepted."""
        if self.level is None or self.e_value is None:
            return "No evidence, as the runs of a screen are none"
        return f"E = {self.e_value:.3g}; accepted from {1 / self.level:.3g} on"

    def lines(self) -> list[str]:
        """Return lines on the level, the head and the cost."""
        test = "The screen spent nothing of the level"
        if self.level is not None:
            test = f"Test {self.index} of the ledger at level {self.level:.2g}"
        return [
            f"{test}; {self.left:.0%} of the level is left.",
            f"The head of the ledger is {self.head}.",
            f"{pluralize(self.trainings, 'runs were needed')}, and {self.reused} of the baseline reused.",
        ]


class Ledger:
    """The ledger in a folder. `create` makes a missing one.

    Raises InputError if it is missing or damaged.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder, self.file = folder, folder / LEDGER_FILE
        if not os.path.isfile(self.file) and not create:
            raise InputError(f"there is no ledger in {folder}; automl referee --ledger {folder} begins one")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot have a ledger ({error.strerror}); choose another") from error
        with self._open() as database:
            database.executescript(SCHEMA if create else "")

    @contextmanager
    def _open(self, *statements: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.file, timeout=WAIT, isolation_level=None)) as database:
                for statement in ("PRAGMA trusted_schema = OFF", *statements):
                    database.execute(statement)
                yield database
                if database.in_transaction:
                    database.execute("COMMIT")
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise InputError(
                f"{self.file} cannot be used ({error}). Restore it from a copy, or begin another ledger"
            ) from error

    def _writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a transaction that excludes other writers. An error, or a kill, takes it back."""
        return self._open("BEGIN IMMEDIATE")

    def rows(self, kind: str = FACT) -> dict[str, Any]:
        """Return the values of the rows of a kind, in order."""
        with self._open() as database:
            return _rows(database, kind)

    def check(self, seen: Mapping[str, str]) -> dict[str, str]:
        """Return the text of all rows. Raise InputError if one that was `seen` before has changed."""
        with self._open() as database:
            query = "SELECT kind || ' ' || key, value FROM rows"
            rows: dict[str, str] = dict(database.execute(query).fetchall())
        if changed := [name for name, value in seen.items() if rows.get(name) != value]:
            raise InputError(
                f"the {changed[0]} in {self.file} has changed, which a command must have done. Restore the "
                f"file from a copy, or begin another ledger"
            )
        return rows

    def set_once(self, key: str, value: Any, kind: str = FACT) -> Any:
        """Add a row, unless there is one with this key. Return the value as it is then."""
        with self._writing() as database:
            return _add(database, kind, key, value)

    def heads(self) -> list[Head]:
        """Return the first baseline and the accepted changes, in order. The last one is the head."""
        rows = self.rows(HEAD).items()
        heads = [
            Head(**{**row, "program": Program(**row["program"]), "number": int(key)}) for key, row in rows
        ]
        return heads[max((i for i, head in enumerate(heads) if head.comparison is None), default=0) :]

    def begin_head(self, program: Program) -> Head:
        """Make a program the first head, if there is none, or none that has a score. Return the head."""
        with self._writing() as database:
            heads = list(_rows(database, HEAD).values())
            replaced = (
                heads and heads[-1]["comparison"] is None and not _rows(database, POOL.format(len(heads)))
            )
            if not heads or (replaced and Program(**heads[-1]["program"]).identity != program.identity):
                _add_head(database, vars(program), None)
        return self.heads()[-1]

    def begin_test(self, name: str) -> int:
        """Return the number of the test of a comparison. The first call spends it."""
        with self._writing() as database:
            return int(_add(database, TEST, name, len(_rows(database, TEST)) + 1))

    def decision(self, name: str) -> Decision | None:
        """Return the verdict of a comparison, or None before it ends."""
        value = self.rows(VERDICT).get(name)
        return None if value is None else Decision(**value)

    def decide(self, name: str, decision: Decision) -> Decision:
        """Record the verdict of a comparison once, and return the one that is recorded.

        An accepted change becomes the head in the same step, unless another one did so before.
        """
        with self._writing() as database:
            comparison, value = _rows(database, COMPARISON)[name], dict(vars(decision))
            if name not in _rows(database, VERDICT) and decision.outcome == ACCEPTED:
                if len(_rows(database, HEAD)) == comparison["head"]:
                    _add_head(database, comparison["candidate"], name)
                else:
                    value["outcome"] = STALE
            return Decision(**_add(database, VERDICT, name, value))


def _rows(database: sqlite3.Connection, kind: str) -> dict[str, Any]:
    query = "SELECT key, value FROM rows WHERE kind = ? ORDER BY number"
    return {key: json.loads(value) for key, value in database.execute(query, (kind,))}


def _add(database: sqlite3.Connection, kind: str, key: str, value: Any) -> Any:
    row = (kind, key, json.dumps(value), time.time())
    database.execute("INSERT OR IGNORE INTO rows (kind, key, value, time) VALUES (?, ?, ?, ?)", row)
    return _rows(database, kind)[key]


def _add_head(database: sqlite3.Connection, program: Mapping[str, Any], comparison: str | None) -> None:
    seeds = [secrets.randbelow(evalues.SEEDS) for _ in range(evalues.POOL)]
    value = {"program": program, "seeds": seeds, "comparison": comparison, "time": time.time()}
    _add(database, HEAD, str(len(_rows(database, HEAD)) + 1), value)
