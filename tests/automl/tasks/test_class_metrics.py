"""Metrics of classifiers against scikit-learn, and their jackknife against recomputing and a bootstrap."""

from typing import Any

import numpy as np
import pytest
import torch
from automl_cases import HERE
from sklearn import metrics as sklearn

from attention import InputError
from automl.confirm.chance import bound
from automl.tasks.class_metrics import guessed, pseudo_values
from automl.tasks.evaluator import ClassificationEvaluator
from search.metric import ACCURACY, AUC, BALANCED_ACCURACY, CLASSIFICATION, LOSS, MACRO_F1, Metric


def drawn(counts: list[int], *, ties: bool = False, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Labels `(N,)` with so many of each class, and logits that tell something of them."""
    generator = np.random.default_rng(seed)
    true = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    logits = generator.normal(size=(len(true), len(counts))) + 1.5 * np.eye(len(counts))[true]
    return true, torch.tensor(np.round(logits) if ties else logits, dtype=torch.float32)


def scored(metric: Metric, true: np.ndarray, logits: torch.Tensor) -> tuple[dict[str, float], Any]:
    """The metrics, and the answers, of an evaluator that is given batches."""
    counts = np.bincount(true, minlength=logits.shape[1]).tolist()
    names = [f"class {i}" for i in range(logits.shape[1])]
    evaluator = ClassificationEvaluator(names, counts, metric, HERE.device)
    labels = torch.as_tensor(true)
    for index in torch.arange(len(true)).split(7):
        evaluator.update(logits[index], labels[index])
        evaluator.index = [*evaluator.index, index]
    found = {name: value.item() for name, value in evaluator.compute(HERE).items()}
    return found, evaluator.answers(HERE)


def reference(name: str, true: np.ndarray, logits: torch.Tensor) -> float:
    """By scikit-learn, over the classes that occur."""
    answered, there = logits.argmax(1).numpy(), np.unique(true)
    scores = logits.double().softmax(1).numpy()
    if name == "accuracy":
        return float(sklearn.accuracy_score(true, answered))
    if name == "balanced_accuracy":
        return float(sklearn.recall_score(true, answered, labels=there, average="macro"))
    if name == "macro_f1":
        return float(sklearn.f1_score(true, answered, labels=there, average="macro", zero_division=0))
    if name == "loss":
        return float(sklearn.log_loss(true, scores, labels=range(scores.shape[1])))
    if scores.shape[1] == 2:
        return float(sklearn.roc_auc_score(true, (logits[:, 1] - logits[:, 0]).numpy()))
    return float(np.mean([sklearn.roc_auc_score(true == c, scores[:, c]) for c in there]))


CASES = {
    "several": [20, 9, 31],
    "two": [12, 30],
    "rare": [40, 25, 1],
    "absent": [15, 0, 22, 8],
    "two of three": [15, 0, 22],
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("metric", CLASSIFICATION, ids=lambda metric: metric.name)
def test_metrics_and_what_each_input_contributes(metric: Metric, case: str, ties: bool) -> None:
    true, logits = drawn(CASES[case], ties=ties)
    found, answers = scored(metric, true, logits)
    for one in CLASSIFICATION:
        digits = 1e-6 if one == LOSS else 1e-9  # which is of logits as they are, in float32
        assert found[one.name] == pytest.approx(reference(one.name, true, logits), rel=digits)
    # The jackknife recomputes the metric without each input.
    whole, n = reference(metric.name, true, logits), len(true)
    rare = int(np.bincount(true)[true].argmin())
    for i in (rare, *range(0, n, 7)):
        rest = np.delete(true, i)
        without = reference(metric.name, rest, torch.tensor(np.delete(logits.numpy(), i, axis=0)))
        assert answers.values[i] == pytest.approx(n * whole - (n - 1) * without, abs=1e-6)


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    true, logits = drawn([20, 9, 31])
    found, answers = scored(BALANCED_ACCURACY, true, logits)
    assert found["balanced_accuracy"] == pytest.approx(
        sklearn.balanced_accuracy_score(true, answers.answered)
    )
    macro = sklearn.roc_auc_score(true, logits.double().softmax(1).numpy(), multi_class="ovr")
    assert found["auc"] == pytest.approx(macro)
    card = answers.card
    assert np.array_equal(card.matrix, sklearn.confusion_matrix(true, answers.answered))
    each = sklearn.precision_recall_fscore_support(true, answers.answered)
    for ours, theirs in zip((card.precision, card.recall, card.f1, card.counts), each, strict=True):
        assert np.allclose(ours, theirs)


@pytest.mark.parametrize("metric", CLASSIFICATION, ids=lambda metric: metric.name)
def test_the_variance_of_what_inputs_contribute_is_that_of_a_bootstrap(metric: Metric) -> None:
    """Of the difference between two models, each resample of the images scored anew by scikit-learn."""
    true, ours = drawn([150, 60, 30])
    theirs = ours + torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    difference = np.subtract(*(scored(metric, true, logits)[1].values for logits in (ours, theirs)))
    error = difference.std(ddof=1) / len(true) ** 0.5
    generator, resampled = np.random.default_rng(2), []
    for _ in range(200):
        index = generator.integers(0, len(true), len(true))
        resampled.append(
            np.subtract(*(reference(metric.name, true[index], logits[index]) for logits in (ours, theirs)))
        )
    assert np.std(resampled) == pytest.approx(error, rel=0.2)


def test_one_class_has_no_area_under_a_curve() -> None:
    true, logits = drawn([9, 0])
    found, _ = scored(BALANCED_ACCURACY, true, logits)
    assert found["balanced_accuracy"] == pytest.approx(found["accuracy"])
    assert "auc" not in found
    for of in (lambda: scored(AUC, true, logits), lambda: guessed(AUC, [9, 0])):
        with pytest.raises(InputError, match="two classes or more"):
            of()


@pytest.mark.parametrize("counts", [[90, 10], [200, 40, 10]])
@pytest.mark.parametrize("metric", [m for m in CLASSIFICATION if m != LOSS], ids=lambda metric: metric.name)
def test_guessing_is_known(metric: Metric, counts: list[int]) -> None:
    """Answers that do not depend on the input: their mean, their spread, and the bound that they keep."""
    chance, generator = guessed(metric, counts), np.random.default_rng(0)
    true = np.repeat(np.arange(len(counts)), counts)
    share = np.array(counts) / len(true)
    likely = share if metric == MACRO_F1 else np.full(len(counts), 1 / len(counts))
    found = []
    for _ in range(150):
        answered = generator.choice(len(counts), size=len(true), p=likely)
        if metric == ACCURACY:
            answered[:] = share.argmax()
        logits = torch.tensor(generator.normal(size=(len(true), len(counts))))
        if metric != AUC:
            logits = torch.eye(len(counts))[answered]
        found.append(reference(metric.name, true, logits))
    assert np.mean(found) == pytest.approx(chance.value, abs=0.02)
    assert np.mean(np.array(found) <= bound(chance, len(true), metric)) >= 0.99
    if metric == AUC and len(counts) > 2:  # those of several classes do not go together wholly
        assert np.std(found) < chance.error
    elif metric != ACCURACY:
        assert np.std(found) == pytest.approx(chance.error, rel=0.3)


@pytest.mark.parametrize(
    ("counts", "population", "accuracy"),
    [
        ([47, 20, 45], [150, 150, 150], 1 / 3),  # an accidental majority
        ([47, 20], [150, 150], 1 / 2),
        ([24, 24], [120, 120], 1 / 2),
        ([25, 20], [200, 100], 2 / 3),
        ([0, 30, 30], [100, 100, 100], 1 / 2),  # a class is missing
        ([90, 10], [500, 100], 0.9),  # imbalanced: the split's own
        ([900, 100], [2000, 2000], 0.9),  # no accident: a constant answer profits
        ([20, 30], [0, 50], 0.6),  # a class that the population lacks
    ],
)
def test_chance_follows_from_a_balanced_population(
    counts: list[int], population: list[int], accuracy: float
) -> None:
    assert guessed(ACCURACY, counts, population).value == pytest.approx(accuracy)
    loss = guessed(LOSS, counts, population).value
    if accuracy == 1 / len(population):
        assert loss == pytest.approx(np.log(len(population)))


def test_no_constant_answer_has_a_lower_loss_than_guessing() -> None:
    counts = [60, 30, 10]
    true, generator = np.repeat(np.arange(3), counts), np.random.default_rng(0)
    chance = guessed(LOSS, counts)
    shares = torch.tensor(counts).log().expand(100, 3)
    assert reference("loss", true, shares) == pytest.approx(chance.value)
    for _ in range(20):
        constant = torch.tensor(generator.normal(size=3)).expand(100, 3)
        assert reference("loss", true, constant) >= chance.value
    assert bound(chance, 100, LOSS) == chance.value


@pytest.mark.parametrize("counts", [[50, 50], [90, 10], [200, 40, 10]])
def test_a_step_is_what_an_answer_is_worth(counts: list[int]) -> None:
    """The root mean square of what it changes when an input that was answered right is not."""
    true = np.repeat(np.arange(len(counts)), counts)
    changes = []
    for i in range(len(true)):
        answered = true.copy()
        answered[i] = (true[i] + 1) % len(counts)
        changes.append(1 - sklearn.balanced_accuracy_score(true, answered))
    assert guessed(BALANCED_ACCURACY, counts).step == pytest.approx(np.sqrt(np.mean(np.square(changes))))
    assert guessed(ACCURACY, counts).step == 1 / len(true)


def test_accuracy_contributes_right_or_wrong() -> None:
    values = pseudo_values(ACCURACY, np.array([0, 1, 1]), np.array([0, 0, 1]), None)
    assert values.tolist() == [1, 0, 1]
