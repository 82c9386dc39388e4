"""The ledger of a stream of changes: `ledger.db` in a folder, which every comparison of it reads and writes.

SQLite with a rollback journal. Each step is one transaction that begins with the lock for writing, and does
nothing the second time. So callers in parallel see one order of steps, and a caller that was killed repeats
its last step without effect. Rows are never changed or deleted; triggers see to that.
"""

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.confirm import evalues

LEDGER_FILE = "ledger.db"
WAIT = 60.0  # for other callers, each of which writes for milliseconds [s]
TABLES = {
    "facts": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "heads": "number INTEGER PRIMARY KEY, program TEXT NOT NULL, seeds TEXT NOT NULL, "
    "comparison TEXT UNIQUE, time REAL NOT NULL",
    "comparisons": "number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, head INTEGER NOT NULL, "
    "candidate TEXT NOT NULL, seeds TEXT NOT NULL, time REAL NOT NULL",
    "pool": "head INTEGER NOT NULL, seed INTEGER NOT NULL, comparison TEXT NOT NULL, history TEXT NOT NULL, "
    "PRIMARY KEY (head, seed)",
    "tests": "number INTEGER PRIMARY KEY, comparison TEXT UNIQUE NOT NULL, time REAL NOT NULL",
    "verdicts": "comparison TEXT PRIMARY KEY, outcome TEXT NOT NULL, value TEXT NOT NULL, time REAL NOT NULL",
    "finals": "number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, head INTEGER NOT NULL, "
    "time REAL NOT NULL",
}
ACCEPTED, STALE = "accepted", "another head"  # outcomes that the ledger itself decides


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command and what it runs.

    Attributes:
        command: The command, as it was given.
        folder: The folder in which it runs.
        files: The digest of each file that the command names, by the word in the command.
        changed: The digest of each other file of the repository that differs from its commit.
        commit: The commit that it runs in a copy of, if any.
        tree: The digest of that commit's files.
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
        words = [self.files.get(word, word) for word in self.command.split()]
        return hashlib.sha256(json.dumps([words, self.tree]).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.command!r}" + (f" at commit {self.commit[:7]}" if self.commit else "")


