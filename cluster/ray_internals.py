"""All that is used of Ray beside its public API: what, why, and what it would cost to give it up.

Tested with Ray 2.60.0. `pyproject.toml` allows no newer minor version, and `constraints.txt` names this one.
`tests/test_internals.py` compares Ray with `USED`. Where it fails, see what Ray does now, change this file,
and raise the bound in `pyproject.toml`.

Parts of Ray Tune and of its autoscaler are imported where they are used, since most commands need neither.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray._private import ray_constants
from ray._private.gcs_utils import create_gcs_channel
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.state import state
from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.exceptions import OutOfMemoryError, RayActorError

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}
LOW_MEMORY = (
    "its machine was low on memory, so Ray ended the trial's process; "
    "run fewer trials at once with --concurrent"
)


# What `tests/test_internals.py` compares with Ray: parameters of a function and texts in it, attributes that
# a class assigns in `__init__`, and the function that looks up what is assigned here.
USED: dict[str, dict[str, Any]] = {
    "ray._private.state:state.get_draining_nodes": {"parameters": []},
    "ray._private.state:state.available_resources_per_node": {"parameters": []},
    "ray._private.state:state.actor_table": {"parameters": ["actor_id", "job_id", "actor_state_name"]},
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": {"reader": "ray._private.services:get_node_ip_address"},
    "ray._private.gcs_utils:create_gcs_channel": {"parameters": ["address", "aio"]},
    "ray._private.services:canonicalize_bootstrap_address_or_die": {"parameters": ["addr", "temp_dir"]},
    "ray.core.generated.gcs_service_pb2:GetClusterIdRequest": {},
    "ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceStub": {"parameters": ["channel"]},
    "ray.tune.execution.class_cache:ENV_VARS_TO_PROPAGATE": {
        "reader": "ray.tune.execution.class_cache:_ActorClassCache.get"
    },
    "ray.tune.execution.class_cache:DEFAULT_ENV_VARS": {
        "reader": "ray.tune.execution.class_cache:_ActorClassCache.get"
    },
    "ray.tune.execution.class_cache:_ActorClassCache.get": {"parameters": ["self", "trainable_cls"]},
    "ray.tune.execution.tune_controller:RayActorManager": {
        "reader": "ray.tune.execution.tune_controller:TuneController.__init__"
    },
    "ray.air.execution._internal:RayActorManager": {"attributes": ["_live_actors_to_ray_actors_resources"]},
    "ray.air.execution._internal:RayActorManager._actor_task_failed": {
        "parameters": ["self", "tracked_actor_task", "exception"]
    },
    "ray.air.execution._internal.tracked_actor_task:TrackedActorTask": {"attributes": ["_tracked_actor"]},
    "ray.air._internal.usage:tag_callbacks": {"parameters": ["callbacks"], "reader": "ray.tune.tune:run"},
    "ray.actor:ActorHandle._actor_id": {},
    "ray.tune.experiment.trial:Trial": {"attributes": ["temporary_state", "run_metadata"]},
    "ray.tune.experiment.trial:Trial.error_file": {},
    "ray.tune.experiment.trial:Trial.pickled_error_file": {},
    "ray.tune.experiment.trial:_TemporaryTrialState": {"attributes": ["ray_actor"]},
    "ray.tune.experiment.trial:_TrainingRunMetadata": {"attributes": ["last_result"]},
    # automl/storage/working_dir.py, which does not import Ray, knows the name of this folder.
    "ray._private.runtime_env.working_dir:WorkingDirPlugin.__init__": {"constants": ["working_dir_files"]},
    "ray.autoscaler._private.util:prepare_config": {"parameters": ["config"]},
    "ray.autoscaler._private.util:validate_config": {"parameters": ["config"]},
    "ray._private.ray_constants:get_runtime_env_default_excludes": {"parameters": []},
    "ray._private.runtime_env.packaging:create_package": {
        "parameters": [
            "module_path", "target_path", "include_gitignore", "include_parent_dir", "excludes", "logger"
        ]
    },
}  # fmt: skip


# -- nodes and actors


def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are being drained.

    Why: trials leave a node before its owner takes it back, and none begins there. `ray.nodes` does not tell.
    Without it: trials on a node of a spot market run until it ends, and lose what came after their last
    epoch.
    """
    return set(state.get_draining_nodes())


def free_resources() -> dict[str, Mapping[str, float]]:
    """Return what is free on each node, by the nodes' ids.

    Why: before a search begins, it waits until one trial fits on a node, and says what is free where it does
    not. `ray.available_resources` adds all nodes up. Without it: two halves of a GPU on two nodes look like a
    whole one.
    """
    return dict(state.available_resources_per_node())


