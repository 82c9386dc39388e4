"""Code search as a task: its loss, its batches and its metrics."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from automl.task import open_task
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.task import CodeRetrieval
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.code_corpus import write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("code"))


SMALL = {"hidden": 32, "heads": 2, "intermediate": 64}


def opened(path: Path, placement: Any = None, **training: Any) -> CodeRetrieval:
    config = TrialConfig(
        task="code-retrieval",
        data=CodeData(path=str(path), vocabulary=300, query_length=12, code_length=60),
        model=CodeModel(options=SMALL, placement=placement or {}, shared=True),
        training=RetrievalTraining(**{"epochs": 4, "batch_size": 32, **training}),
    )
    task = open_task(config, HERE)
    assert isinstance(task, CodeRetrieval)
    return task


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_losses_match_their_definitions(similarity: Any, folder: Path) -> None:
    def vectors(query: Any, code: Any) -> Any:
        return q, c

    torch.manual_seed(0)
    q, c = torch.randn(4, 8), torch.randn(4, 8)
    a, b = (F.normalize(x, dim=1) for x in (q, c)) if similarity == "cosine" else (q, c)
    softmax = hinge = 0.0
    for i in range(4):
        s = [float(a[i] @ b[j]) for j in range(4)]
        softmax -= torch.log_softmax(torch.tensor(s) / 0.1, 0)[i].item() / 4
        hinge += sum(max(0.0, 0.3 - s[i] + s[j]) for j in range(4) if j != i) / 12
    for loss, expected in (("softmax", softmax), ("hinge", hinge)):
        task = opened(folder, loss=loss, similarity=similarity, temperature=0.1, margin=0.3)
        value = task.loss(vectors, ((), ()))  # type: ignore[arg-type]
        assert value.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow("a training")
def test_a_docstring_finds_its_function_and_names_are_queries_in_test(folder: Path) -> None:
    task = opened(folder, epochs=6, learning_rate=3e-3)
    state = start(task)
    history = list(fit(task, state))
    chance = task.chance("validation")
    assert history[-1]["mrr"] > chance.value + 5 * chance.error
    assert "mrr_names" not in history[-1]
    test = {name: value.item() for name, value in evaluate(task, state.model, "test").items()}
    assert set(test) == {
        "mrr",
        "recall_at_1",
        "recall_at_5",
        "recall_at_10",
        "ndcg",
        "mrr_corpus",
        "mrr_names",
    }
    assert 0 < test["mrr_corpus"] <= test["mrr"]  # among more candidates
    answers = state.validated.answers(HERE)
    assert answers.values.mean() == pytest.approx(history[-1]["mrr"], rel=1e-6)


def test_a_subset_applies_to_training(folder: Path) -> None:
    whole = opened(folder)
    part = open_task(whole.config.change(data={"subset": 0.5}), HERE)
    assert part.size("test") == whole.size("test")
    for split in ("train", "validation"):
        assert 0 < part.size(split) < whole.size(split)  # type: ignore[arg-type]
