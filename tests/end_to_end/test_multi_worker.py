"""Trials of two workers on a real Ray: one that loses a worker, and many that are stopped half-way."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import psutil
import pytest
import ray
from ray import tune
from ray.util.state import list_actors

from automl.config.nouns import Terms
from automl.storage.storage import Storage
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.trials.multi_worker import make_trainable
from automl.trials.trial import Trainings, build_assignment
from cluster.connect import connect
from cluster.resources import TrialResources
from search.config import Model, TrialConfig
from search.study import read_records
from tests.helpers.sockets import open_to_others

AUTOML = Path(sys.executable).parent / "automl"
EPOCHS = 3  # enough that one can be lost half-way
STOPS = int(os.environ.get("AUTOML_STOPS", "2"))  # trials to stop; more for a soak


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    losses = []
    for child in process.children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(child.cmdline()):
                losses.append(child)
        except psutil.Error:
            continue
    return losses


def epochs_tracked(store: str) -> int:
    try:
        client = mlflow.MlflowClient(store)
        runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
        return max(int(run.data.metrics.get("epoch_seconds", 0) > 0) for run in runs)
    except Exception:  # not there yet
        return 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trials", [1, 2])
@pytest.mark.slow("a whole search")
def test_a_trial_survives_the_death_of_a_worker(tmp_path, trials):
    """Train the plain model, which a second trial continues."""
    command = [AUTOML, "search", "--space", "digits", "--trials", str(trials), "--epochs", str(EPOCHS),
               "--subset", "0.25", "--workers-per-trial", "2", "--json",
               *(["--init", "shared", "--shared-trainings", "1"] if trials > 1 else [])]  # fmt: skip
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        search = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=err)
        store = f"sqlite:///{tmp_path / 'mlflow.db'}"
        while not epochs_tracked(store):
            assert search.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.2)
        victims = workers_of(psutil.Process(search.pid))
        assert len(victims) == 2
        # The store by which torch's workers find each other knows no address but all.
        assert [name for name, _ in open_to_others(search.pid)] == ["ray::RayTrainWorker"]
        victims[1].kill()
        assert search.wait(400) == 0, (tmp_path / "err").read_text()
    result = json.loads((tmp_path / "out").read_text())
    assert (result["completed"], result["errors"]) == (trials, 0)
    plain, *placed = read_records(Path(result["folder"]), result["search"])
    for record in placed:
        assert record.config.model.placement
        assert [metrics["epoch"] for metrics in record.history] == [EPOCHS], (
            "it continues the shared partial training"
        )
    history = mlflow.MlflowClient(store).get_metric_history(result["baseline"]["run_id"], "accuracy")
    assert (
        {metric.step for metric in history}
        == set(range(1, EPOCHS + 1))
        == {m["epoch"] for m in plain.history}
    )


@pytest.mark.timeout(300 + 60 * STOPS)
@pytest.mark.slow("a whole search")
def test_stopped_trials_give_everything_back(tmp_path):
    trial = TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.2),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=1000, batch_size=32),
    )
    shape = TrialResources(cpus=1, workers=2)
    with connect(dashboard=True):
        total = ray.cluster_resources()["CPU"]
        tune.Tuner(
            tune.with_resources(make_trainable(shape, Storage(tmp_path / "trials")), {"memory": 2.0**20}),
            param_space={
                "number": tune.grid_search(list(range(STOPS))),
                "labels": {},
                **build_assignment(
                    trial,
                    tmp_path / "checkpoints",
                    Trainings(location=tmp_path, baseline=trial, terms=Terms()),
                ),
            },
            tune_config=tune.TuneConfig(max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=str(tmp_path), stop=lambda name, result: True, verbose=0),
        ).fit()
        until = time.monotonic() + 120
        while ray.available_resources().get("CPU", 0) < total and time.monotonic() < until:
            time.sleep(0.5)
        assert ray.available_resources().get("CPU", 0) == total
        here = ray.get_runtime_context().gcs_address
        alive = list_actors(here, filters=[("state", "=", "ALIVE")], limit=1000)
        assert not [actor.class_name for actor in alive if "Train" in actor.class_name]
