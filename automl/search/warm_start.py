"""Compare the settings of an earlier search with those of a new one, for `--warm-start`."""

from collections.abc import Iterator, Mapping
from typing import Any

from automl.config.settings import Settings
from automl.storage.folder import SearchMetadata
from search.space import Space, draw_randomly

DRAWS = 20  # reference configurations; a single one may have the value of a setting by chance
SHOWN = 3  # differences in a message

# Settings that change the meaning of a score without changing configurations.
COMPARED = (
    "equal", "objective", "precision", "max_params", "max_macs", "max_memory", "max_latency_ms", "max_cache",
)  # fmt: skip

# Settings that are not compared, with the reason.
NOT_COMPARED: Mapping[str, str] = {
    "space": "its fingerprint is compared",
    "backbone": "the fingerprint of the space with it is compared",
    "attention": "the fingerprint of the space with these types is compared",
    **dict.fromkeys(
        ("train", "minimize", "margin", "unit", "chance"),
        "the fingerprint of a training function with its metric is compared",
    ),
    "full": "the fingerprint of the space with as many full layers is compared",
    "data": "the digest of all splits is compared",
    "trials": "number of trials",
    "budget": "duration of the search",
    "name": "name of the search",
    "seed": "scores vary with it but keep their meaning",
    "seeds": "number of trainings of a cell of a grid",
    "test": "the test split is not used for ranking",
    "shared_trainings": "trials are compared within a shared partial training",
    "sampler": "choice of configurations",
    "baseline_share": "choice of configurations",
    "warm_start": "choice of configurations",
    "prior": "choice of configurations",
    "keep": "choice of checkpoints to keep",
    "cpus_per_trial": "time ratios are relative to the baseline on the same device",
    "gpus_per_trial": "time ratios are relative to the baseline on the same device",
    "workers_per_trial": "batches and their statistics are shared by all workers",
    "resource": "nodes of trials",
    "label": "nodes of trials",
    **dict.fromkeys(("stop", "pruning"), "duration of the search and its trials"),
    "concurrent": "number of simultaneous trials",
    "compile": "execution of a step, with the same results",
    "storage": "location of the search",
    "study": "name of the experiment",
    "callbacks": "they do not change results",
}


def incomparable(other: SearchMetadata, mine: SearchMetadata, space: Space) -> list[str]:
    """Return the reasons why scores of the search `other` are not comparable with those of `mine`.

    Both search `space` or one that draws the same parameters. Data are compared by digest, spaces by
    fingerprint, and settings by their effect on configurations of the space.
    """
    reasons = []
    if other.data != mine.data:
        reasons.append("other data")
    if other.fingerprint != mine.fingerprint:
        reasons.append("a space that creates other configurations from the same parameters")
    changed = list(_changed(other.settings, mine.settings, space))
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return reasons + ([", ".join(changed[:SHOWN]) + more] if changed else [])


def _changed(other: Settings, mine: Settings, space: Space) -> Iterator[str]:
    """Yield the differences that change the meaning of scores."""
    for key in COMPARED:
        if getattr(other, key) != getattr(mine, key):
            yield f"{key} {getattr(other, key)} instead of {getattr(mine, key)}"
    seen = {"seed", "data.path"}
    for _, config in draw_randomly(space, DRAWS, first=space.baseline):
        if config is None:
            continue
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
