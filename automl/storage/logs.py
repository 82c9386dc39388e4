"""Sends the logs of Ray, Optuna and MLflow to a file and keeps them off the terminal."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from automl.storage.addresses import public

LIBRARY_LOGGERS = ("ray", "ray.tune", "ray.train", "optuna", "mlflow", "alembic", "py.warnings")


@contextmanager
def capture_library_logs(file: Path) -> Iterator[None]:
    """Inside the block, library logs and Python's warnings are appended to `file`, without credentials."""
    handler = logging.FileHandler(file, delay=True)
    handler.setFormatter(_Public("%(asctime)s %(name)s %(levelname)s %(message)s"))
    with library_logs_to(handler):
        yield


@contextmanager
def library_logs_to(handler: logging.Handler) -> Iterator[None]:
    """Inside the block, library logs and Python's warnings go to `handler` alone."""
    before = {}
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # also what the command line keeps from the terminal
        logging.captureWarnings(True)
        for name in LIBRARY_LOGGERS:
            logger = logging.getLogger(name)
            before[name] = (logger.handlers, logger.propagate)
            logger.handlers, logger.propagate = [handler], False
        try:
            yield
        finally:
            for name, (handlers, propagate) in before.items():
                logger = logging.getLogger(name)
                logger.handlers, logger.propagate = handlers, propagate
            logging.captureWarnings(False)
            handler.close()


class _Public(logging.Formatter):
    """Libraries name the addresses of servers, some of which hold a password."""

    def format(self, record: logging.LogRecord) -> str:
        return public(super().format(record))
