"""All uses of Ray besides its public API, with the reason for each and the consequence of removing it.

Tested with Ray 2.60.0. `tests/house/test_packages.py` compares Ray with `tests/helpers/private_names.py`. If
it fails, read the new code of Ray, change both files, and raise the bound in `pyproject.toml`.

Ray Tune is imported where it is used, since most commands do not need it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray._private import node, ray_constants, services
from ray._private.gcs_utils import create_gcs_channel
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.state import state
from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.job_config import JobConfig

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}
WAITS = ((services, "get_node"), (node, "wait_for_persisted_port"))  # Ray 2.53 does not have the latter
NEWS = 15.0  # seconds between two messages about a start that takes long
LOW_MEMORY = (
    "its machine was low on memory, so Ray ended the trial's process; "
    "run fewer trials at once with --concurrent"
)


# -- nodes and actors


def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are being drained.

    Why: trials leave a node before its owner takes it back, and none starts there. `ray.nodes` does not
    report draining. Without it: trials on such a node lose the time since their last epoch.
    """
    return set(state.get_draining_nodes())


def free_resources() -> dict[str, Mapping[str, float]]:
    """Return the free resources of each node, by the node's id.

    Why: a search waits until one trial fits on a node, and `ray.available_resources` sums over all nodes.
    Without it: two halves of a GPU on two nodes look like a whole GPU.
    """
    return dict(state.available_resources_per_node())


def node_of_actor(actor: str) -> str:
    """Return the id of the node that an actor ran on, alive or dead. Return an empty string if it never ran.

    Why: a trial whose node died restarts without limit, and a trial that died by itself restarts a few times.
    The public `ray.util.state.get_actor` asks the dashboard, which may be absent. Without it: the fourth loss
    of a node ends a trial with an error.
    """
    metadata = state.actor_table(actor)
    return str(metadata["Address"]["NodeID"]) if metadata else ""


# -- connecting


class LocalJob(JobConfig):
    """Job whose workers look for modules where this process does, and last in the current folder.

    Why: Ray puts the current folder first on the path of its workers. Without it: a user's `statistics.py`
    runs in each trial in place of Python's.
    """

    def _serialize(self) -> bytes:
        ours = str(Path(__file__).parents[1])  # an installation for editing has it nowhere on the path
        path = [folder or os.getcwd() for folder in (*sys.path, ours, os.getcwd())]
        vars(self)["_py_driver_sys_path"][:] = reversed(path)  # a worker puts each before the others
        return bytes(super()._serialize())


@contextmanager
def start_patiently(news: float = NEWS) -> Iterator[None]:
    """Start Ray on 127.0.0.1 and in sessions of its own in the block, and wait as long as its processes live.

    A line is printed every `news` seconds.

    Address: Ray replaces 127.0.0.1 by an outer address, except on systems without clusters, such as macOS,
    and has no option for it. Without it: a search on one machine listens on the network.

    Sessions: a signal to the process group, as by `timeout`, Slurm or a terminal, must stop the trials first.
    And on a busy machine Ray needs more than the 30 seconds after which it gives up. Without it: SIGTERM to
    the group ends Ray first, and its driver with a message of C++.
    """
    started: list[subprocess.Popen[Any]] = []
    begun = reported = time.monotonic()

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        own = sys.platform.startswith("linux")
        started.append(subprocess.Popen(*arguments, **options, start_new_session=own))
        return started[-1]

    def patient(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal reported
            while True:
                try:
                    return function(*arguments, **options)
                except RuntimeError:  # it is not yet there
                    if any(process.poll() is not None for process in started):
                        raise
                if (now := time.monotonic()) >= reported + news:
                    reported, waited = now, now - begun
                    print(f"waiting for Ray to start, {waited:.0f} s so far", file=sys.stderr, flush=True)
                time.sleep(0.1)

        return call

    patches: dict[tuple[Any, str], Any] = {
        (module, name): patient(getattr(module, name)) for module, name in WAITS if hasattr(module, name)
    }
    patches |= {(services, "ConsolePopen"): start, (ray_constants, "ENABLE_RAY_CLUSTER"): False}
    before = {place: getattr(*place) for place in patches}
    try:
        for place, value in patches.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


def ask_cluster_id(address: str, timeout: float) -> None:
    """Ask the cluster at `address`, HOST:PORT or `auto`, for its id, as Ray's own client does first.

    Why: a missing or wrong token is reported at once, by name, which Ray does not do. Raises ConnectionError
    without a cluster, AuthenticationError without a token, and grpc.RpcError for a wrong one, among others.
    """
    gcs = canonicalize_bootstrap_address_or_die(address)
    with create_gcs_channel(gcs) as channel:
        NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=timeout)


