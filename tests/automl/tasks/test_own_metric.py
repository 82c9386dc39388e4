"""Top-5 accuracy: the example of a user-defined metric."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from scipy.stats import binom
from sklearn.metrics import top_k_accuracy_score

from automl.config.nouns import Question, SearchPlan
from automl.judge.judge import judge
from automl.search.prepare import make_plan
from automl.storage.trial_files import Answers
from automl.task import Task, open_task
from automl.training.loop import fit, start
from search.metric import GUESSING_RATE, Metric
from tests.helpers.automl_cases import HERE, tiny
from tests.helpers.confirm_cases import VARIANTS, design, scores

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "own-metric.md"
NAME = "top5_accuracy"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (code,) = re.findall(r"```python\n(# top5.py\n.*?)```", GUIDE.read_text(), re.S)
    (tmp_path / "top5.py").write_text(code)
    return tmp_path / "top5.py"


def test_it_ranks_a_training(
    file: Path, store: MlflowClient, cli: Callable[..., tuple[int, str, str]]
) -> None:
    options = ["--epochs", "2", "--subset", "0.2", "--device", "cpu"]
    code, out, err = cli("train", "--space", f"{file}:space", "--metric", NAME, *options)
    assert code == 0, err
    (shown,) = re.findall(rf"^epoch 2/2 .* {NAME} (\S+)", out, re.M)
    metrics = store.get_run(re.findall(r"--run (\w+)", out)[0]).data.metrics
    assert 100 * metrics[NAME] == pytest.approx(float(shown), abs=0.006)
    assert 0.5 <= metrics[NAME] <= 1


@pytest.fixture
def task(file: Path) -> Task:
    return open_task(
        tiny(task=f"{file}:Images", metric=NAME, training={"epochs": 4, "learning_rate": 5e-3}), HERE
    )


def answered(task: Task, epochs: int) -> tuple[float, Answers, torch.Tensor]:
    """Return the metric, the answers of the test split and the logits after some epochs."""
    state, logits = start(task), []
    for _ in zip(range(epochs), fit(task, state), strict=False):
        pass
    evaluator = task.evaluator("test")
    keep = evaluator.update
    evaluator.update = lambda outputs, targets: (logits.append(outputs), keep(outputs, targets))
    with torch.inference_mode():
        value = task.evaluate(state.model.eval(), "test", evaluator)[NAME].item()
    return value, evaluator.answers(HERE), torch.cat(logits)


@pytest.mark.slow("a search")
def test_its_value_chance_and_verdict(task: Task) -> None:
    inputs, chance = task.size("test"), task.chance("test")
    (before, guesses, _), (value, answers, logits) = answered(task, 1), answered(task, 4)
    assert value == pytest.approx(top_k_accuracy_score(answers.true, logits, k=5, labels=range(10)))
    # What each input contributes is whether it is among the five.
    ranks = (logits >= logits.gather(1, torch.as_tensor(answers.true)[:, None])).sum(1).numpy()
    assert answers.values.tolist() == (ranks <= 5).tolist()
    # Guessing is the five largest classes of training and validation.
    counts = np.sum([task.class_counts(split) for split in ("train", "validation")], axis=0)
    assert chance.value == pytest.approx(np.sort(counts)[-5:].sum() / counts.sum())
    assert chance.error == pytest.approx(binom(inputs, chance.value).std() / inputs)
    assert chance.step == 1 / inputs
    plan = make_plan(SearchPlan(), Question(space="digits"), task)
    assert type(plan.metric) is Metric, "a plan is read where the file is not run"
    validation = task.size("validation")
    bound = binom.isf(GUESSING_RATE, validation, task.chance("validation").value) / validation
    assert plan.guessing == pytest.approx(bound)
    # A verdict tests it, with that chance and these values.
    asked = design(metric=NAME, inputs=inputs, chance=chance)
    guessing = judge(asked, VARIANTS, scores(level=chance.value, sd=0.0))
    assert guessing.headline == "Cannot tell: no variant is shown to beat guessing"
    assert guessing.remarks[0] == f"The {NAME} of guessing is {100 * chance.value:.1f} %."
    variants = {}
    for name, variant in scores().items():
        values = answers.values if name == "ssa" else guesses.values
        variants[name] = replace(
            variant,
            values=dict.fromkeys(variant.scores, values),
            scores=dict.fromkeys(variant.scores, values.mean()),
        )
    verdict = judge(asked, VARIANTS, variants)
    assert verdict.final == "better"
    assert verdict.winner.name == "ssa"
    assert f"by {100 * (value - before):.2f} points" in verdict.headline
    assert "Over seeds and test examples" in verdict.figures
