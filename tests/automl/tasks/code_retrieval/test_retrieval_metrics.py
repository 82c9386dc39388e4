"""Metrics of retrieval against a plain implementation of their definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from automl.tasks.code_retrieval.score import (
    chance_mrr,
    compute_ranks,
    draw_distractors,
    rank_metrics,
    ranks_among,
    ranks_at,
)


def plain(rows: list[list[float]], own: list[int]) -> dict[str, float]:
    """Compute the metrics one query at a time. Candidates of equal score come before the answer."""
    ranks = []
    for row, answer in zip(rows, own, strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i == answer))
        ranks.append(1 + order.index(answer))
    count = len(ranks)
    metrics = {f"recall_at_{k}": sum(rank <= k for rank in ranks) / count for k in (1, 5, 10)}
    metrics["mrr"] = sum(1 / rank for rank in ranks) / count
    # With one right answer the best order has a gain of 1 / log2(2) = 1.
    metrics["ndcg"] = sum(1 / math.log2(1 + rank) for rank in ranks) / count
    return metrics


@given(st.data())
def test_metrics_match_their_definitions_with_ties(data: st.DataObject) -> None:
    queries, candidates = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 30))
    scores = st.integers(0, 5).map(float)  # few values, so that many are equal
    rows = data.draw(
        st.lists(
            st.lists(scores, min_size=candidates, max_size=candidates), min_size=queries, max_size=queries
        )
    )
    own = data.draw(st.lists(st.integers(0, candidates - 1), min_size=queries, max_size=queries))
    metrics = rank_metrics(compute_ranks(torch.tensor(rows), torch.tensor(own)))
    expected = plain(rows, own)
    assert metrics.keys() == expected.keys()
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected, rel=1e-12)


def test_ranks_of_nan_and_among_few() -> None:
    nan = float("nan")
    scores = torch.tensor([[nan, 1.0, 2.0], [3.0, nan, 2.0], [nan, nan, nan]])
    assert compute_ranks(scores, torch.tensor([0, 0, 1])).tolist() == [3, 2, 3]
    torch.manual_seed(0)
    q, c = torch.randn(40, 8), torch.randn(40, 8)
    everything = compute_ranks(q @ c.T, torch.arange(40))
    assert ranks_at(q, c, candidates=40).tolist() == everything.tolist()
    assert ranks_among(q, c, torch.arange(40)).tolist() == everything.tolist()
    assert (ranks_at(q, c, candidates=10) <= everything).all()


def test_candidates_and_guessing() -> None:
    batches = list(draw_distractors(25, candidates=10))
    assert sorted(int(i) for asked, _ in batches for i in asked) == list(range(25))
    for asked, among in batches:
        assert len(set(among.tolist())) == len(among) == 10
        assert among[: len(asked)].tolist() == asked.tolist()
    ((asked, among),) = draw_distractors(4, candidates=10)
    assert sorted(asked.tolist()) == sorted(among.tolist()) == list(range(4))
    torch.manual_seed(0)
    chance = chance_mrr(200)
    draws = [
        (1 / compute_ranks(torch.rand(200, 200), torch.arange(200)).double()).mean().item()
        for _ in range(300)
    ]
    assert chance.value == pytest.approx(sum(draws) / len(draws), rel=0.02)
    assert chance.error == pytest.approx(torch.tensor(draws).std().item(), rel=0.15)
    assert chance.step == 1 / 200
