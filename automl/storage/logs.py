"""Redirect the logs of Ray, Optuna and MLflow from the terminal to a file."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from automl.base.escape import redact

LIBRARY_LOGGERS = ("ray", "ray.tune", "ray.train", "optuna", "mlflow", "alembic", "py.warnings")


@contextmanager
def capture_library_logs(file: Path) -> Iterator[None]:
    """Append library logs and Python's warnings to `file` inside the block, without credentials."""
    handler = logging.FileHandler(file, delay=True)
    handler.setFormatter(_Public("%(asctime)s %(name)s %(levelname)s %(message)s"))
    with library_logs_to(handler):
        yield


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
    """Formatter that redacts passwords, since libraries log addresses of servers."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
