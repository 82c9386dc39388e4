"""How far a trial is within an epoch that takes long: a small file beside its checkpoint."""

import json
import time
from contextlib import suppress

from automl.storage.storage import Storage

FILE = "epoch.json"
EVERY = 10.0  # seconds between two writes; an epoch that is shorter leaves nothing


class EpochProgress:
    """Takes a trial's steps and writes them down now and then. A context manager: at its end the file goes.

    folder: the trial's; None of a worker that is not the first. A store that cannot be written to costs the
        news and not the training: checkpoints say what is wrong.
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
                self.folder.remove(FILE)

    def __call__(self, epoch: int, step: int, steps: int) -> None:
        """Step `step` of `steps` in epoch `epoch`, all counted from 1."""
        now = time.monotonic()
        if self.folder is None or now - self.last < EVERY:
            return
        self.last = now
        with suppress(OSError):
            self.folder.write(FILE, json.dumps({"epoch": epoch, "step": step, "steps": steps}).encode())
            self.written = True


def read_part(folder: Storage, after: int) -> float | None:
    """The part that the trial in `folder` has trained of its epoch after `after`; None if it tells none."""
    try:
        found = json.loads(folder.read(FILE))
        return float(found["step"] / found["steps"]) if found["epoch"] > after else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
