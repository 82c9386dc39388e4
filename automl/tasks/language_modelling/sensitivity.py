"""The sensitivity of a trained decoder's layers: the loss with one of them replaced, minus the original's.

The mixer that replaces a layer takes over its projections. Nothing is trained.
"""

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from attention import Spec
from automl.config.device import is_gpu
from backbones import insert, sites
from backbones.take_over import take_over

if TYPE_CHECKING:
    from automl.tasks.language_modelling.task import LanguageModelling

Harm = list[dict[str, float]]  # of each type, by layer

WINDOWS, LEAST = 32, 4  # most and fewest windows of the validation split
WORK = {False: 1e13, True: 1e15}  # multiply-adds on a CPU and on a GPU: some minutes
TOO_LONG = 10  # times as much for the fewest windows, as of a large model where only the trials have GPUs


def measure_sensitivity(task: "LanguageModelling", specs: Mapping[str, Spec]) -> Harm:
    """Return the harm of each type at each layer. Return nothing if it takes too long on this machine.

    Args:
        task: The task, whose decoder has trained weights.
        specs: The mixers to choose from by name.
    """
    original, example = task.original, torch.zeros(2, task.data.context, dtype=torch.int64)
    known = sites(original, example)
    layers = [site for site in known if site.replaces]
    work = sum(p.numel() for p in original.parameters()) * task.data.context * len(specs) * len(layers)
    allowed = WORK[is_gpu(task.runtime.device)]
    if work * LEAST > TOO_LONG * allowed:
        print("the sensitivity of so many layers takes too long on this machine: left out", file=sys.stderr)
        return []
    windows = max(LEAST, min(WINDOWS, int(allowed // max(1, work))))
    model = copy.deepcopy(original)
    before = score(task, model, windows)["loss"]
    harm: Harm = [{} for _ in layers]
    for name, spec in specs.items():
        replaced = insert(copy.deepcopy(original), {site.name: spec for site in layers}, example, known=known)
        take_over(replaced, original)
        for site, by_type in zip(layers, harm, strict=True):
            own = model.get_submodule(site.path)
            model.set_submodule(site.path, replaced.get_submodule(site.path))
            by_type[name] = score(task, model, windows)["loss"] - before
            model.set_submodule(site.path, own)
    return harm


def score(task: "LanguageModelling", model: nn.Module, windows: int) -> dict[str, float]:
    """Return the metrics of up to `windows` windows that are spread over the validation split."""
    windows = min(windows, task.size("validation"))
    rows = torch.arange(windows) * task.size("validation") // windows
    evaluator, model = task.evaluator("validation"), model.to(task.runtime.device).eval()
    with torch.inference_mode():  # in float32, since differences between layers are small
        for index in rows.split(task.training.batch_size):
            tokens, targets = task.batch("validation", index)
            evaluator.update(model(tokens), targets)
    return {name: value.item() for name, value in evaluator.compute(task.runtime).items()}
