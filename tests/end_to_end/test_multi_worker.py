"""Groups of two workers on a real Ray: they stay for the next trial, and end with the run."""

import os
import time

import psutil
import pytest
import ray
from ray import tune
from ray.cluster_utils import Cluster
from ray.exceptions import RayActorError

from automl.config.nouns import Terms
from automl.storage.storage import Storage
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.trials.job import Trainings
from automl.trials.multi_worker import CONTINUE, GroupActor, WorkerGroup
from automl.trials.trial import build_assignment
from cluster.connect import connect
from cluster.ray_internals import worker_failure
from cluster.resources import TrialResources
from search.config import Model, TrialConfig
from tests.helpers.automl_cases import timeless

STOPS = int(os.environ.get("AUTOML_STOPS", "2"))  # trials to stop; more for a soak
SHAPE = TrialResources(cpus=1, workers=2)


def assign(folder, epochs):
    trial = TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.2),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=epochs, batch_size=32),
    )
    location = Storage(str(folder))
    common = Trainings(location=location, baseline=trial, terms=Terms(equal="epochs"), profile=False)
    return build_assignment(trial, location, common)


def workers():
    below = psutil.Process().children(recursive=True)
    # A process that has ended and is not waited for has no command line.
    return [p for p in below if "RayTrainWorker" in " ".join(p.as_dict(["cmdline"])["cmdline"] or [])]


@pytest.mark.timeout(300 + 60 * STOPS)
@pytest.mark.slow("a whole search")
def test_stopped_trials_give_everything_back(tmp_path):
    with connect(dashboard=True):
        total = ray.cluster_resources()["CPU"]
        tune.Tuner(
            tune.with_resources(tune.with_parameters(GroupActor, shape=SHAPE), {"memory": 2.0**20}),
            param_space={
                "number": tune.grid_search(list(range(STOPS))),
                "labels": {},
                **assign(tmp_path / "checkpoints", 1000),
            },
            tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=str(tmp_path), stop=lambda name, result: True, verbose=0),
        ).fit()
        until = time.monotonic() + 120
        while (ray.available_resources().get("CPU", 0) < total or workers()) and time.monotonic() < until:
            time.sleep(0.5)
        assert ray.available_resources().get("CPU", 0) == total
        assert not workers()


@pytest.mark.timeout(300)
@pytest.mark.slow("processes of Ray")
def test_workers_stay_until_one_of_them_dies(tmp_path):
    def finish(order):
        while not (report := group.train(order)[0].report).finished:
            order = CONTINUE
        return report.history

    with connect(dashboard=True):
        group = WorkerGroup(SHAPE, str(tmp_path))
        first, before = finish(assign(tmp_path / "first", 2)), {*workers()}
        assert len(before) == 2
        group.train(assign(tmp_path / "stopped", 1000))
        second = finish(assign(tmp_path / "second", 2))
        assert {*workers()} == before
        order = assign(tmp_path / "killed", 2)
        (epoch,) = group.train(order)[0].report.history
        workers()[1].kill()
        with pytest.raises(ray.train.WorkerGroupError) as lost:
            group.train(CONTINUE)
        failures = map(worker_failure, lost.value.worker_failures.values())
        assert any(isinstance(failure, RayActorError) for failure in failures)
        third = finish(order)
        assert not {*workers()} & before
        assert third[0] == epoch, "it resumes from its checkpoint"
        assert timeless(first) == timeless(second) == timeless(third)
        group.close()
        assert not psutil.wait_procs(workers(), timeout=60)[1]


@pytest.mark.slow("processes of Ray")
def test_no_other_node_can_end_a_training(tmp_path, monkeypatch, request):
    monkeypatch.setattr(WorkerGroup, "_fit", lambda *queues: None)
    ray_of_three = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    request.addfinalizer(ray_of_three.shutdown)
    ray_of_three.add_node(num_cpus=1)
    ray_of_three.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", ray_of_three.address)
    with connect():
        here = ray.get_runtime_context().get_node_id()
        for _ in range(3):
            (group := WorkerGroup(SHAPE, str(tmp_path)))._start()
            for queue in (group.orders, group.results):
                find = queue.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
                assert ray.get(find) == here
