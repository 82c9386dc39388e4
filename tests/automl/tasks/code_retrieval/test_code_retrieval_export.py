"""Task code-retrieval, from its trained model to a code search with its export."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from automl.export import run_export as export
from automl.task import open_task
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.data.source_folder import read_source_folder
from automl.tasks.code_retrieval.data.tokenizer import UNKNOWN
from automl.tasks.code_retrieval.deploy import CODE, QUERY
from automl.tasks.code_retrieval.search import run_code_search
from automl.tasks.code_retrieval.task import CodeRetrieval
from automl.training.loop import fit, start
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.code_cases import CHOSEN
from tests.helpers.code_corpus import write_corpus

SMALL = {"hidden": 16, "heads": 2, "intermediate": 32, "layers": 1}
LENGTHS = {QUERY: 7, CODE: 30}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "selfattention, sinusoidal, one encoder": (
        {"options": {**SMALL, "positions": "sinusoidal", "pooling": "max"}, "shared": True}, "dot"
    ),
    "cnn": ({"backbone": "cnn", "options": {"hidden": 16, "kernel": 5}}, "dot"),
    "cnn-selfattention, bert, other options": (
        {
            "backbone": "cnn-selfattention",
            "options": {
                **SMALL, "kernel": 4, "residual": False, "cnn_activation": "elu",
                "attention_activation": "leaky_relu", "pooling": "bert",
            },
        },
        "cosine",
    ),
    "bow, one encoder": ({"backbone": "bow", "options": {"hidden": 16}, "shared": True}, "cosine"),
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("code"))
    # Docstrings of words that training functions do not have, each of characters of its own.
    strange = [
        f'def strange{i}(x):\n    """{chr(0x4E00 + 2 * i)}{chr(0x4E01 + 2 * i)}"""\n'
        + "    x = [x]\n" * i
        + "    return x\n"
        for i in range(40)
    ]
    (folder / "strange.py").write_text("\n".join(strange), encoding="utf-8")
    return folder


def opened(corpus: Path, model: dict[str, Any], similarity: Any, **training: Any) -> CodeRetrieval:
    config = TrialConfig(
        task="code-retrieval",
        data=CodeData(
            path=str(corpus), vocabulary=300, query_length=LENGTHS[QUERY], code_length=LENGTHS[CODE]
        ),
        model=CodeModel(**model),
        training=RetrievalTraining(**{"epochs": 1, "batch_size": 32, "similarity": similarity, **training}),
    )
    task = open_task(config, HERE)
    assert isinstance(task, CodeRetrieval)
    return task


def written(task: CodeRetrieval, model: Any, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    result = export._write(folder, task, model.eval(), CHOSEN, folder, None)
    assert all(0 <= difference <= task.tolerance for difference in result.differences.values())
    assert set(result.test) >= {"mrr"}
    return folder


@pytest.mark.slow("five seconds an export")
@pytest.mark.parametrize("case", CASES)
def test_each_encoder_at_every_length(case: str, corpus: Path, tmp_path: Path) -> None:
    """Outputs alone and padded match those of the trained model without padding."""
    task = opened(corpus, *CASES[case])
    model = task.model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    written(task, model, tmp_path)
    draw = torch.Generator().manual_seed(0)
    for name, longest in LENGTHS.items():
        session = onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx"))
        for length in range(1, longest + 1):
            tokens = torch.randint(1, 200, (2, length), generator=draw)
            mask = torch.ones_like(tokens, dtype=torch.bool)
            with torch.inference_mode():
                expected = getattr(model, name)(tokens, mask)
            if CASES[case][1] == "cosine":
                expected = expected / expected.norm(dim=1, keepdim=True)
            for padding in {0, 1, longest - length} - {longest - length + 1}:
                if length + padding <= longest:
                    padded = np.pad(tokens.numpy(), ((0, 0), (0, padding)))
                    (vectors,) = session.run(None, {"tokens": padded})
                    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_inputs_that_the_export_is_checked_on_have_known_words(corpus: Path) -> None:
    task = opened(corpus, *CASES["bow, one encoder"])
    documented = task.texts.documented_rows("test")
    tokens, _ = task.texts.texts["docstring"].pad(documented, 7)
    assert not (tokens > UNKNOWN).any(axis=1).all(), "some docstrings have none"
    for inputs in task.graph_inputs("test", 1000).values():
        assert (inputs["tokens"].numpy() > UNKNOWN).any(axis=1).all()


@pytest.mark.slow("another export")
def test_a_trained_model_finds_functions_by_their_docstrings(corpus: Path, tmp_path: Path) -> None:
    task = opened(corpus, *CASES["bow, one encoder"], epochs=8, learning_rate=1e-2)
    state = start(task)
    for _ in fit(task, state):
        pass
    folder = written(task, state.model, tmp_path / "export")
    functions = {
        item.query: item.name for item in read_source_folder(corpus).functions if item.query.isascii()
    }
    queries = [query for query in functions if query]
    answers = run_code_search(folder, queries, corpus=corpus, top=3).answers
    right = [functions[item.query] in {hit.name for hit in item.hits} for item in answers]
    assert len(right) == 39, "three things are read without a docstring"
    assert np.mean(right) > 0.5, "by chance it would be below a tenth"
    assert json.loads((folder / "config.json").read_text())["config"]["task"] == "code-retrieval"
