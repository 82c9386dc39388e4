"""One-layer sensitivity of a trained decoder: its score if one layer is replaced, without training.

It is the usual heuristic for the choice of layers, which the report compares with the scores of trained
placements. Replaced mixers take over the projections of the attention, see `backbones.take_over`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attention import Spec
from automl.base.serialise import write_json
from automl.config.device import find_device, is_gpu
from automl.tasks.language_modelling.signals import WORK, replace_layer, score, with_choices
from automl.tasks.shown import FILE, FORMAT, LayerScores
from backbones import sites
from search.record import TrialRecord

if TYPE_CHECKING:
    from automl.tasks.language_modelling.task import LanguageModelling

WINDOWS, LEAST = 64, 8  # most and fewest windows of the validation split


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
    model, choices = with_choices(task, specs)
    names = [site.name for site in sites(task.original, task.example(2)) if site.replaces]

    def measure() -> float:
        return score(task, model, windows)[task.metric.name]

    original = measure()
    replaced = {
        site: dict(zip(specs, replace_layer(choice, measure), strict=True))
        for site, choice in zip(names, choices, strict=True)
    }
    return LayerScores(metric=task.metric.name, windows=windows, original=original, replaced=replaced)
