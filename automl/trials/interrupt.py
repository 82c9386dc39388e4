"""Ctrl-C and SIGTERM: the first stops a search gracefully, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(SystemExit):
    """A signal stopped it gracefully. Exits with 128 and the signal's number."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


class Interrupt:
    """`signal` is the first signal that came, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def interrupts(advice: str) -> Iterator[Interrupt]:
    """Inside the block a first SIGINT or SIGTERM is noted and a second one ends the process.

    advice: is printed when it ends at once; what had been learned until then is on disk already.
    """
    came = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield came  # signals are the main thread's alone
        return

    def note(number: int, frame: FrameType | None) -> None:
        if came.signal is None:
            came.signal = number
            print("stopping; once more to stop at once", file=sys.stderr, flush=True)
        else:
            print(advice, file=sys.stderr, flush=True)
            os._exit(128 + number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
