"""docs/tour.ipynb runs from top to bottom, and its committed outputs are those of a run."""

import ast
import importlib
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import tour

LARGEST = 300_000  # bytes


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(tour.NOTEBOOK, as_version=4)


def test_committed_notebook_has_outputs_and_is_small(notebook):
    assert tour.NOTEBOOK.stat().st_size < LARGEST
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len(outputs) >= 6
    assert not any(path in str(outputs) for path in ("/home/", "/root/", "/tmp/", "site-packages"))


def test_imports_of_its_cells_exist(notebook):
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    compile(code, "tour", "exec")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    assert len(imports) > 4
    for node in imports:
        module = importlib.import_module(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")


@pytest.mark.slow("minutes")
@pytest.mark.timeout(900)
def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    notebook = tour.run_tour(tmp_path)
    outputs = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert "run_confirm(" in outputs
    assert "MODEL_CARD.md" in outputs
    assert (tmp_path / "exports/tour/model.onnx").exists()
    assert (tmp_path / "searches/tour/space.py").read_text().startswith("def two_places(trial):")
