"""Trial steps of user-defined models before their training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.config.nouns import Terms
from automl.export import checks
from automl.search.prepare import check_models
from automl.task import evaluator as evaluators
from automl.task.checks import ModelCheck, check_model
from automl.task.deployment import Deployment
from automl.task.evaluator import ClassificationEvaluator
from backbones import BACKBONES, build, insert
from backbones.channels import find_crashing_layer, set_format
from search.class_metrics import ACCURACY, AUC, BALANCED_ACCURACY, CLASSIFICATION
from search.metric import Metric
from tests.helpers.automl_cases import HERE, opened, tiny


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, classes)

    def maps(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x).relu(), 2)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.maps(x).flatten(1))


class Flat(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.maps(x)
        return self.fc(x.view(x.size(0), -1))


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad.view(-1).view(grad.shape)


class FlatGradient(Net):
    def forward(self, x: Tensor) -> Any:
        x = _View.apply(self.conv(x))
        return self.fc(F.max_pool2d(x, 2).flatten(1))


class Narrow(Net):
    """Model that ends the process on some processors if it is trained in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(3, 4, 1, stride=2)

    def forward(self, x: Tensor) -> Any:
        return self.fc((self.maps(x) + self.shortcut(x)).flatten(1))


class Dropped(Net):
    def forward(self, x: Tensor) -> Any:
        return self.fc(F.dropout(self.maps(x)).flatten(1))


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.maps(x)
        return self.fc(x.flatten(1)), x


class Labels(Net):
    def forward(self, x: Tensor) -> Any:
        return F.one_hot(super().forward(x).argmax(1), 3).float()


class OneBatch(Net):
    def forward(self, x: Tensor) -> Any:
        return self.fc(self.maps(x).reshape(64, 256))


class MadeLater(Net):
    def forward(self, x: Tensor) -> Any:
        if not hasattr(self, "late"):
            self.late = nn.Linear(4 * 8 * 8, 3)
        return self.late(self.maps(x).flatten(1))


def check(make: Callable[[], nn.Module], *, images: bool = True) -> ModelCheck:
    return check_model(
        "mine.py:Net", make, lambda n: torch.rand(n, 3, 16, 16), HERE, images=images, classes=3
    )


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (Net, None),
        (Flat, "in channels_last, RuntimeError: view size is not compatible"),
        (FlatGradient, "in channels_last, RuntimeError: view size"),
        (Narrow, "the gradient of 'shortcut', a strided 1x1 convolution"),
    ],
)
def test_models_that_fail_in_channels_last_are_trained_contiguous(
    make: Callable[[], nn.Module], note: str | None
) -> None:
    before = torch.random.get_rng_state()
    result = check(make)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert result.memory_format == (torch.channels_last if note is None else torch.contiguous_format)
    assert len(result.notes) == (note is not None)
    if note:
        assert note in result.notes[0]
        assert "trained contiguous" in result.notes[0]
        assert check(make, images=False) == ModelCheck(notes=[])


@pytest.mark.parametrize("images", [True, False])
def test_a_model_that_is_random_in_evaluation_mode_is_reported(images: bool) -> None:
    (note,) = check(Dropped, images=images).notes
    assert "is random in evaluation mode" in note
    assert "training=self.training" in note


