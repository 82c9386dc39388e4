import math
import pickle
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.training import checkpoint
from automl.training.loop import Diverged, evaluate, fit, plan_course, rate_at, start
from automl.training.lr_find import find_learning_rate, plot
from search.class_metrics import CLASSIFICATION
from search.record import Metrics
from tests.helpers.automl_cases import CPU, HERE, Regression, opened, timeless

FEW = {"subset": 0.1}  # three steps an epoch

# Cases with every kind of state: momentum, mixup's draws, the power iteration of ssa.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"data": FEW, "training": {"epochs": 2}},
    "attention": {
        "data": FEW,
        "model": {"placement": {"stage1.block2.branch": Spec("ssa-sym"), "stage2.block1": Spec("multihead")}},
        "training": {"epochs": 2, "optimizer": "sgd", "mixup": 0.4, "schedule": "flat-cosine"},
    },
}
CASES["all that is drawn"] = {
    "data": FEW,
    "training": {
        **{"epochs": 2, "mixup": 0.2, "cutmix": 1.0, "policy": "trivial", "erasing": 0.25},
        **{"clip": 1.0, "average": 0.9, "schedule": "warmup-cosine"},
    },
}
Weights = dict[str, Tensor]


def run(task: Task) -> tuple[Weights, list[Metrics]]:
    state = start(task)
    history = list(fit(task, state))
    return state.model.state_dict(), timeless(history)


def are_equal(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Task, Weights, list[Metrics]]:
    task = opened(**CASES[request.param])
    return task, *run(task)


def test_each_epoch_yields_one_record(case: tuple[Task, Weights, list[Metrics]]) -> None:
    task, weights, history = case
    sites = list(task.config.model.placement)
    gates = {f"gate.{site}" for site in sites}
    own = {"epoch", "resource", "steps", "train_loss", "train_accuracy", "loss", "learning_rate"}
    own |= {metric.name for metric in CLASSIFICATION}
    assert [record["epoch"] for record in history] == [1, 2]
    for record in history:
        assert record.keys() == own | gates
        assert record["resource"] == record["epoch"]
        assert 0 <= record["accuracy"] <= 1
        assert 0 <= record["train_accuracy"] <= 1
    learned = [weight.item() for name, weight in weights.items() if name.endswith("site_attention.gamma")]
    assert [history[-1][f"gate.{site}"] for site in sites] == pytest.approx(learned)
    assert all(learned), "every gate must have moved for the comparison"


def test_same_seed_gives_same_weights(case: tuple[Task, Weights, list[Metrics]]) -> None:
    task, weights, history = case
    torch.manual_seed(4711)  # The earlier state of the generator must not matter.
    other_weights, other_history = run(open_task(task.config, HERE))
    assert other_history == history
    assert are_equal(other_weights, weights)


def test_each_seed_and_epoch_has_its_own_weights_and_order() -> None:
    task, other = opened(), opened(seed=1)
    assert not are_equal(task.model().state_dict(), other.model().state_dict())
    task = opened()
    labels = [torch.cat([batch[1] for batch in task.batches(epoch)]) for epoch in (0, 1)]
    assert not torch.equal(*labels)
    # The incomplete last batch is dropped, so that every step has a full batch.
    assert len(labels[0]) == task.steps() * task.config.training.batch_size


@pytest.mark.parametrize("validations", [1, 2])
def test_neither_resuming_nor_validations_within_an_epoch_change_anything(
    case: tuple[Task, Weights, list[Metrics]], validations: int, tmp_path: Path
) -> None:
    task, weights, history = case
    task = open_task(task.config, replace(HERE, validations=validations))
    state = start(task)
    metrics = next(fit(task, state))
    folder = Storage(tmp_path)
    checkpoint.save(folder, task.config, state, [metrics])
    torch.manual_seed(4711)
    resumed = start(task)
    checkpoint.restore(resumed, checkpoint.read(folder, CPU))
    rest = list(fit(task, resumed))
    assert timeless([metrics, *rest])[validations - 1 :: validations] == history
    assert are_equal(resumed.model.state_dict(), weights)
    assert list(fit(task, resumed)) == []  # A finished training yields nothing.


