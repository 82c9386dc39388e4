"""One trial: the code of each training process, and the actor that Ray Tune reuses from trial to trial.

A reused process keeps torch, the device and the dataset, and starts the next trial at once. A trial reports
why it cannot be trained (out of memory, diverged, above a limit), and its exceptions. Only the death of a
process is handled by `search.tuner`.

User-defined code is sent with a trial, with the values that a function of a notebook uses. Tune copies the
configuration of a trial many times, so large code goes through Ray's object store.
"""

import gc
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from automl.base.errors import error_line
from automl.base.loading import Code, receive
from automl.base.serialise import to_json
from automl.base.terminal import tell
from automl.base.units import format_size
from automl.config.device import check_memory_of_others, device_name, empty_cache, is_out_of_memory
from automl.config.nouns import Limits
from automl.config.runtime import Runtime, runtime_for
from automl.costs.profile import measure
from automl.data import shared
from automl.storage.storage import ATTEMPTS, Storage
from automl.training import checkpoint
from automl.training.loop import Diverged, NotStopped, TooSlow
from automl.trials.job import Job, Replaced, Trainings, classify_error, train
from cluster.ray_internals import draining_nodes
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics, Report
from search.tuner import NODE, REPORT

# Ray's own folder of a job that brings its files, or of a cluster. Tune then moves to a temporary one.
ORIGINAL = os.getcwd()

OUT_OF_MEMORY = "out of memory"  # begins the reason of such a trial
SMALL = 1 << 16  # largest code in a configuration [bytes]
LARGE = 100 << 20  # size from which a message says so [bytes]

_fetched: dict[str, ray.ObjectRef] = {}  # Large code that this process has, by its name.

SentCode = Mapping[str, bytes | ray.ObjectRef]


def build_assignment(
    config: TrialConfig, folder: Storage, of: Trainings, send: Callable[[Code], SentCode] = dict
) -> dict[str, Any]:
    """Return the configuration that is sent to a trial's process.

    Args:
        config: Configuration of the trial.
        folder: Folder of its checkpoint, which is loaded if the trial is resumed.
        of: What it has in common with other trials.
        send: Returns the user-defined code as it is sent, of `make_sender`.
    """
    terms, baseline = of.terms, of.baseline
    return {
        "current": os.getcwd(),
        "code": send({**config.code(), **baseline.code()}),
        "trial": config.to_json(),
        "folder": str(folder),
        "baseline": baseline.to_json(),
        "equal": terms.equal if of.profile else "epochs",
        "limits": dict(vars(terms.limits)),
        "runtime": {**terms.arithmetic, "validations": terms.validations_per_epoch or 1},
        "test": terms.test,
        "data": of.data,
        "profile": of.profile,
    }


