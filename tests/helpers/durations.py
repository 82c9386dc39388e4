"""Processor time of tests: its record, and the order and the selection that follow from it.

Each run records the processor seconds of the tests and of fixtures that tests share, with those of the
commands that they started and waited for, in the cache of pytest. `make test` begins with the files that took
longest, and `make quick` runs the tests that took less than `QUICK`. What was not run here is taken from
durations.json, which `make durations` writes.
"""

import json
import resource
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

QUICK = 0.2  # processor seconds, as all of these
UNKNOWN = 0.05  # what a test takes that has no record
RECORD = "automl/durations"  # the key in the cache
COMMITTED = Path(__file__).with_name("durations.json")

# Files that one process of `make test` runs with those of exports. Some share the trained and exported model
# of tests/automl/conftest.py, which take long to make, and what all of them import takes eight seconds.
SHARED = (
    "test_attentions.py",
    "test_checks.py",
    "test_code_search.py",
    "test_model_card.py",
    "test_onnx_program.py",
    "test_predict.py",
)


def scope_of(nodeid: str) -> str:
    """Return the name of what one process runs as a whole."""
    file = nodeid.split("::")[0]
    name = file.rpartition("/")[2]
    return "shared" if "export" in name or name in SHARED else file


def processor_seconds() -> float:
    """Return the processor time of this process and of the ended processes that it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Durations:
    """Plugin that measures each test and each fixture, in every process, and records them in the first."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.known = read_record(config)
        self.tests: dict[str, float] = defaultdict(float)
        self.files: dict[str, float] = defaultdict(float)  # shared fixtures by the file that made them
        self.total = 0.0
        self._shared = 0.0  # time in shared fixtures in this phase of a test
        self._inside = 0.0  # time in fixtures inside the current one

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, outside, self._inside = processor_seconds(), self._inside, 0.0
        try:
            return (yield)
        finally:
            taken = processor_seconds() - before
            self._shared += taken - self._inside
            self._inside = outside + taken

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
        report = yield
        now = processor_seconds()
        report.processor_seconds = now - self._before - self._shared
        report.shared_fixtures = self._shared
        self._before, self._shared, self._inside = now, 0.0, 0.0
        return report

    def pytest_runtest_logstart(self) -> None:
        self._before = processor_seconds()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.is_worker or not hasattr(report, "processor_seconds"):
            return
        self.tests[report.nodeid] += report.processor_seconds
        self.total += report.processor_seconds + report.shared_fixtures
        if report.shared_fixtures:
            self.files[report.nodeid.split("::")[0]] += report.shared_fixtures

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_worker or session.config.option.collectonly:
            return
        if (cache := getattr(session.config, "cache", None)) is not None:  # none with `-p no:cacheprovider`
            cache.set(RECORD, {**self.known, **rounded(self.tests), **rounded(self.files)})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"{self.total:.0f} processor seconds in {len(self.tests):,} tests")


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def read_record(config: pytest.Config) -> dict[str, float]:
    """Return the processor seconds of the last run of each test, here or where the file was committed."""
    cache = getattr(config, "cache", None)
    cached = {} if cache is None else cache.get(RECORD, {})
    return {**json.loads(COMMITTED.read_text()), **cached}


def write_record(config: pytest.Config) -> None:
    """Commit the tests that are not quick."""
    slow = {name: round(value, 1) for name, value in read_record(config).items() if value >= QUICK}
    COMMITTED.write_text(json.dumps(dict(sorted(slow.items())), indent=1) + "\n")


def select_quick(config: pytest.Config, items: list[pytest.Item], known: Mapping[str, float]) -> None:
    """Leave the tests out that are marked, or that are known to take longer."""

    def is_quick(item: pytest.Item) -> bool:
        marked = any(item.get_closest_marker(name) for name in ("slow", "heavy"))
        return not marked and known.get(item.nodeid, 0.0) < QUICK

    config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
    items[:] = [item for item in items if is_quick(item)]


def sort_by_scope(items: list[pytest.Item], known: Mapping[str, float]) -> None:
    """Begin with the files that take longest, so that at the end no process waits long for another."""
    total: dict[str, float] = defaultdict(float)
    files = set[str]()
    for item in items:
        if not item.get_closest_marker("skip"):
            total[scope_of(item.nodeid)] += known.get(item.nodeid, UNKNOWN)
            files.add(item.nodeid.split("::")[0])
    for file in files:
        total[scope_of(file)] += known.get(file, 0.0)
    items.sort(key=lambda item: -total[scope_of(item.nodeid)])


class ByFile(LoadScopeScheduling):
    """Scheduler that runs the tests of a file in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give out again what a dead process has not run. Return the test in which it died.

        pytest-xdist 3.8 gives out all of its files, runs that test again, and waits for files that have
        ended (its issues 1323 and 1378).
        """
        left = [(scope, tests) for scope, tests in self.assigned_work.pop(node).items()]
        left = [(scope, tests) for scope, tests in left if not all(tests.values())]
        if not left:
            return None
        _, first = left[0]
        died_in = next(test for test, done in first.items() if not done)
        first[died_in] = True
        self.workqueue.update((scope, tests) for scope, tests in left if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        # A process begins a test once it has another, or knows that there is none (issue 1327).
        if self._pending_of(self.assigned_work.get(node, {})) == 1:
            super()._reschedule(node)
