from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from automl_cases import CPU, HERE, Regression, opened, timeless
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from automl.storage.storage import Storage
from automl.tasks import Task, open_task
from automl.training import checkpoint
from automl.training.loop import Diverged, evaluate, fit, plan_course, rate_at, start
from search.class_metrics import CLASSIFICATION
from search.record import Metrics

# Everything that has a state of its own: momentum, mixup's draws, the power iteration of ssa.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"training": {"epochs": 2}},
    "attention": {
        "model": {"placement": {"stage1.block2.branch": Spec("ssa-sym"), "stage2.block1": Spec("multihead")}},
        "training": {"epochs": 2, "optimizer": "sgd", "mixup": 0.4, "schedule": "flat-cosine"},
    },
}
CASES["all that is drawn"] = {
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


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Task, Weights, list[Metrics]]:
    task = opened(**CASES[request.param])
    return task, *run(task)


def test_one_record_an_epoch(case: tuple[Task, Weights, list[Metrics]]) -> None:
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
    assert all(learned), "a gate that has not moved tells nothing"


def test_same_seed_same_weights(case: tuple[Task, Weights, list[Metrics]]) -> None:
    task, weights, history = case
    torch.manual_seed(4711)  # what happened before has no say
    other_weights, other_history = run(open_task(task.config, HERE))
    assert other_history == history
    assert same(other_weights, weights)


def test_another_seed_other_weights() -> None:
    task, other = opened(), opened(seed=1)
    assert not same(task.model().state_dict(), other.model().state_dict())
    assert not torch.equal(next(task.batches(0))[0], next(other.batches(0))[0])


def test_going_on_from_a_checkpoint_changes_nothing(
    case: tuple[Task, Weights, list[Metrics]], tmp_path: Path
) -> None:
    task, weights, history = case
    state = start(task)
    metrics = next(fit(task, state))
    place = Storage(tmp_path)
    checkpoint.save(place, task.config, state, [metrics])
    torch.manual_seed(4711)
    resumed = start(task)
    checkpoint.restore(resumed, checkpoint.read(place, CPU))
    rest = list(fit(task, resumed))
    assert timeless([metrics, *rest]) == history
    assert same(resumed.model.state_dict(), weights)
    assert list(fit(task, resumed)) == []  # a finished training has nothing left to do


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_leaves_shared_training_and_data_as_they_are(name: str) -> None:
    plain = opened(training={"mixup": 0.2})
    attended = opened(model={"placement": {"stage1.block2.branch": Spec(name)}}, training={"mixup": 0.2})
    shared_training, weights = plain.model().state_dict(), attended.model().state_dict()
    assert len(weights) > len(shared_training)
    assert same({key: weights[key] for key in shared_training}, shared_training)
    for one, other in zip(islice(plain.batches(1), 2), islice(attended.batches(1), 2), strict=True):
        for part, its_pair in zip(one, other, strict=True):
            assert torch.equal(part, its_pair)


def test_each_epoch_has_an_order_of_its_own() -> None:
    task = opened()
    labels = [torch.cat([batch[1] for batch in task.batches(epoch)]) for epoch in (0, 1)]
    assert not torch.equal(*labels)
    # The incomplete last batch is left out, so that every step has a full one.
    assert len(labels[0]) == task.steps() * task.config.training.batch_size


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_loss_that_is_not_finite_is_told(optimizer: str) -> None:
    task = opened(training={"learning_rate": 1e30, "optimizer": optimizer})
    state = start(task)
    with pytest.raises(Diverged, match="epoch 1"):
        list(fit(task, state))
    assert state.epoch == 0


def test_a_metric_that_is_not_finite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Regression(epochs=1)
    monkeypatch.setattr(task, "evaluate", lambda *_: {"error": torch.tensor(float("nan"))})
    with pytest.raises(Diverged, match="error became nan in epoch 1"):
        list(fit(task, start(task)))


def test_the_only_step_may_be_the_one_that_diverges() -> None:
    """The training loss was computed before it, and the accuracy of a broken model is a number too."""
    task = opened(training={"learning_rate": 1e30, "batch_size": 229})
    with pytest.raises(Diverged, match="the validation loss became nan in epoch 1"):
        list(fit(task, start(task)))


