"""All uses of Ray besides its public API, with the reason for each and what is lost without it.

Tested with Ray 2.53.0 and 2.60.0, the bounds in `pyproject.toml`. Where another version lacks a name, the
function that needs it does without, and prints once what is lost: a convenience, never a search.
`tests/house/test_packages.py` compares the installed Ray with `tests/helpers/private_names.py`.

Names that Ray does not import by itself are imported where they are used, since most commands need none.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.job_config import JobConfig

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

F = TypeVar("F", bound=Callable[..., Any])

AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}
LACKING = (AttributeError, ImportError, KeyError, TypeError)  # a name of Ray is not there, or was changed
NEWS = 15.0  # seconds between two messages about a start that takes long
LOW_MEMORY = (
    "its machine was low on memory, so Ray ended the trial's process; "
    "run fewer trials at once with --concurrent"
)


def without(loss: str, fallback: Callable[..., Any]) -> Callable[[F], F]:
    """Make a function call `fallback` where Ray lacks one of its names. `loss` is printed once."""

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except LACKING as error:
                _report(loss, f"{type(error).__name__}: {error}")
                return fallback(*arguments, **options)

        return cast(F, call)

    return decorate


@cache
def _report(loss: str, reason: str) -> None:
    print(f"note: with Ray {ray.__version__}, {loss} ({reason})", file=sys.stderr, flush=True)


def _skip(*arguments: object, **options: object) -> None:
    """Do nothing."""


# Modules that Ray imports itself, or None.
_private: list[Any] = [
    getattr(getattr(ray, "_private", None), name, None)
    for name in ("node", "ray_constants", "services", "state")
]
node, ray_constants, services, state = _private
WAITS = ((services, "get_node"), (node, "wait_for_persisted_port"))  # Ray 2.53 does not have the latter
LOSSES = {
    (services, "ConsolePopen"): "a signal to the process group ends Ray before the trials",
    (ray_constants, "ENABLE_RAY_CLUSTER"): "a search on one machine listens on the network",
}


# -- nodes and actors


@without(
    "trials stay on a node that is being drained until it ends, and lose their last epoch", lambda: set()
)
def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are being drained.

    Why: trials leave a node before its owner takes it back, and none starts there. `ray.nodes` does not
    report draining.
    """
    return set(state.state.get_draining_nodes())


def _all_resources() -> dict[str, Mapping[str, float]]:
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


@without("a search on a busy cluster begins at once, and its trials wait in Ray's queue", _all_resources)
def free_resources() -> dict[str, Mapping[str, float]]:
    """Return the free resources of each node, by the node's id.

    Why: before a search begins, it waits until one trial fits on a node, and reports the free resources if it
    does not. `ray.available_resources` sums over all nodes, so two halves of a GPU look like a whole one.
    """
    return dict(state.state.available_resources_per_node())


def _ask_dashboard(actor: str) -> str:
    from ray.util.state import get_actor

    try:
        metadata = get_actor(actor)
    except Exception:  # Without a dashboard, Ray raises errors of several kinds.
        return ""
    return str(getattr(metadata, "node_id", None) or "")


@without(
    "only a dashboard says which trials were lost with their node; four losses end a trial", _ask_dashboard
)
def node_of_actor(actor: str) -> str:
    """Return the id of the node that an actor ran on, alive or dead. Return an empty string if it never ran.

    Why: a trial whose node died restarts without limit, and a trial that died by itself restarts a few times.
    The public `ray.util.state.get_actor` asks the dashboard, which a local Ray does not have and a head may
    lack.
    """
    metadata = state.state.actor_table(actor)
    return str(metadata["Address"]["NodeID"]) if metadata else ""


# -- connecting


class LocalJob(JobConfig):
    """Job whose workers look for modules where this process does, and last in the current folder.

    Why: Ray puts the current folder first on the path of its workers, where a file of the user may have the
    name of any module.
    """

    def _serialize(self) -> bytes:
        _order_path(self)
        return bytes(super()._serialize())


@without("a module in the current folder, such as statistics.py, replaces Python's in each trial", _skip)
def _order_path(job: JobConfig) -> None:
    ours = str(Path(__file__).parents[1])  # an installation for editing has it nowhere on the path
    path = [folder or os.getcwd() for folder in (*sys.path, ours, os.getcwd())]
    vars(job)["_py_driver_sys_path"][:] = reversed(path)  # a worker puts each before the others


