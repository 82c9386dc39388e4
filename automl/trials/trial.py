"""One trial: the code of each training process, and the actor that Ray Tune reuses from trial to trial.

A new process imports torch for seconds. A reused one keeps torch, the device and the dataset, and starts the
next trial at once. A trial that cannot be trained (out of memory, diverged, above a limit) reports this, and
also its exceptions. Only the death of a process is handled by `search.tuner`.
"""

import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray
import torch
from ray import tune

from attention.loading import receive
from automl.config.device import device_for, device_name, empty_cache, is_out_of_memory
from automl.config.limits import Limits
from automl.config.runtime import Runtime
from automl.costs.profile import measure
from automl.data import shared
from automl.maps.examples import save_examples
from automl.storage.epoch_progress import EpochProgress
from automl.storage.storage import Storage
from automl.tasks import open_task
from automl.training import checkpoint, shared_training
from automl.training.loop import Course, Diverged, evaluate, fit, plan_course, start
from automl.trials.failure import classify_error
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics, Report
from search.serialise import to_json
from search.tuner import NODE, REPORT

# Minimum number of epochs with the placement. With fewer steps, the score does not depend on it enough.
LEAST_EPOCHS = 0.5
# Minimum in a confirmation. Its finalists have passed the search, and a time ratio that varies from seed to
# seed must not drop one.
LEAST_CONFIRMED = LEAST_EPOCHS / 2


def build_assignment(
    config: TrialConfig,
    folder: Storage,
    *,
    shared_trainings: Storage,
    baseline: TrialConfig,
    equal: str,
    limits: Limits,
    precision: str,
    compile: str,
    test: bool = False,
    data: Mapping[str, Any] | None = None,
    profile: bool = True,
) -> dict[str, Any]:
    """Return the configuration that is sent to a trial's process.

    Args:
        config: Configuration of the trial.
        folder: Folder of its checkpoint, which is loaded if the trial is resumed.
        shared_trainings: Folder of the shared partial trainings.
        baseline: Configuration whose epochs are the unit of time.
        equal: `time` for equal time, or `epochs` for the same number of epochs.
        limits: Limits of the search.
        precision: Precision of the `Runtime`.
        compile: Compilation mode of the `Runtime`.
        test: Score the test split after the last epoch, as `test_NAME` for each of the task's metrics.
        data: Result of `Task.share_data` if the data come from the storage.
        profile: Measure the costs before training. Needed for limits and for equal time.
    """
    return {
        "code": {**config.code(), **baseline.code()},
        "trial": config.to_json(),
        "folder": str(folder),
        "shared_trainings": str(shared_trainings),
        "baseline": baseline.to_json(),
        "equal": equal,
        "limits": dict(vars(limits)),
        "runtime": {"precision": precision, "compile": compile},
        "test": test,
        "data": data,
        "profile": profile,
    }


class TrialActor(tune.Trainable):
    """Trains an assignment of `build_assignment`, one epoch per step."""

    def setup(self, config: dict[str, Any]) -> None:
        gc.freeze()  # Imported objects stay. Each full collection would otherwise scan them.
        self.work: Iterator[Report] = iter(())
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        del self.work  # This frees the last trial's memory.
        self.work = self.reports(new_config)
        return True

    def reports(self, config: dict[str, Any]) -> Iterator[Report]:
        resources = self.trial_resources.required_resources
        torch.set_num_threads(max(1, int(resources.get("CPU", 1))))
        gpus = resources.get("GPU", 0)
        try:
            runtime = Runtime(device=device_for(gpus), memory_fraction=min(1, gpus) or 1, **config["runtime"])
            yield from train_trial(config, runtime)
        except Exception as error:
            yield classify_error(error, Storage(config["folder"]))

    def step(self) -> dict[str, Any]:
        report = next(self.work)
        return {REPORT: report, NODE: ray.get_runtime_context().get_node_id(), "done": report.is_last}