@pytest.mark.parametrize("schedule", ["one-cycle", "flat-cosine"])
def test_a_task_without_images(schedule: str) -> None:
    task = Regression(epochs=20, learning_rate=0.05, schedule=schedule)
    history = list(fit(task, start(task)))
    assert [record["epoch"] for record in history] == list(range(1, 21))
    own = {"epoch", "resource", "steps", "train_loss", "error", "learning_rate", "seconds"}
    assert history[0].keys() == own | {"processor_seconds"}
    assert history[-1]["error"] < history[0]["error"] / 4
    assert 0 < history[-1]["learning_rate"] < 1e-3 * 0.05
    # Training mode in training; neither it nor gradients in evaluation.
    epoch = [("loss", True)] * task.steps() + [("evaluate", False)]
    assert task.modes == epoch * 20


# Equal time: ten steps an epoch, so that time ratios cut epochs in part.


@pytest.mark.parametrize("schedule", ["one-cycle", "flat-cosine"])
@pytest.mark.parametrize(
    ("time_ratio", "epochs", "steps"),
    [(1.0, 6, 60), (2.0, 6, 30), (0.5, 6, 120), (1.3, 6, 46), (0.97, 6, 62), (7.0, 1, 1), (1e6, 1, 1)],
)
def test_of_slower_steps_there_are_fewer(time_ratio: float, epochs: int, steps: int, schedule: str) -> None:
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
    # The whole schedule, squeezed into these steps.
    assert history[-1]["learning_rate"] == rate_at(task, steps - 1, plan_course(task, time_ratio))
    if steps > 20:
        assert history[-1]["learning_rate"] < 0.05 * task.config.training.learning_rate
    assert list(fit(task, state, time_ratio)) == [], "nothing is left to do"


def test_at_twice_the_pace_it_is_the_training_of_half_the_epochs() -> None:
    long, short = Regression(epochs=8, learning_rate=0.05), Regression(epochs=4, learning_rate=0.05)
    slow, plain = start(long), start(short)
    history, expected = timeless(list(fit(long, slow, 2.0))), timeless(list(fit(short, plain)))
    assert [record | {"resource": record["resource"] / 2} for record in history] == expected
    assert history[-1]["steps"] == 40
    assert same(slow.model.state_dict(), plain.model.state_dict())


@pytest.mark.parametrize("time_ratio", [0.5, 0.97, 1.0, 1.3, 1.55, 2.0, 3.1])
@pytest.mark.parametrize("validation", [0.0, 0.1, 0.4])
def test_the_validation_of_an_epoch_in_part_takes_its_time_too(time_ratio: float, validation: float) -> None:
    """In units of its own epoch, a training takes the time that it has, to a step and a validation."""
    task = Regression(epochs=6)
    total = plan_course(task, time_ratio, validation).total
    taken = (1 - validation) * total / 10 + validation * -(-total // 10)
    assert 6 / time_ratio - validation - 0.06 <= taken <= 6 / time_ratio + 0.06


def test_it_tells_both_times_and_the_steps_so_far() -> None:
    task = Regression(epochs=2)
    history = list(fit(task, start(task)))
    assert [record["steps"] for record in history] == [10, 20]
    assert all(record["processor_seconds"] > 0 for record in history)
    assert all(record["seconds"] > 0 for record in history)


@pytest.mark.parametrize("time_ratio", [1.3, 0.7])
@pytest.mark.parametrize("stopped", [1, 2])
def test_going_on_at_a_pace_changes_nothing(time_ratio: float, stopped: int, tmp_path: Path) -> None:
    task = opened(training={"epochs": 3, "mixup": 0.4})
    whole = start(task)
    history = timeless(list(fit(task, whole, time_ratio)))
    assert plan_course(task, time_ratio).total % task.steps() != 0, "the last epoch is one in part"
    first = start(task)
    begun = list(islice(fit(task, first, time_ratio), stopped))
    place = Storage(tmp_path)
    checkpoint.save(place, task.config, first, begun, {"time_ratio": time_ratio})
    torch.manual_seed(4711)
    content = checkpoint.read(place, CPU)
    resumed = start(task)
    checkpoint.restore(resumed, content)
    rest = list(fit(task, resumed, content["profile"]["time_ratio"]))
    assert timeless([*content["history"], *rest]) == history
    assert same(resumed.model.state_dict(), whole.model.state_dict())


def test_evaluate_asks_for_the_split_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = Regression(), []

    def note(model: nn.Module, split: str, evaluator: object) -> dict[str, Tensor]:
        asked.append(split)
        return {"error": torch.zeros(())}

    monkeypatch.setattr(task, "evaluate", note)
    evaluate(task, task.model())
    evaluate(task, task.model(), "test")
    assert asked == ["validation", "test"]
