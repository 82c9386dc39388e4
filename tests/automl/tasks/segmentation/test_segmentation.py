"""The task segmentation: loss and metrics against numpy, batches and models."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from attention import Spec
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.segmentation import SegmentationData, SegmentationTraining
from automl.tasks.segmentation.data import IGNORE
from automl.tasks.segmentation.task import Segmentation, SegmentationEvaluator, segmentation_loss
from automl.training.loop import start
from backbones import gates
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.segmentation_cases import SMALL, few_scenes
from tests.helpers.task_contract import Worker, both

CLASSES = 4
METRICS = ("miou", "pixel_accuracy", "dice")


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_scenes(8, 4):
        yield


def opened(runtime: Runtime = HERE, **parts: Any) -> Segmentation:
    config = TrialConfig(
        task="segmentation",
        data=SegmentationData(size=64),
        model=SMALL,
        training=SegmentationTraining(epochs=1, batch_size=4),
    ).change(**parts)
    task = open_task(config, runtime)
    assert isinstance(task, Segmentation)
    return task


def answers(images: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels, some ignored. One class is never true, and one image is ignored."""
    draw = np.random.default_rng(3)
    truth = draw.integers(0, CLASSES - 1, (images, 7, 9))
    truth[draw.random(truth.shape) < 0.2] = IGNORE
    truth[0] = IGNORE
    logits = draw.normal(size=(images, CLASSES, 7, 9)).astype(np.float32)
    for label in range(CLASSES):
        logits[:, label][truth == label] += 1
    return torch.from_numpy(logits), torch.from_numpy(truth)


