"""Ctrl-C and SIGTERM: the first stops a search gracefully, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(SystemExit):
    """A signal stopped the process gracefully. Exits with 128 plus the signal's number."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


class Interrupt:
    """Record of the first signal received. Calling it returns whether there was one.

    Attributes:
        signal: Number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def record_signals(advice: str) -> Iterator[Interrupt]:
    """Record a first SIGINT or SIGTERM inside the block. Print `advice` and end the process at a second one.

    All results so far are already on disk.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # Only the main thread can handle signals.
        return

    def record(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is None:
            interrupt.signal = number
            print("stopping; once more to stop at once", file=sys.stderr, flush=True)
        else:
            print(advice, file=sys.stderr, flush=True)
            os._exit(128 + number)

    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
