"""The verdicts that were recorded in the folder of a search."""

import re
from contextlib import suppress
from pathlib import Path

from automl.base.errors import InputError
from automl.base.serialise import parse_json, read_file
from automl.judge.protocol import Confirmation
from automl.judge.scheduler import ConfirmationScheduler
from automl.judge.verdict import CONFIRM_FOLDER, VERDICT_FILE, Verdict, read_verdict
from automl.storage.metadata import SearchMetadata


def read_verdicts(folder: Path, metadata: SearchMetadata) -> list[tuple[Path, Verdict]]:
    """Read the verdicts on a search, the latest last, each with its folder.

    Those of an earlier version are judged again by their scores. Raise InputError for a damaged one.
    """
    return [(path, _read(path, metadata)) for path in _folders(folder)]


def latest_verdict(
    folder: Path, metadata: SearchMetadata, *, complete: bool = False
) -> tuple[Path, Verdict] | None:
    """Return the latest verdict on a search, with its folder. With `complete`, skip unfinished ones."""
    verdicts = ((path, _read(path, metadata)) for path in reversed(_folders(folder)))
    return next((pair for pair in verdicts if pair[1].complete or not complete), None)


def _folders(folder: Path) -> list[Path]:
    """Return the folders of confirmations with a verdict, in order of their numbers."""
    folders = {}
    for file in folder.glob(f"{CONFIRM_FOLDER}*/{VERDICT_FILE}"):
        if match := re.fullmatch(rf"{CONFIRM_FOLDER}(?:-(\d+))?", file.parent.name):
            folders[int(match[1] or 1)] = file.parent
    return [folders[number] for number in sorted(folders)]


def _read(path: Path, metadata: SearchMetadata) -> Verdict:
    value = None
    with suppress(InputError):  # `read_verdict` reports it
        value = parse_json(read_file(path / VERDICT_FILE))
    if isinstance(value, dict) and "headline" in value and "format" not in value:
        scheduler = ConfirmationScheduler(path, metadata, Confirmation.read(path), retry=False)
        scheduler.update(False)
        return scheduler.verdict
    return read_verdict(path)