@pytest.mark.parametrize(("accumulate", "validations"), [(1, 1), (2, 1), (1, 3)])
def test_an_epoch_is_resumed_at_its_exact_step(
    accumulate: int, validations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PERIOD", 0.0)
    monkeypatch.setattr(checkpoint, "FIRST", 1)
    training = {"epochs": 2, "mixup": 0.4, "average": 0.9, "accumulate": accumulate}
    task = opened(training=training, model={"placement": {"stage2.block1": Spec("ssa")}})
    task.runtime = replace(HERE, validations=validations)
    whole = start(task)
    kept: dict[int, dict[str, Any]] = {}

    def write(content: dict[str, Any]) -> None:
        steps = content["epoch"] * task.steps() + len(content["unfinished"]["values"])
        kept[steps] = pickle.loads(pickle.dumps(content))

    records: list[Metrics] = []
    with closing(checkpoint.Keeper(HERE, whole, write)) as keep:
        for metrics in fit(task, whole, keep=keep):
            keep.wait()
            records.append(metrics)
    steps = [accumulate, task.steps() + accumulate]
    assert kept.keys() >= set(steps)
    for number in (steps[0], max(kept)):
        torch.manual_seed(4711)
        resumed = start(task)
        checkpoint.restore(resumed, kept[number])
        rest = list(fit(task, resumed))
        assert timeless(rest) == timeless(records[-len(rest) :])
        assert rest[0]["seconds"] > kept[number]["unfinished"]["spent"][0] > 0
        assert are_equal(resumed.model.state_dict(), whole.model.state_dict())


def test_a_checkpoint_is_kept_once_when_a_node_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "NOTICE", 0.0)
    monkeypatch.setattr(checkpoint, "FIRST", 1)
    monkeypatch.setattr(Runtime, "total", lambda self, values: values)
    for runtime in (HERE, replace(HERE, workers=2)):
        asked, written = iter([False, False, True]), list[dict[str, Any]]()
        task = opened()
        state = start(task)
        with closing(checkpoint.Keeper(runtime, state, written.append, partial(next, asked))) as keep:
            list(fit(task, state, keep=keep))
        (content,) = written
        assert len(content["unfinished"]["values"]) == 3


def test_a_leaving_node_waits_for_an_earlier_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTICE", "PERIOD"):
        monkeypatch.setattr(checkpoint, name, 0.0)
    monkeypatch.setattr(checkpoint, "FIRST", 1)
    asked, written, go_on = iter([False, True]), list[int](), Event()

    def write(content: dict[str, Any]) -> None:
        go_on.wait(10)
        written.append(len(content["unfinished"]["values"]))

    def leaving() -> bool:
        if is_leaving := next(asked):
            go_on.set()
        return is_leaving

    task = opened()
    state = start(task)
    with closing(checkpoint.Keeper(HERE, state, write, leaving)) as keep:
        list(fit(task, state, keep=keep))
    assert written[:2] == [1, 2]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_changes_neither_initial_weights_nor_data(name: str) -> None:
    plain = opened(training={"mixup": 0.2})
    attended = opened(model={"placement": {"stage1.block2.branch": Spec(name)}}, training={"mixup": 0.2})
    shared_training, weights = plain.model().state_dict(), attended.model().state_dict()
    assert len(weights) > len(shared_training)
    assert are_equal({key: weights[key] for key in shared_training}, shared_training)
    for batch, expected in zip(islice(attended.batches(1), 2), islice(plain.batches(1), 2), strict=True):
        for tensor, expected_tensor in zip(batch, expected, strict=True):
            assert torch.equal(tensor, expected_tensor)


