"""Measure how well the latencies of a file of costs predict those of placements.

The file is that of `automl cost xresnet18 --size 32 --option width=0.25 --export-costs FILE`. Random
placements of one to three modules are then measured in turn with the plain model. The error is the measured
latency divided by the predicted one, minus 1.

    python benchmarks/bench_module_latency.py
"""

import random
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import write_values

from attention import Spec
from automl.config.runtime import Runtime
from automl.costs.exported import export_costs
from automl.costs.profile import measure_latencies
from automl.tasks.subject import make_subject
from backbones import call, insert
from search.choices import TYPES

OPTIONS = {"width": 0.25}
PLACEMENTS, MOST, PASSES = 30, 3, 100


def main() -> None:
    runtime = Runtime(device=torch.device("cpu"))
    subject, chance = make_subject("xresnet18", size=32, options=OPTIONS), random.Random(0)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        exported = export_costs(
            subject, OPTIONS, Path(folder) / "costs.json", types=TYPES, batch=32, runtime=runtime
        )
    seconds = time.perf_counter() - began
    sites = sorted({module.site for module in exported.modules})
    errors, added = [], []
    for _ in range(PLACEMENTS):
        chosen = [
            chance.choice([module for module in exported.modules if module.site == site])
            for site in chance.sample(sites, chance.randint(1, MOST))
        ]
        placement = {module.site: Spec(module.type, module.options) for module in chosen}
        models = [subject.build(), insert(subject.build(), placement, subject.example(2))]
        serves = [partial(call, model.eval(), subject.example(1)) for model in models]
        plain, placed = measure_latencies(serves, runtime, PASSES)
        predicted = exported.plain.latency + sum(module.costs.latency for module in chosen)
        errors.append(placed / predicted - 1)
        added.append(placed - plain)
        print(f"{placed:.3f} ms, predicted {predicted:.3f}: {errors[-1]:+.1%}", flush=True)
    write_values(
        "module-latency",
        {
            "precision": str(runtime.dtype),
            "modules": len(exported.modules),
            "seconds": round(seconds, 1),
            "plain": exported.plain.latency,
            "added": {"least": min(added), "most": max(added)},
            "errors": [round(error, 4) for error in sorted(errors)],
            "within_3_percent": int(np.sum(np.abs(errors) <= 0.03)),
        },
    )


if __name__ == "__main__":
    main()
