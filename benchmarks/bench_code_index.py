"""Time one query in an index of a million functions: one matrix product with all of their vectors.

The vectors are random unit vectors of 128 numbers, in the file that `automl predict --corpus` maps. The
benchmark times the product with the choice of the ten best, and opening and checking the file. It compares
the answers with those of products in float64. An approximate index such as faiss or usearch is not needed:
the rest of the command, from importing onnxruntime to reading the code, takes longer than this product.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import seconds, write_values

from automl.tasks.code_retrieval.search import CodeVectors, find_nearest, write_vectors

CPU = torch.device("cpu")
CHUNK = 50_000  # functions per float64 product
TOP = 10


def unit_vectors(draw: np.random.Generator, count: int, channels: int) -> np.ndarray:
    vectors = draw.standard_normal((count, channels), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def rank_exactly(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the rows of the best functions, by products in float64."""
    products = [
        vectors[begin : begin + CHUNK].astype(np.float64) @ query.astype(np.float64)
        for begin in range(0, len(vectors), CHUNK)
    ]
    return np.argsort(-np.concatenate(products), kind="stable")[:TOP]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.arrow"
        drawn = unit_vectors(draw, options.functions, options.channels)
        writing = seconds(lambda: write_vectors(file, drawn), CPU)
        opening = [seconds(lambda: CodeVectors(file), CPU) for _ in range(5)]
        vectors = CodeVectors(file).vectors
        queries = unit_vectors(draw, options.rounds, options.channels)
        times, agreed = [], 0
        for query in queries:
            times.append(
                seconds(lambda query=query: find_nearest(vectors, query[None], TOP), CPU)  # type: ignore[misc]
            )
            rows, _ = find_nearest(vectors, query[None], TOP)
            agreed += list(rows[0]) == list(rank_exactly(vectors, query))
        values = {
            "functions": options.functions,
            "channels": options.channels,
            "cores": len(os.sched_getaffinity(0)),
            "file_mb": file.stat().st_size / 1e6,
            "write_seconds": writing,
            "open_seconds": statistics.median(opening),
            "query_seconds": {"median": statistics.median(times), "least": min(times), "most": max(times)},
            "answers_as_in_float64": f"{agreed} of {len(queries)}",
        }
    for name, value in values.items():
        print(f"{name:24} {value}", flush=True)
    write_values("code-index", values)


if __name__ == "__main__":
    main()
