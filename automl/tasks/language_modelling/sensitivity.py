"""One-layer sensitivity of a trained decoder: its score if one layer is replaced, without training.

It is the usual heuristic for the choice of layers, which the report compares with the scores of trained
placements. Replaced mixers take over the projections of the attention, see `backbones.take_over`.
"""

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from attention import Spec
from automl.base.serialise import write_json
from automl.config.device import find_device, is_gpu
from automl.tasks.shown import FILE, FORMAT, LayerScores
from backbones import insert, sites
from backbones.take_over import take_over
from search.record import TrialRecord

if TYPE_CHECKING:
    from automl.tasks.language_modelling.task import LanguageModelling

WINDOWS, LEAST = 64, 8  # most and fewest windows of the validation split
WORK = {False: 1e13, True: 1e15}  # multiply-adds on a CPU and on a GPU: some minutes


def write_sensitivity(folder: Path, task: "LanguageModelling", ranked: Sequence[TrialRecord]) -> None:
    """Measure the sensitivity of each layer, and write it into the folder of a search.

    Nothing is written without trained weights, and if too few windows can be scored in a few minutes.

    Args:
        folder: The folder of the search.
        task: The task of the baseline.
        ranked: The completed trials, the best first. Each type has the options of the first that has it.
    """
    specs: dict[str, Spec] = {}
    for spec in (spec for record in ranked for spec in record.config.model.placement.values()):
        specs.setdefault(spec.name, spec)
    if not task.chosen.weights or not specs:
        return
    device = find_device()
    # The shares of a context and a vocabulary in the work are small, where it is too large.
    size = sum(p.numel() for p in task.original.parameters()) * task.data.context
    work = size * (1 + task.chosen.depth * len(specs))
    windows = min(WINDOWS, task.size("validation"), int(WORK[is_gpu(device)] // work))
    if windows < min(LEAST, task.size("validation")):
        print(
            "note      one-layer sensitivity is left out: the model is too large for it here", file=sys.stderr
        )
        return
    moved = type(task)(task.config, replace(task.runtime, device=device))
    write_json(folder / FILE, measure_sensitivity(moved, specs, windows), format=FORMAT)


def measure_sensitivity(task: "LanguageModelling", specs: Mapping[str, Spec], windows: int) -> LayerScores:
    """Score the original, and each layer with each of the `specs` in turn."""
    original, example = task.original, torch.zeros(2, task.data.context, dtype=torch.int64)
    known = sites(original, example)

    def replace_layer(site: str, spec: Spec) -> nn.Module:
        model = insert(copy.deepcopy(original), {site: spec}, example, known=known)
        take_over(model, original)
        return model

    return LayerScores(
        metric=task.metric.name,
        windows=windows,
        original=_score(task, original, windows),
        replaced={
            site.name: {
                name: _score(task, replace_layer(site.name, spec), windows) for name, spec in specs.items()
            }
            for site in known
            if site.replaces
        },
    )


def _score(task: "LanguageModelling", model: nn.Module, windows: int) -> float:
    """Return the primary metric on windows spread over the validation split."""
    rows = torch.arange(windows) * task.size("validation") // windows
    evaluator, model = task.evaluator("validation"), model.to(task.runtime.device).eval()
    with torch.inference_mode():  # in float32, since differences between layers are small
        for index in rows.split(task.training.batch_size):
            tokens, targets = task.batch("validation", index)
            evaluator.update(model(tokens), targets)
    return evaluator.compute(task.runtime)[task.metric.name].item()
