"""Watches Ray's head node. When the head ends, Ray exits this process, and nothing can be printed."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray

PERIOD = 1.0  # seconds between two checks; Ray exits some 10 s after the head has ended
TIMES = 2  # consecutive checks that must fail


@contextmanager
def watch_head(lost: Callable[[str], None], period: float = PERIOD) -> Iterator[None]:
    """Call `lost` once with the head's address if nothing listens there any more inside the block."""
    address = ray.get_runtime_context().gcs_address
    over = threading.Event()

    def watch() -> None:
        failed = 0
        while not over.wait(period):
            failed = failed + 1 if _is_refused(address) else 0
            if failed == TIMES:
                lost(address)
                return

    thread = threading.Thread(target=watch, name="head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _is_refused(address: str) -> bool:
    """Return whether nothing listens at `address`. A timeout of a busy machine does not count."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False
