"""File of predictions for a split."""

from pathlib import Path

import numpy as np
import pytest

from automl.storage.storage import Storage
from automl.storage.trial_files import ANSWERS_FILE, EXAMPLES, Answers, Example, read_answers, select_examples


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (9, 3), (1000, 300)])
def test_written_file_is_read(count: int, classes: int, tmp_path: Path) -> None:
    true, answered = np.random.default_rng(count).integers(0, classes, (2, count))
    labels = [f"Klasse ä {i}" for i in range(classes)]
    values = (true == answered).astype(float)
    Answers(labels=labels, true=true, answered=answered, values=values).save(Storage(tmp_path))
    answers = read_answers(Storage(tmp_path))
    assert answers.labels == labels
    for ours, theirs in ((answers.true, true), (answers.answered, answered), (answers.values, values)):
        assert ours.tolist() == theirs.tolist()
    assert answers.card.matrix.sum() == count
    assert (tmp_path / ANSWERS_FILE).stat().st_size < 1500 + 4 * count + 10 * classes


def test_missing_or_damaged_file_gives_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_answers(Storage(tmp_path)) is None
    assert not caplog.records
    (tmp_path / ANSWERS_FILE).write_bytes(b"PK\x03\x04 cut off")
    assert read_answers(Storage(tmp_path)) is None
    assert "answers.npz of" in caplog.text


def test_answers_of_a_retrieval(tmp_path: Path) -> None:
    ranks = np.random.default_rng(0).integers(1, 1001, 5000)
    examples = [
        Example(query=f"Größe\n\0 {i}", wanted=f"f{i} (a.py:{i})", rank=i + 1, first="g (b.py:1)")
        for i in range(EXAMPLES + 5)
    ]
    Answers(values=1 / ranks, examples=examples).save(Storage(tmp_path))
    answers = read_answers(Storage(tmp_path))
    assert np.round(1 / answers.values).astype(int).tolist() == ranks.tolist()
    assert answers.examples == examples[:EXAMPLES]
    assert (len(answers.labels), len(answers.true), len(answers.answered)) == (0, 0, 0)
    assert answers.card.matrix.shape == (0, 0)


@pytest.mark.parametrize(
    ("hits", "misses", "expected"),
    [(0, 0, (0, 0)), (3, 0, (3, 0)), (0, 3, (0, 3)), (50, 5, (15, 5)), (5, 50, (5, 15)), (50, 50, (10, 10))],
)
def test_select_examples(hits: int, misses: int, expected: tuple[int, int]) -> None:
    rng = np.random.default_rng(hits)
    ranks = rng.permutation(np.concatenate([np.ones(hits, np.int64), rng.integers(2, 1000, misses)]))
    chosen = select_examples(ranks)
    assert len(set(chosen)) == len(chosen) == sum(expected)
    of = ranks[chosen]
    assert (int((of == 1).sum()), int((of > 1).sum())) == expected
    missed = of[of > 1]
    assert (np.diff(missed) >= 0).all()
    if misses:
        assert missed[-1] == ranks.max()
