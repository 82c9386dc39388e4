"""Settings that make the scores of an earlier search incomparable."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from automl.config.settings import Settings
from automl.search.earlier import incomparable
from automl.storage.metadata import Provenance, SearchMetadata
from search.class_metrics import ACCURACY
from search.drawn import Drawn
from search.space import SPACES
from search.trial_scheduler import Plan

BASE: dict[str, Any] = {"space": "digits", "trials": 4, "epochs": 4, "name": "mine"}


# Another value of each setting that a comparison must see.
OTHER: dict[str, Any] = {
    "epochs": 5, "size": 24, "subset": 0.5, "batch_size": 64, "mixup": 0.4, "flip": True, "augment": "strong",
    "class_weights": "balanced", "equal": "epochs", "init": "shared", "metric": "loss",
    "objective": "latency",
    "weights": "weights.pt", "weights_digest": "abc", "precision": "fp32", "max_params": "1M",
    "max_macs": "1G", "max_memory": "1GB", "max_latency_ms": 9.0, "max_cache": "1MB",
    "context": 64, "vocabulary": 20, "distil": 0.5,
}  # fmt: skip


# And of those that it need not see.
SAME: dict[str, Any] = {
    "data": "elsewhere", "trials": 9, "budget": "1h", "name": "another", "seed": 7, "shared_trainings": 5,
    "sampler": "random", "baseline_share": 0.5, "warm_start": "old", "prior": "none", "keep": 1,
    "cpus_per_trial": 2, "gpus_per_trial": 1, "workers_per_trial": 2, "resource": ("A=1",),
    "label": ("a=b",), "concurrent": 1, "compile": "off", "storage": "there", "seeds": 3, "test": True,
    "callbacks": ("mine.py:Name",), "stop": "never", "overlap_kernels": True, "pruning": False,
    "study": "mine",
}  # fmt: skip


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
    "backbone_option": "the fingerprint of the space with these options is compared",
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
    "overlap_kernels": "time ratios are relative to the baseline on the same device",
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


def metadata(settings: Mapping[str, Any], mark: str = "a-b", data: str = "d") -> SearchMetadata:
    plan = Plan(trials=4, budget=4, metric=ACCURACY, objectives=["accuracy"])
    return SearchMetadata(
        identity="",
        settings=Settings(**settings).parsed,
        plan=plan,
        fingerprint=mark,
        data=data,
        provenance=Provenance(),
    )


@pytest.mark.parametrize("field", [field.name for field in fields(Settings)])
def test_each_setting_is_compared_or_has_no_influence_on_scores(field: str) -> None:
    if "fingerprint" in NOT_COMPARED.get(
        field, ""
    ):  # which tests/search and tests/automl/tasks/function test
        return
    base: dict[str, Any] = BASE
    if field in ("seeds", "test"):
        base = {**BASE, "sampler": "grid"}
    if field in ("context", "vocabulary", "distil"):
        base = {**BASE, "space": "recall"}
    if field == "weights_digest":
        base = {**BASE, "weights": "shared_training.pt", "weights_digest": "xyz"}
    other = {**base, field: {**OTHER, **SAME}[field]}
    reasons = incomparable(metadata(other), metadata(base), Drawn(SPACES[base["space"]]))
    assert (field in NOT_COMPARED) != bool(reasons), reasons
    if field in OTHER:
        assert field in reasons[0] or field in ("init", "augment", "context")


def test_path_of_weights_is_not_compared() -> None:
    here, other = ({**BASE, "weights": file, "weights_digest": "abc"} for file in ("a.pt", "b.pt"))
    assert not incomparable(metadata(other), metadata(here), Drawn(SPACES["digits"]))


@pytest.mark.parametrize(
    ("mark", "data", "words"),
    [("a-c", "d", "a space that creat"), ("a-b", "e", "other data"), ("a-b", "d", "")],
)
def test_another_space_and_other_data_are_not_comparable(mark: str, data: str, words: str) -> None:
    reasons = incomparable(metadata(BASE, mark, data), metadata(BASE), Drawn(SPACES["digits"]))
    assert [reason[: len(words)] for reason in reasons] == [words] * bool(words)
