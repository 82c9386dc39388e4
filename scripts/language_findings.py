"""Write docs/explanation/language-findings.md: which layers of a decoder need full attention.

    make language-findings

For each number of layers and of full ones, a search on associative recall is confirmed against the best
uniform model, a uniform interleaving, a random placement, all linear and all full. Then the layers of a
trained decoder (`trained_decoder.py`) are replaced and distilled, and a new decoder of bytes learns this
project's own source and documentation. It resumes what was stopped, and `--cases` measures some of them. All
figures on the page are those of the confirmations.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle
from trained_decoder import CONTEXT, NAME, SHAPE, STORAGE, collect_library, train_decoder

import automl
from automl.config.device import processor
from automl.confirm.protocol import confirmations, study_name
from automl.confirm.verdict import ConfirmResult
from automl.storage.folder import exists, find_search
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.config import FULL, site_name
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
PAGE = ROOT / "docs" / "explanation" / "language-findings.md"
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
    """Copy the source and the documentation of this project into a folder. Return its path."""
    for top in OWN:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".md"):
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
    studies += [open_study(path, name=study_name(path, metadata)) for path in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    hours = float(sum(metrics["seconds"] for metrics in history)) / 3600
    return len(studies[0].trials), hours


def write_case(title: str, name: str, confirmed: ConfirmResult) -> Iterator[str]:
    """Yield a section: the verdict, and a row for each variant."""
    verdict = confirmed.value
    rows = {row["variant"]: row for row in verdict["comparisons"]}
    digits, scale = (".1f", 100) if verdict["unit"] == "points" else (".3f", 1)
    yield f"## {title}"
    yield ""
    yield f"**{verdict['headline']}.** {verdict['seeds']} paired seeds, p = {verdict['p']:.2g}; "
    trials, hours = measure_effort(name)
    yield f"{trials} trials, {hours:.2f} core hours."
    yield ""
    yield f"| variant | {verdict['metric']} | difference of the searched placement | 95 % CI | time ratio |"
    yield "|---|---|---|---|---|"
    for variant in verdict["variants"]:
        row, score = rows.get(variant["name"]), scale * fmean(variant["scores"].values())
        # Each row but that of the finalist compares the finalist with it.
        lead = verdict if row is None else row["lead"]
        difference = interval = ""
        if variant["name"] != verdict["finalist"] and lead is not None:
            low, high = lead["interval"]
            difference, interval = f"{lead['difference']:+{digits}}", f"{low:+{digits}} to {high:+{digits}}"
        time = 1.0 if row is None else row["time"]["ratio"] if row["time"] else None
        shown = "" if time is None else f"{time:.2f}"
        yield f"| {variant['name']} | {score:{digits}} | {difference} | {interval} | {shown} |"
    yield ""


def draw(confirmed: Sequence[tuple[str, ConfirmResult]]) -> None:
    """Draw the layers of each finding as a strip, beside its lead over each control with its interval."""
    figure, axes = plt.subplots(
        len(confirmed), 2, figsize=(10, 1.9 * len(confirmed)), squeeze=False, width_ratios=(2, 3)
    )
    for (left, right), (title, result) in zip(axes, confirmed, strict=True):
        verdict = result.value
        leads = {row["variant"]: row["lead"] for row in verdict["comparisons"]}
        finalist, others = verdict["finalist"], [v for v in verdict["variants"] if v["scores"]]
        others.sort(key=lambda variant: variant["name"] != finalist)  # The searched layers come first.
        for row, variant in enumerate(others):
            model, name = variant["config"]["model"], variant["name"]
            for layer in range(model["options"]["depth"]):
                kind = model["placement"].get(site_name(layer), {"type": FULL})["type"]
                left.add_patch(Rectangle((layer, row), 0.92, 0.8, color=COLOURS[kind], label=kind))
            label = "searched" if name == finalist else name.split(":")[0]
            left.text(-0.2, row + 0.4, label, ha="right", va="center", fontsize=8)
            # The row of the baseline has no lead, since the verdict is on it.
            lead = leads.get(name) or verdict
            if name != finalist:
                right.plot(lead["interval"], [row + 0.4] * 2, color="black")
                right.plot([lead["difference"]], [row + 0.4], "o", color="black")
        left.set(xlim=(0, 8), ylim=(len(others), 0))
        left.axis("off")
        left.set_title(title, fontsize=8, loc="left")
        right.axvline(0, color="grey", linewidth=0.8)
        right.set(ylim=(len(others), 0), yticks=[])
        right.set_title(f"lead of the searched layers, {verdict['unit']}, 95 % CI", fontsize=8)
    known = {patch.get_label(): patch for left in axes[:, 0] for patch in left.patches if patch.get_label()}
    figure.legend(known.values(), known.keys(), loc="lower center", ncols=len(known), fontsize=8)
    figure.tight_layout(rect=(0.1, 0.05, 1, 1))
    figure.savefig(PICTURE)
    plt.close(figure)


def unbeaten(confirmed: ConfirmResult) -> list[str]:
    """Return the models over which the lead of the searched placement may be 0."""
    verdict = confirmed.value
    leads = {row["variant"]: row["lead"] or verdict for row in verdict["comparisons"]}
    leads = {"the baseline": verdict, **{n: lead for n, lead in leads.items() if n != verdict["finalist"]}}
    return [name.split(":")[0] for name, lead in leads.items() if lead["interval"][0] <= 0]


def summarise(confirmed: Sequence[tuple[str, ConfirmResult]]) -> list[str]:
    """Return a table of the findings, with the controls that the searched placement does not beat."""
    lines = ["| finding | searched layers | not beaten |", "|---|---|---|"]
    for title, result in confirmed:
        names = ", ".join(dict.fromkeys(unbeaten(result))) or "none: better than every control"
        lines.append(f"| {title} | {result.value['finalist'].partition(' (')[0]} | {names} |")
    return [*lines, ""]


def write_page(sections: Sequence[str], confirmed: Sequence[tuple[str, ConfirmResult]]) -> None:
    lines = [
        "# Findings on the layers of language models",
        "",
        "![Layers that the searches chose, and their lead over each control](../language-findings.svg)",
        "",
        f"Made by `make language-findings` with equal training time, on {os.cpu_count()} cores "
        f"({processor()}). The baseline is the best model whose layers are all of one kind. Other models "
        "have the searched hyperparameters. A positive difference favours the searched placement, whose "
        "hours are those of the search and of all seeds. Where a control has the layers of another row, it "
        "is left out. A verdict is `cannot tell` where times were not equal for certain, as beside other "
        "work on the machine.",
        "",
        *summarise(confirmed),
        *sections,
    ]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def cases(folder: Path) -> Iterator[tuple[str, str, Callable[[], Space], dict[str, Any]]]:
    """Yield title, name of the search, space and settings of each case. Texts are written into `folder`."""
    for depth, full in RECALL:
        make = partial(recall_space, depth, full, examples=EXAMPLES, window=WINDOW)
        yield f"Recall, {depth} layers, {full} full", f"recall-{depth}-{full}", make, {}
    for depth, full in TRAINED_RECALL:
        title = f"Recall, a trained decoder of {depth} layers, {full} full, distilled"
        weights = str(ROOT / "benchmarks" / "data" / f"full-{depth}.safetensors")
        settings = {"weights": weights, "distil": 0.5, "prior": "greedy"}
        yield title, f"trained-recall-{depth}-{full}", partial(continued_recall, depth, full), settings
    title = "A trained decoder of Python's standard library, 8 layers, 2 full, distilled"
    text, weights = folder / "library-text-short", str(Path(STORAGE, NAME).resolve())
    collect_library(text, train_bytes=TRAINED_BYTES)
    settings = {"data": str(text), "weights": weights, "distil": 0.5, "prior": "greedy"}
    yield title, "library-8-2", trained_space, settings
    text = folder / "own-text-data"
    title = "Bytes of this project's source and documentation, 6 layers, 1 full"
    yield title, "own-text-6-1", text_space, {"data": collect_text(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--concurrent", type=int, help="trials at once; by default one a core")
    parser.add_argument("--cases", nargs="+", help="names of searches; by default all")
    options = parser.parse_args()
    sections: list[str] = []
    drawn: list[tuple[str, ConfirmResult]] = []
    for title, name, make, settings in cases(Path(STORAGE)):
        if options.cases and name not in options.cases:
            continue
        if make is trained_space:
            train_decoder()
        confirmed = search_and_confirm(name, make(), options, **settings)
        sections += write_case(title, name, confirmed)
        drawn.append((title, confirmed))
        write_page(sections, drawn)
        draw(drawn)
    print(PAGE)


if __name__ == "__main__":
    main()
