"""The task language modelling: the contract, metrics against numpy, chance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from automl.config.runtime import Runtime
from automl.task import Split, Task, open_task
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.score import UNMARKED, LanguageEvaluator, cross_entropy
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.task_contract import TaskTestCase, both

RECALL = LanguageData(source="recall", context=12, vocabulary=9, pairs=2, gap=1, examples=64)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "slept")


def opened(data: LanguageData = RECALL, runtime: Runtime = HERE, metric: str = "", **parts: Any) -> Task:
    config = TrialConfig(
        task="language-modelling",
        data=data,
        model=LanguageModel(options={"depth": 2, "width": 8, "heads": 1, "mlp": 8}),
        training=LanguageTraining(epochs=1, batch_size=8),
        metric=metric,
    )
    return open_task(config.change(**parts), runtime)


class TestRecall(TaskTestCase):
    def make(self, **options: Any) -> Task:
        return opened(metric="accuracy", **options)

    def listed(self, task: Task, split: Split) -> int:
        return 1  # sequences are drawn


class TestText(TaskTestCase):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        for i in range(20):
            text = " ".join(draw.choice(WORDS, 30))
            (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
        self.path = str(tmp_path)

    def make(self, **options: Any) -> Task:
        return opened(LanguageData(context=16, path=self.path), **options)

    def listed(self, task: Task, split: Split) -> int:
        return {"train": 13, "validation": 3, "test": 4}[split]  # documents


def drawn(windows: int = 7, positions: int = 5, symbols: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(3)
    targets = draw.integers(0, symbols, (windows, positions))
    targets[draw.random(targets.shape) < 0.4] = UNMARKED
    targets[2] = UNMARKED
    return torch.from_numpy(draw.normal(size=(windows, positions, symbols))), torch.from_numpy(targets)


def scored(logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Restate the metrics position by position."""
    losses, right = [], []
    for window, row in zip(logits, targets, strict=True):
        for scores, target in zip(window, row, strict=True):
            if target != UNMARKED:
                losses.append(np.log(np.exp(scores).sum()) - scores[target])
                right.append(scores.argmax() == target)
    loss = float(np.mean(losses))
    return {"loss": loss, "accuracy": float(np.mean(right)), "bits_per_byte": loss / np.log(2) / 3.5}


@pytest.mark.parametrize("metric", ["loss", "accuracy", "bits_per_byte"])
def test_metrics_are_those_of_numpy(metric: str) -> None:
    logits, targets = drawn()
    expected = scored(logits.numpy(), targets.numpy())
    evaluators = []
    for rows in (slice(0, 4), slice(4, None)):
        evaluator = LanguageEvaluator(metric, bytes_per_token=3.5)
        evaluator.update(logits[rows], targets[rows])
        evaluator.index = [torch.arange(7)[rows]]
        evaluators.append(evaluator)
    assert {name: float(value) for name, value in both(evaluators).items()} == pytest.approx(
        expected, rel=1e-6
    )
    assert float(cross_entropy(logits, targets)) == pytest.approx(expected["loss"])
    whole = LanguageEvaluator(metric, bytes_per_token=3.5)
    whole.update(logits, targets)
    whole.index = [torch.arange(7)]
    answers = whole.answers(HERE).values
    without = [
        scored(np.delete(logits.numpy(), i, 0), np.delete(targets.numpy(), i, 0))[metric] for i in range(7)
    ]
    assert answers == pytest.approx([7 * expected[metric] - 6 * value for value in without], rel=1e-5)


def test_chance_is_guessing_among_open_values_and_unknown_for_text() -> None:
    # A model that sees which values were asked for, but not of which key, guesses among the others.
    task = opened(metric="accuracy")
    draw, hits, answers = np.random.default_rng(0), 0, 0
    for _ in range(20_000):
        left = list(range(2))
        for value in draw.permutation(2):
            hits, answers = hits + (draw.choice(left) == value), answers + 1
            left.remove(value)
    chance = task.chance("validation")
    assert chance.value == pytest.approx(hits / answers, abs=0.01)
    assert opened().chance("validation") is None  # its metric is the loss


def test_unmarked_positions_have_no_gradient() -> None:
    logits, targets = drawn()
    logits.requires_grad_()
    cross_entropy(logits, targets).backward()
    assert logits.grad is not None
    assert ((logits.grad != 0).any(-1) == (targets != UNMARKED)).all()
