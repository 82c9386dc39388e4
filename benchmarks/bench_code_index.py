"""Time one query in an index of a million functions: one matrix product with all of their vectors.

The vectors are random unit vectors of 128 numbers, in the file that `automl predict --corpus` maps. The
benchmark times the product with the choice of the ten best, and opening and checking the file. It compares
the answers with those of products in float64. An approximate index such as faiss or usearch is not needed:
the rest of the command, from importing onnxruntime to checking files for changes, takes longer than this
product.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import seconds, write_values

from automl.tasks.code_retrieval.search import CodeIndex, Indexed, write_index

CPU = torch.device("cpu")
CHUNK = 50_000  # functions per float64 product
TOP = 10


def unit_vectors(draw: np.random.Generator, count: int, channels: int) -> np.ndarray:
    vectors = draw.standard_normal((count, channels), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def rank_exactly(index: CodeIndex, query: np.ndarray) -> np.ndarray:
    """Return the rows of the best functions, by products in float64."""
    products = [
        index.vectors[begin : begin + CHUNK].astype(np.float64) @ query.astype(np.float64)
        for begin in range(0, len(index), CHUNK)
    ]
    return np.argsort(-np.concatenate(products), kind="stable")[:TOP]


def write(file: Path, draw: np.random.Generator, count: int, channels: int) -> float:
    """Write an index and return the seconds that it took."""
    vectors = unit_vectors(draw, count, channels)
    functions = [
        Indexed(f"package{i // 500}/module{i // 20}.py", i % 20 * 9 + 1, f"function{i}", "", i.to_bytes(32))
        for i in range(1, count + 1)
    ]
    return seconds(lambda: write_index(file, functions, vectors, {}), CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.arrow"
        writing = write(file, draw, options.functions, options.channels)
        opening = [seconds(lambda: CodeIndex(file), CPU) for _ in range(5)]
        index = CodeIndex(file)
        queries = unit_vectors(draw, options.rounds, options.channels)
        times, agreed = [], 0
        for query in queries:
            times.append(seconds(lambda query=query: index.best(query[None], TOP), CPU))  # type: ignore[misc]
            agreed += list(index.best(query[None], TOP)[0][0]) == list(rank_exactly(index, query))
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
