"""This process: the number of cores that it may use, its handlers of signals, and the logs of libraries."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

from automl.base.escape import redact

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def count_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a quota, it is the word `max`
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[..., Any]]) -> Iterator[None]:
    """Install handlers of signals inside the block. Only the main thread can have them."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handlers[number]) for number in handlers if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GPUS = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*", "/dev/kfd", "/dev/dxg")  # exist where GPUs do


def may_have_gpu() -> bool:
    """Return False if this process can use no GPU. Torch and Ray, which would find one, take seconds."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(map(glob, GPUS))


LIBRARY_LOGGERS = ("ray", "ray.tune", "ray.train", "optuna", "mlflow", "alembic", "py.warnings")


@contextmanager
def capture_library_logs(file: Path) -> Iterator[None]:
    """Append library logs and Python's warnings to `file` inside the block, without credentials."""
    handler = logging.FileHandler(file, delay=True)
    handler.setFormatter(_Public("%(asctime)s %(name)s %(levelname)s %(message)s"))
    with library_logs_to(handler):
        yield


class _Handlers(list[logging.Handler]):
    """The handlers of a logger, without those that a library adds when it is first imported."""

    def __init__(self, handlers: list[logging.Handler]) -> None:
        super().__init__(handlers)
        self.added: list[logging.Handler] = []

    def append(self, handler: logging.Handler) -> None:
        self.added.append(handler)


@contextmanager
def library_logs_to(handler: logging.Handler) -> Iterator[None]:
    """Send library logs and Python's warnings only to `handler` inside the block."""
    before = {}
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # include warnings that the command line hides
        logging.captureWarnings(True)
        for name in LIBRARY_LOGGERS:
            logger = logging.getLogger(name)
            before[name] = (logger.handlers, logger.propagate)
            logger.handlers, logger.propagate = _Handlers([handler]), False
        try:
            yield
        finally:
            for name, (handlers, propagate) in before.items():
                logger = logging.getLogger(name)
                added = logger.handlers.added if isinstance(logger.handlers, _Handlers) else []
                logger.handlers, logger.propagate = [*handlers, *added], propagate
            logging.captureWarnings(False)
            handler.close()


class _Public(logging.Formatter):
    """Formatter that redacts passwords, since libraries log addresses of servers."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
