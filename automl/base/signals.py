"""Handlers of signals for the duration of a block. Only the main thread can have them."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[..., Any]]) -> Iterator[bool]:
    """Install handlers of signals inside the block. Yield False, without handlers, in another thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handlers[number]) for number in handlers if is_main}
    try:
        yield is_main
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
