"""Recall of planted facts at longer lengths."""

import string
from pathlib import Path

import numpy as np
import pytest
import torch

from automl.config.runtime import Runtime
from automl.tasks.language_modelling import NEEDLES, LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling import score as needles
from automl.tasks.language_modelling.data import open_windows
from automl.tasks.language_modelling.score import UNMARKED
from automl.tasks.language_modelling.task import LanguageModelling
from search.config import TrialConfig

pytestmark = pytest.mark.usefixtures("cache")
RECALL = LanguageData(source="recall", context=24, vocabulary=16, pairs=3, examples=64)


def write_text(folder: Path, characters: int = 6000) -> LanguageData:
    draw = np.random.default_rng(0)
    (folder / "a.txt").write_text("".join(draw.choice(list(string.printable), characters)))
    return LanguageData(path=str(folder), context=32)


def task(data: LanguageData, metric: str = "loss") -> LanguageModelling:
    config = TrialConfig(
        task="language-modelling",
        data=data,
        model=LanguageModel(options={"depth": 1, "width": 16, "heads": 1}),
        training=LanguageTraining(epochs=1, batch_size=16),
        metric=metric,
    )
    return LanguageModelling(config, Runtime(device=torch.device("cpu")))


class Copier(torch.nn.Module):
    """A model that continues the latest earlier row of three tokens that equals the last three."""

    def __init__(self, vocabulary: int, reach: int) -> None:
        super().__init__()
        self.vocabulary, self.reach = vocabulary, reach

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, self.vocabulary)
        for b, row in enumerate(tokens.tolist()):
            for i in range(3, len(row)):
                for j in range(i - 1, max(2, i - self.reach), -1):
                    if row[j - 3 : j] == row[i - 2 : i + 1]:
                        logits[b, i, row[j]] = 1
                        break
        return logits


def test_a_planted_fact_is_repeated_at_the_end_and_nothing_else_changes(tmp_path: Path) -> None:
    windows = open_windows(write_text(tmp_path)).longer(4)
    rows = np.arange(3)
    whole, _ = windows.batch("test", rows)
    tokens, marks = needles.plant(whole, rows)
    assert tokens.shape == (3, 4 * 32 + 1)
    for before, text, marked in zip(whole, tokens, marks, strict=True):
        fact = text[-needles.FACT :]
        starts = [i for i in range(64) if np.array_equal(text[i : i + needles.FACT], fact)]
        assert starts, "it stands in the first half"
        changed = np.flatnonzero(before != text)
        allowed = {*range(starts[0], starts[0] + needles.FACT), *range(129 - needles.FACT, 129)}
        assert set(changed.tolist()) <= allowed
        assert marked.nonzero()[0].tolist() == [*range(128 - needles.FACT + needles.CUE, 128)]
    again, _ = needles.plant(whole, rows)
    np.testing.assert_array_equal(tokens, again)


def test_a_model_that_copies_recalls_as_far_as_it_reaches(tmp_path: Path) -> None:
    chosen = task(write_text(tmp_path, 20_000))
    assert list(chosen._longer) == list(NEEDLES)
    far, near = (chosen.evaluate(Copier(257, reach), "test") for reach in (512, 48))
    assert all(far[name] > 0.95 for name in NEEDLES)
    assert near["needle@1x"] > 0.95
    assert near["needle@8x"] < 0.3
    blind = chosen.evaluate(Copier(257, 0), "test")
    assert all(blind[name] < 0.1 for name in NEEDLES)


@pytest.mark.parametrize("factor", NEEDLES.values())
def test_longer_recall_has_the_same_pairs_among_more_fillers(factor: int) -> None:
    windows = open_windows(RECALL).longer(factor)
    assert windows is not None
    tokens, targets = needles.needle_sequences("recall", windows, "test", np.arange(20))
    assert tokens.shape == targets.shape == (20, 24 * factor)
    assert ((targets != UNMARKED).sum(1) == RECALL.pairs).all()
    assert ((tokens != 0).sum(1) >= 4 * RECALL.pairs - 1).all()


def test_needles_are_measured_on_test_and_where_they_are_the_metric() -> None:
    model = task(RECALL).model()
    assert set(task(RECALL).evaluate(model, "test")) >= set(NEEDLES)
    assert not set(task(RECALL).evaluate(model, "validation")) & set(NEEDLES)
    chosen = task(RECALL, "needle@4x")
    assert set(chosen.evaluate(model, "validation")) & set(NEEDLES) == {"needle@4x"}
    assert chosen.evaluator("test").answers(chosen.runtime) is None
