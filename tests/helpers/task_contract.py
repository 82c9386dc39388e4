"""The contract of every task, as tests.

A new task runs them with one line: `class TestMine(TaskTestCase): ...`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from automl.config.runtime import Runtime
from automl.data import shared
from automl.storage.storage import Storage
from automl.task import Split, Task
from automl.training.loop import evaluate, fit, start
from backbones import Normalisation, call
from backbones.torch_internals import tree_leaves
from search.config import TrialConfig

SPLITS: Sequence[Split] = ("train", "validation", "test")


class TaskTestCase:
    """Contract of `automl.tasks.Task`. `make` opens a new task with a small configuration."""

    make: Callable[..., Task]
    draws_on_its_device = False  # such as a detector, which samples regions

    def test_its_configuration_round_trips(self) -> None:
        config = self.make().config
        assert TrialConfig.from_json(config.to_json()) == config

    def test_batches_are_a_function_of_the_seed_and_the_epoch(self) -> None:
        task, resumed = self.make(), self.make()
        first, other = (leaves(task, epoch) for epoch in (0, 1))
        assert not are_equal(first, other)
        torch.manual_seed(4711)  # The earlier state of a generator must not matter, nor may it change:
        before = torch.get_rng_state()
        assert are_equal(leaves(resumed, 1), other)
        assert torch.equal(torch.get_rng_state(), before), "a resumed epoch skips its first batches"
        assert are_equal(leaves(resumed, 0), first)
        again = type(task)(replace(task.config, seed=task.config.seed + 1), task.runtime)
        assert not are_equal(leaves(again, 0), first)
        runtimes = [Runtime(device=torch.device("cpu"), rank=rank, workers=2) for rank in range(2)]
        assert not are_equal(*(leaves(self.make(runtime=runtime), 0) for runtime in runtimes))

    def test_an_epoch_has_so_many_batches(self) -> None:
        task = self.make()
        assert len(list(task.batches(0))) == task.steps() > 0

    def test_the_model_takes_the_example_and_every_batch(self) -> None:
        task = self.make()
        model = task.model().eval()
        with torch.no_grad():
            returned = call(model, task.example(3))
            is_list = isinstance(returned, list)  # a list with the detections in each input
            leaves = [returned] if is_list else tree_leaves(returned)
            assert {len(leaf) for leaf in leaves if isinstance(leaf, list | torch.Tensor)} == {3}
            for split in SPLITS:
                batches = list(task.parts(split))
                assert torch.cat([batch.index for batch in batches]).tolist() == self.indices(task, split)
                call(model, batches[0].inputs)

    def indices(self, task: Task, split: Split) -> list[int]:
        """Return the indices of all batches of a split, in order."""
        return list(range(task.size(split)))

    def exact(self, model: nn.Module) -> nn.Module:
        """Return the model in a precision in which the order of scores does not depend on the batch."""
        return model

    def test_models_of_one_seed_are_equal(self) -> None:
        first, other = (self.make().model().state_dict() for _ in range(2))
        assert all(torch.equal(first[name], other[name]) for name in first)

    def test_two_workers_have_the_scores_of_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each worker has its own inputs, and their sums are those of one worker."""
        task = self.make()
        model = self.exact(task.model()).eval()
        expected = {name: float(value) for name, value in evaluate(task, model).items()}
        evaluators = []
        for rank in range(2):
            worker = self.make(runtime=Runtime(device=torch.device("cpu"), rank=rank, workers=2))
            evaluator = worker.evaluator("validation")
            with torch.inference_mode(), worker.runtime.autocast():
                for batch in worker.parts("validation"):
                    evaluator.update(call(model, batch.inputs), batch.targets)
            evaluators.append(evaluator)
        for name, value in both(evaluators).items():
            assert float(value) == pytest.approx(expected[name], rel=1e-4, nan_ok=name in task.may_be_nan)

    def test_a_step_changes_every_parameter_and_an_epoch_is_scored(self) -> None:
        task = self.make()
        state = start(task)
        before = {name: value.detach().clone() for name, value in state.model.named_parameters()}
        metrics = next(iter(fit(task, state)))
        still = [n for n, p in state.model.named_parameters() if torch.equal(p, before[n])]
        assert not [name for name in still if not self.may_stand_still(name)]
        assert task.metric.name in metrics
        assert metrics["epoch"] == 1

    def test_a_deployed_model_normalises_as_its_backbone_says(self) -> None:
        task: Any = self.make()
        if not hasattr(task, "normalisation"):
            return
        model, answers = task.model().eval(), []
        for mean in (0.2, 0.5):
            task.normalisation = Normalisation((mean, mean, mean), (0.5, 0.5, 0.5))
            answers.append(task.deployment(model).run(task.model_inputs("test", 2)))
        assert not any((answers[0][name] == answers[1][name]).all() for name in answers[0])

    @pytest.mark.gpu
    def test_a_gpu_learns_the_same(self, gpu: torch.device) -> None:
        losses = []
        for device in (gpu, torch.device("cpu")):
            task = self.make(runtime=Runtime(device=device, precision="fp32"))
            state = start(task)
            assert {parameter.device for parameter in state.model.parameters()} == {device}
            losses.append(next(iter(fit(task, state)))["train_loss"])
        if not self.draws_on_its_device:
            assert losses[0] == pytest.approx(losses[1], rel=0.1)

    def may_stand_still(self, name: str) -> bool:
        """Return True if this parameter may have no gradient in the first epoch."""
        return False

    def test_chance_is_what_guessing_gives(self) -> None:
        chance = self.make().chance("validation")
        assert chance is not None or self.make().metric.standard_error(0.5, 9) is None
        assert chance is None or 0 < chance.value < 1

    def test_the_manifest_lists_every_input(self) -> None:
        task = self.make()
        counts = Counter(row[0] for row in task.manifest(task.config).rows())
        assert counts == {split: self.listed(task, split) for split in SPLITS}

    def test_its_data_come_from_a_storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        task = self.make()
        name = task.shared_name(task.config)
        assert not shared.is_shared(name, SPLITS)
        storage, files = Storage(str(tmp_path / "kept")), None
        if name is not None:
            files = shared.publish(storage, name, task.stored_files(SPLITS), tmp_path)
        monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "another"))
        shared.use(files)
        try:
            assert shared.is_shared(name, SPLITS) == (files is not None)
            again = self.make()
            assert are_equal(leaves(task, 0), leaves(again, 0))
        finally:
            shared.use(None)

    def listed(self, task: Task, split: Split) -> int:
        """Return the number of inputs of a split in its manifest."""
        return task.size(split)


def leaves(task: Task, epoch: int) -> list[torch.Tensor]:
    return [leaf.clone() for batch in task.batches(epoch) for leaf in tree_leaves(batch)]


def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


class Worker:
    """Runtime of one of two workers, each in its own thread. Values that one sends reach both."""

    workers = 2

    def __init__(self, rank: int, sent: list[Any], meet: Barrier) -> None:
        self.rank, self.sent, self.meet = rank, sent, meet

    def total(self, values: torch.Tensor) -> torch.Tensor:
        first, other = self.gather(values)
        return first + other

    def gather(self, value: Any) -> list[Any]:
        self.sent[self.rank] = value
        self.meet.wait()
        values_sent = list(self.sent)
        self.meet.wait()
        return values_sent


def both(evaluators: list[Any], method: str = "compute") -> Any:
    """Return the result of `method` for the second of two workers."""
    sent, meet = [None, None], Barrier(2, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(getattr(evaluator, method), Worker(rank, sent, meet))
            for rank, evaluator in enumerate(evaluators)
        ]
        return [run.result() for run in runs][1]
