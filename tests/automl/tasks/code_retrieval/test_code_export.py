"""Export of two encoders of texts: of queries and of code."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from automl.export.checks import check_parity
from automl.export.formats import forms_of
from tests.helpers import others_slow
from tests.helpers.api_cases import run_examples
from tests.helpers.code_cases import CHANNELS, CODE, LENGTHS, QUERY, TOKENIZER, export_search

GRAPHS = (QUERY, CODE)
FILES = {
    *(file for name in GRAPHS for file in forms_of(name)),
    "model.safetensors", "config.json", "tokenizer.json", "MODEL_CARD.md",
}  # fmt: skip


@pytest.fixture(scope="module", params=others_slow([False, True], False), ids=["two encoders", "one encoder"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return export_search(tmp_path_factory.mktemp("export"), shared=request.param)


@pytest.fixture(scope="module")
def folder(exported: Any) -> Path:
    return Path(str(exported[2].folder))


def test_each_graph_is_exported_checked_and_described(exported: Any, folder: Path) -> None:
    task, _, result = exported
    assert {file.name for file in folder.iterdir()} == FILES
    assert set(result.differences) == {file for name in GRAPHS for file in forms_of(name)}
    assert all(0 <= difference <= task.tolerance for difference in result.differences.values())
    assert set(result.speeds) == {"query.onnx", "code.onnx"}
    assert "run_code_search(" in repr(result)
    interface = json.loads((folder / "config.json").read_text())
    assert (interface["format"], interface["labels"], interface["files"]) == (3, [], ["tokenizer.json"])
    assert list(interface["graphs"]) == [QUERY, CODE]
    for name, graph in interface["graphs"].items():
        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
        assert [(v.name, v.shape) for v in session.get_inputs()] == [("tokens", ["N", "T"])]
        assert graph["inputs"] == [{"name": "tokens", "dtype": "int64", "shape": ["N", "T"]}]
        assert graph["outputs"] == [{"name": "vectors", "dtype": "float32", "shape": ["N", CHANNELS]}]
        assert graph["details"]["length"] == LENGTHS[name]
        assert (folder / graph["details"]["tokenizer"]).read_text(encoding="utf-8") == TOKENIZER
    task, model, _ = exported
    tensors = task.graph_inputs("test", 4)
    arrays = {name: {"tokens": inputs["tokens"].numpy()} for name, inputs in tensors.items()}
    deployments = task.deployments(model)
    expected = {name: inputs.run(tensors[name]) for name, inputs in deployments.items()}
    check_parity(folder, task, deployments, arrays, arrays, expected)
    expected[CODE] = {"vectors": -expected[CODE]["vectors"]}
    with pytest.raises(RuntimeError, match=r"code.onnx differs from the trained model by .* on 4 inputs"):
        check_parity(folder, task, deployments, arrays, arrays, expected)


def test_the_example_of_a_search_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "code").symlink_to(folder)
    (tmp_path / "corpus").mkdir()
    functions = (f"def {name}():\n    return open(file).{name}()\n" for name in ("read", "write", "close"))
    (tmp_path / "corpus" / "files.py").write_text("\n\n".join(functions))
    run_examples(["run_code_search", "CodeSearch"])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("texts", [1, 3])
def test_every_length_gives_the_encoders_vector(name: str, texts: int, exported: Any, folder: Path) -> None:
    """Compute the vector without padding, normalised to length 1."""
    encoder = getattr(exported[1], name)
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
    program = torch.export.load(folder / f"{name}.pt2").module()
    draw = torch.Generator().manual_seed(0)
    for length in range(1, LENGTHS[name] + 1):
        tokens = torch.randint(1, 40, (texts, length), generator=draw)
        with torch.inference_mode():
            plain = encoder(tokens, torch.ones_like(tokens, dtype=torch.bool))
            expected = (plain / plain.square().sum(1, keepdim=True).sqrt()).numpy()
            np.testing.assert_allclose(program(tokens).numpy(), expected, atol=1e-4)
        for padding in range(LENGTHS[name] - length + 1):
            padded = np.pad(tokens.numpy(), ((0, 0), (0, padding)))
            np.testing.assert_allclose(session.run(None, {"tokens": padded})[0], expected, atol=1e-4)


@pytest.mark.slow("starts another interpreter")
def test_code_of_the_card_runs(exported: Any, folder: Path, tmp_path: Path) -> None:
    page = (folder / "MODEL_CARD.md").read_text()
    (usage,) = re.findall(r"```python\n(.*?)```", page, re.S)
    for name in ("query.onnx", "code.onnx", "tokenizer.json"):
        shutil.copy(folder / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", usage], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("def ")