def restated(logits: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Compute the metrics from sets of pixels, class by class."""
    answered = logits.argmax(1)
    pixels = [pixel for pixel in np.ndindex(*truth.shape) if truth[pixel] != IGNORE]
    iou, dice = [], []
    for label in range(CLASSES):
        true = {pixel for pixel in pixels if truth[pixel] == label}
        predicted = {pixel for pixel in pixels if answered[pixel] == label}
        if true:
            iou.append(len(true & predicted) / len(true | predicted))
            dice.append(2 * len(true & predicted) / (len(true) + len(predicted)))
    right = [truth[pixel] == answered[pixel] for pixel in pixels]
    return {"miou": np.mean(iou), "pixel_accuracy": np.mean(right), "dice": np.mean(dice)}


def evaluated(
    logits: torch.Tensor, truth: torch.Tensor, metric: str = "miou", rows: Any = slice(None)
) -> SegmentationEvaluator:
    """Return an evaluator after batches of two."""
    evaluator = SegmentationEvaluator(metric)
    for index in torch.arange(len(truth))[rows].split(2):
        evaluator.update(logits[index], truth[index])
        evaluator.index = [*evaluator.index, index]
    return evaluator


def test_metrics_match_their_definitions_on_one_image_and_two_workers():
    logits, truth = answers()
    scores = {name: float(value) for name, value in evaluated(logits, truth).compute(HERE).items()}
    assert scores == pytest.approx(restated(logits.numpy(), truth.numpy()), abs=1e-12)
    assert {metric.name for metric in Segmentation.spec.metrics} == scores.keys()
    halves = [evaluated(logits, truth, rows=slice(rank, None, 2)) for rank in range(2)]
    assert both(halves, "answers").values == pytest.approx(evaluated(logits, truth).answers(HERE).values)
    logits, truth = (part[1:2] for part in answers())
    whole = evaluated(logits, truth)
    assert whole.answers(HERE).values == pytest.approx([float(whole.compute(HERE)["miou"])])


@pytest.mark.parametrize("metric", METRICS)
def test_values_of_images_are_pseudo_values_of_the_jackknife(metric):
    logits, truth = answers()
    values = evaluated(logits, truth, metric).answers(HERE).values
    whole, n = restated(logits.numpy(), truth.numpy())[metric], len(truth)
    for i in range(n):
        rest = np.arange(n) != i
        without = restated(logits[rest].numpy(), truth[rest].numpy())[metric]
        assert values[i] == pytest.approx(n * whole - (n - 1) * without, abs=1e-9)
    if metric == "pixel_accuracy":
        return
    assert values.mean() == pytest.approx(whole, abs=0.05)


def test_the_loss_counts_no_ignored_pixel():
    logits, truth = answers()
    p = np.exp(logits.double().log_softmax(1).numpy())
    labelled = truth.numpy() != IGNORE
    surprise = [-np.log(p[b, truth[b, y, x], y, x]) for b, y, x in np.argwhere(labelled)]
    dice = []
    for label in range(CLASSES - 1):
        true = (truth.numpy() == label).astype(float)
        dice.append(2 * (p[:, label] * true).sum() / ((p[:, label] * labelled).sum() + true.sum()))
    loss = segmentation_loss(logits, truth, HERE)
    assert float(loss) == pytest.approx(np.mean(surprise) + 1 - np.mean(dice), rel=1e-5)
    other = torch.where((truth == IGNORE)[:, None], torch.randn_like(logits), logits).requires_grad_()
    loss = segmentation_loss(other, truth, HERE)
    assert float(loss.detach()) == pytest.approx(float(segmentation_loss(logits, truth, HERE)), rel=1e-5)
    loss.backward()
    assert not other.grad.movedim(1, -1)[truth == IGNORE].any()
    other.grad = None
    segmentation_loss(other, torch.full_like(truth, IGNORE), HERE).backward()
    assert not other.grad.any()


def test_the_mean_of_two_workers_gradients_is_that_of_the_whole_batch():
    logits, truth = answers()

    class Half:
        def __init__(self, rank: int, parts: list[torch.Tensor]) -> None:
            self.rank, self.parts, self.logits = rank, parts, logits[rank::2].clone().requires_grad_()

        def backward(self, worker: Worker) -> torch.Tensor:
            loss = segmentation_loss(self.logits, truth[self.rank :: 2], worker)  # type: ignore[arg-type]
            (gradient,) = torch.autograd.grad(loss, self.logits)
            self.parts.append(loss.detach())
            return torch.cat(worker.gather(gradient))

    losses: list[torch.Tensor] = []
    gradients = both([Half(rank, losses) for rank in range(2)], "backward")
    whole = logits.clone().requires_grad_()
    loss = segmentation_loss(whole, truth, HERE)
    loss.backward()
    order = [*range(0, 6, 2), *range(1, 6, 2)]
    assert torch.allclose(gradients / 2, whole.grad[order], atol=1e-7)
    assert [float(each) for each in losses] == pytest.approx([float(loss.detach())] * 2, rel=1e-5)


def test_crops_fit_each_other_and_none_is_as_in_validation():
    # Digits are brighter than the background in every crop.
    task = opened(training={"crop": 0.3, "flip": True})
    for images, masks in task.batches(0):
        assert images.shape == (4, 3, 64, 64)
        assert masks.shape == (4, 64, 64)
        assert set(masks.unique().tolist()) <= set(range(11))
        brightness = images.mean(1)
        assert brightness[masks > 0].mean() > brightness[masks == 0].mean() + 1
    task = opened(training={"crop": 1.0, "flip": False})
    whole = torch.cat([part.inputs for part in task.parts("train")])
    images = torch.cat([images for images, _ in task.batches(0)])
    # A box of the whole area has another shape than the image in most draws, and then cuts a little off.
    assert images.mean() == pytest.approx(float(whole.mean()), abs=0.1)


@pytest.mark.parametrize(
    "model",
    [
        {"placement": {"skip1": Spec("ssa"), "bottleneck": Spec("sagan"), "stage2.block1": Spec("conv1x1")}},
        {
            "backbone": "smp:Unet",
            "options": {"encoder_name": "resnet18", "decoder_channels": [32, 16, 8, 8, 8]},
        },
    ],
)
def test_models_learn_a_step(model):
    task = opened(model=model)
    state = start(task)
    before = [parameter.detach().clone() for parameter in state.model.parameters()]
    loss = task.loss(state.model, next(iter(task.batches(0))))
    loss.backward()
    assert loss.isfinite()
    assert sum(parameter.grad is not None for parameter in state.model.parameters()) == len(before)
    assert gates(state.model).keys() == task.config.model.placement.keys()


def test_weights_of_a_classifier_start_the_encoder(tmp_path):
    """The head is left out, and the decoder is new."""
    from search.config import Model

    donor = Model.build(SMALL, classes=3, size=64)
    torch.save(donor.state_dict(), tmp_path / "donor.pt")
    task = opened(model={"weights": str(tmp_path / "donor.pt")})
    model = task.model()
    new = task.initialise(model)
    own = donor.state_dict()
    body = model.get_submodule("body").state_dict()
    assert len(body) > 50
    assert all(torch.equal(value, own[name]) for name, value in body.items())
    assert new
    assert not [name for name in new if name.startswith("body.")]
