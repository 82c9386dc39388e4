"""Train a trial with the user's training function, which runs in a thread and yields what it reports.

The function waits in each report until its caller asks for the next one, so that the caller can write a
checkpoint, or stop it. A function that catches the exception that stops it ends at its next call.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from math import ceil, isfinite
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

import numpy as np
import optuna
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from automl.base.errors import InputError, describe_error
from automl.base.units import pluralize
from automl.config.device import (
    all_generator_states,
    forked_generators,
    make_current,
    restore_all_generators,
    seed_all,
)
from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from automl.tasks.function.models import Placed
from automl.tasks.function.space import TrainingFunction, find_function
from automl.tasks.function.task import insert_placement
from automl.tasks.function.trial import Epochs, Trial
from automl.training import checkpoint
from automl.training.clock import processor_time
from automl.training.loop import Diverged, NotStopped, TooSlow
from automl.trials.job import Job
from backbones import gates
from search.config import TrialConfig
from search.config.sections import OwnTraining
from search.record import Metrics

# Keys of an epoch's record that are no metrics of the function.
RESERVED = ("epoch", "resource", "steps", "time", "seconds", "processor_seconds")
ROUNDING = 0.02  # fraction above the baseline's time that a last whole epoch may take
PATIENCE = 30.0  # time that a stopped function has to return [s]
# Types that `torch.load` reads without running code.
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Stopped(BaseException):
    """The end of a function whose trial has ended. No `except Exception` of the function catches it."""


class RunningTrial(Trial):
    """A trial of a function that runs to its end.

    Args:
        fitting: The number of its own epochs that fit into the baseline's time.
        least: The least number that it trains.
        tests: True if the function reports on its test data.
        content: The checkpoint that it continues from, or None.
        folder: The folder of the trial, if it is on this machine.
    """

    def __init__(
        self,
        config: TrialConfig,
        runtime: Runtime,
        *,
        fitting: float,
        least: float = 0.0,
        tests: bool = False,
        content: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        training = config.training
        assert isinstance(training, OwnTraining), "the task has this type"
        source = optuna.trial.FixedTrial(dict(training.parameters))
        super().__init__(source, seed=config.seed, runtime=runtime, data=config.data.path, folder=folder)
        self.tests = tests
        self.tested: dict[str, float] = {}
        self.per_example: NDArray[np.float64] | None = None
        self._config, self._training, self._content = config, training, content
        self._fitting, self._least, self._total = fitting, least, 0
        self._last = 0 if content is None else content["epoch"]
        self._reports: SimpleQueue[Metrics | None] = SimpleQueue()
        self._may_continue = Semaphore(0)
        self._is_stopped = False
        self._error: BaseException | None = None

    def run(self, function: TrainingFunction) -> Generator[Metrics]:
        """Run the function, and yield the metrics of each epoch that it reports.

        The last one comes when the function has ended. Closing the iterator stops the function at its next
        report.

        Raises:
            Diverged: A metric is not finite, or the function pruned its trial.
            InputError: The function does not use its trial as it must.
            NotStopped: The function continues after it was stopped.
        """
        thread = Thread(target=self._run, args=(function,), daemon=True, name="training function")
        thread.start()
        last = None
        try:
            while (metrics := self._reports.get()) is not None:
                last = metrics if self._last == self._total else None
                if last is None:
                    yield metrics
                    self._may_continue.release()
        finally:
            self._is_stopped = True
            self._may_continue.release()
            thread.join(PATIENCE)
            if thread.is_alive():  # It would train beside the next trial of this process.
                raise NotStopped(
                    f"training function {self._config.model.backbone!r} did not stop within {PATIENCE:.0f} s "
                    f"after trial.report raised optuna.TrialPruned; let that exception pass"
                )
        if self._error is not None:
            raise self._error
        self._check_end()
        assert last is not None
        yield last

    def _check_end(self) -> None:
        name = self._config.model.backbone
        if self._epochs is None:
            raise InputError(f"training function {name!r} ended without trial.epochs")
        if self._last < self._total:
            raise InputError(
                f"training function {name!r} ended after it had reported {self._last} of "
                f"{pluralize(self._total, 'epochs')}; call trial.report after each epoch of trial.epochs"
            )
        if self.tests and not self.tested:
            raise InputError(
                f"training function {name!r} ended without trial.test, which a confirmation needs; call "
                f"trial.test({self._metric}=...) after the last epoch"
            )

    def _run(self, function: TrainingFunction) -> None:
        try:
            make_current(self.device)
            seed_all(self.seed)
            function(self)
        except Stopped:
            pass
        except optuna.TrialPruned as error:
            if not self._is_stopped:
                self._error = Diverged(f"the training function pruned its trial: {error}")
        except Exception as error:
            self._error = self._error or error
        except BaseException as error:  # such as SystemExit, which would end the process of the trial
            self._error = InputError(f"the training function raised {describe_error(error)}")
        self._reports.put(None)

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """End the function if its trial has ended. Keep an error of the block, which it may catch."""
        if self._is_stopped:
            raise Stopped
        try:
            yield
        except Exception as error:
            self._error, self._is_stopped = error, True
            raise

    def _begin_epoch(self, epoch: int) -> None:
        with self._keeping_errors():
            super()._begin_epoch(epoch)

    @property
    def _metric(self) -> str:
        return self._training.reports.name

    def _insert(self, placed: Placed) -> Placed:
        # New modules draw their weights. Whatever the function draws afterwards must not depend on them.
        with forked_generators(self.device):
            return insert_placement(self._config, placed)

    def state(self, **objects: Any) -> None:
        """Name the objects of a checkpoint. Load them if the trial continues."""
        super().state(**objects)
        if self._content is None:
            return
        for name, each in objects.items():
            if name not in self._content["optimizer"]:
                raise InputError(f"the checkpoint has no {name!r}; trial.state must name the same objects")
            each.load_state_dict(self._content["optimizer"][name])

    def _suggest(self, method: str, name: str, *args: Any, **options: Any) -> Any:
        if self._epochs is None and name not in self._training.parameters:
            raise self._other_parameters({*self.parameters, name})
        return super()._suggest(method, name, *args, **options)

    def _other_parameters(self, asked: Collection[str]) -> InputError:
        known = sorted(self._training.parameters)
        return InputError(
            f"the start of training function {self._config.model.backbone!r} asked for "
            f"{', '.join(sorted(asked)) or 'no hyperparameters'}, and before for "
            f"{', '.join(known) or 'none'}; it must depend on the values of hyperparameters with choices "
            f"or whole numbers alone"
        )

    def _begin(self, count: int, *, partial: bool) -> Epochs:
        if set(self.parameters) != set(self._training.parameters):
            raise self._other_parameters(self.parameters)
        if self._content is not None:
            restore_all_generators(self._content["generators"], self.rng)
            self._content = None
        self._start_clocks()
        # Whole epochs of a finalist's opponent are rounded up, so that it has no less time.
        whole = ceil(self._fitting - 1e-9) if self._config.longer > 1 else count_whole(self._fitting)
        epochs = Epochs(self, self._last, self._fitting if partial else whole)
        self._total = len(epochs)
        if epochs.exact < max(self._least, 1e-9):
            raise TooSlow(
                self._fitting,
                self._least if partial else 1.0,
                f"too slow for this budget: {self._fitting:.2g} epochs fit into {self._training.epochs} of "
                f"the baseline's; give more --epochs",
            )
        return epochs

    def _start_clocks(self) -> None:
        self._clock, self._processor_clock = time.perf_counter(), processor_time()

    def report(self, *, epoch: int | None = None, **metrics: Any) -> None:
        """Report the metrics of an epoch, and wait until a checkpoint is written."""
        with self._keeping_errors():
            super().report()
            now = (self._last if self.epoch is None else self.epoch) + 1 if epoch is None else int(epoch)
            if not self._last < now <= self._total:
                raise InputError(
                    f"trial.report must be called once after each epoch, with epochs that rise up to "
                    f"{self._total}; got epoch {now} after {self._last}"
                )
            if now > self.total_epochs and not self._loops_over_batches:
                raise InputError(
                    "trial.epochs(..., partial=True) needs a loop over trial.batches(batches), which ends "
                    "the last epoch early"
                )
            values = self._read(metrics, "trial.report")
        self._last = now
        record = {
            "epoch": now,
            "resource": self._training.epochs * min(1.0, now / self.total_epochs),
            **values,
            **{f"gate.{site}": float(gate) for site, gate in gates(self.module).items()},
            "seconds": time.perf_counter() - self._clock,
        }
        if self.device.type == "cpu":
            record["processor_seconds"] = processor_time() - self._processor_clock
        self._reports.put(record)
        if now < self._total:
            self._may_continue.acquire()
            if self._is_stopped:
                raise optuna.TrialPruned("the trial is stopped")
            self._start_clocks()

    def test(self, *, per_example: Any = None, **metrics: Any) -> None:
        """Keep the metrics of the test data."""
        with self._keeping_errors():
            super().test()
            if not self.tests:
                return
            if self._last < self._total:
                raise InputError(
                    f"trial.test must come after the last epoch; got it after epoch {self._last} of "
                    f"{self._total}"
                )
            self.tested = self._read(metrics, "trial.test")
            if per_example is not None:
                self.per_example = _read_examples(per_example)

    def _read(self, metrics: Mapping[str, Any], call: str) -> dict[str, float]:
        """Return metrics as numbers."""
        if self._metric not in metrics:
            raise InputError(
                f"{call} must report the metric of --metric, {self._metric!r}; got "
                f"{', '.join(map(repr, metrics)) or 'none'}. Rename one of them"
            )
        values = {}
        for name, value in metrics.items():
            if name in RESERVED:
                raise InputError(f"{call} cannot take a metric called {name!r}; rename it")
            try:
                values[name] = float(value.detach() if isinstance(value, Tensor) else value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(f"{call} takes numbers; {name} is {value!r}") from error
            if name == self._metric and self._training.reports.scale == 100 and values[name] > 1:
                raise InputError(
                    f"{call} takes {name} as a fraction from 0 to 1; got {values[name]:g}. Divide it by "
                    f"100, or give --unit with the search"
                )
            if not isfinite(values[name]):
                raise Diverged(f"{call}: {name} became {values[name]} in epoch {self._last + 1}")
        return values

    @property
    def module(self) -> nn.Module:
        """The model whose weights a checkpoint holds: the exported one, or else the placed one."""
        if self._exported is not None:
            return self._exported.model
        assert self._placed is not None
        return self._placed.model

    def content(self, *, finished: bool) -> dict[str, Any]:
        """Return the content of a checkpoint. Raises InputError for a state that a checkpoint cannot hold."""
        states = {}
        if not finished:
            states = {name: _to_plain(each.state_dict(), name) for name, each in self._states.items()}
        return {
            "epoch": self._last,
            "model": self.module.state_dict(),
            "average": {},
            "optimizer": states,
            "scaler": {},
            "generators": {} if finished else all_generator_states(self.rng),
        }


def count_whole(fitting: float) -> int:
    """Return the number of whole epochs, at most 2 % above those that fit into the baseline's time."""
    nearest = round(fitting)
    return nearest if nearest <= fitting * (1 + ROUNDING) else int(fitting)


