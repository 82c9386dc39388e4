"""Measure the MRR of the encoders of code search and of BM25, on the functions and the real queries of CoSQA.

Each encoder is trained once for EPOCHS with the first configurations of the space `codesearch`. The learning
curve is of the validation split, the final score of the test split. BM25 uses words of the same kind and no
training.

    python benchmarks/bench_code_mrr.py DATA        the folder with CoSQA's files
"""

import sys
import time
from typing import Any

import torch
from bm25 import measure
from harness import write_values
from optuna.trial import FixedTrial

from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.task.task_data import Split
from automl.tasks.code_retrieval.space import BASELINE, codesearch, published
from automl.tasks.code_retrieval.task import CodeRetrieval
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig

SPLIT: Split = "test"
EPOCHS = 8


def train(config: TrialConfig) -> dict[str, Any]:
    task = open_task(config, Runtime(device=find_device(), precision="fp32"))
    state, start_time, curve = start(task), time.perf_counter(), []
    for metrics in fit(task, state):
        curve.append(metrics["mrr"])
        print(f"  epoch {metrics['epoch']}: mrr {metrics['mrr']:.4f}", flush=True)
    seconds = time.perf_counter() - start_time
    test = {name: value.item() for name, value in evaluate(task, state.model, SPLIT).items()}
    return {"seconds": seconds, "validation": curve, SPLIT: test}


def main(data: str) -> None:
    results: dict[str, Any] = {}
    for params in (BASELINE, *published()):
        config = codesearch(FixedTrial(dict(params)))  # type: ignore[arg-type]
        config = config.change(data={"path": data}, training={"epochs": EPOCHS})
        name = f"{params['encoder']}{'' if params['shared'] else ', two encoders'}"
        print(name, flush=True)
        results[name] = train(config)
        print(f"  test {results[name][SPLIT]}", flush=True)
    task = open_task(config, Runtime(device=torch.device("cpu")))
    assert isinstance(task, CodeRetrieval)
    results["BM25"] = {SPLIT: measure(task.texts.file.corpus, SPLIT)}
    print(f"BM25\n  test {results['BM25'][SPLIT]}")
    counts = {split: task.size(split) for split in ("train", "validation", "test")}
    write_values(
        "code-mrr", {"documented": counts, "real": len(task.texts.real_queries(SPLIT)), "models": results}
    )


if __name__ == "__main__":
    main(sys.argv[1])
