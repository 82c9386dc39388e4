"""Image classification: mixup, losses, class weights, splits and descriptions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from automl.config.runtime import Runtime
from automl.data.augment import centre_crop, normalise
from automl.task import open_task
from automl.task.classification import Classes
from automl.tasks.image_classification.data import open_split
from automl.tasks.image_classification.task import draw_mixup, load_images, mixup
from tests.helpers.automl_cases import HERE, opened, tiny
from tests.helpers.task_contract import both


def mixed(alpha: float, n: int = 4000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the result of `mixup` for images that hold their own number."""
    y = torch.arange(n)
    return mixup(y.float().view(n, 1, 1, 1), y, *draw_mixup(n, alpha, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 8.0])
def test_mixup_weights_are_beta_and_the_first_is_larger(alpha: float) -> None:
    x, y, z, fraction = mixed(alpha)
    assert ((fraction >= 0.5) & (fraction <= 1)).all()
    assert torch.equal(y, torch.arange(len(y)))
    assert torch.equal(z.sort().values, y)  # each image is the other of one
    torch.testing.assert_close(x.view(-1), fraction * y + (1 - fraction) * z, rtol=1e-5, atol=1e-2)
    draws = np.random.RandomState(0).beta(alpha, alpha, 100_000)
    expected = np.maximum(draws, 1 - draws)
    assert fraction.mean().item() == pytest.approx(expected.mean(), abs=0.01)
    assert fraction.std().item() == pytest.approx(expected.std(), abs=0.01)


