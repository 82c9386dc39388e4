"""Runs docs/tour.ipynb from top to bottom in an empty folder, and keeps what it prints: `make tour`.

In the outputs paths are relative to that folder, and no other path of this machine may stand there.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"
SECONDS = 600  # that a cell may take


def run_tour(folder: Path) -> Any:
    """The notebook with its outputs. Its cells write into `folder`. Raises CellExecutionError."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    here = str(NOTEBOOK.parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = "sqlite:///mlflow.db"
        os.environ.setdefault("AUTOML_CACHE", f"{folder}/.cache")
        text = nbformat.writes(run_tour(Path(folder))).replace(f"{folder}/", "")
    for path in (folder, str(Path.home()), sys.prefix):
        if found := [line.strip() for line in text.splitlines() if path in line]:
            raise SystemExit(f"an output names {path}, which is of this machine alone: {found}")
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
    print(f"{NOTEBOOK} {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
