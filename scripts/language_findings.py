"""Write docs/explanation/language-findings.md: which layers of a decoder need full attention.

    make language-findings

For each number of layers and of full ones, a search on associative recall is confirmed against the best
uniform model, a uniform interleaving, a random placement, all linear and all full. Then a decoder of bytes
learns this project's own source and documentation. It resumes what was stopped. All figures on the page are
those of the confirmations.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import automl
from automl.config.device import processor
from automl.confirm.protocol import confirmations, study_name
from automl.confirm.verdict import ConfirmResult
from automl.storage.folder import exists, find_search
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.config import site_name
from automl.tasks.language_modelling.space import (
    BASELINE,
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
STORAGE = "searches"
CASES = ((2, 1), (4, 1), (4, 2), (8, 1), (8, 2))  # layers, and full ones
EXAMPLES = {2: 38_400, 4: 48_000, 8: 48_000}  # training sequences by the number of layers
WINDOW = {2: 4, 4: 2, 8: 2}  # of sliding attention, by the number of layers
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
        model=LanguageModel(options={"depth": 4, "width": 64, "heads": 2}),
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


def search_and_confirm(
    name: str, space: Space, options: argparse.Namespace, **settings: Any
) -> tuple[str, ConfirmResult]:
    """Search and confirm what is missing. Return the name and the confirmation."""
    space = replace(space, controls=add_controls)
    if exists(name, STORAGE):
        automl.run_search(resume=name, storage=STORAGE, space=space)
    else:
        automl.run_search(space=space, name=name, trials=options.trials, storage=STORAGE, **settings)
    confirmed = automl.run_confirm(
        name, storage=STORAGE, space=space, top=1, seeds=options.seeds, controls=True
    )
    return name, confirmed


def measure_core_hours(name: str) -> float:
    folder, metadata = find_search(name, STORAGE)
    studies = [open_study(folder, name=name)]
    studies += [open_study(path, name=study_name(path, metadata)) for path in confirmations(folder)]
    history = [m for study in studies for trial in study.trials for m in read_history(trial.user_attrs)]
    return float(sum(metrics["seconds"] for metrics in history)) / 3600


def write_case(title: str, name: str, confirmed: ConfirmResult) -> Iterator[str]:
    """Yield a section: the verdict, and a row for each variant."""
    verdict = confirmed.value
    rows = {row["variant"]: row for row in verdict["comparisons"]}
    digits, scale = (".1f", 100) if verdict["unit"] == "points" else (".3f", 1)
    yield f"## {title}"
    yield ""
    yield f"**{verdict['headline']}.** {verdict['seeds']} paired seeds, p = {verdict['p']:.2g}; "
    yield f"{measure_core_hours(name):.2f} core hours."
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


def write_page(sections: Sequence[str], options: argparse.Namespace) -> None:
    lines = [
        "# Findings on the layers of language models",
        "",
        f"Made by `make language-findings`: {options.trials} trials of each search, up to {options.seeds} "
        f"paired seeds, equal training time, on {os.cpu_count()} cores ({processor()}). The baseline is the "
        f"best model whose layers are all of one kind. Other models have the searched hyperparameters. A "
        "positive difference favours the searched placement, whose hours are those of the search and of all "
        "seeds.",
        "",
        *sections,
    ]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    sections: list[str] = []
    for depth, full in CASES:
        name = f"recall-{depth}-{full}"
        space = recall_space(depth, full, examples=EXAMPLES[depth], window=WINDOW[depth])
        title = f"Recall, {depth} layers, {full} full"
        sections += write_case(title, *search_and_confirm(name, space, options))
        write_page(sections, options)
    text = collect_text(Path(STORAGE) / "own-text-data")
    sections += write_case(
        "Bytes of this project's source and documentation, 4 layers, 1 full",
        *search_and_confirm("own-text", text_space(), options, data=text),
    )
    write_page(sections, options)
    print(PAGE)


if __name__ == "__main__":
    main()