@dataclass(frozen=True, kw_only=True)
class Head:
    """A baseline of the ledger: its program and the seeds of its screens. The last one is the head."""

    number: int
    program: Program
    seeds: Sequence[int]
    comparison: str | None
    time: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The verdict of a comparison.

    Attributes:
        outcome: `accepted`, or why it was not.
        pairs: Pairs of the test, 0 if the screen ended the comparison.
        screened: Pairs of the screen.
        index: The number of the test, or None without one.
        level: The level of the test, and `e_value` what was reached. The change is accepted from
            `1 / level` on.
        difference: The mean difference, above 0 if the candidate is better, with its `interval`.
        left: The share of the level that was left.
        trainings: How many runs the comparison needed.
        scores: The score of each run, by command and seed.
    """

    outcome: str
    pairs: int = 0
    screened: int = 0
    index: int | None = None
    level: float | None = None
    e_value: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    left: float = 1.0
    trainings: int = 0
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Ledger:
    """The ledger in a folder. `create` makes a missing one.

    Raises InputError if it is missing or damaged.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder, self.file = folder, folder / LEDGER_FILE
        if create:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--ledger {folder} cannot be written ({error.strerror})") from error
            with self._writing() as database:
                for name, columns in TABLES.items():
                    database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
                    for action in ("UPDATE", "DELETE"):
                        database.execute(
                            f"CREATE TRIGGER IF NOT EXISTS {name}_{action} BEFORE {action} ON {name} "
                            f"BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END"
                        )
        elif not self.file.is_file():
            raise InputError(
                f"there is no ledger in {folder}; begin one with automl referee --ledger {folder}"
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.file, timeout=WAIT, isolation_level=None)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                yield database
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.file} cannot be used ({error}). If it is damaged, restore it from a copy, or begin "
                f"another ledger"
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction that excludes other writers."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database  # closing rolls back after an error
            database.execute("COMMIT")

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._open() as database:
            return database.execute(query, values).fetchall()

    def set_once(self, key: str, value: Any) -> Any:
        """Set a fact, if it is not set yet. Return the fact as it is then."""
        with self._writing() as database:
            database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (key, json.dumps(value)))
            return json.loads(database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()[0])

    def fact(self, key: str) -> Any:
        """Return a fact, or None if it is not set."""
        rows = self._rows("SELECT value FROM facts WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    def begin_head(self, program: Program, seeds: Sequence[int]) -> Head:
        """Make a program the first head, if there is none. Return the head."""
        with self._writing() as database:
            if database.execute("SELECT count(*) FROM heads").fetchone()[0] == 0:
                _add_head(database, program, seeds, None)
        return self.heads()[-1]

    def heads(self) -> list[Head]:
        """Return the first baseline and the accepted changes, in order. The last one is the head."""
        rows = self._rows("SELECT number, program, seeds, comparison, time FROM heads ORDER BY number")
        return [
            Head(
                number=n,
                program=Program(**json.loads(program)),
                seeds=json.loads(seeds),
                comparison=c,
                time=t,
            )
            for n, program, seeds, c, t in rows
        ]

    def add(self, name: str, head: int, candidate: Program, seeds: Sequence[int]) -> None:
        """Record a comparison with the head number `head`, once."""
        with self._writing() as database:
            database.execute(
                "INSERT OR IGNORE INTO comparisons (name, head, candidate, seeds, time) "
                "VALUES (?, ?, ?, ?, ?)",
                (name, head, json.dumps(vars(candidate)), json.dumps(list(seeds)), time.time()),
            )

    def comparisons(self) -> list[dict[str, Any]]:
        """Return all comparisons in order, each with its verdict or None."""
        rows = self._rows(
            "SELECT c.number, c.name, c.head, c.candidate, c.seeds, c.time, v.value, v.time, t.number "
            "FROM comparisons c LEFT JOIN verdicts v ON v.comparison = c.name "
            "LEFT JOIN tests t ON t.comparison = c.name ORDER BY c.number"
        )
        keys = ("number", "name", "head", "candidate", "seeds", "began", "verdict", "ended", "test")
        return [
            {
                **dict(zip(keys, row, strict=True)),
                "candidate": Program(**json.loads(row[3])),
                "seeds": json.loads(row[4]),
                "verdict": None if row[6] is None else _decision(row[6]),
            }
            for row in rows
        ]

    def head_of(self, name: str) -> int:
        """Return the number of the head that a comparison has as its baseline."""
        rows = self._rows("SELECT head FROM comparisons WHERE name = ?", name)
        if not rows:
            raise InputError(f"{self.file} has no comparison {name!r}; was it copied from another ledger?")
        return int(rows[0][0])

    def pool(self, head: int) -> dict[int, tuple[str, list[dict[str, float]]]]:
        """Return the comparison and the metrics of each run of a head that screens reuse, by seed."""
        rows = self._rows("SELECT seed, comparison, history FROM pool WHERE head = ?", head)
        return {seed: (comparison, json.loads(history)) for seed, comparison, history in rows}

    def add_to_pool(
        self, head: int, seed: int, comparison: str, history: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep a run of a head for later screens. The first run of a seed stays."""
        with self._writing() as database:
            row = (head, seed, comparison, json.dumps([dict(metrics) for metrics in history]))
            database.execute("INSERT OR IGNORE INTO pool VALUES (?, ?, ?, ?)", row)

    def begin_test(self, name: str) -> int:
        """Return the number of the test of a comparison. The first call spends it."""
        with self._writing() as database:
            database.execute(
                "INSERT OR IGNORE INTO tests (comparison, time) VALUES (?, ?)", (name, time.time())
            )
            row = database.execute("SELECT number FROM tests WHERE comparison = ?", (name,)).fetchone()
            return int(row[0])

    def tests(self) -> int:
        """Return how many tests were begun."""
        return int(self._rows("SELECT count(*) FROM tests")[0][0])

    def discoveries(self) -> int:
        """Return how many changes were accepted."""
        return int(self._rows("SELECT count(*) FROM verdicts WHERE outcome = ?", ACCEPTED)[0][0])

    def decision(self, name: str) -> Decision | None:
        """Return the verdict of a comparison, or None before it ends."""
        rows = self._rows("SELECT value FROM verdicts WHERE comparison = ?", name)
        return _decision(rows[0][0]) if rows else None

    def decide(self, name: str, decision: Decision) -> Decision:
        """Record the verdict of a comparison once, and return the one that is recorded.

        An accepted change becomes the head in the same step, unless another one did so before.
        """
        with self._writing() as database:
            row = database.execute("SELECT value FROM verdicts WHERE comparison = ?", (name,)).fetchone()
            if row is not None:
                return _decision(row[0])
            head, candidate = database.execute(
                "SELECT head, candidate FROM comparisons WHERE name = ?", (name,)
            ).fetchone()
            value = vars(decision)
            if decision.outcome == ACCEPTED:
                if database.execute("SELECT max(number) FROM heads").fetchone()[0] != head:
                    value = {**value, "outcome": STALE}
                else:
                    seeds = draw_pool()
                    _add_head(database, Program(**json.loads(candidate)), seeds, name)
            text = json.dumps(value)
            database.execute(
                "INSERT INTO verdicts VALUES (?, ?, ?, ?)", (name, value["outcome"], text, time.time())
            )
        return _decision(text)

    def add_final(self, name: str, head: int) -> None:
        """Record a comparison of a head with the first baseline on fresh seeds."""
        with self._writing() as database:
            row = (name, head, time.time())
            database.execute("INSERT OR IGNORE INTO finals (name, head, time) VALUES (?, ?, ?)", row)

    def finals(self) -> list[tuple[str, int]]:
        """Return the name and the head of each comparison of a head with the first baseline."""
        return [(name, head) for name, head in self._rows("SELECT name, head FROM finals ORDER BY number")]


def draw_pool() -> list[int]:
    """Draw the seeds of the screens of a new head."""
    return [secrets.randbelow(2**31) for _ in range(evalues.POOL)]


def _decision(text: str) -> Decision:
    value = json.loads(text)
    interval = value.pop("interval")
    return Decision(**value, interval=None if interval is None else tuple(interval))


def _add_head(
    database: sqlite3.Connection, program: Program, seeds: Sequence[int], comparison: str | None
) -> None:
    database.execute(
        "INSERT INTO heads (program, seeds, comparison, time) VALUES (?, ?, ?, ?)",
        (json.dumps(vars(program)), json.dumps(list(seeds)), comparison, time.time()),
    )
