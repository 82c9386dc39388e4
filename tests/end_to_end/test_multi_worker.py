"""Trials of two workers on a real Ray that are stopped half-way."""

import os
import time

import pytest
import ray
from ray import tune
from ray.util.state import list_actors

from automl.config.nouns import Terms
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.trials.job import Trainings
from automl.trials.multi_worker import make_trainable
from automl.trials.trial import build_assignment
from cluster.connect import connect
from cluster.resources import TrialResources
from search.config import Model, TrialConfig

STOPS = int(os.environ.get("AUTOML_STOPS", "2"))  # trials to stop; more for a soak


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
            tune.with_resources(make_trainable(shape), {"memory": 2.0**20}),
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
