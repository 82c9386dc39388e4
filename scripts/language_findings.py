"""Write docs/explanation/language-findings.md: which layers of a decoder need full attention.

    make language-findings

For each number of layers and of full ones, a search on associative recall is confirmed against the best
uniform model, a uniform interleaving, random placements, all linear and all full. Then the layers of a
trained decoder (`trained_decoder.py`) are replaced and distilled, and a new decoder of bytes learns this
project's own source and documentation. It resumes what was stopped, and `--cases` measures some of them. The
page and its picture show the latest confirmation of each case, which benchmarks/results has.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
from language_page import PAGE, RECORDS, label, make_page, read_records
from matplotlib.patches import Rectangle
from trained_decoder import CONTEXT, NAME, SHAPE, STORAGE, collect_library, train_decoder

import automl
from automl.config.device import processor
from automl.judge.protocol import confirmations, study_name
from automl.judge.verdict import ConfirmResult
from automl.storage.folder import exists, find_search
from automl.tasks.language_modelling import FULL, LanguageData, LanguageModel, LanguageTraining, site_name
from automl.tasks.language_modelling.space import (
    BASELINE,
    FINE_TUNING,
    FINE_TUNING_RATE,
    HybridSpace,
    interleaved_control,
    mixer,
    recall_space,
)
from search.config import TrialConfig
from search.space import Space
from search.study import open_study, read_history

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "language-findings.svg"
RECALL = ((4, 1), (4, 2), (6, 1), (8, 1))  # layers, and full ones
EXAMPLES, WINDOW = 38_400, 2  # training sequences, and positions of sliding attention
TRAINED_RECALL, FEW = (
    ((4, 1), (6, 2), (8, 2)),
    5_120,
)  # decoders that solve recall, and sequences they continue with
TRAINED_BYTES = 64_000  # of text that a trained decoder continues with
COLOURS = {
    "full": "#d1495b",
    "sliding": "#2e86ab",
    "linear": "#7fb069",
    "shortconv": "#f2b134",
    "decomposed": "#9b8bbf",
}
OWN = ("attention", "automl", "backbones", "cluster", "search", "docs")  # folders of source and documentation


def add_controls(config: TrialConfig) -> dict[str, TrialConfig]:
    """Return a uniform interleaving, and the models of linear and of full layers alone."""
    model = config.model
    assert isinstance(model, LanguageModel)
    linear = mixer("linear", heads=model.heads, window=1)
    everywhere = dict.fromkeys(map(site_name, range(model.depth)), linear)
    return {
        **interleaved_control(config),
        "all linear": config.change(model={"placement": everywhere}),
        "all full": config.change(model={"placement": {}}),
    }


def text_space() -> Space:
    """Return the space of decoders of bytes."""
    return HybridSpace(
        name="own-text",
        data=LanguageData(context=128, subset=0.4),
        model=LanguageModel(options={"depth": 6, "width": 64, "heads": 2}),
        training=LanguageTraining(epochs=1, batch_size=32),
        metric="bits_per_byte",
        windows=[16],
        rates=(1e-3, 8e-3),
        baseline={**BASELINE, "learning_rate": 4e-3, "window": 16, "batch_size": 32},
        full=1,
        summary="bytes of source and documentation",
    ).space()


def collect_text(folder: Path) -> str:
    """Copy the source and the documentation, except the page of findings, into a folder. Return its path."""
    for top in OWN:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".md") and path != PAGE:
                target = folder / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    return str(folder)


def continued_recall(depth: int, full: int) -> Space:
    """Return the space of recall for a decoder that has learned it already."""
    space = recall_space(depth, full, examples=FEW, window=WINDOW)
    assert space.with_layers is not None
    baseline = {**BASELINE, "learning_rate": 2e-3, "window": WINDOW, "batch_size": 64}
    return space.with_layers(rates=(1e-3, 4e-3), baseline=baseline)


def trained_space() -> Space:
    """Return the space of the trained decoder's layers."""
    return HybridSpace(
        name="library",
        data=LanguageData(context=CONTEXT),
        model=LanguageModel(options=SHAPE),
        training=LanguageTraining(epochs=1, batch_size=16),
        metric="bits_per_byte",
        windows=[16],
        rates=FINE_TUNING,
        baseline={**BASELINE, "learning_rate": FINE_TUNING_RATE, "window": 16, "batch_size": 16},
        full=2,
        summary="which layers of a trained decoder stay full",
    ).space()


