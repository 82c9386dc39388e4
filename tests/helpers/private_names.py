"""The private names of libraries that this project uses, and what it expects of each.

A row has the parameters of a function and strings in it, attributes that a class assigns in `__init__`, and
the function that reads a name that is assigned. `tests/house/test_packages.py` compares the libraries.
"""

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray._private import ray_constants

from cluster import ray_internals

RAY: dict[str, dict[str, Any]] = {
    "ray._private.state:state.get_draining_nodes": {"parameters": []},
    "ray._private.state:state.available_resources_per_node": {"parameters": []},
    "ray._private.state:state.actor_table": {"parameters": ["actor_id", "job_id", "actor_state_name"]},
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": {"reader": "ray._private.services:get_node_ip_address"},
    "ray.job_config:JobConfig": {"attributes": ["_py_driver_sys_path"]},
    "ray.job_config:JobConfig._serialize": {"parameters": ["self"], "reader": "ray._private.worker:connect"},
    "ray._private.services:ConsolePopen": {"reader": "ray._private.services:start_ray_process"},
    "ray._private.services:get_node": {
        "parameters": ["gcs_address", "node_id"], "reader": "ray._private.node:Node.__init__"
    },
    "ray._private.node:wait_for_persisted_port": {"reader": "ray._private.node:Node.start_gcs_server"},
    "ray._private.gcs_utils:create_gcs_channel": {"parameters": ["address", "aio"]},
    "ray._private.services:canonicalize_bootstrap_address_or_die": {"parameters": ["addr", "temp_dir"]},
    "ray.core.generated.gcs_service_pb2:GetClusterIdRequest": {},
    "ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceStub": {"parameters": ["channel"]},
    "ray.tune.execution.class_cache:ENV_VARS_TO_PROPAGATE": {
        "reader": "ray.tune.execution.class_cache:_ActorClassCache.get"  # no search needs it
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
    "ray.train.v2._internal.exceptions:WorkerHealthCheckFailedError": {
        "attributes": ["health_check_failure"]
    },
    "ray.tune.experiment.trial:_TemporaryTrialState": {"attributes": ["ray_actor"]},
    "ray.tune.experiment.trial:_TrainingRunMetadata": {"attributes": ["last_result"]},
    # automl/base/loading.py, which does not import Ray, knows the name of this folder.
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

OPTUNA: dict[str, dict[str, Any]] = {
    "optuna.study:Study": {"attributes": ["_storage", "_study_id"]},
    "optuna.study:Study._get_trials": {"parameters": ["self", "deepcopy", "states", "use_cache"]},
    "optuna.storages:JournalStorage": {"attributes": ["_backend"]},
    "optuna.trial:Trial": {"parameters": ["study", "trial_id"], "attributes": ["_trial_id"]},
    "optuna.trial:FrozenTrial": {"attributes": ["_trial_id"]},
}

TORCH: dict[str, dict[str, Any]] = {
    "torch._higher_order_ops.scan:scan": {
        "parameters": ["combine_fn", "init", "xs", "dim", "reverse", "length"]
    },
    "torch._subclasses.fake_tensor:DataDependentOutputException": {},
    "torch._subclasses.fake_tensor:DynamicOutputShapeException": {},
    "torch._subclasses.fake_tensor:UnsupportedOperatorException": {},
    "torch._subclasses.fake_tensor:FakeCopyMode": {},
    "torch._subclasses.fake_tensor:FakeTensorMode": {},
    "torch.nn.modules.batchnorm:_BatchNorm": {},
    "torch.utils._pytree:tree_leaves": {"parameters": ["tree", "is_leaf"]},
    "torch.utils._pytree:tree_map": {"parameters": ["func", "tree", "rests", "is_leaf"]},
    "torch.utils._pytree:tree_map_only": {},
    "torch:cpu._is_avx512_bf16_supported": {"parameters": []},
    "torch:Tensor._version": {},
    "torch._dynamo.config:recompile_limit": {},
}


PUBLIC = {"ray.job_config:JobConfig", "ray.tune.experiment.trial:Trial"}
BENCHMARKS = "ray.tune.execution.class_cache:_ActorClassCache.get"


def names_in_use() -> list[str]:
    """Return the private names of Ray in `cluster/ray_internals.py` that a search or a command needs."""
    rows = {name: row for name, row in RAY.items() if name != BENCHMARKS}
    names = {re.split(r"[.:]", name)[-1] for name in rows.keys() - PUBLIC}
    names |= {attribute for row in rows.values() for attribute in row.get("attributes", ())}
    return sorted(names & set(re.findall(r"\w+", Path(ray_internals.__file__).read_text())))


def load_without(names: Iterable[str]) -> ModuleType:
    """Return a copy of `cluster.ray_internals`, as it is with a Ray that lacks these names."""
    copy = ModuleType(ray_internals.__name__)
    vars(copy).update(__file__=ray_internals.__file__)
    source = Path(ray_internals.__file__).read_text()
    exec(re.sub(rf"\b({'|'.join(names)})\b", r"\1_is_gone", source), vars(copy))
    return copy


def keep_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test change Tune by `prepare_tune`."""
    from ray.air._internal import usage
    from ray.tune.execution import class_cache, tune_controller

    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", {*class_cache.ENV_VARS_TO_PROPAGATE})
    monkeypatch.setattr(class_cache, "DEFAULT_ENV_VARS", {**class_cache.DEFAULT_ENV_VARS})
    for module, name in ((usage, "tag_callbacks"), (tune_controller, "RayActorManager")):
        monkeypatch.setattr(module, name, getattr(module, name))


def actor_manager() -> type[Any]:
    """Return the class by which Tune manages actors."""
    from ray.tune.execution import tune_controller

    manager: type[Any] = tune_controller.RayActorManager
    return manager


def replace_actors(actor: object) -> None:
    """Make Tune use `actor` instead of each trial's actor, for `benchmarks/bench_cluster.py`."""
    from ray.tune.execution import class_cache

    class_cache._ActorClassCache.get = lambda self, trainable_cls: actor


def check_launcher_config(config: dict[str, Any]) -> None:
    """Check the configuration of Ray's cluster launcher as `ray up` does, by jsonschema.ValidationError."""
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
        excludes=getattr(ray_constants, "get_runtime_env_default_excludes", list)(),  # not in Ray 2.53
        logger=logging.getLogger("ray"),
    )
