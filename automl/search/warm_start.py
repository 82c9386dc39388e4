"""Compare an earlier search with a new one for `--warm-start`: are their scores comparable?"""

from collections.abc import Iterator, Mapping
from typing import Any

from automl.config.settings import Settings
from automl.storage.folder import SearchMetadata
from search.space import Space, draw_randomly

DRAWS = 20  # reference configurations: one may have by chance what a setting puts in its place
SHOWN = 3  # differences in a message

# Settings that decide what a score means, beside the configurations that they are applied to.
COMPARED = ("equal", "objective", "precision", "max_params", "max_macs", "max_memory", "max_latency_ms")

# Settings that need no comparison, and why.
NOT_COMPARED: Mapping[str, str] = {
    "space": "its fingerprint is compared",
    "backbone": "the fingerprint of the space with it is compared",
    "data": "the digest of all splits is compared, wherever they lie",
    "trials": "how many trials there are",
    "budget": "how long the search runs",
    "name": "how it is called",
    "seed": "scores vary with it, and mean the same",
    "seeds": "how often a cell of a grid is trained",
    "test": "the test split ranks nothing",
    "shared_trainings": "trials are compared within a shared partial training, however many there are",
    "sampler": "what is tried",
    "baseline_share": "what is tried",
    "warm_start": "what is tried",
    "keep": "which checkpoints stay",
    "cpus_per_trial": "time ratios are relative to the baseline on the same device",
    "gpus_per_trial": "time ratios are relative to the baseline on the same device",
    "workers_per_trial": "the batch and its statistics are of all workers together",
    "resource": "where trials run",
    "label": "where trials run",
    "concurrent": "how many trials run at once",
    "compile": "how a step is run; it computes the same",
    "storage": "where the search is kept",
    "callbacks": "they change nothing",
}


def incomparable(other: SearchMetadata, mine: SearchMetadata, space: Space) -> list[str]:
    """Return why scores of the search `other` mean something else in the search `mine`; empty if they do not.

    Both are searches of `space` or of one that draws the same parameters. The data are compared by their
    digest, and the space by its fingerprint; the settings by what they make of the space's configurations.
    """
    reasons = []
    if other.data != mine.data:
        reasons.append("other data")
    if other.fingerprint != mine.fingerprint:
        reasons.append("a space that makes other configurations of the same parameters")
    changed = list(_changed(other.settings, mine.settings, space))
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return reasons + ([", ".join(changed[:SHOWN]) + more] if changed else [])


def _changed(other: Settings, mine: Settings, space: Space) -> Iterator[str]:
    """The values that decide on scores and differ."""
    for key in COMPARED:
        if getattr(other, key) != getattr(mine, key):
            yield f"{key} {getattr(other, key)} instead of {getattr(mine, key)}"
    seen = {"seed", "data.path"}
    for _, config in draw_randomly(space, DRAWS, first=space.baseline):
        if config is None:
            continue
        theirs, ours = (dict(_flat(settings.adjust(config).to_json())) for settings in (other, mine))
        if theirs["model.weights_digest"] == ours["model.weights_digest"] != "":
            seen.add("model.weights")  # where the same file lies
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key) and key not in seen:
                seen.add(key)
                yield f"{key} {theirs.get(key)} instead of {ours.get(key)}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings, by their path."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
