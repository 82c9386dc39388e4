"""What every task promises, as tests that a new one runs with a line: `class TestMine(TaskTestCase): ...`."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from automl.config.runtime import Runtime
from automl.tasks import Task
from automl.training.loop import evaluate, fit, start
from backbones import call
from search.config import TrialConfig

SPLITS = ("train", "validation", "test")


class TaskTestCase:
    """The contract of `automl.tasks.Task`. `make` opens the task of a small configuration, anew each time."""

    make: Callable[..., Task]

    def test_its_configuration_round_trips(self) -> None:
        config = self.make().config
        assert TrialConfig.from_json(config.to_json()) == config

    def test_batches_are_a_function_of_the_seed_and_the_epoch(self) -> None:
        task, again = self.make(), self.make()
        first, second, other = (leaves(one, epoch) for one, epoch in ((task, 0), (again, 0), (task, 1)))
        assert len(first) == len(second)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, other, strict=True))

    def test_an_epoch_has_so_many_batches_of_one_shape(self) -> None:
        task = self.make()
        batches = list(task.batches(0))
        assert len(batches) == task.steps() > 0
        assert len({tuple(leaf.shape for leaf in tree_leaves(batch)) for batch in batches}) == 1

    def test_the_model_takes_the_example_and_the_parts(self) -> None:
        task = self.make()
        model = task.model().eval()
        with torch.no_grad():
            assert len(tree_leaves(call(model, task.example(3)))[0]) == 3
            for split in SPLITS:
                parts = list(task.parts(split))
                assert torch.cat([part.index for part in parts]).tolist() == list(range(task.size(split)))
                call(model, parts[0].inputs)

    def test_models_of_one_seed_are_equal(self) -> None:
        one, other = (self.make().model().state_dict() for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)

    def test_two_workers_score_what_one_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each has its part; what they add up and gather is the whole."""
        task = self.make()
        model = task.model().eval()
        whole = {name: float(value) for name, value in evaluate(task, model).items()}
        evaluators = []
        for rank in range(2):
            worker = self.make(runtime=Runtime(device=torch.device("cpu"), rank=rank, workers=2))
            evaluator = worker.evaluator("validation")
            with torch.inference_mode(), worker.runtime.autocast():
                for part in worker.parts("validation"):
                    evaluator.update(call(model, part.inputs), part.targets)
            evaluators.append(evaluator)
        for name, value in both(evaluators).items():
            assert float(value) == pytest.approx(whole[name], rel=1e-4)

    def test_a_step_changes_every_parameter_and_an_epoch_is_scored(self) -> None:
        task = self.make()
        state = start(task)
        before = {name: value.detach().clone() for name, value in state.model.named_parameters()}
        metrics = next(iter(fit(task, state)))
        still = [n for n, p in state.model.named_parameters() if torch.equal(p, before[n])]
        assert not [name for name in still if not self.may_stand_still(name)]
        assert task.metric.name in metrics
        assert metrics["epoch"] == 1

    def may_stand_still(self, name: str) -> bool:
        """Whether this parameter may be without a gradient in the first epoch."""
        return False

    def test_chance_is_what_guessing_gives(self) -> None:
        chance = self.make().chance("validation")
        assert (chance is not None) == (self.make().metric.noise == "binomial")
        assert chance is None or 0 < chance.value < 1

    def test_the_manifest_lists_every_input(self) -> None:
        task = self.make()
        counts = Counter(row[0] for row in task.manifest(task.config).rows())
        assert counts == {split: task.size(split) for split in SPLITS}


def leaves(task: Task, epoch: int) -> list[torch.Tensor]:
    return [leaf.clone() for batch in task.batches(epoch) for leaf in tree_leaves(batch)]


class Pair:
    """A runtime of two workers in one process: the second one has what the first one has sent, in turn."""

    workers = 2

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.second = False

    def total(self, values: torch.Tensor) -> torch.Tensor:
        if self.second:
            return values + self.sent.pop(0)
        self.sent.append(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        if self.second:
            return [self.sent.pop(0), value]
        self.sent.append(value)
        return [value]


def both(evaluators: list[Any], method: str = "compute") -> Any:
    """What `method` returns to the second of two workers."""
    pair = Pair()
    getattr(evaluators[0], method)(pair)
    pair.second = True
    return getattr(evaluators[1], method)(pair)
