"""Measure how busy one driver keeps 512 slots, in a search of trials of 20 s on 64 nodes with 8 slots each.

The search uses its own scheduler, study on disk, rungs, callbacks and MLflow, and Ray Tune on a Ray of 64
node managers, all on this machine. Only the trainings are simulated: a trial sleeps through four epochs of 5
s and reports like an epoch. 512 processes would take 30 GB, so a few actors simulate the slots. Each slot is
a `tune.Trainable` in one of them, and the driver calls it like an actor. So the driver's messages and waits
are real; the work of 512 processes on their nodes is missing. Node managers, actors and driver share the
machine's cores.

A slot is busy during an epoch. The measurement starts when every slot has started its first trial and ends
when the last trial starts. `docs/decisions/0007-one-driver.md` explains the limit.
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from harness import Row, show, write
from optuna.study import StudyDirection
from ray import tune
from ray.cluster_utils import Cluster

from automl.base.process import capture_library_logs
from automl.callbacks.retention import CheckpointRetention
from automl.callbacks.search_progress import Progress, search_summary
from automl.storage.storage import Storage
from automl.tracking.process import MlflowProcess
from automl.tracking.run_spec import RunSpec, below
from automl.tracking.tracker import Tracker
from cluster.connect import ClusterCapacity
from cluster.resources import TrialResources
from search.class_metrics import ACCURACY
from search.record import Report
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.space import load_space
from search.study import create_study
from search.trial_scheduler import Plan
from search.tuner import REPORT, run_trials

sys.path.append(str(Path(__file__).parents[1]))

from tests.helpers.private_names import replace_actors

EPOCHS = 4
# Background work of node managers, which would take this machine's cores.
NODE_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "600000",  # statistics of a node
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}
NODE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


class SimulatedTrial(tune.Trainable):
    """Trial that reports without training. Later reports are better, so that none is pruned."""

    def setup(self, config: dict[str, Any]) -> None:
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.history: list[dict[str, float]] = []
        return True

    def step(self) -> dict[str, Any]:
        now = time.time()
        self.history.append(
            {
                "epoch": len(self.history) + 1.0,
                "resource": len(self.history) + 1.0,
                "train_loss": 1.0,
                "valid_loss": 1.0,
                "accuracy": now / 1e10,
                "learning_rate": 1e-3,
                "seconds": 1.0,
                "time": now,
            }
        )
        profile = {"params": 1e6, "macs": 1e8, "memory": 1e8, "latency": 1.0, "time_ratio": 1.0}
        report = Report(history=self.history, profile=profile, finished=len(self.history) == EPOCHS)
        return {REPORT: report, "done": report.is_last}


class Simulator:
    """Actor that simulates some slots in one process, with a trainable for each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.slots: dict[int, tune.Trainable] = {}
        self.epochs: list[tuple[int, int, float, float]] = []  # slot, trial's number, begin, end

    async def open(self, slot: int, kwargs: dict[str, Any]) -> None:
        self.slots[slot] = SimulatedTrial(**kwargs)

    async def call(self, slot: int, method: str, *args: Any, **kwargs: Any) -> Any:
        trainable = self.slots[slot]
        if method == "train":
            start = time.time()
            await asyncio.sleep(self.seconds)
            self.epochs.append((slot, trainable.config["number"], start, time.time()))
        return getattr(trainable, method)(*args, **kwargs)

    async def get_epochs(self) -> list[tuple[int, int, float, float]]:
        return self.epochs


class Slot:
    """Stand-in for one of Tune's actors."""

    def __init__(self, simulator: Any, number: int, kwargs: dict[str, Any]) -> None:
        self.simulator, self.number = simulator, number
        self.__ray_ready__ = Method(lambda: simulator.open.remote(number, kwargs))

    def __getattr__(self, name: str) -> "Method":
        return Method(lambda *args, **kwargs: self.simulator.call.remote(self.number, name, *args, **kwargs))


class Method:
    def __init__(self, remote: Any) -> None:
        self.remote = remote


class Slots(ray.actor.ActorClass):
    """Stand-in for the class of Tune's actors. It distributes slots over the simulators in turn."""

    def __init__(self, simulators: list[Any]) -> None:
        self.simulators, self.count = simulators, 0

    def options(self, **kwargs: Any) -> "Slots":
        return self

    def remote(self, **kwargs: Any) -> Slot:
        self.count += 1
        return Slot(self.simulators[self.count % len(self.simulators)], self.count, kwargs)