def train_trial(config: Mapping[str, Any], runtime: Runtime) -> Iterator[Report]:
    """Train an assignment of `build_assignment`, from where an earlier process of the same trial stopped.

    Only the first of several workers writes files.

    Yields:
        A report for each epoch. The last one says how the trial ended.
    """
    receive(config["code"])
    trial, folder = TrialConfig.from_json(config["trial"]).load(), Storage(config["folder"])
    shared_trainings = Storage(config["shared_trainings"])
    history: list[Metrics] = []
    profile: dict[str, float] = {}
    device = device_name(runtime.device)
    violations: dict[str, float] = {}
    shared.use(config["data"])
    try:
        content = checkpoint.read(folder, runtime.device) if folder.exists(CHECKPOINT_FILE) else None
        if content is not None and TrialConfig.from_json(content["config"]) != trial:
            # It belongs to a trial that the study has lost: the driver died before the study was copied.
            content = None
        if content is not None:
            history, profile = content["history"], content["profile"]
        elif config["profile"]:
            baseline = TrialConfig.from_json(config["baseline"])
            profile = to_json(measure(trial, baseline, runtime))
            if runtime.workers > 1:  # all workers must agree on when the training ends
                values = torch.tensor(list(profile.values()), dtype=torch.float64, device=runtime.device)
                profile = dict(zip(profile, (runtime.total(values) / runtime.workers).tolist(), strict=True))
                profile["time_ratio_counted"] = float(profile["time_ratio_counted"] > 0)
        limits = Limits(**config["limits"])
        violations = limits.violations(profile)
        if excess := limits.excess(profile):
            yield Report(infeasible=excess, violations=violations, profile=profile, device=device)
            return
        equal = (profile["time_ratio"], profile["validation"]) if config["equal"] == "time" else (1.0, 0.0)
        if history and _spent(history, trial):
            yield Report(
                history=history, profile=profile, device=device, violations=violations, finished=True
            )
            return
        task = open_task(trial, runtime)
        course = plan_course(task, *equal)
        least = LEAST_CONFIRMED if config["test"] else LEAST_EPOCHS
        if course.epochs < least:
            yield Report(
                infeasible=_too_slow(course, profile["time_ratio"]),
                violations={**violations, "steps": least / course.epochs - 1},
                profile=profile,
                device=device,
            )
            return
        # A resumed trial loads its checkpoint. Its initial weights may no longer exist.
        state = (
            shared_training.start_from_shared(task, shared_trainings)
            if content is None
            else start(task, task.model())
        )
        if content is not None:
            checkpoint.restore(state, content)
            del content
        with EpochProgress(folder if runtime.rank == 0 else None) as tell:
            for metrics in fit(task, state, *equal, tell):
                history = [*history, {**metrics, "time": time.time()}]
                if _spent(history, trial):
                    evaluator = state.validated
                    if config["test"]:
                        evaluator = task.evaluator("test")
                        scores = evaluate(task, state.scored, "test", evaluator)
                        history[-1] |= {f"test_{name}": float(value) for name, value in scores.items()}
                    answers = None if evaluator is None else evaluator.answers(runtime)
                    if config["test"] and runtime.rank == 0:
                        save_examples(task, state.scored, folder)
                    if answers is not None and runtime.rank == 0:
                        answers.save(folder)  # Before the checkpoint, which marks the trial as complete.
                if runtime.rank == 0:
                    # Before the checkpoint, after which the shared partial training would not be stored any
                    # more.
                    shared_training.store_state(task, state, shared_trainings, history)
                    checkpoint.save(folder, trial, state, history, profile, finished=_spent(history, trial))
                yield Report(
                    history=history,
                    profile=profile,
                    device=device,
                    violations=violations,
                    finished=_spent(history, trial),
                )
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = f"out of memory: {_line(error)}"
    except Diverged as error:
        reason = str(error)
    else:
        return
    empty_cache(runtime.device)
    yield Report(history=history, profile=profile, device=device, violations=violations, infeasible=reason)


def _spent(history: list[Metrics], trial: TrialConfig) -> bool:
    return history[-1]["resource"] >= trial.training.epochs


def _too_slow(course: Course, time_ratio: float) -> str:
    suffix = " after the shared partial training" if course.shared_training else ""
    return (
        f"too slow for this budget: {course.total - course.shared_training} of the {course.epoch} steps "
        f"of an epoch fit into it{suffix}, at {time_ratio:.2g} times the baseline's time; give more --epochs"
    )


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
