"""Summarise single modules on look-ups, reliability first, and try to predict them without training.

The table is recorded (`data/singles.parquet`, see `record_singles.py`): the mean and the range of accuracies
over seeds, per module and site. The signal that is tried is the change of a trained plain model's loss on
validation images, when a new module is inserted with its gate opened to `GATE`. Its reliability is that over
seeds, of models and modules alike. Takes two minutes on one core.
"""

from typing import Any

import numpy as np
import record_singles
import torch
from harness import write_values
from reliability import reliability
from scipy.stats import spearmanr

from attention import Spec
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.image_classification.task import ImageClassification
from automl.training.loop import evaluate, fit, start
from backbones import gates, insert

GATE = 0.1


def kinds(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("@")[0] for name in names if "@" in name))


def signals(names: list[str], seed: int) -> list[float]:
    """Return the fall of the loss of a plain model by each module, before any training of the module."""
    torch.set_num_threads(1)
    task = open_task(
        record_singles.config("lookup", "plain", seed), Runtime(device=torch.device("cpu"), precision="fp32")
    )
    assert isinstance(task, ImageClassification)
    state = start(task)
    *_, last = fit(task, state)
    trained, example = state.scored.state_dict(), task.example(2)
    falls = []
    for number, name in enumerate(names):
        kind, _, site = name.partition("@")
        torch.manual_seed(1000 * seed + number)
        model = insert(task.plain(), {site: Spec(kind)}, example)
        model.load_state_dict(trained, strict=False)
        for gate in gates(model).values():
            gate.data.fill_(GATE)
        falls.append(float(last["loss"]) - float(evaluate(task, model.eval(), "validation")["loss"]))
    return falls


def main() -> None:
    rows = [row for row in record_singles.read() if row["table"] == "lookup"]
    names = record_singles.names("lookup")
    accuracies = {(row["placement"], row["seed"]): 100 * row["accuracy"] for row in rows}
    seeds = [s for s in range(record_singles.SEEDS) if all((name, s) in accuracies for name in names)]
    scores = np.array([[accuracies[name, seed] for seed in seeds] for name in names])
    cells = {
        name: [round(float(value), 1) for value in (own.mean(), own.min(), own.max())]
        for name, own in zip(names, scores, strict=True)
    }
    table = [
        {"site": site, **{kind: cells[f"{kind}@{site}"] for kind in kinds(names)}}
        for site in record_singles.SITES["lookup"]
    ]
    falls = np.array([signals(names[1:], seed) for seed in seeds]).T
    means = scores[1:].mean(axis=1)
    order = np.argsort(-falls.mean(axis=1))
    signal: dict[str, Any] = {
        "gate": GATE,
        "reliability": audit(falls),
        "spearman": round(float(spearmanr(falls.mean(axis=1), means).statistic), 3),
        "chosen": names[1:][order[0]],
        "regret": round(float(means.max() - means[order[0]]), 1),
    }
    values = {"seeds": len(seeds), "plain": cells["plain"], "reliability": audit(scores), "signal": signal}
    write_values("lookup", {**values, "table": table})
    for line in ({"plain": cells["plain"]}, values["reliability"], signal, *table):
        print(line)


def audit(scores: np.ndarray) -> dict[str, Any]:
    of_table = reliability(scores)
    return {"split_half": round(of_table.split_half, 3), "f": round(of_table.f, 2), "ranks": of_table.ranks}


if __name__ == "__main__":
    main()
