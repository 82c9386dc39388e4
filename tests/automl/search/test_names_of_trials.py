"""Names that tell the trials of a search apart."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from optuna.study import StudyDirection

from attention import Spec
from automl.config.settings import Settings
from automl.report.listing import listing
from automl.search.run_search import load
from automl.storage.folder import new_folder
from automl.tracking.run_spec import search_run_spec
from automl.tracking.writer import MlflowWriter
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.record import Report
from search.search_scheduler import SearchScheduler
from search.space import Space
from search.study import create_study
from search.trial_scheduler import Plan


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
    plan = Plan(trials=len(tried), budget=1, metric=ACCURACY)
    settings = Settings(space="digits", name="mine", storage=str(tmp_path)).parsed
    with new_folder(settings, plan, fingerprint="f", data="d") as (folder, metadata):
        study = create_study(folder, name="mine", direction=StudyDirection.MAXIMIZE)
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
