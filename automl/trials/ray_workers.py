"""Trials on Ray, with capacity for trials of one shape for the duration of a search or a confirmation."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from automl.base.errors import InputError
from automl.base.process import capture_library_logs
from automl.base.terminal import tell
from automl.config.nouns import Place
from automl.storage.metadata import write_gpu_fraction
from automl.trials.job import Trainings
from automl.trials.measurements import find_fraction, trial_resources
from automl.trials.multi_worker import PLACEMENT_LIMIT, GroupActor
from automl.trials.session import RAY, Interrupt, Workers, exit_now, record_signals
from automl.trials.trial import TrialActor, build_assignment, make_sender
from cluster.connect import ClusterCapacity, connect, list_nodes, wait_for_capacity, watch_head
from cluster.resources import TrialResources, count_slots, joins_cluster
from search.record import TrialRecord
from search.trial_scheduler import TrialScheduler
from search.tuner import run_trials


@dataclass(frozen=True, kw_only=True)
class RayWorkers(Workers):
    """Capacity of a cluster, or of a Ray on this machine."""

    shape: TrialResources
    capacity: ClusterCapacity

    @property
    def devices(self) -> float:
        """Return the number of devices (GPUs or cores) of one trial."""
        return self.shape.workers * (self.shape.gpus or self.shape.cpus)

    def share_gpus(
        self, folder: Path, gpus: float | None, trainings: Trainings, *, trials: int | None
    ) -> "Workers":
        """Return the workers with a fraction of a GPU for each trial, as `Workers` describes it."""
        place = self.place
        if not self.shape.gpus:
            return self
        if gpus is None:
            fraction = find_fraction(place, self.shape, list_open_nodes(place), trainings, trials=trials)
            if fraction is None:
                return self
            tell(f"gpus      {fraction}")
            gpus = fraction.gpus
            if fraction.measured:
                write_gpu_fraction(folder, place.storage, gpus)
        else:
            tell(f"gpus      {gpus:g} for each trial, as at the start of the search")
        shape = replace(self.shape, gpus=gpus)
        return replace(self, shape=shape, capacity=ClusterCapacity(shape, place.concurrent))

    def _run(
        self, scheduler: TrialScheduler, trainings: Trainings, folder: Path, stop: Callable[[], bool]
    ) -> None:
        """Run trials with Ray Tune, in actors that are reused. Each trains, or waits for its workers."""
        location, alone, send = trainings.location, self.shape.workers == 1, make_sender()

        def assign(record: TrialRecord) -> Mapping[str, Any]:
            return build_assignment(record.config, location / record.folder, trainings, send)

        run_trials(
            TrialActor if alone else tune.with_parameters(GroupActor, shape=self.shape),
            scheduler,
            assign=assign,
            # Ray Train reserves the resources of several workers. Ray needs some resource.
            resources=self.shape.bundle if alone else {"memory": 2.0**20},
            capacity=self.capacity,
            folder=folder / RAY,
            stop=lambda: stop() or self.capacity.ended() is not None,
        )
        if (why := self.capacity.ended()) is not None:
            raise InputError(f"{why}. When there is capacity again, {self.advice}")


def import_libraries() -> None:
    """Import what trials need, which takes seconds, into a process that one will get.

    The driver meanwhile waits for MLflow.
    """
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # Torch's compiler comes with the first optimiser.


@contextmanager
def open_workers(place: Place, log: Path, advice: str) -> Iterator[Workers]:
    """Connect to Ray with capacity for a trial and record signals, inside the block.

    Messages of libraries go to the file `log`. `advice` says how to resume the run if something ends it.
    Raises InputError if no trial fits. With `--concurrent`, trials on a cluster wait for capacity instead.
    """
    is_local = not joins_cluster() and not ray.is_initialized()  # No machine can join it.
    tell(f"{'connecting to' if joins_cluster() else 'starting'} Ray ...")
    with (
        capture_library_logs(log),
        connect(dashboard=place.workers_per_trial > 1),
        record_signals(advice) as interrupt,
        watch_head(partial(_report_lost_head, advice, interrupt)),
    ):
        node_resources = list_open_nodes(place)
        shape = trial_resources(place, node_resources)
        if place.concurrent is None or is_local:
            count_slots(shape, node_resources)
            wait_for_capacity(shape, PLACEMENT_LIMIT)
        if is_local and not shape.gpus and shape.workers == 1:
            imports = ray.remote(num_cpus=shape.cpus)(import_libraries)
            for _ in range(min(count_slots(shape, node_resources), place.concurrent or sys.maxsize)):
                imports.remote()
        capacity = ClusterCapacity(shape, place.concurrent)
        yield RayWorkers(place=place, shape=shape, capacity=capacity, interrupt=interrupt, advice=advice)


def list_open_nodes(place: Place) -> list[Mapping[str, float]]:
    """Return the resources of each node that may run trials."""
    return [node.resources for node in list_nodes(place.shape.labels).values() if not node.draining]


def _report_lost_head(advice: str, interrupt: Interrupt, address: str) -> None:
    if interrupt.signal is not None:  # Slurm and systemd send it to Ray's processes, too
        exit_now(advice, interrupt.signal)
    tell(
        f"error: Ray's control process (GCS) at {address} has ended, which ends this one. Start the cluster "
        f"again if it is one; then {advice}"
    )
