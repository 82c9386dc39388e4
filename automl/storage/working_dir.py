"""Reject storage inside Ray's temporary working_dir, which is deleted after the job.

`ray job submit --working-dir` sends a folder. Ray unpacks it on each node into a temporary folder, runs the
job there, and deletes it some time after the job.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from automl.base.errors import InputError
from automl.storage.storage import Storage

UNPACKED = "working_dir_files"  # Ray's parent folder; see cluster/ray_internals.py
STORE = "sqlite:///mlflow.db"  # MLflow's own default


def check_not_temporary(storage: str) -> None:
    """Raise InputError if a search in `storage`, or MLflow's store, would be deleted with the job."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or STORE
    file = local_path(uri)
    folder = Storage(storage).local
    lost = [f"--storage {storage}"] * (folder is not None and _unpacked(folder))
    lost += [f"MLflow's {uri}"] * (file is not None and _unpacked(file))
    if lost:
        raise InputError(
            f"{' and '.join(lost)} would be deleted with this job, since it is in the temporary folder of "
            f"--working-dir. Choose permanent locations that every node can access: --storage "
            f"/shared/searches or s3://bucket/searches, and before the command 'env "
            f"MLFLOW_TRACKING_URI=http://HOST:5000' or sqlite:////shared/mlflow.db"
        )


def local_path(uri: str) -> Path | None:
    """Return the file or folder of a tracking URI, or None if it names a server."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":  # MLflow quotes the path of its default; SQLAlchemy accepts both
        return Path(unquote(uri.partition("?")[0].removeprefix("sqlite:///")))
    return Path(parts.path) if parts.scheme in ("", "file") and uri != "databricks" else None


def _unpacked(path: Path) -> bool:
    return UNPACKED in path.resolve().parts