EXPECTED = r"expected \(batch, 3 classes\)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Net(7), rf"returned \(3, 7\), {EXPECTED}"),
        (Pair, rf"a tuple of \(3, 3\), \(3, 4, 8, 8\), {EXPECTED}"),
        (Labels, "returned outputs without a gradient"),
        (
            OneBatch,
            r"shape '\[64, 256\]' is invalid .*\(test_model_check.py, line \d+\).*batches of any size",
        ),
        (MadeLater, r"makes layers in its first forward pass \(late.bias, late.weight\)"),
    ],
)
def test_models_that_cannot_be_trained_are_rejected(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(make)
    with pytest.raises(InputError, match=message):
        check(make, images=False)


@pytest.mark.parametrize(
    ("layer", "crashes"),
    [
        (nn.Conv2d(3, 48, 1, stride=2), True),
        (nn.Conv2d(12, 4, 1, stride=(1, 2)), True),
        (nn.ConvTranspose2d(16, 4, 1, stride=2), True),
        (nn.Conv2d(1, 8, 1, stride=2), False),
        (nn.Conv2d(16, 32, 1, stride=2), False),
        (nn.Conv2d(8, 16, 1), False),
        (nn.Conv2d(8, 16, 3, stride=2), False),
        (nn.Conv2d(8, 8, 1, stride=2, groups=8), False),
        (nn.Conv1d(4, 8, 1, stride=2), False),
    ],
)
def test_layers_whose_gradient_can_crash(layer: nn.Module, crashes: bool) -> None:
    assert find_crashing_layer(nn.Sequential(nn.ReLU(), layer)) == ("1" if crashes else None)


def test_built_in_models_are_safe_in_channels_last() -> None:
    for name, record in BACKBONES.items():
        if record.dimensions == 2:
            options = {"width": 1 / 16} if name.startswith("xresnet") else {}
            assert find_crashing_layer(build(name, classes=2, size=32, **options)) is None


def test_weights_of_three_dimensions_keep_their_format() -> None:
    """timm's `lambda` has such a convolution, in a model of images."""
    model = insert(
        build("small-resnet", classes=2), {"stage2.block1": "timm:lambda"}, torch.zeros(2, 3, 32, 32)
    )
    set_format(model, torch.channels_last)
    weights = [w for w in model.parameters() if w.dim() == 4 and w.shape[1] > 1 and w.shape[2] > 1]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert any(weight.dim() == 5 for weight in model.parameters())


def test_steps_and_graphs_use_the_model_format(tmp_path: Path) -> None:
    """Test a step, an evaluation and the deployed graph of a model that takes contiguous features only."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Flat(nn.Module):\n"
        "    def __init__(self, num_classes, size):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 1, stride=2)\n"
        "        self.fc = nn.Linear(4 * (size // 2) ** 2, num_classes)\n"
        "    def forward(self, x):\n"
        "        x = self.conv(x)\n"
        "        return self.fc(x.view(x.size(0), -1))\n"
    )
    task = opened(model={"backbone": f"{tmp_path}/mine.py:Flat", "options": {}, "placement": {"conv": "ssa"}})
    assert "trained contiguous" in task.notes()[0]
    model = task.model()
    task.loss(model, next(iter(task.batches(0)))).backward()
    with torch.inference_mode():
        assert task.evaluate(model.eval(), "validation")["accuracy"] >= 0
    deployment = task.deployment(model)
    torch.export.export(deployment.module, tuple(deployment.inputs.values()))


def test_an_export_reports_a_random_model(monkeypatch: pytest.MonkeyPatch) -> None:
    task = opened()
    x = torch.rand(4, 3, 16, 16)
    deployment = Deployment(module=Dropped(), inputs={"x": x}, outputs=["y"])
    expected = deployment.run({"x": x})
    monkeypatch.setattr(checks, "_forms", lambda *_: {"model.onnx": lambda: deployment.run({"x": x})})
    arguments: Any = (
        {"model": deployment},
        {"model": {"x": x.numpy()}},
        {"model": None},
        {"model": expected},
    )
    with pytest.raises(InputError, match=r"random in evaluation mode: two passes over the same 4 inputs"):
        checks.check_parity(Path(), task, *arguments)
    deployment.module.forward = lambda x: Net.forward(deployment.module, x)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"model\.onnx differs from the trained model by"):
        checks.check_parity(Path(), task, *arguments)


def test_each_backbone_of_a_space_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Flat(nn.Sequential):\n"
        "    def __init__(self, classes, size):\n"
        "        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * size ** 2, classes))\n"
        "    def forward(self, x):\n"
        "        return self[1](self[0](x).view(len(x), -1))\n"
        "class Pair(Flat):\n"
        "    def forward(self, x):\n"
        "        return self[1](self[0](x).flatten(1)), x\n"
    )
    flat, pair = (
        tiny(model={"backbone": f"{tmp_path}/mine.py:{name}", "options": {}}) for name in ("Flat", "Pair")
    )
    with pytest.raises(InputError, match=r"mine\.py:Pair returned a tuple .*\(batch, 10 classes\)"):
        check_models([tiny(), flat, flat, pair], Terms().runtime)
    assert capsys.readouterr().err.count("mine.py:Flat is trained contiguous") == 1


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


def test_metrics_are_computed_where_they_have_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    score, *_ = scored(BALANCED_ACCURACY, [9, 0])
    assert score.keys() == {"accuracy", "balanced_accuracy", "macro_f1", "loss"}
    with pytest.raises(InputError, match="two or more classes"):
        scored(AUC, [9, 0])
    monkeypatch.setattr(evaluators, "SCORES", 3 * 60 - 1)
    assert "auc" not in scored(ACCURACY, [20, 9, 31])[0]
    assert scored(AUC, [20, 9, 31])[0].keys() == {metric.name for metric in CLASSIFICATION}
    with pytest.raises(InputError, match=r"metric 'rmse' of classes must be a search\.class_metrics\.ClassM"):
        scored(Metric(name="rmse", maximize=False), [9, 9])
