"""Metrics of classifiers against scikit-learn, and their jackknife against recomputation and a bootstrap."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from automl.base.errors import InputError
from search.class_metrics import ACCURACY, AUC, BALANCED_ACCURACY, CLASSIFICATION, LOSS, MACRO_F1, ClassMetric
from search.metric import GUESSING_RATE, Chance, Metric


def drawn(counts: list[int], *, ties: bool = False, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Return labels `(N,)` with given counts of the classes, and logits that correlate with them."""
    generator = np.random.default_rng(seed)
    true = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    logits = generator.normal(size=(len(true), len(counts))) + 1.5 * np.eye(len(counts))[true]
    return true, torch.tensor(np.round(logits) if ties else logits, dtype=torch.float32)


def scored(metric: ClassMetric, true: np.ndarray, logits: torch.Tensor) -> tuple[float, np.ndarray]:
    """Return the metric and the contribution of each input, computed in batches."""
    labels, size = torch.as_tensor(true), len(true) if metric.whole else 7
    batches = list(zip(logits.split(size), labels.split(size), strict=True))
    statistics = torch.stack([metric.update(*batch) for batch in batches]).sum(0)
    kept = torch.cat([metric.keep(*batch) for batch in batches])
    return metric.compute(statistics, len(true)).item(), metric.per_example(kept, labels)


def reference(name: str, true: np.ndarray, logits: torch.Tensor) -> float:
    """Return the metric by scikit-learn, over the classes that occur."""
    answered, present = logits.argmax(1).numpy(), np.unique(true)
    scores = logits.double().softmax(1).numpy()
    if name == "accuracy":
        return float(sklearn.accuracy_score(true, answered))
    if name == "balanced_accuracy":
        return float(sklearn.recall_score(true, answered, labels=present, average="macro"))
    if name == "macro_f1":
        return float(sklearn.f1_score(true, answered, labels=present, average="macro", zero_division=0))
    if name == "loss":
        return float(sklearn.log_loss(true, scores, labels=range(scores.shape[1])))
    if scores.shape[1] == 2:
        return float(sklearn.roc_auc_score(true, (logits[:, 1] - logits[:, 0]).numpy()))
    return float(np.mean([sklearn.roc_auc_score(true == c, scores[:, c]) for c in present]))


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
def test_metrics_and_contributions_of_inputs(metric: ClassMetric, case: str, ties: bool) -> None:
    true, logits = drawn(CASES[case], ties=ties)
    value, values = scored(metric, true, logits)
    whole, n = reference(metric.name, true, logits), len(true)
    # The loss is of logits as they are, in float32.
    assert value == pytest.approx(whole, rel=1e-6 if metric == LOSS else 1e-9)
    # The jackknife recomputes the metric without each input.
    rare = int(np.bincount(true)[true].argmin())
    for i in (rare, *range(0, n, 7)):
        rest = np.delete(true, i)
        without = reference(metric.name, rest, torch.tensor(np.delete(logits.numpy(), i, axis=0)))
        assert values[i] == pytest.approx(n * whole - (n - 1) * without, abs=1e-6)


@pytest.mark.parametrize("metric", CLASSIFICATION, ids=lambda metric: metric.name)
def test_the_variance_of_contributions_is_that_of_a_bootstrap(metric: ClassMetric) -> None:
    """Compare two models: each resample of the images is scored again by scikit-learn."""
    true, ours = drawn([150, 60, 30])
    theirs = ours + torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    difference = np.subtract(*(scored(metric, true, logits)[1] for logits in (ours, theirs)))
    error = difference.std(ddof=1) / len(true) ** 0.5
    generator, resampled = np.random.default_rng(2), []
    for _ in range(120):
        index = generator.integers(0, len(true), len(true))
        resampled.append(
            np.subtract(*(reference(metric.name, true[index], logits[index]) for logits in (ours, theirs)))
        )
    assert np.std(resampled) == pytest.approx(error, rel=0.2)


def test_one_class_has_no_area_under_a_curve() -> None:
    assert [metric.name for metric in CLASSIFICATION if metric.problem([9, 0])] == ["auc"]
    with pytest.raises(InputError, match="two or more classes"):
        AUC.chance([9, 0])


@pytest.mark.parametrize("counts", [[90, 10], [200, 40, 10]])
@pytest.mark.parametrize("metric", [m for m in CLASSIFICATION if m != LOSS], ids=lambda metric: metric.name)
def test_guessing_is_known(metric: ClassMetric, counts: list[int]) -> None:
    """Check the mean, the spread and the bound of answers that do not depend on the input."""
    chance, generator = metric.chance(counts), np.random.default_rng(0)
    true = np.repeat(np.arange(len(counts)), counts)
    fraction = np.array(counts) / len(true)
    likely = fraction if metric == MACRO_F1 else np.full(len(counts), 1 / len(counts))
    values = []
    for _ in range(100):
        answered = generator.choice(len(counts), size=len(true), p=likely)
        if metric == ACCURACY:
            answered[:] = fraction.argmax()
        logits = torch.tensor(generator.normal(size=(len(true), len(counts))))
        if metric != AUC:
            logits = torch.eye(len(counts))[answered]
        values.append(reference(metric.name, true, logits))
    assert np.mean(values) == pytest.approx(chance.value, abs=0.02)
    assert np.mean(np.array(values) <= metric.guessing(chance, len(true))) >= 0.99
    if metric == AUC and len(counts) > 2:  # those of several classes do not go together wholly
        assert np.std(values) < chance.error
    elif metric != ACCURACY:
        assert np.std(values) == pytest.approx(chance.error, rel=0.3)


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
    assert ACCURACY.chance(counts, population).value == pytest.approx(accuracy)
    loss = LOSS.chance(counts, population).value
    if accuracy == 1 / len(population):
        assert loss == pytest.approx(np.log(len(population)))


@pytest.mark.parametrize("counts", [[50, 50], [90, 10], [200, 40, 10]])
def test_a_step_is_the_effect_of_one_answer(counts: list[int]) -> None:
    """It is the root mean square of the change when a right answer becomes wrong."""
    true = np.repeat(np.arange(len(counts)), counts)
    changes = []
    for i in range(len(true)):
        answered = true.copy()
        answered[i] = (true[i] + 1) % len(counts)
        changes.append(1 - sklearn.balanced_accuracy_score(true, answered))
    assert BALANCED_ACCURACY.chance(counts).step == pytest.approx(np.sqrt(np.mean(np.square(changes))))
    assert ACCURACY.chance(counts).step == 1 / len(true)


@pytest.mark.parametrize(("inputs", "chance"), [(3, 0.4), (7, 2 / 7), (36, 0.25), (1000, 0.1)])
def test_guessing_seldom_scores_above_its_bound(inputs: int, chance: float) -> None:
    draws = np.random.default_rng(0).binomial(inputs, chance, 200_000) / inputs
    bound = ACCURACY.guessing(Chance(value=chance, error=0.0, step=1 / inputs), inputs)
    assert (draws > bound).mean() <= 1.3 * GUESSING_RATE
    assert (draws > bound - 1 / inputs + 1e-9).mean() > GUESSING_RATE, "and it is no higher than that takes"
    assert bound <= 1


def test_differences_of_percentages_are_points() -> None:
    assert [Metric(name="acc", maximize=True, unit=unit).gap_unit for unit in ("%", "s")] == ["points", "s"]
