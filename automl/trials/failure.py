"""Classifies the error that ends a trial: the trial's or the node's."""

import traceback

from automl.base.errors import InputError, error_line
from automl.base.escape import redact
from automl.config.device import UnusableGpu
from automl.storage.cache_folder import cache_root
from automl.storage.disk import DiskFull, format_disk_full, full_disk_errno
from automl.storage.storage import Storage
from search.record import Report


class CommandFailed(Exception):
    """A command failed.

    Args:
        reason: The reason in a line.
        log: The end of its output.
    """

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


def classify_error(error: BaseException, folder: Storage) -> Report:
    """Return the report of a trial that ended with `error`.

    A full disk and a GPU that cannot be used are faults of the node.
    """
    if isinstance(error, CommandFailed):
        return Report(error=redact(str(error)), traceback=redact(error.log))
    if isinstance(error, UnusableGpu):
        return Report(fault=str(error))
    line = error_line(error)
    if (code := full_disk_errno(error)) is None:
        return Report(error=line, traceback=traceback.format_exc())
    if isinstance(error, InputError | DiskFull):  # These errors already name the folder.
        return Report(fault=line)
    return Report(fault=f"{format_disk_full(folder.local or cache_root(), None, code)}: {line}")
