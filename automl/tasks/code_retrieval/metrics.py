"""Metrics of retrieval with one right answer per query.

The rank of an answer is the number of candidates that do not score below it, including itself. So a tie
counts against it, and so does a NaN.

mrr: the mean of 1 / rank (E. Voorhees, The TREC-8 Question Answering Track Report (1999)).
recall_at_k: the fraction of queries whose answer is among the first k.
ndcg: the mean of 1 / log2(1 + rank), which for one right answer is the normalised discounted cumulative gain
(K. Jarvelin, J. Kekalainen, Cumulated gain-based evaluation of IR techniques (2002)).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from search.metric import Chance

CANDIDATES = 1000  # candidates per query, as in arXiv 1909.09436, section 4
RECALLS = (1, 5, 10)
BATCH = 1024  # queries that are scored against the whole corpus at once


def compute_ranks(scores: Tensor, answers: Tensor) -> Tensor:
    """Return ranks, int64 `(Q,)`, from scores `(Q, N)` and the column of each answer, int64 `(Q,)`.

    Ranks count from 1.
    """
    answer_scores = scores.gather(1, answers[:, None])
    return (~(scores < answer_scores)).sum(1)


def ranks_among(queries: Tensor, codes: Tensor, own: Tensor) -> Tensor:
    """Return the ranks of queries `(Q, D)` among all vectors `(N, D)`, whose rows `own` are the answers."""
    ranks = [
        compute_ranks(batch @ codes.T, answers)
        for batch, answers in zip(queries.split(BATCH), own.split(BATCH), strict=True)
    ]
    return torch.cat(ranks) if ranks else own.new_zeros(0)


def draw_distractors(
    count: int, *, candidates: int = CANDIDATES, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of `candidates` of `count` queries with their answers, in random order.

    Each batch holds the numbers of the queries, int64 `(Q,)`, and of the candidates, `(min(candidates,
    count),)`, which begin with the queries' own. The last batch is filled with answers to other queries, so
    that every query has the same number of candidates.
    """
    order = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    for queries in order.split(candidates):
        missing = min(candidates, count) - len(queries)
        yield queries, torch.cat([queries, order[:missing]])


def ranks_at(queries: Tensor, codes: Tensor, *, candidates: int = CANDIDATES, seed: int = 0) -> Tensor:
    """Return the rank of each pair `(N, D)` and `(N, D)` among `distractors`, int64 `(N,)`."""
    ranks = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    for numbers, among in draw_distractors(len(queries), candidates=candidates, seed=seed):
        answers = torch.arange(len(numbers), device=queries.device)
        ranks[numbers.to(queries.device)] = compute_ranks(queries[numbers] @ codes[among].T, answers)
    return ranks


def mrr(ranks: Tensor) -> Tensor:
    """Return the mean reciprocal rank of ranks `(Q,)`."""
    return (1 / ranks.double()).mean()


def rank_metrics(ranks: Tensor) -> dict[str, Tensor]:
    """Return all metrics of ranks `(Q,)`."""
    recalls = {f"recall_at_{k}": (ranks <= k).double().mean() for k in RECALLS}
    return {"mrr": mrr(ranks), **recalls, "ndcg": (1 / (1 + ranks.double()).log2()).mean()}


def chance_mrr(queries: int) -> Chance:
    """Return the MRR of a random order, for `queries` that are ranked among at most CANDIDATES."""
    each = 1 / np.arange(1, min(queries, CANDIDATES) + 1)
    return Chance(value=each.mean(), error=each.std() / queries**0.5, step=1 / queries)