def test_each_epoch_trains_on_its_own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a pause, and in the last epoch, which may be partial."""
    task, asked = Regression(epochs=4), list[int]()
    original = task.batches

    def batches(epoch: int) -> Any:
        asked.append(epoch)
        return original(epoch)

    monkeypatch.setattr(task, "batches", batches)
    state = start(task)
    for _ in range(2):
        next(fit(task, state, time_ratio=1.1))
    assert len(list(fit(task, state, time_ratio=1.1))) == 2
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_loss_that_is_not_finite_raises(optimizer: str) -> None:
    task = opened(training={"learning_rate": 1e30, "optimizer": optimizer})
    state = start(task)
    with pytest.raises(Diverged, match="epoch 1"):
        list(fit(task, state))
    assert state.epoch == 0


def test_values_that_are_not_finite_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Regression(epochs=1)
    monkeypatch.setattr(task, "evaluate", lambda *_: {"error": torch.tensor(float("nan"))})
    with pytest.raises(Diverged, match="error became nan in epoch 1"):
        list(fit(task, start(task)))
    # The training loss was computed before the step, and the accuracy of a broken model is finite.
    task = opened(training={"learning_rate": 1e30, "batch_size": 229})
    with pytest.raises(Diverged, match="the validation loss became nan in epoch 1"):
        list(fit(task, start(task)))


@pytest.mark.parametrize("schedule", ["one-cycle", "flat-cosine"])
def test_a_task_without_images_trains(schedule: str) -> None:
    task = Regression(epochs=20, learning_rate=0.05, schedule=schedule)
    history = list(fit(task, start(task)))
    assert [record["epoch"] for record in history] == list(range(1, 21))
    own = {"epoch", "resource", "steps", "train_loss", "error", "learning_rate", "seconds"}
    assert history[0].keys() == own | {"processor_seconds"}
    assert history[-1]["error"] < history[0]["error"] / 4
    assert 0 < history[-1]["learning_rate"] < 1e-3 * 0.05
    # Training uses training mode. Evaluation uses neither it nor gradients.
    epoch = [("loss", True)] * task.steps() + [("evaluate", False)]
    assert task.modes == epoch * 20


# Equal time: with ten steps per epoch, time ratios give partial epochs.


@pytest.mark.parametrize("schedule", ["one-cycle", "flat-cosine"])
@pytest.mark.parametrize(
    ("time_ratio", "epochs", "steps"),
    [(1.0, 6, 60), (2.0, 6, 30), (0.5, 6, 120), (1.3, 6, 46), (0.97, 6, 62), (7.0, 1, 1), (1e6, 1, 1)],
)
def test_slower_steps_are_fewer(time_ratio: float, epochs: int, steps: int, schedule: str) -> None:
    task = Regression(epochs=epochs, schedule=schedule)
    state = start(task)
    history = list(fit(task, state, time_ratio))
    assert plan_course(task, time_ratio).total == steps
    assert task.modes.count(("loss", True)) == steps
    assert [record["epoch"] for record in history] == list(range(1, -(-steps // 10) + 1))
    resources = [record["resource"] for record in history]
    assert resources[-1] == epochs, "exactly"
    for i, resource in enumerate(resources[:-1], start=1):
        assert resource == pytest.approx(i * 10 / steps * epochs)
    # The schedule is compressed into these steps.
    assert history[-1]["learning_rate"] == rate_at(task, steps - 1, plan_course(task, time_ratio))
    if steps > 20:
        assert history[-1]["learning_rate"] < 0.05 * task.config.training.learning_rate
    assert list(fit(task, state, time_ratio)) == [], "a finished training yields nothing"


@pytest.mark.parametrize(
    ("accumulate", "time_ratio", "steps"),
    [
        *((1, 1.0, [4, 7, 10, 14, 17, 20]), (1, 0.7, [4, 7, 10, 14, 17, 20, 24, 27, 29])),
        (3, 1.6, [6, 9, 10, 12]),  # of four steps of the optimiser, the last one with a single batch
    ],
)
def test_an_epoch_is_validated_after_equal_parts(
    accumulate: int, time_ratio: float, steps: list[int], tmp_path: Path
) -> None:
    """A training that is killed after any of the validations continues exactly."""
    task = Regression(epochs=2, accumulate=accumulate)
    task.runtime = replace(HERE, validations=3)
    whole, folder = start(task), Storage(tmp_path)
    history = timeless(list(fit(task, whole, time_ratio)))
    assert [record["steps"] for record in history] == steps
    assert [record["epoch"] for record in history] == pytest.approx([(i + 1) / 3 for i in range(len(steps))])
    assert [record["resource"] for record in history] == pytest.approx([2 * n / steps[-1] for n in steps])
    assert all(is_training == (what == "loss") for what, is_training in task.modes)
    for stopped in range(1, len(steps)):
        first = start(task)
        records = list(islice(fit(task, first, time_ratio), stopped))
        checkpoint.save(folder, task.config, first, records, {"time_ratio": time_ratio})
        content = checkpoint.read(folder, CPU)
        resumed = start(task)
        checkpoint.restore(resumed, content)
        rest = list(fit(task, resumed, content["profile"]["time_ratio"]))
        assert timeless([*content["history"], *rest]) == history
        assert are_equal(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize(("time_ratio", "steps"), [(1.0, 66), (2.0, 33)])
def test_an_opponent_trains_for_as_many_more_steps(time_ratio: float, steps: int) -> None:
    task = Regression(epochs=6)
    task.config = task.config.change(longer=1.1)
    history = list(fit(task, start(task), time_ratio))
    assert (history[-1]["steps"], history[-1]["resource"]) == (steps, 6)
    assert plan_course(task, time_ratio).total == task.modes.count(("loss", True)) == steps


def test_time_ratio_of_two_gives_the_training_of_half_the_epochs() -> None:
    long, short = Regression(epochs=8, learning_rate=0.05), Regression(epochs=4, learning_rate=0.05)
    slow, plain = start(long), start(short)
    history, expected = timeless(list(fit(long, slow, 2.0))), timeless(list(fit(short, plain)))
    assert [record | {"resource": record["resource"] / 2} for record in history] == expected
    assert history[-1]["steps"] == 40
    assert are_equal(slow.model.state_dict(), plain.model.state_dict())


@pytest.mark.parametrize("time_ratio", [0.5, 0.97, 1.0, 1.3, 1.55, 2.0, 3.1])
@pytest.mark.parametrize("validation", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("count", [1, 5])
def test_partial_epoch_includes_the_time_of_its_validation(
    time_ratio: float, validation: float, count: int
) -> None:
    """In units of its own epoch, a training uses its time up to a step and a validation."""
    task = Regression(epochs=6)
    task.runtime = replace(HERE, validations=count)
    total = plan_course(task, time_ratio, validation).total
    taken = (1 - validation) * total / 10 + validation * -(-total * count // 10) / count
    assert 6 / time_ratio - validation / count - 0.06 <= taken <= 6 / time_ratio + 0.06


def test_records_have_times_and_the_split_is_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Regression(epochs=2)
    history = list(fit(task, start(task)))
    assert [record["steps"] for record in history] == [10, 20]
    assert all(record["processor_seconds"] > 0 for record in history)
    assert all(record["seconds"] > 0 for record in history)
    task, splits = Regression(), []

    def record(model: nn.Module, split: str, evaluator: object) -> dict[str, Tensor]:
        splits.append(split)
        return {"error": torch.rand(())}

    monkeypatch.setattr(task, "evaluate", record)
    model, drawn = task.model(), torch.get_rng_state()
    evaluate(task, model)
    evaluate(task, model, "test")
    assert splits == ["validation", "test"]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_suggestion_lies_where_the_loss_falls_and_is_plotted(tmp_path: Path) -> None:
    test = find_learning_rate(Regression(optimizer="sgd", batch_size=80), lowest=1e-5, highest=1.0, steps=60)
    assert len(test.rates) == len(test.losses)
    assert test.rates == sorted(test.rates)
    assert test.rates[0] == 1e-5
    assert test.rates[0] <= test.suggestion <= test.rates[-1]
    index = min(range(len(test.rates)), key=lambda i: abs(math.log(test.rates[i] / test.suggestion)))
    assert test.losses[index + 1] < test.losses[index]
    assert 5e-3 < test.suggestion < 0.5  # One batch holds all points, so chance does not matter.
    file = tmp_path / "lr_find.png"
    plot(find_learning_rate(Regression(), steps=20), file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_loss_that_diverges_is_cut_or_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    test = find_learning_rate(Regression(optimizer="sgd"), lowest=1e-4, highest=1e6, steps=60)
    assert 10 < len(test.rates) < 50
    assert test.rates[-1] < 1e5
    assert all(math.isfinite(loss) for loss in test.losses)
    assert max(test.losses) <= 4 * test.losses[0] + 1e-6
    assert test.suggestion < 10
    task = Regression()
    task.y *= float("nan")
    with pytest.raises(InputError, match="not finite"):
        find_learning_rate(task)
