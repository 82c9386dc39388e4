"""Time of one query in an index of a million functions: one matrix product with all of their vectors.

The vectors are random unit vectors of 128 numbers, in the file that `automl predict --corpus` maps. Timed are
the product with the choice of the ten best, and opening and checking the file; the answers are compared with
those of products in float64. No approximate index, as of faiss or usearch, is needed: what else the command
does, from importing onnxruntime to looking whether files have changed, takes longer than this product.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import seconds, write_values

from automl.export.code_index import CodeIndex, Indexed, write_index

CPU = torch.device("cpu")
PART = 50_000  # functions of the float64 product at once
TOP = 10


def unit_vectors(draw: np.random.Generator, count: int, channels: int) -> np.ndarray:
    found = draw.standard_normal((count, channels), np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def exact(index: CodeIndex, query: np.ndarray) -> np.ndarray:
    """The rows of the best, by products in float64."""
    parts = [
        index.vectors[begin : begin + PART].astype(np.float64) @ query.astype(np.float64)
        for begin in range(0, len(index), PART)
    ]
    return np.argsort(-np.concatenate(parts), kind="stable")[:TOP]


def write(file: Path, draw: np.random.Generator, count: int, channels: int) -> float:
    """The seconds that it takes."""
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
    chosen = parser.parse_args()
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.arrow"
        writing = write(file, draw, chosen.functions, chosen.channels)
        opening = [seconds(lambda: CodeIndex(file), CPU) for _ in range(5)]
        index = CodeIndex(file)
        queries = unit_vectors(draw, chosen.rounds, chosen.channels)
        times, agreed = [], 0
        for query in queries:
            times.append(seconds(lambda query=query: index.best(query[None], TOP), CPU))  # type: ignore[misc]
            agreed += list(index.best(query[None], TOP)[0][0]) == list(exact(index, query))
        values = {
            "functions": chosen.functions,
            "channels": chosen.channels,
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
