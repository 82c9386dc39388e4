"""Folder of an export: a new one or that of an earlier export."""

import errno
import json
import os
from collections.abc import Collection
from pathlib import Path

from automl.base.atomic import free_bytes, full_disk_errno
from automl.base.errors import InputError
from automl.export.export_result import CONFUSION
from automl.export.formats import CARD, CONFIG, MLFLOW_MODEL, WEIGHTS, forms_of, onnx_file
from automl.storage.storage import is_address
from automl.task.deployment import MODEL, TRANSFORMERS

LEAST = 1e6  # a disk with less free space counts as full [bytes]


def destination(out: str | Path) -> Path:
    """Return `out` as an absolute path. Raise InputError if it may not be written."""
    if is_address(str(out)):
        raise InputError(f"--out {out} must be a folder of this machine; copy it to the store afterwards")
    try:
        folder = Path(out).expanduser().resolve()
        held = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        config = (folder / CONFIG).read_bytes() if (folder / CONFIG).is_file() else b""
        is_ours = folder.is_dir() and _is_ours(held, config)
        if folder.exists() and not is_ours:
            raise InputError(f"--out {folder} contains other files; choose a new folder")
    except (OSError, RuntimeError) as error:  # a name too long, an unknown home folder, no permission
        raise InputError(f"--out {out} cannot be written ({error})") from error
    return folder


def _is_ours(held: Collection[str], config: bytes) -> bool:
    """Return True if a folder with the names `held` is empty or an export with this CONFIG."""
    graphs, files, left_out = _named(config)
    needed = {CONFIG, *map(onnx_file, graphs)} - set(left_out)
    forms = [file for graph in graphs for file in forms_of(graph)]
    ours = {WEIGHTS, CARD, CONFUSION, MLFLOW_MODEL, TRANSFORMERS, *forms, *files}
    return not held or needed <= set(held) <= needed | ours


def _named(config: bytes) -> tuple[list[str], list[str], list[str]]:
    """Return the graphs, other files and files left out of a CONFIG. The default is the graph MODEL."""
    try:
        content = json.loads(config)
        graphs, *others = (list(content.get(key, [])) for key in ("graphs", "files", "left_out"))
        return graphs or [MODEL], others[0], others[1]
    except (ValueError, TypeError, AttributeError):
        return [MODEL], [], []


def open_up(folder: Path) -> None:
    """Give all files the read permissions of the folder, since some libraries write for the owner only."""
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def is_full(error: BaseException, folder: Path) -> bool:
    """Return True if the disk is full, which the library of the weights does not always report."""
    reason = os.strerror(errno.ENOSPC) in str(error)
    return full_disk_errno(error) is not None or reason or (folder.exists() and free_bytes(folder) < LEAST)
