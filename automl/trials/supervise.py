"""Run a command, measure the processor time of all its processes, and end them when the caller is gone.

It uses the standard library alone, so that it starts quickly: `python -I -S supervise.py STDOUT STDERR
COMMAND...`. When standard input closes, even because the caller was killed, the command's processes are
killed. At its end it prints a line of JSON: `code`, `seconds` and `processor_seconds`, or `error`.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux: orphans become children of this process


def main() -> None:
    """Run the command of the process's arguments."""
    if os.fork():  # Ray kills the children of a worker that ends, so this process must not be one
        os._exit(0)
    out, err, *command = sys.argv[1:]
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    start = time.monotonic()
    try:
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error)}))
        return
    threading.Thread(target=_kill_when_abandoned, args=(process.pid,), daemon=True).start()
    code = process.wait()
    seconds = time.monotonic() - start
    _end_others(process.pid)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    with suppress(BrokenPipeError):
        result = {"code": code, "seconds": seconds, "processor_seconds": usage.ru_utime + usage.ru_stime}
        os.write(1, json.dumps(result).encode() + b"\n")  # nothing is left to be flushed at the exit


def _kill_when_abandoned(group: int) -> None:
    os.read(0, 1)  # returns when the caller has closed its end
    _kill(group)


def _kill(group: int) -> None:
    """Kill the processes of the group and all other descendants, which may be in groups of their own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for process in _descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _end_others(group: int) -> None:
    """Kill what the command has left behind, and wait for it, so that its processor time counts."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            _kill(group)
            time.sleep(0.002)
            continue
        _kill(group)  # without a system that gives orphans to this process
        return


def _descendants() -> Iterator[int]:
    """Yield the processes below this one, where the system lists processes in /proc."""
    parents = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            # A name that is no number, or a process that has ended.
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{int(name)}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    above = {os.getpid()}
    while level := {process for process, parent in parents.items() if parent in above}:
        yield from level
        above = level


if __name__ == "__main__":
    main()