def search_and_confirm(
    name: str, space: Space, options: argparse.Namespace, **settings: Any
) -> ConfirmResult:
    """Search and confirm what is missing. Return the confirmation."""
    space = replace(space, controls=add_controls)
    if exists(name, STORAGE):
        automl.run_search(resume=name, storage=STORAGE, space=space)
    else:
        settings = {**settings, "trials": options.trials, "concurrent": options.concurrent}
        automl.run_search(space=space, name=name, storage=STORAGE, **settings)
    # All seeds, since the controls need as many as the baseline.
    return automl.run_confirm(
        name, storage=STORAGE, space=space, top=1, seeds=options.seeds, sequential=False, controls=True
    )


def measure_effort(name: str) -> tuple[int, float]:
    """Return the number of trials of a search, and the core hours of it and of its confirmations."""
    folder, metadata = find_search(name, STORAGE)
    studies = [open_study(folder, name=name)]
    studies += [open_study(path, name=study_name(path, metadata.name)) for path in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    hours = float(sum(metrics["seconds"] for metrics in history)) / 3600
    return len(studies[0].trials), hours


def record_case(title: str, name: str, confirmed: ConfirmResult) -> None:
    """Write what the page and the picture show of a confirmation."""
    verdict = confirmed.value
    rows = {row["variant"]: row for row in verdict["comparisons"]}
    scale = confirmed.verdict.design.metric.sign * confirmed.verdict.design.metric.scale
    variants = [variant for variant in verdict["variants"] if variant["scores"]]
    means = {variant["name"]: fmean(variant["scores"].values()) for variant in variants}
    trials, hours = measure_effort(name)
    record = {
        "title": title,
        "headline": verdict["headline"],
        "seeds": verdict["seeds"],
        "p": verdict["p"],
        "trials": trials,
        "hours": hours,
        "machine": f"{os.cpu_count()} cores, {processor()}",
        "metric": confirmed.verdict.design.metric.name,
        "unit": verdict["unit"],
        "rows": [],
    }
    for i, variant in enumerate(variants):
        row, model = rows.get(variant["name"]), variant["config"]["model"]
        searched = variant["name"] == verdict["finalist"]
        # Each row compares the finalist with it. What has trained with some seeds only has no comparison.
        difference = scale * (means[verdict["finalist"]] - means[variant["name"]])
        lead = {"difference": difference, "interval": None}
        time = row and row["time"] and row["time"]["mean"]
        if i == 0:
            lead, time = verdict, 1.0  # the tuned baseline
        elif row is not None and row["lead"] is not None:
            lead = {"difference": row["lead"]["mean"], "interval": row["lead"]["interval"]}
        draws = [
            [placement.get(site_name(i), {"type": FULL})["type"] for i in range(model["options"]["depth"])]
            for placement in variant["placements"] or [model["placement"]]
        ]
        record["rows"].append(
            {
                "variant": variant["name"],
                "searched": searched,
                "longer": variant["config"].get("longer", 1.0),
                "layers": draws[0],
                "draws": draws,
                "scores": variant["scores"],
                "score": means[variant["name"]],
                "lead": None if searched else lead["difference"],
                "interval": None if searched else lead["interval"],
                "time": time,
            }
        )
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def draw(records: Sequence[dict[str, Any]]) -> None:
    """Draw the layers of each finding as a strip, beside its lead over each control with its interval."""
    figure, axes = plt.subplots(
        len(records), 2, figsize=(10, 1.9 * len(records)), squeeze=False, width_ratios=(2, 3)
    )
    for (left, right), record in zip(axes, records, strict=True):
        rows = sorted(record["rows"], key=lambda row: not row["searched"])  # The searched layers come first.
        for y, row in enumerate(rows):
            draws = row.get("draws", [row["layers"]])  # each in a thin line of its own
            height = 0.8 / len(draws)
            for (i, layers), layer in product(enumerate(draws), range(len(row["layers"]))):
                kind, corner = layers[layer], (layer, y + i * height)
                left.add_patch(Rectangle(corner, 0.92, height, color=COLOURS[kind], label=kind, linewidth=0))
            name = "searched" if row["searched"] else label(row)
            left.text(-0.2, y + 0.4, name, ha="right", va="center", fontsize=8)
            if row["lead"] is not None:
                right.plot([row["lead"]], [y + 0.4], "o", color="black")
            if row["interval"] is not None:
                right.plot(row["interval"], [y + 0.4] * 2, color="black")
        left.set(xlim=(0, 8), ylim=(len(rows), 0))
        left.axis("off")
        left.set_title(record["title"], fontsize=8, loc="left")
        right.axvline(0, color="grey", linewidth=0.8)
        right.set(ylim=(len(rows), 0), yticks=[])
        right.set_title(f"lead of the searched layers, {record['unit']}, 95 % CI", fontsize=8, loc="right")
    known = {patch.get_label(): patch for left in axes[:, 0] for patch in left.patches if patch.get_label()}
    figure.legend(known.values(), known.keys(), loc="lower center", ncols=len(known), fontsize=8)
    figure.tight_layout(rect=(0.1, 0.05, 1, 1))
    figure.savefig(PICTURE)
    plt.close(figure)


def publish(names: Sequence[str]) -> None:
    """Write the page and its picture from all records."""
    records = read_records(names)
    PAGE.write_text(make_page(records), encoding="utf-8")
    draw(records)


def cases(folder: Path) -> Iterator[tuple[str, str, Callable[[], Space], dict[str, Any]]]:
    """Yield title, name of the search, space and settings of each case. Texts are written into `folder`."""
    for depth, full in RECALL:
        make = partial(recall_space, depth, full, examples=EXAMPLES, window=WINDOW)
        yield f"Recall, {depth} layers, {full} full", f"recall-{depth}-{full}", make, {}
    for depth, full in TRAINED_RECALL:
        title = f"Recall, a trained decoder of {depth} layers, {full} full, distilled"
        weights = str(ROOT / "benchmarks" / "data" / f"full-{depth}.safetensors")
        settings = {"weights": weights, "distil": 0.5}
        yield title, f"trained-recall-{depth}-{full}", partial(continued_recall, depth, full), settings
    title = "A trained decoder of Python's standard library, 8 layers, 2 full, distilled"
    text, weights = folder / "library-text-short", str(Path(STORAGE, NAME).resolve())
    collect_library(text, train_bytes=TRAINED_BYTES)
    settings = {"data": str(text), "weights": weights, "distil": 0.5}
    yield title, "library-8-2", trained_space, settings
    text = folder / "own-text-data"
    title = "Bytes of this project's source and documentation, 6 layers, 1 full"
    yield title, "own-text-6-1", text_space, {"data": collect_text(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--concurrent", type=int, help="trials at once; by default one a core")
    parser.add_argument("--cases", nargs="*", help="names of searches; by default all, without a name none")
    parser.add_argument("--search-seed", type=int, default=0, help="of a further, independent search")
    options = parser.parse_args()
    known = list(cases(Path(STORAGE)))
    for title, name, make, settings in known:
        if options.cases is not None and name not in options.cases:
            continue
        if make is trained_space:
            train_decoder()
        if options.search_seed:
            title, name = f"{title}, search {options.search_seed}", f"{name}-search{options.search_seed}"
            settings = {**settings, "seed": options.search_seed}
        record_case(title, name, search_and_confirm(name, make(), options, **settings))
        publish([name for _, name, _, _ in known])
    publish([name for _, name, _, _ in known])
    print(PAGE)


if __name__ == "__main__":
    main()