class TrialActor(tune.Trainable):
    """Trains an assignment of `build_assignment`, one epoch per step."""

    def setup(self, config: dict[str, Any]) -> None:
        gc.freeze()  # Imported objects stay. Each full collection would otherwise scan them.
        self.work = self.reports(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        try:
            self.work.close()  # This ends the last trial's function, and frees its memory.
        except NotStopped as error:
            tell(f"{error}; this process ends")
            os._exit(1)  # The next trial gets a new process, which the function does not train beside.
        self.work = self.reports(new_config)
        return True

    def reports(self, config: dict[str, Any]) -> Generator[Report]:
        resources = self.trial_resources.required_resources
        cpus, gpus = resources.get("CPU", 1), resources.get("GPU", 0)
        try:
            runtime = runtime_for(cpus, gpus, **config["runtime"])
            yield from train_trial(config, runtime, leaving=is_draining)
        except (Exception, SystemExit) as error:
            yield classify_error(error, Storage(config["folder"]))

    def step(self) -> dict[str, Any]:
        report = next(self.work)
        return {REPORT: report, NODE: ray.get_runtime_context().get_node_id(), "done": report.is_last}


def is_draining() -> bool:
    """Return whether the node of this process is being taken back."""
    return find_draining([ray.get_runtime_context().get_node_id()]) is not None


def find_draining(nodes: Sequence[str]) -> str | None:
    """Return one of the nodes that is being taken back, as a machine of a spot market is, or None.

    It is None if Ray does not say, as when the head is away: a trial trains on.
    """
    try:
        draining = draining_nodes()
    except Exception:  # Ray raises errors of several kinds.
        return None
    return next((node for node in nodes if node in draining), None)


def train_trial(
    config: Mapping[str, Any], runtime: Runtime, leaving: Callable[[], bool] = lambda: False
) -> Generator[Report]:
    """Train an assignment of `build_assignment`, from where an earlier process of the same trial stopped.

    A checkpoint is kept once its node is `leaving`. Yields a report after each validation. The last one says
    how the trial ended.
    """
    # User code finds the files that it names where the search was started.
    os.chdir(config["current"] if Path(config["current"]).is_dir() else ORIGINAL)
    receive_code(config["code"])
    trial, folder = (
        TrialConfig.from_json(config["trial"]).load(),
        Storage(config["folder"], attempts=ATTEMPTS),
    )
    device = device_name(runtime.device)
    history: list[Metrics] = []
    profile: dict[str, float] = {}
    violations: dict[str, float] = {}

    def report(**values: Any) -> Report:
        return Report(profile=profile, device=device, violations=violations, **values)

    shared.use(config["data"])
    try:
        stamp = folder.stamp(CHECKPOINT_FILE)
        content = checkpoint.read(folder, runtime.device) if folder.exists(CHECKPOINT_FILE) else None
        if content is not None and TrialConfig.from_json(content["config"]) != trial:
            # It belongs to a trial that the study has lost: the driver died before the study was copied.
            content = None
        if content is not None:
            history, profile = content["history"], content["profile"]
        elif config["profile"]:
            profile = _measure_costs(trial, TrialConfig.from_json(config["baseline"]), runtime)
        limits = Limits(**config["limits"])
        violations = limits.violations(profile)
        if excess := limits.excess(profile):
            yield report(infeasible=excess)
            return
        job = Job(
            config=trial,
            runtime=runtime,
            folder=folder,
            history=history,
            content=content,
            profile=profile,
            equal=(profile["time_ratio"], profile["validation"]) if config["equal"] == "time" else (1.0, 0.0),
            test=config["test"],
            leaving=leaving,
            stamp=stamp,
        )
        del content
        with closing(train(job)) as histories:
            for history in histories:
                yield report(history=history, finished=job.is_spent(history))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        check_memory_of_others(runtime.device, runtime.memory_fraction)
        reason = f"{OUT_OF_MEMORY}: {error_line(error)}"
    except Diverged as error:
        reason = str(error)
    except Replaced as error:
        tell(str(error))
        os._exit(1)  # If Ray still waits for it, the trial continues from the other one's checkpoint.
    except TooSlow as error:
        reason, violations = str(error), {**violations, **error.violations}
    else:
        return
    empty_cache(runtime.device)
    yield report(history=history, infeasible=reason)


def _measure_costs(trial: TrialConfig, baseline: TrialConfig, runtime: Runtime) -> dict[str, float]:
    """Measure the costs of a trial, as the mean over its workers."""
    profile: dict[str, float] = to_json(measure(trial, baseline, runtime))
    if runtime.workers > 1:  # all workers must agree on when the training ends
        values = torch.tensor(list(profile.values()), dtype=torch.float64, device=runtime.device)
        profile = dict(zip(profile, (runtime.total(values) / runtime.workers).tolist(), strict=True))
        profile["time_ratio_imprecise"] = float(profile["time_ratio_imprecise"] > 0)
    return profile


def make_sender() -> Callable[[Code], SentCode]:
    """Return a function that replaces large code by references. It stores each once in the connected Ray."""
    put = cache(_put)

    def send(code: Code) -> SentCode:
        return {
            name: content if len(content) <= SMALL else put(name, content) for name, content in code.items()
        }

    return send


def _put(name: str, content: bytes) -> ray.ObjectRef:
    if len(content) >= LARGE:
        tell(
            f"{name} has {format_size(len(content))} with the values that it uses, and each process of a "
            f"trial gets a copy; load large data inside the function, from a file"
        )
    return ray.put(content)


def receive_code(code: SentCode) -> None:
    """Make the code available in this process."""
    references = {name: each for name, each in code.items() if isinstance(each, ray.ObjectRef)}
    needed = {name: each for name, each in references.items() if _fetched.get(name) != each}
    receive({name: each for name, each in code.items() if isinstance(each, bytes)})
    receive(dict(zip(needed, ray.get([*needed.values()]), strict=True)) if needed else {})
    _fetched.update(needed)