# -- Ray Tune


def prepare_tune() -> None:
    """Change Tune's behaviour in this process, before a `Tuner` is created.

    Credentials: Tune copies the variables `AWS` into the environment of each actor, which Ray logs. Nodes
    have their own credentials. Without it: keys of an object store are in Ray's logs.

    Environment: Tune gives each actor a variable for Lightning. Without it: the first trial of each slot
    waits seconds for a new process, since those that Ray has already started lack the variable.

    Memory: when Ray's memory monitor ends a trial's process, Tune ends the whole run. Without it: one trial
    that is too large ends the search, which `--resume` continues.

    Usage: Tune imports MLflow in the driver to count callbacks. Without it: each search starts 0.8 s later.
    """
    from ray.air._internal import usage
    from ray.air.execution._internal import RayActorManager
    from ray.tune.execution import class_cache, tune_controller

    class ActorManager(RayActorManager):
        def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
            if isinstance(exception, OutOfMemoryError):
                actor, _ = self._live_actors_to_ray_actors_resources[tracked_actor_task._tracked_actor]
                exception = RayActorError(actor._actor_id.hex(), LOW_MEMORY)
            super()._actor_task_failed(tracked_actor_task, exception)

    class_cache.ENV_VARS_TO_PROPAGATE -= AWS
    class_cache.DEFAULT_ENV_VARS.clear()
    tune_controller.RayActorManager = ActorManager
    usage.tag_callbacks = lambda callbacks: False


def end_process(trial: "Trial") -> None:
    """Kill the process of one of Tune's trials.

    Why: a trial moves to another node by a restart there. Without it: it stays on a draining node.
    """
    ray.kill(trial.temporary_state.ray_actor)


def skip_first_result(trial: "Trial") -> None:
    """Make Tune assume that a new trial has reported once.

    Why: otherwise Tune asks an actor that ended without a result for one. Without it: as for "Memory" in
    `prepare_tune`.
    """
    from ray.tune.result import TRAINING_ITERATION

    trial.run_metadata.last_result = {TRAINING_ITERATION: 0}


def error_text(trial: "Trial") -> str:
    """Return the traceback of the last error of one of Tune's trials, or an empty string.

    Why: the study has the reason of a failed trial. The public `Trial.get_error` reads a file that Tune
    copies when the run ends. Without it: trials fail without a reason, even those whose node died.
    """
    file = trial.error_file
    return Path(file).read_text() if file and Path(file).exists() else ""


def error_of(trial: "Trial") -> BaseException | None:
    """Return the last error of one of Tune's trials, or None if Ray has not kept it.

    Why: see `error_text`.
    """
    file = trial.pickled_error_file
    return ray.cloudpickle.loads(Path(file).read_bytes()) if file and Path(file).exists() else None


# -- for benchmarks


def replace_actors(actor: object) -> None:
    """Make Tune use `actor` instead of each trial's actor. `benchmarks/bench_cluster.py` uses it."""
    from ray.tune.execution import class_cache

    class_cache._ActorClassCache.get = lambda self, trainable_cls: actor
