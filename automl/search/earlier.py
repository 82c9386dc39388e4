"""Learn from the trials of an earlier search, for `--warm-start`."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna import Study

from automl.base.errors import InputError
from automl.data.manifest import compare_manifests
from automl.storage.folder import find_model_search
from automl.storage.metadata import SearchMetadata
from automl.task.same_data import read_manifest
from search.drawn import Drawn, same_parameters
from search.study import open_study, warm_start_study

SETTING_DRAWS = 20  # to compare settings, since a single draw may have the value of a setting by chance
SHOWN = 3  # differences in a message

# Settings that change the meaning of a score without changing configurations.
COMPARED = (
    "equal", "objective", "precision", "max_params", "max_macs", "max_memory", "max_latency_ms", "max_cache",
)  # fmt: skip


def find_warm_start(name: str, storage: str, fingerprint: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and the metadata of the search `--warm-start`.

    Raise InputError if it does not exist, or its space draws other parameters.
    """
    folder, other = find_model_search(name, storage)
    if not same_parameters(other.fingerprint, fingerprint):
        raise InputError(
            f"search {name!r} was made with another space ({other.settings.question.space_name}); "
            f"--warm-start needs one that draws the same parameters"
        )
    return folder, other


def learn(study: Study, folder: Path, metadata: SearchMetadata, drawn: Drawn) -> None:
    """Add the trials of the search `--warm-start` to a new study."""
    warm_start = metadata.settings.plan.warm_start
    assert warm_start is not None
    earlier, other = find_warm_start(warm_start, metadata.storage, metadata.fingerprint)
    reasons = incomparable(other, metadata, drawn)
    if other.data != metadata.data:
        reasons[0] += f" ({compare_manifests(read_manifest(earlier), read_manifest(folder))})"
    if reasons:
        print(
            f"search {other.name!r} was made with {'; '.join(reasons)}. Its scores are not comparable, so "
            f"only its best configurations are used, as first trials",
            file=sys.stderr,
        )
    warm_start_study(study, open_study(earlier, name=other.name), name=other.name, comparable=not reasons)


def incomparable(other: SearchMetadata, mine: SearchMetadata, drawn: Drawn) -> list[str]:
    """Return the reasons why scores of the search `other` are not comparable with those of `mine`.

    Both search the space `drawn` or one that draws the same parameters. Data are compared by digest, spaces
    by fingerprint, and settings by their effect on configurations of the space.
    """
    questions = (replace(metadata.settings.question, seed=0) for metadata in (other, mine))
    theirs, ours = (question.draw(drawn.space) for question in questions)
    reasons = []
    if other.data != mine.data:
        reasons.append("other data")
    if other.fingerprint != mine.fingerprint:
        reasons.append("a space that creates other configurations from the same parameters")
    changed = list(_changed(other.settings.values(), mine.settings.values(), theirs, ours))
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return reasons + ([", ".join(changed[:SHOWN]) + more] if changed else [])


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], other: Drawn, mine: Drawn) -> Iterator[str]:
    """Yield the differences of the settings of two searches that change the meaning of scores."""
    for key in COMPARED:
        if before[key] != now[key]:
            yield f"{key} {before[key]} instead of {now[key]}"
    seen = {"seed", "data.path"}
    for configs in zip(
        *([each.baseline, *each.configs(SETTING_DRAWS)] for each in (other, mine)), strict=True
    ):
        theirs, ours = (dict(_flat(config.to_json())) for config in configs)
        if theirs["model.weights_digest"] == ours["model.weights_digest"] != "":
            seen.add("model.weights")  # the path of the same file may differ
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key) and key not in seen:
                seen.add(key)
                yield f"{key} {theirs.get(key)} instead of {ours.get(key)}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their paths."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
