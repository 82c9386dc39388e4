"""Write to MLflow in a separate process.

MLflow's client needs tens of milliseconds of Python for a trial. The driver serves hundreds of slots, so it
must not spend this time itself.
"""

import logging
import logging.handlers
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from automl.base.atomic import locked
from automl.base.errors import InputError
from automl.base.lazy import resolve
from automl.base.process import library_logs_to
from automl.tracking.run_spec import RunSpec
from search.record import TrialRecord

SECONDS = 10.0  # maximum wait for a running call at the end [s]
ANSWER = 120.0  # time after which a call is abandoned and the process is killed [s]
POSTPONED = "mlflow.later"  # empty file in the folder of a comparison that `sync_later` has to write
SYNC = "import sys; from automl.tracking.process import sync_postponed; sync_postponed(sys.argv[1])"
NICE = 3  # once it has begun: the driver and its trials come first, but a busy machine must not starve it

log = logging.getLogger("automl")

_IDLE: list[tuple[subprocess.Popen[bytes], Connection]] = []  # until an `MlflowProcess` takes it
_BLOCKS: list[None] = []  # one for each open block of `prepared`


@contextmanager
def prepared() -> Iterator[None]:
    """Start a process that imports MLflow, and let each `MlflowProcess` inside the block use it in turn.

    A block inside another one uses the same process.
    """
    if not _BLOCKS:
        _IDLE.append(_begin())
    _BLOCKS.append(None)
    try:
        yield
    finally:
        _BLOCKS.pop()
        while _IDLE and not _BLOCKS:
            _end(*_IDLE.pop())


class MlflowProcess:
    """A `MlflowWriter` of `run_spec` in another process. Use it as a context manager.

    The process starts with the first call, or is that of `prepared`, which gets it back. It creates the store
    if there is none, which takes seconds, and the first call waits for it. Calls are serialised. If the
    process dies, the next call starts another one, which continues the existing runs. Its log records are
    logged in this process.

    Calls raise InputError as `MlflowWriter` does, and RuntimeError for other errors.
    """

    def __init__(self, run_spec: RunSpec) -> None:
        self.run_spec = run_spec
        self._lock = threading.Lock()
        self._closed = self._started = False
        if _IDLE:
            self._start()

    def __enter__(self) -> "MlflowProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        if not self._started:
            return
        # No data are lost between two calls, and a call that takes longer is lost anyway.
        idle = self._lock.acquire(timeout=SECONDS)
        if idle and self._owed:
            self._line.poll(SECONDS)  # a store that is half made is of no use to any run
        if _BLOCKS and idle and not self._owed and self.process.poll() is None:
            _IDLE.append((self.process, self._line))
        else:
            _end(self.process, self._line)
        if idle:
            self._lock.release()

    def contact(self) -> None:
        """Wait until MLflow answers.

        Raise InputError if it fails or the experiment was deleted, and MlflowSilent after a timeout.
        """
        with self._lock:
            self._contact()

    def runs(self) -> dict[int, str]:
        return dict(self._ask("runs"))

    def page(self) -> str:
        return str(self._ask("page"))

    def read_runs(self) -> None:
        self._ask("read_runs")

    def write(self, trial: TrialRecord) -> str:
        return str(self._ask("write", trial))

    def finish(self, *arguments: Any) -> None:
        self._ask("finish", *arguments)

    def conclude(self, identity: str, verdict: Mapping[str, Any], winner: str | None) -> None:
        self._ask("conclude", identity, verdict, winner)

    def _start(self) -> None:
        self.process, self._line = _IDLE.pop() if _IDLE else _begin()
        self._started, self._open = True, False
        # Calls without an answer yet: the first one, `make`, and those that a signal interrupted.
        self._owed: list[str] = []
        self._send("make", self.run_spec.experiment)

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            if self._closed:
                raise RuntimeError("the search has ended")
            if self._started and self.process.poll() is not None:
                self._line.close()
                self._started = False
            self._contact()
            if not self._open:
                self._call("open", self.run_spec)
                self._open = True
            return self._call(method, *arguments)

    def _contact(self) -> None:
        if not self._started:
            self._start()
        while self._owed:
            method = self._owed[0]
            try:
                self._answer()
            except (InputError, RuntimeError) as error:
                if method == "make" or self.process.poll() is not None:
                    raise
                log.warning("MLflow: an interrupted call failed: %s", error)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._send(method, *arguments)
        return self._answer()

    def _send(self, method: str, *arguments: Any) -> None:
        self._owed.append(method)
        with suppress(OSError):  # it has ended, as the answer says
            self._line.send((method, arguments))

    def _answer(self) -> Any:
        if not self._line.poll(ANSWER):
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"it did not answer in {ANSWER:g} s")
        try:
            answer, error, logged = self._line.recv()
        except (EOFError, OSError) as gone:
            self.process.kill()
            raise RuntimeError(f"the process that writes to it ended ({self.process.wait()})") from gone
        self._owed.pop(0)
        for record in logged:
            logging.getLogger(record.name).handle(record)
        if error is not None:
            raise error
        return answer


def sync_later(folder: Path, storage: str) -> None:
    """Write the comparison in `folder` to MLflow in a process that outlives this one."""
    (folder / POSTPONED).touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    files: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-P", "-c", SYNC, storage]
    subprocess.Popen(command, env=environment, start_new_session=True, **files)


def sync_postponed(storage: str) -> None:
    """Write the comparisons to MLflow that `sync_later` was called for, one after another.

    One process at a time writes all of them, since loading MLflow takes seconds. If it is killed, or MLflow
    does not answer, the next one writes the rest.
    """
    os.nice(NICE)
    with locked(Path(storage) / POSTPONED):
        while waiting := sorted(Path(storage).glob(f"*/*/{POSTPONED}")):
            resolve("automl.search.driver:run_sync")(waiting[0].parents[1].name, storage)
            waiting[0].unlink()


def _begin() -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that runs `serve`. Return it and the connection to it."""
    line, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return process, line


def _end(process: subprocess.Popen[bytes], line: Connection) -> None:
    process.kill()
    process.wait()
    line.close()


def serve(line: Connection) -> None:
    """Answer calls until the connection is closed."""
    # Import them here, since they load MLflow, which the driver does not need.
    from automl.tracking.client import find_experiment, open_client
    from automl.tracking.writer import MlflowWriter

    messages: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer: Any = None
    nice = NICE
    with suppress(EOFError, OSError), library_logs_to(logging.handlers.QueueHandler(messages)):
        while True:
            method, arguments = line.recv()
            answer: Any = None
            error: Exception | None = None
            try:
                if method == "make":
                    find_experiment(open_client(create=True), *arguments)
                elif method == "open":
                    writer = MlflowWriter(*arguments)
                    os.nice(nice)
                    nice = 0
                else:
                    answer = getattr(writer, method)(*arguments)
            except InputError as wrong:
                error = wrong
            except Exception as wrong:  # not all of MLflow's can be sent
                error = RuntimeError(f"{type(wrong).__name__}: {wrong}")
            line.send((answer, error, [messages.get() for _ in range(messages.qsize())]))


if __name__ == "__main__":
    # Ctrl-C and the stop of a job reach all processes, but this one must outlive the driver.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
