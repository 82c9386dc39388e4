"""This process: the number of cores that it may use, and handlers of its signals."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def count_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a quota, it is the word `max`
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[..., Any]]) -> Iterator[bool]:
    """Install handlers of signals inside the block. Yield False, without handlers, in another thread.

    Only the main thread can have them.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handlers[number]) for number in handlers if is_main}
    try:
        yield is_main
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
