"""A training function that runs: its reports, its checkpoints, its end, and its mistakes."""

import copy
import random
import threading
from collections import Counter
from contextlib import closing, suppress

import numpy as np
import optuna
import pytest
import torch
from torch import nn

from attention import Spec
from automl.base.errors import InputError
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.tasks.function import FunctionModel, loop
from automl.tasks.function.loop import RunningTrial
from automl.training import checkpoint
from automl.training.loop import Diverged, NotStopped, TooSlow
from search.config import TrialConfig
from search.config.sections import OwnTraining
from search.metric import Metric
from tests.helpers.automl_cases import CPU, HERE, timeless
from tests.helpers.train_marks import network, train

PARAMETERS = {"width": 4, "lr": 1e-2, "optimizer": "sgd", "momentum": 0.9}
PLACEMENT = {"2": Spec("ssa")}


def own_config(placement=None, parameters=PARAMETERS, **fields):
    return TrialConfig(
        task="function",
        model=FunctionModel(backbone="train.py:train", placement=placement or {}),
        training=OwnTraining(
            epochs=6, batch_size=32, parameters=parameters, reports=Metric(name="accuracy", maximize=True)
        ),
        **fields,
    )


def running(function, *, total=3, tests=False, placement=None, parameters=None):
    trial = RunningTrial(own_config(placement, parameters or {}), HERE, fitting=total, tests=tests)
    return trial, trial.run(function)


def function_of(body, *, before=None):
    """Return a training function that runs `body(trial, epoch)` in each epoch."""

    def function(trial):
        model = trial.place(network(4), torch.zeros(2, 1, 8, 8))
        if before is not None:
            before(trial, model)
        for epoch in trial.epochs(6):
            body(trial, epoch)

    return function


def report(trial, epoch):
    trial.report(accuracy=0.5)


def draw(trial):
    return [
        random.random(),
        np.random.rand(),
        torch.rand(1).item(),
        torch.rand(1, generator=trial.rng).item(),
    ]


def test_each_epoch_has_a_complete_record():
    trial = RunningTrial(own_config(PLACEMENT, seed=1), HERE, fitting=4, tests=True)
    history = list(trial.run(train))
    assert [metrics["epoch"] for metrics in history] == [1, 2, 3, 4]
    assert [metrics["resource"] for metrics in history] == [1.5, 3, 4.5, 6]
    assert all(type(value) in (int, float) for metrics in history for value in metrics.values())
    assert history[-1]["gate.2"] != 0
    assert all(metrics["processor_seconds"] > 0 and metrics["seconds"] > 0 for metrics in history)
    assert trial.per_example.mean() == pytest.approx(trial.tested["accuracy"])
    assert len(trial.per_example) == 64


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_the_gpu_of_a_trial_is_the_current_one_of_its_function(name, gpus):
    current = []
    runtime = Runtime(device=find_device(name))
    trial = RunningTrial(own_config(parameters={}), runtime, fitting=1)

    def train_there(trial):
        current.append((trial.device.index, torch.cuda.current_device()))
        for _ in trial.epochs(6):
            trial.report(accuracy=0.5)

    with suppress(InputError):  # It places no module.
        list(trial.run(train_there))
    assert current == [(int(name[5:] or 0),) * 2]


@pytest.mark.parametrize(("stop", "fitting"), [(1, 4), (2, 3.5), (3, 3.5)])
def test_resumed_training_is_exact(stop, fitting, tmp_path):
    ends = []

    def train_and_draw(trial):
        train(trial)
        ends.append(draw(trial))

    def save(trial, metrics):
        finished = metrics["epoch"] == 4
        checkpoint.write(folder, config, trial.content(finished=finished), [metrics])
        return checkpoint.read(folder, CPU)

    config, folder = own_config(PLACEMENT, seed=3), Storage(tmp_path)
    whole = RunningTrial(config, HERE, fitting=fitting)
    expected = [(metrics, save(whole, metrics)) for metrics in whole.run(train_and_draw)]

    first = RunningTrial(config, HERE, fitting=fitting)
    with closing(first.run(train_and_draw)) as reports:
        for metrics in reports:
            content = save(first, metrics)
            if metrics["epoch"] == stop:
                break
    assert len(ends) == 1, "the function was stopped"
    for spoil in (random.seed, np.random.seed, torch.manual_seed):
        spoil(4711)
    second = RunningTrial(config, HERE, fitting=fitting, content=content)
    rest = [(metrics, save(second, metrics)) for metrics in second.run(train_and_draw)]
    assert timeless(m for m, _ in rest) == timeless(m for m, _ in expected[stop:])
    for (_, content), (_, wanted) in zip(rest, expected[stop:], strict=True):
        assert all(torch.equal(content["model"][name], value) for name, value in wanted["model"].items())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("last", [nn.Linear(128, 4), nn.LazyLinear(4)], ids=["eager", "lazy"])
