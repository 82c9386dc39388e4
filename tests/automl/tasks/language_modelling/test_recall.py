"""Test sequences of associative recall against a reader of their definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automl.data.splits import SPLITS
from automl.tasks.language_modelling import LanguageData
from automl.tasks.language_modelling.data.windows import FILLER, LEAST, Recall

pytestmark = pytest.mark.usefixtures("cache")


@st.composite
def recalls(draw: st.DrawFn) -> LanguageData:
    """Draw parameters that fit together."""
    pairs, gap = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    least = pairs * (4 + gap) - 1
    return LanguageData(
        source="recall",
        context=draw(st.integers(least, least + 20)),
        vocabulary=draw(st.integers(2 * pairs + 1, 2 * pairs + 20)),
        pairs=pairs,
        gap=gap,
    )


def check_sequence(tokens: list[int], marks: list[bool], data: LanguageData) -> None:
    """Read a sequence symbol by symbol: items, then queries with their values."""
    keys = (data.vocabulary - 1) // 2
    values: dict[int, int] = {}
    queried: list[int] = []
    marked: list[int] = []
    at = 0
    while at < len(tokens):
        key, at = tokens[at], at + 1
        if key == FILLER:
            continue
        assert 1 <= key <= keys
        if key in values:
            assert tokens[at] == values[key]
            queried.append(key)
            marked.append(at - 1)
        else:
            assert not queried, "items come before queries"
            fillers = next(i for i, token in enumerate(tokens[at:]) if token != FILLER)
            assert fillers <= data.gap
            at += fillers
            values[key] = tokens[at]
            assert keys < values[key] < data.vocabulary
        at += 1
    assert len(values) == len(queried) == data.pairs
    assert set(values) == set(queried)
    assert marked == np.flatnonzero(marks).tolist()


@settings(max_examples=60)
@given(data=recalls(), row=st.integers(0, 2**40), split=st.sampled_from(SPLITS))
def test_queries_are_answered_by_the_items(data: LanguageData, row: int, split: str) -> None:
    recall = Recall(data)
    rows = row + np.arange(20)
    tokens, marks = recall.batch(split, rows)
    assert tokens.shape == (20, data.context + 1)
    assert tokens.dtype == np.int64
    for i in range(20):
        check_sequence(tokens[i].tolist(), marks[i].tolist(), data)
    alone, alone_marks = recall.batch(split, rows[7:8])
    assert (alone == tokens[7]).all()
    assert (alone_marks == marks[7]).all()


DATA = LanguageData(source="recall", context=31, vocabulary=32, pairs=4, gap=2, examples=4000)


def test_sequences_differ_between_splits_and_stay_the_same_later() -> None:
    recall = Recall(DATA)
    tokens = np.concatenate([recall.batch(split, np.arange(recall.size(split)))[0] for split in SPLITS])
    assert len(tokens) == 4000 + 2 * LEAST
    assert len(np.unique(tokens, axis=0)) == len(tokens)
    # The sequence is the example in docs/how-to/language-data.md.
    data = LanguageData(source="recall", context=23, vocabulary=16, pairs=3, gap=2)
    tokens, marks = Recall(data).batch("train", np.array([3]))
    symbols = "3 0 8 0 6 0 10 4 13 6 10 0 0 0 0 0 0 4 13 3 8 0 0 0"
    assert tokens.tolist() == [[int(symbol) for symbol in symbols.split()]]
    assert np.flatnonzero(marks).tolist() == [9, 17, 19]
    recall = Recall(LanguageData(**{**vars(DATA), "subset": 0.5}))
    assert [recall.size(split) for split in SPLITS] == [2000, 256, 512]


def test_every_choice_is_equally_likely() -> None:
    tokens, marks = Recall(DATA).batch("train", np.arange(8000))
    queries = tokens[:, :-1][marks]
    answers = tokens[:, 1:][marks]
    for symbols, expected in ((queries, range(1, 16)), (answers, range(16, 32))):
        counts = np.bincount(symbols, minlength=32)[expected.start : expected.stop]
        mean = counts.mean()
        assert (abs(counts - mean) < 5 * np.sqrt(mean)).all()
    assert (np.bincount(marks.argmax(1), minlength=31)[9:24] > 0).all(), "queries begin anywhere"
    order = np.array([row[mark].argsort() for row, mark in zip(tokens[:, :-1], marks, strict=True)])
    assert (abs(np.bincount(order[:, 0], minlength=4) - 2000) < 5 * np.sqrt(2000)).all()


@pytest.mark.parametrize(
    ("changed", "differs"),
    [({}, False), ({"gap": 1}, True), ({"context": 40}, True), ({"examples": 6000}, True)],
)
def test_manifest_changes_with_the_sequences(changed: dict[str, Any], differs: bool) -> None:
    other = LanguageData(**{**vars(DATA), **changed})
    assert (Recall(other).manifest().digest != Recall(DATA).manifest().digest) == differs
