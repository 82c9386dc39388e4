"""Run docs/tour.ipynb from top to bottom in an empty folder, and save its outputs: `make tour`.

Paths in the outputs are relative to that folder. No other path of this machine may be in them.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"
SECONDS = 600  # limit of a cell


def run_tour(folder: Path) -> Any:
    """Return the notebook with its outputs. Its cells write into `folder`. Raises CellExecutionError."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    root = str(NOTEBOOK.parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
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
        if lines := [line.strip() for line in text.splitlines() if path in line]:
            raise SystemExit(f"outputs must not contain {path}, a path of this machine: {lines}")
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
    print(f"{NOTEBOOK} {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