def test_paired_variants_have_the_same_weights_and_data_order(last):
    starts = {}

    def function(trial):
        model = trial.place(network(4)[:-1].append(copy.deepcopy(last)), torch.zeros(2, 1, 8, 8))
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in trial.epochs(6):
            starts[len(trial._config.model.placement), trial.seed] = weights, draw(trial)
            trial.report(accuracy=0)

    for placement, seed in (({}, 1), (PLACEMENT, 1), ({}, 2)):
        list(RunningTrial(own_config(placement, {}, seed=seed), HERE, fitting=1).run(function))
    (plain, order), (placed, same), (_, other) = starts.values()
    assert order == same != other
    # The inserted module wraps its site, so names of the backbone move.
    values = [value for value in plain.values() if value.ndim > 1]
    assert all(any(torch.equal(value, each) for each in placed.values()) for value in values)


def test_function_runs_with_the_threads_of_its_process():
    threads = []
    _, reports = running(lambda trial: threads.append(torch.get_num_threads()) or function_of(report)(trial))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        list(reports)
    finally:
        torch.set_num_threads(before)
    assert threads == [1]


@pytest.mark.parametrize("catches", [False, True])
def test_stopped_function_gets_trial_pruned_and_ends(catches):
    events = []

    def function(trial):
        trial.place(network(4), torch.zeros(2, 1, 8, 8))
        try:
            for epoch in trial.epochs(6):
                events.append(epoch)
                try:
                    trial.report(accuracy=0.5)
                except Exception as error:
                    events.append(type(error))
                    if not catches:
                        raise
        finally:
            events.append("end")

    _, reports = running(function)
    next(reports)
    reports.close()
    assert events == [0, optuna.TrialPruned, "end"]
    assert not [thread for thread in threading.enumerate() if thread.name == "training function"]


def test_library_loop_that_catches_ends_at_its_next_report():
    events = []

    def function(trial):
        trial.place(network(4), torch.zeros(2, 1, 8, 8))
        for epoch in range(len(trial.epochs(6))):
            events.append(epoch)
            try:
                trial.report(epoch=epoch + 1, accuracy=0.5)
            except Exception:
                continue

    _, reports = running(function, total=6)
    next(reports)
    reports.close()
    assert events == [0, 1]


def test_function_that_does_not_stop_is_an_error(monkeypatch):
    monkeypatch.setattr(loop, "PATIENCE", 0.05)
    may_end = threading.Event()

    def function(trial):
        try:
            function_of(report)(trial)
        finally:
            may_end.wait(10)

    _, reports = running(function)
    next(reports)
    with pytest.raises(NotStopped, match="did not stop within"):
        reports.close()
    may_end.set()


NUMBERS = [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor([0.5], requires_grad=True)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)
def test_numbers_of_every_kind_are_metrics(number):
    examples = torch.full((4,), 0.5, dtype=torch.bfloat16, requires_grad=True)

    def body(trial, epoch):
        trial.report(epoch=np.int64(epoch + 1), accuracy=number)
        if epoch == 2:
            trial.test(accuracy=number, per_example=examples if torch.is_tensor(number) else [0.5] * 4)

    trial, reports = running(function_of(body), tests=True)
    assert [metrics["accuracy"] for metrics in reports] == [0.5] * 3
    assert trial.tested == {"accuracy": 0.5}
    assert trial.per_example.tolist() == [0.5] * 4


class State:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