def node_of_actor(actor: str) -> str:
    """Return the id of the node that an actor ran on, alive or dead; empty if it never ran.

    Why: a trial whose node died restarts without limit, one that dies by itself does so a few times. The
    public `ray.util.state.get_actor` asks the dashboard, which a local Ray does not have and a head may lack.
    Without it: each loss of a node counts against its trials, and four of them end a trial with an error.
    """
    metadata = state.actor_table(actor)
    return str(metadata["Address"]["NodeID"]) if metadata else ""


# -- connecting


@contextmanager
def without_outer_address() -> Iterator[None]:
    """Have a Ray that is started in the block take 127.0.0.1 for its address.

    Why: Ray puts an outer address in the place of 127.0.0.1, save where it does not support clusters, as on
    macOS, and has no option for it. Its environment variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 does the
    same for `ray start`, but is read when Ray is imported, and the processes of trials would inherit it.
    Without it: a search on one machine listens on the network.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def ask_cluster_id(address: str, timeout: float) -> None:
    """Ask the cluster at `address` for its id, as Ray's own client does first.

    address: HOST:PORT, or `auto` for the cluster on this machine.

    Why: a missing or wrong token is told at once, by name. Without it: Ray tries for 15 seconds, and its
    error does not name the token.

    Raises ConnectionError where there is no cluster, AuthenticationError where there is no token,
    grpc.RpcError.
    """
    gcs = canonicalize_bootstrap_address_or_die(address)
    with create_gcs_channel(gcs) as channel:
        NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=timeout)


# -- Ray Tune


def prepare_tune() -> None:
    """Change what Tune does in this process, before a `Tuner` is made.

    Credentials: Tune copies the variables `AWS` into the environment of each actor, and Ray logs that
    environment for all to read. Nodes have their own credentials. Without it: keys of an object store stand
    in Ray's logs.

    Environment: Tune gives each actor a variable for Lightning, so that none takes a process that Ray has
    begun. Without it: the first trial of each slot waits for a new process that imports Ray and Tune. In two
    pairs of searches on two busy cores it was set up after 4 and 7 s, and not after 1 and 3.

    Memory: Tune takes it for a defect, and ends the whole run, when Ray's memory monitor ends a trial's
    process. Here it is a death as any other, after which the trial restarts. Without it: one trial that is
    too large ends the search, which `--resume` continues.

    Usage: Tune imports MLflow in the driver to count callbacks. Without it: 0.94 s of processor time at the
    start of each search, and not 0.15 s.
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

    Why: a trial moves to another node by a restart there. A trial that Tune stops or pauses leaves its
    process to the next one, on the node that is to be left. Without it: trials stay on a draining node until
    it ends.
    """
    ray.kill(trial.temporary_state.ray_actor)


def skip_first_result(trial: "Trial") -> None:
    """Have Tune think that a new trial has reported once.

    Why: otherwise Tune asks the trial's actor for a result when it ends without one, and an actor that Ray's
    memory monitor has ended would end the whole run. Without it: see `prepare_tune`, of memory.
    """
    from ray.tune.result import TRAINING_ITERATION

    trial.run_metadata.last_result = {TRAINING_ITERATION: 0}


def error_text(trial: "Trial") -> str:
    """Return the traceback of the last error of one of Tune's trials, or an empty text.

    Why: the reason of a failed trial goes into the study. The public `Trial.get_error` and
    `get_pickled_error` read the storage, to which Tune copies these files when the run ends. Without it:
    trials fail without a reason, and the death of a node looks like a defect of the trial.
    """
    file = trial.error_file
    return Path(file).read_text() if file and Path(file).exists() else ""


def error_of(trial: "Trial") -> BaseException | None:
    """Return the last error of one of Tune's trials, where Ray has kept it. Why: see `error_text`."""
    file = trial.pickled_error_file
    return ray.cloudpickle.loads(Path(file).read_bytes()) if file and Path(file).exists() else None


# -- for tests and benchmarks


def replace_actors(actor: object) -> None:
    """Have Tune create `actor` in the place of each trial's actor, as `benchmarks/bench_cluster.py` does."""
    from ray.tune.execution import class_cache

    class_cache._ActorClassCache.get = lambda self, trainable_cls: actor


def check_launcher_config(config: dict[str, Any]) -> None:
    """Check the configuration of Ray's cluster launcher as `ray up` does.

    Raises ValidationError of jsonschema.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(config))


def pack_working_dir(folder: Path, package: Path) -> None:
    """Write the archive that `ray job submit --working-dir` sends."""
    from ray._private.runtime_env.packaging import create_package

    pack: Callable[..., object] = create_package
    pack(
        str(folder),
        package,
        include_gitignore=True,
        excludes=ray_constants.get_runtime_env_default_excludes(),
        logger=logging.getLogger("ray"),
    )
