"""Settings that make the scores of an earlier search incomparable."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from optuna.study import StudyDirection

from attention import Spec
from automl.config.settings import Settings
from automl.report.listing import listing
from automl.search.prepare import incomparable
from automl.search.run_search import load
from automl.storage.folder import new_folder
from automl.storage.metadata import Provenance, SearchMetadata
from automl.tracking.run_spec import search_run_spec
from automl.tracking.writer import MlflowWriter
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.drawn import Drawn
from search.record import Report
from search.search_scheduler import SearchScheduler
from search.space import SPACES, Space
from search.study import create_study
from search.trial_scheduler import Plan

BASE: dict[str, Any] = {"space": "digits", "trials": 4, "epochs": 4, "name": "mine"}


# Another value of each setting that a comparison must see.
OTHER: dict[str, Any] = {
    "epochs": 5, "size": 24, "subset": 0.5, "batch_size": 64, "mixup": 0.4, "flip": True, "augment": "strong",
    "class_weights": "balanced", "equal": "epochs", "metric": "loss",
    "objective": "latency",
    "weights": "weights.pt", "weights_digest": "abc", "precision": "fp32", "max_params": "1M",
    "max_macs": "1G", "max_memory": "1GB", "max_latency_ms": 9.0, "max_cache": "1MB",
    "context": 64, "vocabulary": 20, "distil": 0.5,
}  # fmt: skip


# And of those that it need not see.
SAME: dict[str, Any] = {
    "data": "elsewhere", "trials": 9, "budget": "1h", "name": "another", "seed": 7,
    "sampler": "random", "baseline_share": 0.5, "warm_start": "old", "prior": "none", "keep": 1,
    "cpus_per_trial": 2, "gpus_per_trial": 1, "workers_per_trial": 2, "resource": ("A=1",),
    "label": ("a=b",), "concurrent": 1, "compile": "off", "storage": "there", "seeds": 3, "test": True,
    "callbacks": ("mine.py:Name",), "pruning": False,
    "study": "mine",
}  # fmt: skip


# Settings that are not compared, by the reason.
REASONS: Mapping[str, str] = {
    "the fingerprint of the space with it is compared": "space backbone backbone_option attention full",
    "the fingerprint of a training function is compared": "train minimize margin unit chance",
    "the digest of all splits is compared": "data",
    "it is a name, a place or a duration": "name storage study trials budget pruning seeds callbacks",
    "scores vary with it but keep their meaning": "seed",
    "the test split is not used for ranking": "test",
    "it chooses configurations or checkpoints": "sampler baseline_share warm_start prior keep",
    "time ratios are relative to the baseline on the same device": "cpus_per_trial gpus_per_trial",
    "batches and their statistics are shared by all workers": "workers_per_trial",
    "it says where and how trials run, with the same results": "resource label concurrent compile",
}
NOT_COMPARED = {field: reason for reason, names in REASONS.items() for field in names.split()}


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
        base = {**BASE, "weights": "trained.pt", "weights_digest": "xyz"}
    other = {**base, field: {**OTHER, **SAME}[field]}
    reasons = incomparable(metadata(other), metadata(base), Drawn(SPACES[base["space"]]))
    assert (field in NOT_COMPARED) != bool(reasons), reasons
    if field in OTHER:
        assert field in reasons[0] or field in ("augment", "context")


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


def vit(**options: Any) -> Model:
    return Model(backbone="vit", options=options)


def make_model(kind: str, **options: Any) -> Model:
    return Model(placement={"stage1.block2": Spec(kind, options)})


# The models of a search, and what is to be seen of each: as MLflow's parameters, and thus in words.
CASES: dict[str, tuple[str, list[tuple[Model, dict[str, str]]]]] = {
    "backbone": (
        "image-classification",
        [
            (vit(depth=2, block="block"), {"options.depth": "2", "options.block": "block"}),
            (vit(depth=2, block="parallel"), {"options.block": "parallel"}),
            (vit(depth=2, block="block", stem="hmlp"), {"options.stem": "hmlp"}),
        ],
    ),
    "attention": (
        "image-classification",
        [
            (make_model("decomposed", heads=2), {"attention.heads": "2", "sites": "stage1.block2"}),
            (make_model("decomposed", heads=4), {"attention.heads": "4"}),
            (make_model("decomposed", normalisation="scaling"), {"attention.normalisation": "scaling"}),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_options_tell_trials_apart(case: str, store: MlflowClient, tmp_path: Path) -> None:
    task, tried = CASES[case]
    space = Space(
        name="mine",
        draw=lambda trial: TrialConfig(
            task=task, model=tried[trial.suggest_int("model", 0, len(tried) - 1)][0]
        ),
        baseline={"model": 0},
        free=lambda: [{"model": i} for i in range(1, len(tried))],
        plain={},
        summary="",
    )
    plan = Plan(trials=len(tried), budget=1, metric=ACCURACY, objectives=["accuracy"])
    settings = Settings(space="digits", name="mine", storage=str(tmp_path)).parsed
    with new_folder(settings, plan, fingerprint="f", data="d") as (folder, metadata):
        study = create_study(folder, name="mine", directions=[StudyDirection.MAXIMIZE])
        scheduler = SearchScheduler(study, space, plan, optuna.samplers.RandomSampler(seed=0))
        writer = MlflowWriter(search_run_spec(metadata.location, metadata))
        for number in range(len(tried)):
            assert scheduler.ask() is not None
            metrics = {"epoch": 1, "resource": 1, "accuracy": 0.5, "seconds": 1.0}
            scheduler.end(number, Report(history=[metrics], profile={"time_ratio": 1.0}, finished=True))
            writer.write(scheduler.records[number])
        runs = writer.runs()
        record = load("mine", storage=tmp_path)
    leading = {trial.number: record.describe(trial) for trial in record.leading}
    rows = [" ".join(map(str, row)) for row in listing(record).table.rows]
    for number, (_, seen) in enumerate(tried):
        run, trial = store.get_run(runs[number]), study.trials[number]
        assert seen.items() <= run.data.params.items()
        assert all(str(trial.user_attrs[key]) == value for key, value in seen.items() if "." in key)
        for key, value in seen.items():
            text = value if key == "sites" else f"{key.partition('.')[2]}={value}"
            names = (scheduler.records[number].name, run.info.run_name, leading[number], rows[number])
            assert all(text in name for name in names), text
            assert text in trial.user_attrs["model"] + trial.user_attrs["placement"]
    whats = [record.where(trial) for trial in record.trials]
    assert len(set(whats)) == len(tried), whats