STATES = {
    "numpy number": (np.float64(0.25), 0.25),
    "nested": ({"a": [np.int64(1), (None, "b")]}, {"a": [1, (None, "b")]}),
    "counter": (Counter({3: 2}), Counter({3: 2})),
    "set": ({1, 2}, {1, 2}),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_builtin_types_are_restored(name, tmp_path):
    value, expected = STATES[name]
    trial, reports = running(function_of(report, before=lambda trial, model: trial.state(own=State(value))))
    next(reports)
    checkpoint.write(Storage(tmp_path), own_config(), trial.content(finished=False), [])
    reports.close()
    assert checkpoint.read(Storage(tmp_path), CPU)["optimizer"]["own"] == {"value": expected}


SCHEDULERS = {
    "CosineAnnealingLR": (3,),
    "MultiStepLR": ([1, 2],),
    "OneCycleLR": (0.1, 5),
    "LambdaLR": (lambda epoch: np.cos(epoch),),
    "ReduceLROnPlateau": (),
    "CyclicLR": (0.01, 0.1),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_states_of_schedulers_are_restored(name, tmp_path):
    objects = {}

    def declare(trial, model):
        objects["optimizer"] = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        objects["scheduler"] = getattr(torch.optim.lr_scheduler, name)(
            objects["optimizer"], *SCHEDULERS[name]
        )
        trial.state(**objects)

    def body(trial, epoch):
        objects["optimizer"].step()
        objects["scheduler"].step(*[0.5] * (name == "ReduceLROnPlateau"))
        trial.report(accuracy=0.5)

    trial, reports = running(function_of(body, before=declare))
    next(reports)
    checkpoint.write(Storage(tmp_path), own_config(), trial.content(finished=False), [])
    reports.close()
    rate = objects["optimizer"].param_groups[0]["lr"]
    content = checkpoint.read(Storage(tmp_path), CPU)
    rates = []

    def note(trial, epoch):
        rates.append(objects["optimizer"].param_groups[0]["lr"])
        body(trial, epoch)

    list(
        RunningTrial(own_config({}, {}), HERE, fitting=3, content=content).run(
            function_of(note, before=declare)
        )
    )
    assert rates[0] == rate
    assert len(rates) == 2


def prune(trial, epoch):
    raise optuna.TrialPruned("loss rises")


def fail(trial, epoch):
    raise KeyError("labels")


def report_twice(trial, epoch):
    trial.report(accuracy=0.5)
    trial.report(accuracy=0.5)


def catching(body):
    def caught(trial, epoch):
        with suppress(Exception):
            body(trial, epoch)

    return caught


def resting(method, *args, **options):
    return lambda trial, epoch: getattr(trial, method)(*args, **options)


def asks(trial, model):
    trial.suggest_float("rate", 0, 1)


# What the function does in each epoch, and the error of its trial.
BAD = {
    "never reports": (lambda trial, epoch: None, InputError, "ended after it had reported 0 of 3 epochs"),
    "reports NaN": (resting("report", accuracy=float("nan")), Diverged, "trial.report: accuracy became nan"),
    "another metric": (resting("report", acuracy=0.5), InputError, "trial.report must report the metric of"),
    "early test": (resting("test", accuracy=0), InputError, "after the last epoch; got it after epoch 0 of"),
    "own error": (fail, KeyError, "labels"),
    "prunes": (prune, Diverged, "the training function pruned its trial: loss rises"),
    "catches errors": (catching(report_twice), InputError, "got epoch 1 after 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistake_in_the_loop_has_one_message(name):
    body, kind, message = BAD[name]
    _, reports = running(function_of(body), tests=name == "early test")
    with pytest.raises(kind, match=message):
        list(reports)
    assert not [thread for thread in threading.enumerate() if thread.name == "training function"]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (function_of(report), {"tests": True}, "without trial.test, which a confirmation needs"),
        (function_of(report, before=asks), {}, "asked for rate, and before for none"),
    ],
)
def test_mistake_of_a_function_has_one_message(function, options, message):
    _, reports = running(function, **options)
    with pytest.raises(InputError, match=message):
        list(reports)


def partial_function(trial):
    trial.place(network(4), torch.zeros(2, 1, 8, 8))
    trial.seen = []
    for _ in trial.epochs(6, partial=True):
        trial.seen.append(len(list(trial.batches(range(10)))))
        trial.report(accuracy=0.5)


@pytest.mark.parametrize(
    ("fitting", "seen"), [(2.0, [10, 10]), (2.34, [10, 10, 3]), (0.6, [6]), (3.001, [10, 10, 10, 1])]
)
def test_partial_epochs_use_up_the_time(fitting, seen):
    trial, reports = running(partial_function, total=fitting)
    history = list(reports)
    assert trial.seen == seen
    assert trial.total_epochs == fitting
    assert history[-1]["resource"] == 6
    assert [each["resource"] for each in history[:-1]] == [
        pytest.approx(6 * epoch / fitting) for epoch in range(1, len(seen))
    ]


@pytest.mark.parametrize("ratio", [1.0, 1.003, 1.02, 1.1, 1.5, 2.7])
def test_whole_epochs_fit_into_the_time_of_the_baseline(ratio):
    for count in range(1, 200):
        whole = loop.count_whole(count / ratio)
        assert whole == count if ratio == 1 else whole <= count
        assert whole * ratio <= count * 1.02
        assert whole > count / ratio - 1


@pytest.mark.parametrize(("longer", "fitting", "epochs"), [(1.0, 3.3, 3), (1.1, 3.3, 4), (1.5, 3.0, 3)])
def test_whole_epochs_of_an_opponent_are_rounded_up(longer, fitting, epochs):
    trial = RunningTrial(own_config(None, {}).change(longer=longer), HERE, fitting=fitting, tests=False)
    assert len(list(trial.run(function_of(report)))) == epochs


def test_a_percentage_instead_of_a_fraction_is_refused():
    accuracy = Metric(name="accuracy", maximize=True, scale=100, unit="%")
    config = own_config({}, {}).change(training={"reports": accuracy})
    trial = RunningTrial(config, HERE, fitting=1)
    with pytest.raises(InputError, match=r"as a fraction from 0 to 1; got 91\.2"):
        list(trial.run(function_of(lambda trial, _: trial.report(accuracy=91.2))))


@pytest.mark.parametrize(("function", "fitting"), [(partial_function, 0.4), (function_of(report), 0.97)])
def test_too_slow_models_are_infeasible(function, fitting):
    trial = RunningTrial(own_config({}, {}), HERE, fitting=fitting, least=0.5)
    with pytest.raises(TooSlow, match="epochs fit into 6 of the baseline's; give more --epochs") as caught:
        list(trial.run(function))
    assert caught.value.violations["steps"] > 0
