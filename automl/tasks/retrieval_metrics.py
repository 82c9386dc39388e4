"""Metrics of a retrieval in which each query has one right answer: ranks, and what is made of them.

The rank of an answer is the number of candidates that do not score below it, itself among them: a tie counts
against it, and so does a score that is NaN.

mrr: the mean of 1 / rank (E. Voorhees, The TREC-8 Question Answering Track Report (1999)).
recall_at_k: the share of queries whose answer is among the first k.
ndcg: the mean of 1 / log2(1 + rank), which for one right answer is the normalised discounted cumulative gain
(K. Jarvelin, J. Kekalainen, Cumulated gain-based evaluation of IR techniques (2002)).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from search.metric import Chance

CANDIDATES = 1000  # that each query is ranked among, as in arXiv 1909.09436, section 4
RECALLS = (1, 5, 10)
QUERIES = 1024  # that are scored against the whole corpus at once


def compute_ranks(scores: Tensor, own: Tensor) -> Tensor:
    """From scores `(Q, N)` and the column of each query's answer, int64 `(Q,)`: int64 `(Q,)`, from 1 on."""
    mine = scores.gather(1, own[:, None])
    return (~(scores < mine)).sum(1)


def ranks_among(queries: Tensor, codes: Tensor, own: Tensor) -> Tensor:
    """Of vectors `(Q, D)` among all `(N, D)`, by their products; own: rows of codes, int64 `(Q,)`."""
    parts = [
        compute_ranks(q @ codes.T, mine)
        for q, mine in zip(queries.split(QUERIES), own.split(QUERIES), strict=True)
    ]
    return torch.cat(parts) if parts else own.new_zeros(0)


def distractors(
    count: int, *, candidates: int = CANDIDATES, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of `candidates` of `count` queries with their answers, in random order.

    Each is the numbers of the queries that are asked, int64 `(Q,)`, and of the candidates, `(min(candidates,
    count),)`, which begin with those of the queries. The last batch is filled up with answers to other
    queries, so that every query is ranked among as many.
    """
    order = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    for asked in order.split(candidates):
        missing = min(candidates, count) - len(asked)
        yield asked, torch.cat([asked, order[:missing]])


def ranks_at(queries: Tensor, codes: Tensor, *, candidates: int = CANDIDATES, seed: int = 0) -> Tensor:
    """Of pairs `(N, D)` and `(N, D)`, each among `candidates` by `distractors`: int64 `(N,)`."""
    found = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    for asked, among in distractors(len(queries), candidates=candidates, seed=seed):
        own = torch.arange(len(asked), device=queries.device)
        found[asked.to(queries.device)] = compute_ranks(queries[asked] @ codes[among].T, own)
    return found


def mrr(found: Tensor) -> Tensor:
    """Of ranks `(Q,)`."""
    return (1 / found.double()).mean()


def rank_metrics(found: Tensor) -> dict[str, Tensor]:
    """All metrics of ranks `(Q,)`."""
    recalls = {f"recall_at_{k}": (found <= k).double().mean() for k in RECALLS}
    return {"mrr": mrr(found), **recalls, "ndcg": (1 / (1 + found.double()).log2()).mean()}


def chance_mrr(queries: int) -> Chance:
    """What a random order comes to in MRR, for `queries` that are ranked among CANDIDATES at most."""
    each = 1 / np.arange(1, min(queries, CANDIDATES) + 1)
    return Chance(value=each.mean(), error=each.std() / queries**0.5, step=1 / queries)
