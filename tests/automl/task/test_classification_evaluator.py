"""The evaluator of classification: metrics and answers from logits."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from automl.base.errors import InputError
from automl.task import evaluator as evaluators
from automl.task.evaluator import ClassificationEvaluator
from search.class_metrics import ACCURACY, AUC, BALANCED_ACCURACY, CLASSIFICATION
from search.metric import Metric
from tests.helpers.automl_cases import HERE


def scored(metric: Metric, counts: list[int]) -> tuple[dict[str, float], Any, torch.Tensor]:
    """Return the metrics and answers of an evaluator, and the logits."""
    generator = np.random.default_rng(0)
    true = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    drawn = generator.normal(size=(len(true), len(counts))) + 1.5 * np.eye(len(counts))[true]
    logits, labels = torch.tensor(drawn, dtype=torch.float32), torch.as_tensor(true)
    names = [f"class {i}" for i in range(len(counts))]
    evaluator = ClassificationEvaluator(names, counts, metric, CLASSIFICATION, HERE.device)
    for index in torch.arange(len(true)).split(7):
        evaluator.update(logits[index], labels[index])
        evaluator.index = [*evaluator.index, index]
    scores = {name: value.item() for name, value in evaluator.compute(HERE).items()}
    return scores, evaluator.answers(HERE), logits


def test_metrics_and_answers_are_those_of_scikit_learn() -> None:
    score, answers, logits = scored(BALANCED_ACCURACY, [20, 9, 31])
    true = answers.true
    assert score["balanced_accuracy"] == pytest.approx(
        sklearn.balanced_accuracy_score(true, answers.answered)
    )
    macro = sklearn.roc_auc_score(true, logits.double().softmax(1).numpy(), multi_class="ovr")
    assert score["auc"] == pytest.approx(macro)
    card = answers.card
    assert np.array_equal(card.matrix, sklearn.confusion_matrix(true, answers.answered))
    each = sklearn.precision_recall_fscore_support(true, answers.answered)
    for ours, theirs in zip((card.precision, card.recall, card.f1, card.counts), each, strict=True):
        assert np.allclose(ours, theirs)


def test_a_metric_without_a_value_is_left_out_or_rejected() -> None:
    score, *_ = scored(BALANCED_ACCURACY, [9, 0])
    assert score.keys() == {"accuracy", "balanced_accuracy", "macro_f1", "loss"}
    with pytest.raises(InputError, match="two or more classes"):
        scored(AUC, [9, 0])


def test_a_costly_metric_is_computed_if_it_is_the_primary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "SCORES", 3 * 60 - 1)
    assert "auc" not in scored(ACCURACY, [20, 9, 31])[0]
    assert scored(AUC, [20, 9, 31])[0].keys() == {metric.name for metric in CLASSIFICATION}


def test_a_metric_without_a_computation_is_rejected() -> None:
    with pytest.raises(InputError, match=r"metric 'rmse' of classes must be a search\.class_metrics\.ClassM"):
        scored(Metric(name="rmse", maximize=False), [9, 9])
