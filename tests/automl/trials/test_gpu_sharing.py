"""Trials share a GPU: the measured fraction is used, printed, and kept for resumes and confirmations."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.cloudpickle as cloudpickle
import torch

from automl.base.errors import InputError
from automl.config.nouns import Terms
from automl.config.settings import ParsedSettings, Settings
from automl.costs.gpu_fraction import GpuUse
from automl.storage.folder import new_folder
from automl.storage.metadata import read_metadata
from automl.storage.storage import Storage
from automl.trials import measurements, ray_workers
from automl.trials.job import Trainings
from automl.trials.measurements import find_fraction, trial_resources
from automl.trials.ray_workers import RayWorkers
from automl.trials.session import Interrupt
from cluster.connect import ClusterCapacity
from search.class_metrics import ACCURACY
from search.trial_scheduler import Plan
from tests.helpers.automl_cases import TINY

USE = GpuUse(memory=3e8, free=80e9, total=85e9, step=8e-3, busy=6e-4)
NODES = [{"CPU": 16.0, "GPU": 1.0}, {"CPU": 64.0}]


def give_use(*arguments: object) -> GpuUse:
    return USE


def settings(**changed: Any) -> ParsedSettings:
    return Settings(**{"space": "digits", "trials": 12, **changed}).parsed


def trainings(profile: bool = True) -> Trainings:
    return Trainings(location=Storage("searches"), baseline=TINY, terms=Terms(), profile=profile)


def find(of: ParsedSettings, nodes: Any = NODES, profile: bool = True, trials: int | None = 12) -> Any:
    shape = trial_resources(of.place, nodes)
    return find_fraction(of.place, shape, nodes, trainings(profile), trials=trials)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace Ray by an immediate answer. Return the resources that were requested for each measurement."""
    requests: list[dict[str, Any]] = []

    def remote(**resources: Any) -> Any:
        requests.append(resources)
        return lambda function: SimpleNamespace(remote=lambda *arguments: USE)

    monkeypatch.setattr(measurements, "ray", SimpleNamespace(remote=remote, get=lambda use, timeout: use))
    return requests


@pytest.mark.parametrize(
    ("changed", "nodes", "profile", "gpus", "requested"),
    [
        ({}, NODES, True, 1 / 8, 1),
        ({"gpus_per_trial": "auto"}, NODES, True, 1 / 8, 1),
        ({"concurrent": 2}, NODES, True, 1 / 2, 1),
        ({"gpus_per_trial": 0.3}, [{"CPU": 8.0, "GPU": 1.0}], True, 0.3, 0.3),
        ({"gpus_per_trial": "0.25"}, NODES, True, 0.25, 0.25),
        ({"workers_per_trial": 2}, NODES, True, 1, None),
        ({"gpus_per_trial": 1}, NODES, True, None, None),
        ({"gpus_per_trial": 0}, NODES, True, None, None),
        ({}, [{"CPU": 8.0}], True, None, None),
        ({}, NODES, False, None, None),
    ],
)
def test_fraction_is_measured_where_there_is_a_choice(
    changed: dict[str, Any],
    nodes: Any,
    profile: bool,
    gpus: float | None,
    requested: float | None,
    measured: list[dict[str, Any]],
) -> None:
    fraction = find(settings(**changed), nodes, profile)
    assert (None if fraction is None else fraction.gpus) == gpus
    assert [request["num_gpus"] for request in measured] == ([] if requested is None else [requested])


def test_more_shares_than_memory_are_rejected(measured: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match=r"--gpus-per-trial 0\.003 gives a trial 230MB.* takes 300MB"):
        find(settings(gpus_per_trial=0.003))


def test_a_local_ray_waits_for_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("connect", "watch_head"):
        monkeypatch.setattr(ray_workers, name, lambda *_, **options: nullcontext())
    monkeypatch.setattr(ray_workers, "list_open_nodes", lambda place: [{"CPU": 8.0}])
    place = settings(concurrent=2, gpus_per_trial=1).place
    with pytest.raises(InputError, match=r"a trial asks for 1 CPUs and 1 GPUs .* has 8 CPUs and 0 GPUs"):
        ray_workers.open_workers(place, tmp_path / "log.txt", "").__enter__()


def test_search_and_confirmation_use_the_recorded_fraction(
    tmp_path: Path,
    measured: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_workers, "list_open_nodes", lambda place: NODES)
    chosen = settings(storage=str(tmp_path), name="shared")
    plan = Plan(trials=12, budget=1, metric=ACCURACY, baseline_share=0.2)
    whole = trial_resources(chosen.place, NODES)
    workers = RayWorkers(
        place=chosen.place, shape=whole, capacity=ClusterCapacity(whole), interrupt=Interrupt(), advice=""
    )
    with new_folder(chosen, plan, fingerprint="", data="") as (folder, metadata):
        shared = workers.share_gpus(folder, metadata.gpu_fraction, trainings(), trials=12)
        assert shared.shape == shared.capacity.shape == replace(whole, gpus=1 / 8)
        message = "gpus      0.125 of a GPU for each trial, 8 on each GPU: a step of the"
        assert message in capsys.readouterr().err
        resumed = read_metadata(folder, str(tmp_path))
        assert resumed == replace(metadata, gpu_fraction=1 / 8)
        monkeypatch.setattr(ray_workers, "find_fraction", None)
        assert workers.share_gpus(folder, resumed.gpu_fraction, trainings(), trials=20).shape == shared.shape
        assert capsys.readouterr().err == "gpus      0.125 for each trial, as at the start of the search\n"
        on_cpus = replace(workers, shape=replace(whole, gpus=0))
        assert on_cpus.share_gpus(folder, resumed.gpu_fraction, trainings(), trials=20) is on_cpus, (
            "this machine has no GPU"
        )


@pytest.fixture
def ray_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a Ray that believes to have a GPU."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow("starts Ray")
def test_measurement_runs_in_a_process_of_ray(ray_with_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ray_workers.list_open_nodes(settings().place)
    assert [node["GPU"] for node in nodes] == [1]
    monkeypatch.setattr(ray, "cancel", None)  # For a task that has ended, Ray may end this process.
    if not torch.cuda.is_available():
        broken = find(settings(), nodes)
        assert broken.gpus == 1
        assert "the baseline could not be measured (UnusableGpu: Ray assigned 1 GPUs" in str(broken)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        monkeypatch.setattr(measurements, "_measure", give_use)
        assert find(settings(), nodes).gpus == 1 / 2, "two of four cores each"
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
