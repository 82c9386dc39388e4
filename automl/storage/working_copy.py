"""The local copy of a search in an object store, and its single writer.

A study grows by appending, and an object store can only replace files. So one process, the driver, works in a
local folder, and a thread copies changes to the store within seconds. Trials write their checkpoints directly
to the store. Another machine that reads the search gets its own copy.

A note in the store names the writer and has a number that increases. If it stops, the writer has died.
"""

import json
import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from automl.base.errors import InputError, error_message
from automl.base.terminal import tell
from automl.storage.cache_folder import cache_root
from automl.storage.storage import Storage
from search.record import CHECKPOINT_FILE
from search.study import STUDY_FILE

log = logging.getLogger("automl")

NOTE = "writer.json"  # in the store: the current or last writer
STATE = ".copy.json"  # in the copy: its name, and the stamps of copied files
PERIOD = 2.0  # interval of checks for changes [s]
BEAT = 10.0  # interval of heartbeats [s]
SILENCE = 3 * BEAT  # time without a heartbeat after which a writer counts as dead [s]
PATIENCE = 60.0  # maximum time of the last copy [s]


def folder_of(location: Storage) -> Path:
    """Return the local folder of the copy."""
    above, _, name = location.address.partition("?")[0].rpartition("/")
    return cache_root() / "searches" / re.sub(r"\W+", "-", above) / name


def update(location: Storage, folder: Path) -> None:
    """Update the copy from the store, unless the store was last written from this copy.

    Raise OSError if the store is unreachable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".update.lock"):
        state = _read_state(folder)
        note = _read_note(location)
        if note is not None and note["copy"] == state["copy"]:
            return
        # Times of the store may have a resolution of seconds, so the writer lists the stamps of its files.
        # A killed writer may not have listed its last file.
        files = {} if note is None else note["files"]
        stamps = {name: files.get(name, stamp) for name, stamp in _listed(location).items()}
        for name in _copied_files(folder) - stamps.keys():
            (folder / name).unlink()
        for name, stamp in stamps.items():
            if state["files"].get(name) != stamp or not (folder / name).exists():
                with suppress(FileNotFoundError):  # A trial deletes its progress at its end.
                    Storage(str(folder)).write(name, location.read(name))
        _write_state(folder, {**state, "files": stamps})


def is_written(location: Storage) -> bool:
    """Return True if a process writes the search. The clocks of writer and reader must agree."""
    note = _read_note(location)
    return note is not None and note["writing"] and time.time() - note["time"] < SILENCE


def last_written(location: Storage) -> float | None:
    """Return the time of the last heartbeat by the writer's clock [s since 1970], or None."""
    try:
        note = _read_note(location)
    except InputError:  # the next writer reports that it is damaged
        return None
    return None if note is None else float(note["time"])


@contextmanager
def writing(location: Storage, folder: Path) -> Iterator[Callable[[], None]]:
    """Make this process the only writer of the search inside the block, and copy changes to the store.

    Yield a function that deletes the search and its copy. Raise InputError if another process writes it.
    """
    try:
        writer = _Writer(location, folder)
    except OSError as error:
        raise InputError(f"{location} cannot be reached ({error_message(error)})") from error
    try:
        yield writer.delete
    finally:
        writer.close()


