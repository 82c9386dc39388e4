"""Progress of a trial within a long epoch, in a small file beside its checkpoint."""

import json
import time
from contextlib import suppress

from automl.storage.storage import Storage

PROGRESS_FILE = "epoch.json"
PROGRESS_PERIOD = 10.0  # interval of writes [s]; shorter epochs write nothing


class EpochProgress:
    """Write the current step of a trial at intervals. As a context manager, delete the file at the end.

    Write errors are ignored, since checkpoints report them.

    Args:
        folder: The folder of the trial. None on ranks above 0.
    """

    def __init__(self, folder: Storage | None) -> None:
        self.folder = folder
        self.written = False
        self.last = time.monotonic()

    def __enter__(self) -> "EpochProgress":
        return self

    def __exit__(self, *error: object) -> None:
        if self.folder is not None and self.written:
            with suppress(OSError):
                self.folder.remove(PROGRESS_FILE)

    def __call__(self, epoch: int, step: int, steps: int) -> None:
        """Record step `step` of `steps` in epoch `epoch`, counted from 1."""
        now = time.monotonic()
        if self.folder is None or now - self.last < PROGRESS_PERIOD:
            return
        self.last = now
        with suppress(OSError):
            self.folder.write(
                PROGRESS_FILE, json.dumps({"epoch": epoch, "step": step, "steps": steps}).encode()
            )
            self.written = True


def read_part(folder: Storage, after: int) -> float | None:
    """Return the trained fraction of the epoch after `after`. Return None if it is unknown."""
    try:
        progress = json.loads(folder.read(PROGRESS_FILE))
        return float(progress["step"] / progress["steps"]) if progress["epoch"] > after else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