class Fixed(nn.Module):
    """Model with constant logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]


LOGITS = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
Y = torch.arange(1, 9)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_is_smoothed_cross_entropy(smoothing: float) -> None:
    task = opened(training={"label_smoothing": smoothing})
    loss = task.loss(Fixed(LOGITS), (torch.zeros(8, 3, 1, 1), Y))
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, Y, label_smoothing=smoothing))


def test_loss_of_mixed_images_is_that_of_mixed_labels() -> None:
    fraction, z, smoothing = torch.linspace(0.5, 1, 8), Y.flip(0), 0.1
    target = fraction[:, None] * F.one_hot(Y, 10) + (1 - fraction[:, None]) * F.one_hot(z, 10)
    target = target * (1 - smoothing) + smoothing / 10
    task = opened(training={"label_smoothing": smoothing, "mixup": 0.4})
    loss = task.loss(Fixed(LOGITS), (torch.zeros(8, 3, 1, 1), Y, z, fraction))
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, target))


def test_the_training_accuracy_is_that_of_the_heavier_label() -> None:
    labels = LOGITS.argmax(1)
    labels[:3] = (labels[:3] + 1) % 10
    task, images = opened(), torch.zeros(8, 3, 1, 1)
    values = task.learn(Fixed(LOGITS), (images, labels))
    assert list(task.learned) == ["accuracy"]
    assert values[0] == task.loss(Fixed(LOGITS), (images, labels))
    assert values[1].item() == 5 / 8
    right, wrong = LOGITS.argmax(1), (LOGITS.argmax(1) + 1) % 10
    task, images = opened(training={"mixup": 0.4}), torch.zeros(8, 3, 1, 1)
    fraction = torch.tensor([0.9] * 6 + [0.3] * 2)  # CutMix may leave less than half of an image
    assert task.learn(Fixed(LOGITS), (images, right, wrong, fraction))[1].item() == 6 / 8
    assert task.learn(Fixed(LOGITS), (images, wrong, right, fraction))[1].item() == 2 / 8


def weighted(count: int = 10) -> Tensor:
    """Return the class weights from the labels."""
    n_c = open_split("digits", "train", size=24, subset=0.2).labels.bincount(minlength=count)
    return n_c.sum() / (count * n_c)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_are_those_of_torch(smoothing: float) -> None:
    task = opened(training={"label_smoothing": smoothing, "class_weights": "balanced"})
    loss = task.loss(Fixed(LOGITS), (torch.zeros(8, 3, 1, 1), Y))
    criterion = nn.CrossEntropyLoss(weighted(), label_smoothing=smoothing)
    torch.testing.assert_close(loss, criterion(LOGITS, Y))
    assert not torch.isclose(loss, F.cross_entropy(LOGITS, Y, label_smoothing=smoothing), rtol=1e-6)


def test_classes_of_mixed_images_weigh_as_their_shares() -> None:
    """The sum is that of torch for mixed labels, divided by their weights."""
    fraction, z, smoothing, weights = torch.linspace(0.5, 1, 8), Y.flip(0), 0.1, weighted()
    mixed = fraction[:, None] * F.one_hot(Y, 10) + (1 - fraction[:, None]) * F.one_hot(z, 10)
    target = mixed * (1 - smoothing) + smoothing / 10
    task = opened(training={"label_smoothing": smoothing, "mixup": 0.4, "class_weights": "balanced"})
    images = torch.zeros(8, 3, 1, 1)
    loss = task.loss(Fixed(LOGITS), (images, Y, z, fraction))
    expected = F.cross_entropy(LOGITS, target, weights, reduction="sum") / (mixed @ weights).sum()
    torch.testing.assert_close(loss, expected)
    whole = task.loss(Fixed(LOGITS), (images, Y, z, torch.ones(8)))
    torch.testing.assert_close(whole, F.cross_entropy(LOGITS, Y, weights, label_smoothing=smoothing))


@pytest.mark.parametrize("counts", [[10, 30, 60], [7, 0, 21]])
def test_balanced_weights_are_those_of_scikit_learn(counts: list[int]) -> None:
    labels, target = np.repeat(np.arange(3), counts), Classes(names=("a", "b", "c"))
    class_weights = target.weigh("balanced", torch.from_numpy(labels))
    present = np.unique(labels)
    expected = compute_class_weight("balanced", classes=present, y=labels)
    assert class_weights[present].tolist() == pytest.approx(expected.tolist())
    assert class_weights.sum().item() == pytest.approx(expected.sum()), "and no others weigh anything"
    assert target.weigh("none", torch.from_numpy(labels)) is None


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluate_counts_every_image_once(split: str) -> None:
    task = opened()
    model = task.model().eval()
    data = open_split("digits", split, size=24, subset=0.2)
    assert len(data) % (2 * task.config.training.batch_size)  # an incomplete batch is part of it
    with torch.inference_mode():
        metrics = task.evaluate(model, split)  # type: ignore[arg-type]
        bytes_of = centre_crop(data.gather(torch.arange(len(data))), data.aspect, 24)
        logits = torch.cat([model(normalise(image[None])) for image in bytes_of])
    assert metrics.keys() == {"accuracy", "balanced_accuracy", "macro_f1", "auc", "loss"}
    assert metrics["accuracy"] == pytest.approx(
        (logits.argmax(1) == data.labels).float().mean().item(), abs=1e-6
    )
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, data.labels).item(), rel=1e-4)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_chance_is_the_fraction_of_the_largest_class(split: str) -> None:
    labels = [
        label
        for part in ("train", "validation")
        for label in open_split("digits", part, size=24, subset=0.2).labels.tolist()
    ]
    task = opened()
    chance = task.chance(split)  # type: ignore[arg-type]
    assert chance.value == max(labels.count(y) for y in range(10)) / len(labels)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "macro_f1", "auc"])
def test_workers_find_the_answers_to_all_inputs(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "total", lambda self, values: values)
    monkeypatch.setattr(Runtime, "gather", lambda self, value: [value])
    answers, scores = [], []
    for runtime in (HERE, *(Runtime(device=HERE.device, rank=rank, workers=2) for rank in (0, 1))):
        task = open_task(tiny(metric=metric), runtime)
        assert task.metric.name == metric
        evaluator = task.evaluator("test")
        with torch.inference_mode():
            scores.append(task.evaluate(task.model().eval(), "test", evaluator))
        answers.append(evaluator)
    whole, together = answers[0].answers(HERE), both(answers[1:], "answers")
    assert np.array_equal(together.answered, whole.answered)
    assert np.allclose(together.values, whole.values)
    assert whole.true.tolist() == load_images(task.config.data, "test").labels.tolist()  # type: ignore[arg-type]
    whole_score = scores[0][metric].item()
    assert both(answers[1:])[metric].item() == pytest.approx(whole_score, rel=1e-6)
    assert whole.values.mean() == pytest.approx(whole_score, abs=0.05), "but for the jackknife's correction"


def test_batches_are_limited_to_the_training_split() -> None:
    train = open_split("digits", "train", size=24, subset=0.2)
    task = opened(training={"batch_size": len(train)})
    assert task.steps() == 1
    x, y = (torch.cat(parts) for parts in zip(*task.batches(0), strict=True))
    assert x.shape == (len(train), 3, 24, 24)
    assert torch.equal(y.sort().values, train.labels.sort().values)
    # The batch is then all of the data: a user may have few photographs.
    task = opened(training={"batch_size": 230})
    assert task.steps() == opened(training={"batch_size": 229}).steps() == 1
    assert [len(y) for _, y in task.batches(1)] == [229]


def test_raw_inputs_fit_the_deployed_graph() -> None:
    task = opened()
    raw = task.model_inputs("test", 5)["images"]
    assert (raw.shape, raw.dtype) == ((5, 24, 24, 3), torch.uint8)
    assert len(task.model_inputs("test", 10**6)["images"]) == len(open_split("digits", "test", size=24))
    assert len(torch.unique(raw.flatten(1), dim=0)) == 5
    model = task.model().eval()
    deployment = task.deployment(model)
    module, example = deployment.module, deployment.inputs["images"]
    assert (example.shape[1:], example.dtype) == (raw.shape[1:], raw.dtype)
    with torch.inference_mode():
        probabilities = module.eval()(raw)
        torch.testing.assert_close(probabilities, model(normalise(raw)).softmax(1))
    assert probabilities.shape == (5, len(deployment.labels))
    assert deployment.labels == [str(digit) for digit in range(10)]


def test_images_are_mirrored_and_data_described() -> None:
    # Photographs are mirrored and digits are not; `flip` overrides both.
    plain, mirrored = (next(iter(opened(training={"flip": flip}).batches(1)))[0] for flip in (None, True))
    same = (plain == mirrored).flatten(1).all(1)
    assert 0.3 < same.float().mean() < 0.7
    torch.testing.assert_close(plain.flip(3)[~same], mirrored[~same], rtol=1e-4, atol=1e-4)
    assert torch.equal(plain, next(iter(opened(training={"flip": False}).batches(1)))[0])
    task = opened()
    text = f"{task.size('train')} images to train on and {task.size('validation')} for validation"
    assert task.describe_data() == f"{text}; 10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