class _Writer:
    """Thread that copies changes to the store."""

    def __init__(self, location: Storage, folder: Path) -> None:
        self.location, self.folder = location, folder
        self.me = uuid.uuid4().hex
        self.count = 0
        self.failing = False
        _await_silence(location)
        update(location, folder)
        self.sent = dict.fromkeys(_listed(location), "")  # without stamps, so all files are sent or deleted
        self._sign(writing=True)
        if (_read_note(location) or {}).get("writer") != self.me:
            raise _taken(location)
        self._deleted = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="storage", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        signed, took = time.monotonic(), 0.0
        while not self._end.wait(max(PERIOD, 5 * took)):  # a large study is copied less often
            started = time.monotonic()
            try:
                if time.monotonic() - signed >= BEAT:
                    note = _read_note(self.location)
                    if note is not None and note["writer"] != self.me:
                        # The other process considers this one dead. Two writers would corrupt the search.
                        tell(f"error: {_taken(self.location)}")
                        os.kill(os.getpid(), signal.SIGTERM)
                        return
                    self._sign(writing=True)
                    signed = time.monotonic()
                if self._send():
                    self._sign(writing=True)
                self.failing = False
                took = min(time.monotonic() - started, BEAT / 5)
            except OSError as error:
                if not self.failing:
                    log.warning(
                        "a file was not written to %s and will be retried: %s",
                        self.location,
                        error_message(error),
                    )
                self.failing = True

    def _sign(self, *, writing: bool) -> None:
        self.count += 1
        note = {
            "writer": self.me, "copy": _read_state(self.folder)["copy"], "writing": writing,
            "host": socket.gethostname(), "pid": os.getpid(), "count": self.count, "time": time.time(),
            "files": self.sent,
        }  # fmt: skip
        self.location.write(NOTE, json.dumps(note).encode())

    def _send(self) -> bool:
        """Copy changed files. Return True if there were any."""
        # The study is copied last, so that it never refers to missing files.
        before = dict(self.sent)
        names = sorted(_copied_files(self.folder), key=lambda name: name.endswith(STUDY_FILE))
        for name in names:
            state = (self.folder / name).stat()
            stamp = f"{state.st_size} {state.st_mtime_ns}"  # it changes with the content
            if self.sent.get(name) != stamp:
                self.location.write(name, (self.folder / name).read_bytes())
                self.sent[name] = stamp
        for name in self.sent.keys() - set(names):
            self.location.remove(name)
            del self.sent[name]
        return self.sent != before

    def delete(self) -> None:
        """Delete the copy and then the search. The note is deleted last, as it keeps other writers away."""
        self._end.set()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            if (_read_note(self.location) or {}).get("writer") == self.me:
                for name in sorted(self.location.files(), key=lambda name: name == NOTE):
                    self.location.remove(name)
        self._deleted = True

    def close(self) -> None:
        """Copy the remaining changes and release the search, unless it was deleted."""
        if self._deleted:
            return
        self._end.set()
        self._thread.join()
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if (_read_note(self.location) or {}).get("writer") not in (None, self.me):
                    return  # another process has taken over
                self._send()
                self._sign(writing=False)
                return
            except OSError as error:
                if time.monotonic() > until:
                    tell(
                        f"warning: the end of the search was not written to {self.location} "
                        f"({error_message(error)}). Everything is in {self.folder}; resume it on this "
                        f"machine to copy it"
                    )
                    return
            time.sleep(1)


def _await_silence(location: Storage) -> None:
    """Wait until no process writes the search, or its heartbeat has stopped."""
    first = _read_note(location)
    if first is None or not first["writing"]:
        return
    if first["host"] == socket.gethostname() and not _is_alive(first["pid"]):
        return
    tell(f"a process on {first['host']} was running the search; waiting {SILENCE:.0f} s for its heartbeat")
    until = time.monotonic() + SILENCE
    while time.monotonic() < until:
        time.sleep(1)
        note = _read_note(location)
        if note is None or not note["writing"]:
            return
        if note["count"] != first["count"] or note["writer"] != first["writer"]:
            raise _taken(location)


def _taken(location: Storage) -> InputError:
    return InputError(f"search {location} is running in another process; wait until it ends, or stop it")


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):  # it is another user's
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _read_note(location: Storage) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(location.read(NOTE))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(
            f"{location}/{NOTE} is damaged; delete it while no process runs the search"
        ) from error
    return note


def _read_state(folder: Path) -> dict[str, Any]:
    """Read the copy's name and its stamps of files. Create them if they do not exist."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        state = {"copy": uuid.uuid4().hex, "files": {}}
        _write_state(folder, state)
    return state


def _write_state(folder: Path, state: dict[str, Any]) -> None:
    Storage(str(folder)).write(STATE, json.dumps(state).encode())


def _listed(location: Storage) -> dict[str, str]:
    return {name: stamp for name, stamp in location.files().items() if _is_copied(name)}


def _copied_files(folder: Path) -> set[str]:
    return {
        name
        for file in folder.rglob("*")
        if file.is_file() and _is_copied(name := file.relative_to(folder).as_posix())
    }


def _is_copied(name: str) -> bool:
    """Return True unless it is a lock, an unfinished file, a checkpoint, or a file of Ray."""
    *folders, file = name.split("/")
    return not (
        "ray" in folders
        or folders[:1] == ["report"]  # `automl report` writes it
        or file in (NOTE, CHECKPOINT_FILE)
        or file.startswith(".")
        or re.search(r"\.\d+$|\.lock$", file)
    )
