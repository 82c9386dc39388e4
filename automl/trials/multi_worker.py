"""Trainings on several devices: a TorchTrainer of Ray Train, whose workers take one training after the other.

Every worker trains its part of each batch. Batch norm, gradients and metrics are over all workers, so that a
trial is the same as with one worker. Workers train an epoch when they are asked to, and stay for the next
training until one of them dies or fails. The actor of Tune only waits and takes no slot.
"""

import logging
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple

import ray
import ray.train
import ray.train.collective
import ray.train.torch
from ray import tune
from ray.train.torch import TorchConfig

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.process import capture_library_logs, count_cores
from automl.config.device import is_gpu
from automl.config.nouns import Terms
from automl.config.runtime import Runtime, runtime_for
from automl.storage.storage import Storage
from automl.training.loop import Diverged
from automl.trials.job import Trainings, classify_error
from automl.trials.session import RAY
from automl.trials.trial import OUT_OF_MEMORY, build_assignment, find_draining, is_draining, train_trial
from cluster.connect import NODE_ID, connect, list_nodes, use_node_address, wait_for_capacity
from cluster.resources import TrialResources, count_slots, joins_cluster
from search.config import TrialConfig
from search.record import Metrics, Report
from search.tuner import LABELS, NODE, REPORT, RETRIES

POLL = 0.5  # time between two checks that the workers live [s]
# Time for the other workers once one has failed [s]. They may wait for it without end. If one died, it failed
# for that reason, and Ray takes half a minute to notice the death of a node.
GRACE = 60.0
LIMIT = 8.0  # time for workers to end, less than Tune gives to its actors [s]

CONTINUE: Mapping[str, Any] = {}  # order to train the next epoch; others are an assignment, and the end
END = None


class NodeBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    """Backend whose workers talk through the network of their nodes."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(use_node_address)
        super().on_start(worker_group, backend_config)


class NodeTorch(TorchConfig):
    """Configuration of `NodeBackend`."""

    backend_cls = NodeBackend


class Result(NamedTuple):
    """Report of a worker, the id of its node, and the message of its error if that says what to do."""

    rank: int
    report: Report
    node: str
    advice: str | None

    @property
    def ends_group(self) -> bool:
        """Return True if the worker failed where the others did not, perhaps: they no longer match."""
        reason = self.report.infeasible or ""
        return bool(self.report.fault or self.report.error) or reason.startswith(OUT_OF_MEMORY)


class WorkerGroup:
    """Workers that take one training after the other. They are those of one run of a TorchTrainer.

    Attributes:
        shape: The number of workers, and the resources of each.
        folder: The folder for the files of Ray Train, on this node.
        labels: The labels of the nodes that may run them.
    """

    def __init__(self, shape: TrialResources, folder: str, labels: Any = None) -> None:
        self.shape, self.folder, self.labels = shape, folder, labels
        self.run: Thread | None = None
        self.error: BaseException = RuntimeError("the workers have ended")

    def train(self, order: Mapping[str, Any]) -> list[Result]:
        """Train an epoch, and return the results of all workers, first the one that decides.

        Workers are started for an assignment if there are none, and end if one has failed. Raises the error
        of Ray Train if one died.
        """
        if order and (self.run is None or not self.run.is_alive()):
            self._start()
        assert self.run is not None
        self._send(order)
        results: list[Result] = []
        until = inf
        while len(results) < self.shape.workers and time.monotonic() < until:
            is_running = self.run.is_alive()  # Asked before the results are read, so that none is lost.
            try:
                results.append(self.results.get(timeout=POLL))
            except Empty:
                if not is_running:
                    raise self.error from None
            if results and results[-1].ends_group:
                until = min(until, time.monotonic() + GRACE)
        results.sort(key=lambda result: (not result.ends_group, result.rank))
        if results[0].ends_group:
            self.close(RuntimeError("a worker failed"))
        return results

    def close(self, reason: Exception | None = END) -> None:
        """End the workers. With a `reason`, Ray Train also ends those that hang."""
        if self.run is not None:
            self._send(reason)
            self.run.join(LIMIT)
            self.run = None

    def _send(self, order: Mapping[str, Any] | Exception | None) -> None:
        self.orders.put_nowait_batch([order] * self.shape.workers)

    def _start(self) -> None:
        from ray.util.queue import Queue  # Imported here, as it is an actor, which needs a connected Ray.

        # On this node, as Ray would choose any, whose end would end the training.
        options = {"num_cpus": 0, "label_selector": {NODE_ID: ray.get_runtime_context().get_node_id()}}
        self.orders, self.results = (Queue(actor_options=options) for _ in range(2))
        # After Ctrl-C, disconnecting from Ray ends the workers, and nothing waits for the thread.
        self.run = Thread(target=self._fit, args=(self.orders, self.results), daemon=True)
        self.run.start()

    def _fit(self, orders: Any, results: Any) -> None:
        shape = self.shape
        try:
            # Ray Train has nothing to keep. A store may reject its markers of folders, or not answer.
            with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
                ray.train.torch.TorchTrainer(
                    partial(run_worker, orders, results, shape.cpus, shape.gpus),
                    torch_config=NodeTorch(),
                    scaling_config=ray.train.ScalingConfig(
                        num_workers=shape.workers,
                        use_gpu=shape.gpus > 0,
                        resources_per_worker=shape.bundle,
                        label_selector=self.labels,
                        placement_strategy="PACK",
                    ),
                    run_config=ray.train.RunConfig(
                        storage_path=folder,
                        # The next assignment starts other workers.
                        failure_config=ray.train.FailureConfig(max_failures=0),
                    ),
                ).fit()
        except BaseException as error:
            self.error = error


def run_worker(orders: Any, results: Any, cpus: float, gpus: float) -> None:
    """Train in one worker, an epoch for each order. It resumes from the checkpoint of an assignment."""
    context, node = ray.train.get_context(), ray.get_runtime_context().get_node_id()
    ranks = {"rank": context.get_world_rank(), "workers": context.get_world_size()}
    assignment: Mapping[str, Any] = {}
    work: Generator[Report] = (report for report in list[Report]())
    while (order := orders.get()) is not END:
        ray.train.collective.barrier()  # Each has its copy of the order. A fast one does not take another's.
        if isinstance(order, Exception):
            raise order
        advice = None
        try:
            if order:
                assignment = order
                work.close()  # This ends the last training, and frees its memory.
                work = train_trial(order, runtime_for(cpus, gpus, **ranks, **order["runtime"]), is_draining)
            report = next(work)
        except (Exception, SystemExit) as error:
            report = classify_error(error, Storage(assignment["folder"]))
            advice = str(error) if isinstance(error, InputError) else None
        results.put(Result(ranks["rank"], report, node, advice))


class GroupActor(tune.Trainable):
    """Trial on several workers, which it keeps for the next trial. It only waits for them."""

    def setup(self, config: dict[str, Any], shape: TrialResources) -> None:
        self.group = WorkerGroup(shape, self.logdir, config[LABELS])
        self.order: Mapping[str, Any] = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.order = new_config
        return True

    def step(self) -> dict[str, Any]:
        order, self.order = self.order, CONTINUE
        results = self.group.train(order)
        report, node = results[0].report, results[0].node
        if report.fault is None:
            node = find_draining([result.node for result in results]) or node
        return {REPORT: report, NODE: node, "done": report.is_last}

    def cleanup(self) -> None:
        self.group.close()


PLACEMENT_LIMIT = 300.0  # seconds to wait for capacity for the first trial


def train_on_workers(
    config: TrialConfig, folder: Path, workers: int, runtime: Runtime, *, epoch: int = 0
) -> Iterator[Metrics]:
    """Train on workers of Ray, and yield the metrics of each epoch after its checkpoint is in `folder`.

    On a cluster, all workers must have access to `folder` and the data. The checkpoint there, if any, has
    `epoch` epochs. Raises InputError if the workers do not fit or cannot train, and Diverged.
    """
    with connect(dashboard=True), capture_library_logs(folder / "log.txt"):
        shape = plan_resources(workers, runtime)
        wait_for_capacity(shape, PLACEMENT_LIMIT)
        try:
            for report in _reports(config, folder, shape, runtime):
                yield from report.history[epoch:]
                epoch = max(epoch, len(report.history))
                if report.infeasible is not None:
                    raise Diverged(report.infeasible)
        finally:
            shutil.rmtree(folder / RAY, ignore_errors=True)
    (folder / "log.txt").unlink(missing_ok=True)


def plan_resources(workers: int, runtime: Runtime) -> TrialResources:
    """Return a GPU for each worker, or equal shares of the cores. Raises InputError if they do not fit."""
    node_resources = [node.resources for node in list_nodes().values() if not node.draining]
    gpus = is_gpu(runtime.device) or (joins_cluster() and any(node.get("GPU") for node in node_resources))
    cpus = 1 if joins_cluster() or gpus else max(1, count_cores() // workers)
    shape = TrialResources(cpus=cpus, gpus=int(gpus), workers=workers)
    count_slots(shape, node_resources)
    return shape


def _reports(config: TrialConfig, folder: Path, shape: TrialResources, runtime: Runtime) -> Iterator[Report]:
    """Yield the reports of a training. If a worker dies, it resumes from its checkpoint, a few times."""
    location = Storage(str(folder))
    terms = Terms(equal="epochs", precision=runtime.precision, compile=runtime.compile)
    content = build_assignment(
        config, location, Trainings(location=location, baseline=config, terms=terms, profile=False)
    )
    (folder / RAY).mkdir(exist_ok=True)
    group = WorkerGroup(shape, str(folder / RAY))
    order: Mapping[str, Any] = content
    deaths = 0
    while True:
        try:
            result = group.train(order)[0]
        except ray.train.TrainingFailedError as error:
            logging.getLogger("ray").error("%s", error)
            order, deaths = content, deaths + 1
            if deaths > RETRIES:
                raise _killed(folder) from error
            continue
        order, report = CONTINUE, result.report
        if report.fault is not None:
            raise InputError(report.fault)
        if report.error is not None:
            raise InputError(result.advice) if result.advice else RuntimeError(report.traceback)
        if report.is_last:
            group.close()
        yield report
        if report.is_last:
            return


def _killed(folder: Path) -> InputError:
    resume = format_command("train --resume", folder.name, str(folder.parent))
    return InputError(
        f"a process of the training was killed, as when its machine is out of memory. Ray's message is in "
        f"{folder / 'log.txt'}. Continue it: {resume}"
    )