def _read_examples(per_example: Any) -> NDArray[np.float64]:
    """Return the numbers of the test inputs."""
    if isinstance(per_example, Tensor):
        per_example = per_example.detach().double().cpu()
    values = np.asarray(per_example, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError("per_example of trial.test must be one finite number for each test input")
    return values


def _to_plain(value: Any, name: str) -> Any:
    """Return a state with Python's numbers for NumPy's. Raise InputError if reading it would run code."""
    if type(value) is dict:
        return {_to_plain(key, name): _to_plain(each, name) for key, each in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_to_plain(each, name) for each in value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (OrderedDict, Counter):  # `load_state_dict` may need the type and its attributes.
        for each in (*value, *value.values()):
            _to_plain(each, name)
    elif type(value) not in PLAIN and not isinstance(value, Tensor | torch.Size):
        raise InputError(
            f"the state of {name!r} in trial.state holds a {type(value).__name__}; a checkpoint takes "
            f"tensors, numbers, text, lists and dictionaries"
        )
    return value


def train(job: Job) -> Iterator[list[Metrics]]:
    """Run the training function of a job. Only the first of several workers writes files.

    Yields:
        The metrics of all epochs so far, after each report and its checkpoint.

    Raises:
        TooSlow: Too few epochs fit into the baseline's time.
        Other errors: As `RunningTrial.run`.
    """
    # Without the states of `trial.state` the function starts over.
    content = job.content if job.content is not None and job.content["optimizer"] else None
    history, job.content, runtime = [] if content is None else job.history, None, job.runtime
    assert runtime is not None
    trial = RunningTrial(
        job.config,
        runtime,
        fitting=job.config.training.epochs / job.equal[0] * job.config.longer,
        least=job.least_epochs,
        tests=job.test,
        content=content,
        folder=job.folder.local,
    )
    del content
    with closing(trial.run(find_function(job.config.model.backbone))) as reports:
        for metrics in reports:
            history = [*history, {**metrics, "time": time.time()}]
            finished = job.is_spent(history)
            if finished and job.test:
                history[-1] |= {f"test_{name}": value for name, value in trial.tested.items()}
            if runtime.rank == 0:
                if finished and trial.per_example is not None:
                    Answers(values=trial.per_example).save(job.folder)
                content = trial.content(finished=finished)
                with job.saving():
                    checkpoint.write(job.folder, job.config, content, history, job.profile)
                del content
            yield history