@contextmanager
def cluster_of(nodes: int, slots: int) -> Iterator[None]:
    """Start a Ray with so many nodes on this machine, and connect this process to it."""
    os.environ.update(NODE_SETTINGS)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    for _ in range(nodes):
        cluster.add_node(wait=False, num_cpus=slots, **NODE)
    cluster.wait_for_nodes(timeout=300)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_row(case: str, peer: str, ours: float, theirs: float, unit: str, *, least: bool = False) -> Row:
    """Return a row. least: True if less is better."""
    ratio = theirs / ours if least else ours / theirs
    row = Row(case=case, peer=peer, ours=ours, theirs=theirs, unit=unit, spread=(ratio, ratio), ratio=ratio)
    show(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8, help="of a node")
    parser.add_argument("--simulators", type=int, default=8, help="processes that simulate the slots")
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of an epoch")
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--patience", type=float, default=600, help="seconds for MLflow to catch up")
    options = parser.parse_args()
    slots = options.nodes * options.slots
    memory: list[tuple[float, ...]] = []

    def watch(*processes: psutil.Process) -> None:
        while all(process.is_running() for process in processes):
            memory.append(tuple(process.memory_info().rss / 2**20 for process in processes))
            time.sleep(1)

    with tempfile.TemporaryDirectory() as scratch, capture_library_logs(Path(scratch) / "log.txt"):
        os.chdir(scratch)
        folder = Path(scratch)
        plan = Plan(trials=options.trials, budget=EPOCHS, metric=ACCURACY)
        run_spec = RunSpec(
            experiment="cluster",
            name="cluster",
            identity="cluster",
            checkpoint=partial(below, Storage(str(folder))),
        )
        with cluster_of(options.nodes, options.slots), MlflowProcess(run_spec) as writer:
            actor = ray.remote(num_cpus=0, max_concurrency=2 * slots)(Simulator)
            simulators = [actor.remote(options.seconds) for _ in range(options.simulators)]
            actor_class = Slots(simulators)
            replace_actors(actor_class)
            study = create_study(folder, name="cluster", direction=StudyDirection.MAXIMIZE)
            tracker = Tracker(writer)
            scheduler = SearchScheduler(
                study, load_space("digits"), plan, load_sampler(options.sampler, seed=0)
            )
            progress = Progress(
                plan,
                scheduler.records,
                trials=lambda: scheduler.trials,
                summary=lambda: search_summary(plan, scheduler.records),
            )
            scheduler.callbacks = [
                CheckpointRetention(Storage(str(folder)), plan, [], keep=3, deleted=tracker.update),
                tracker,
                progress,
            ]
            writes = psutil.Process(writer.process.pid)
            threading.Thread(target=watch, args=(psutil.Process(), writes), daemon=True).start()
            start, cpu = time.time(), time.thread_time()
            run_trials(
                SimulatedTrial,
                scheduler,
                assign=lambda record: {"trial": record.config.to_json(), "folder": record.folder},
                resources={"CPU": 1},
                capacity=ClusterCapacity(TrialResources()),
                folder=folder / "ray",
            )
            cpu, wall = time.thread_time() - cpu, time.time() - start
            epochs = [epoch for simulator in simulators for epoch in ray.get(simulator.get_epochs.remote())]
            behind = tracker.drain(0)
            ended = time.time()
            missing = tracker.close(options.patience)
            caught_up = time.time() - ended
        states = [record.state for record in scheduler.records.values()]
    full = max(min(begin for slot, _, begin, _ in epochs if slot == s) for s in {e[0] for e in epochs})
    last = max(scheduler.records)
    over = min(begin for _, number, begin, _ in epochs if number == last)
    later = len({n for _, n, _, _ in epochs} - {n for _, n, begin, _ in epochs if begin <= full})
    taken = sum(max(0.0, min(end, over) - max(begin, full)) for *_, begin, end in epochs)
    driver, mlflow = (max(values) for values in zip(*memory, strict=True))
    capacity = EPOCHS * options.seconds / slots
    print(
        f"{len(states)} trials drawn by {options.sampler}, {set(map(str, states))}, in {wall:.0f} s\n"
        f"all slots busy after {full - start:.1f} s, the last trial started after {over - start:.1f} s\n"
        f"MLflow {behind} trials behind at the end, {missing} after {caught_up:.0f} s more"
    )
    rows = [
        make_row(
            f"fraction of {slots} slots that is busy", "all of them", taken / slots / (over - full), 1.0, ""
        ),
        make_row("trials started per second", "with all busy", later / (over - full), 1 / capacity, "/s"),
        make_row(
            "time of the driver's thread per trial",
            "available with all busy",
            cpu / len(states),
            capacity,
            "s",
            least=True,
        ),
        make_row("driver's peak memory", "at the first trial", driver, memory[0][0], "MiB", least=True),
        make_row("memory of its process for MLflow", "the driver's", mlflow, driver, "MiB", least=True),
    ]
    write("cluster", rows)


if __name__ == "__main__":
    main()