@contextmanager
def start_patiently(news: float = NEWS) -> Iterator[None]:
    """Start Ray on 127.0.0.1 and in sessions of its own in the block, and wait as long as its processes live.

    A line is printed every `news` seconds.

    Address: Ray replaces 127.0.0.1 by an outer address, except where it does not support clusters, as on
    macOS, and has no option for it. Its environment variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 does the
    same for `ray start`. But it is read when Ray is imported, and the processes of trials would inherit it.

    Sessions: a signal to the process group, as by `timeout`, Slurm or a terminal, must stop the trials first.
    On systems other than Linux, Ray ends its processes by their group. And on a busy machine they need more
    than the 30 seconds after which Ray gives up.
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
        place: patient(getattr(*place)) for place in WAITS if hasattr(*place)
    }
    patches |= {(services, "ConsolePopen"): start, (ray_constants, "ENABLE_RAY_CLUSTER"): False}
    for (module, name), loss in LOSSES.items():
        if not hasattr(module, name):
            _report(loss, f"it has no {name}")
            del patches[module, name]
    before = {place: getattr(*place) for place in patches}
    try:
        for place, value in patches.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


@without("a missing or wrong token of a cluster is reported late, and not by name", _skip)
def ask_cluster_id(address: str, timeout: float) -> None:
    """Ask the cluster at `address`, HOST:PORT or `auto`, for its id, as Ray's own client does first.

    Why: a missing or wrong token is reported at once, by name. Ray tries for 15 seconds. Raises
    ConnectionError if there is no cluster, AuthenticationError if there is no token, and grpc.RpcError if the
    request failed, for example because of a wrong token.
    """
    from ray._private.gcs_utils import create_gcs_channel
    from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    with create_gcs_channel(services.canonicalize_bootstrap_address_or_die(address)) as channel:
        NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=timeout)


# -- Ray Tune


def prepare_tune() -> None:
    """Change Tune's behaviour in this process, before a `Tuner` is created."""
    _limit_environment()
    _survive_low_memory()
    _omit_usage()


@without("keys of an object store are in Ray's logs, and each first trial waits for a new process", _skip)
def _limit_environment() -> None:
    """Give the actors of trials no environment of their own.

    Credentials: Tune copies the variables `AWS`, and Ray logs them. Nodes have their own credentials.

    Processes: Tune sets a variable for Lightning, so that no trial takes a process that Ray has started. In
    two pairs of searches on two busy cores, the setup took 4 and 7 s with it, and 1 and 3 s without.
    """
    from ray.tune.execution import class_cache

    class_cache.ENV_VARS_TO_PROPAGATE -= AWS
    class_cache.DEFAULT_ENV_VARS.clear()


@without("a trial that is too large for the memory ends the search, which --resume continues", _skip)
def _survive_low_memory() -> None:
    """Let a trial restart whose process Ray's memory monitor has ended. To Tune, it would be a defect."""
    from ray.tune.execution import tune_controller

    class ActorManager(tune_controller.RayActorManager):
        def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
            if isinstance(exception, OutOfMemoryError):
                exception = RayActorError(self._name_of(tracked_actor_task), LOW_MEMORY)
            super()._actor_task_failed(tracked_actor_task, exception)

        @without("low memory is no reason to restart a trial without limit", lambda self, task: None)
        def _name_of(self, task: Any) -> str | None:
            actor, _ = self._live_actors_to_ray_actors_resources[task._tracked_actor]
            return str(actor._actor_id.hex())

    tune_controller.RayActorManager = ActorManager


@without("the start of a search takes 0.8 s more of processor time", _skip)
def _omit_usage() -> None:
    """Tune imports MLflow in the driver to count callbacks: 0.94 s of processor time instead of 0.15 s."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


@without("trials stay on a draining node until it ends", _skip)
def end_process(trial: "Trial") -> None:
    """Kill the process of one of Tune's trials.

    Why: a trial moves to another node by a restart there. A trial that Tune stops or pauses leaves its
    process to the next trial, on the same node.
    """
    ray.kill(trial.temporary_state.ray_actor)


@without("a trial that is too large for the memory ends the search, which --resume continues", _skip)
def skip_first_result(trial: "Trial") -> None:
    """Make Tune assume that a new trial has reported once.

    Why: otherwise Tune asks the trial's actor for a result when it ends without one, and an actor that Ray's
    memory monitor has ended would end the whole run.
    """
    from ray.tune.result import TRAINING_ITERATION

    trial.run_metadata.last_result = {TRAINING_ITERATION: 0}


@without("failed trials have no reason", lambda trial: "")
def error_text(trial: "Trial") -> str:
    """Return the traceback of the last error of one of Tune's trials, or an empty string.

    Why: the reason of a failed trial is written to the study. The public `Trial.get_error` and
    `get_pickled_error` read the storage, to which Tune copies these files when the run ends.
    """
    file = trial.error_file
    return Path(file).read_text() if file and Path(file).exists() else ""


@without("the death of a node looks like a defect of its trials", lambda trial: None)
def error_of(trial: "Trial") -> BaseException | None:
    """Return the last error of one of Tune's trials, or None if Ray has not kept it. See `error_text`."""
    file = trial.pickled_error_file
    return ray.cloudpickle.loads(Path(file).read_bytes()) if file and Path(file).exists() else None


def worker_failure(error: Exception) -> Exception:
    """Return the error of a worker of Ray Train, which wraps that of an actor that died.

    Why: the id of the actor tells on which node it was. Otherwise the loss of a node counts as a crash.
    """
    return cast(Exception, getattr(error, "health_check_failure", error))
