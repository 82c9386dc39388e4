"""Learn from the trials of an earlier search, for `--warm-start`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optuna import Study

from automl.base.errors import InputError
from automl.config.settings import Settings
from automl.data.manifest import compare_manifests
from automl.storage.folder import find_model_search
from automl.storage.metadata import SearchMetadata
from automl.task.same_data import read_manifest
from search.drawn import Drawn, same_parameters
from search.space import draw_randomly
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
            f"search {name!r} was made with another space ({other.settings.space_name}); --warm-start needs "
            f"one that draws the same parameters"
        )
    return folder, other


def learn(study: Study, folder: Path, metadata: SearchMetadata, drawn: Drawn) -> None:
    """Add the trials of the search `--warm-start` to a new study."""
    assert metadata.settings.warm_start is not None
    earlier, other = find_warm_start(
        metadata.settings.warm_start, metadata.settings.storage, metadata.fingerprint
    )
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
    reasons = []
    if other.data != mine.data:
        reasons.append("other data")
    if other.fingerprint != mine.fingerprint:
        reasons.append("a space that creates other configurations from the same parameters")
    changed = list(_changed(other.settings, mine.settings, drawn))
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return reasons + ([", ".join(changed[:SHOWN]) + more] if changed else [])


def _changed(other: Settings, mine: Settings, drawn: Drawn) -> Iterator[str]:
    """Yield the differences that change the meaning of scores."""
    for key in COMPARED:
        if getattr(other, key) != getattr(mine, key):
            yield f"{key} {getattr(other, key)} instead of {getattr(mine, key)}"
    seen = {"seed", "data.path"}
    baseline = [config for _, config in draw_randomly(drawn.space, 1, first=drawn.space.baseline) if config]
    for config in [*baseline, *drawn.configs(SETTING_DRAWS)]:
        theirs, ours = (dict(_flat(settings.adjust(config).to_json())) for settings in (other, mine))
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
