"""The contract of tasks, for this one."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from automl.task import Split, Task, open_task
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.task import CodeRetrieval
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.code_corpus import write_corpus
from tests.helpers.task_contract import TaskTestCase


class TestCode(TaskTestCase):
    shared = False

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = write_corpus(tmp_path / "code")

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="code-retrieval",
            data=CodeData(path=str(self.path), vocabulary=200, query_length=12, code_length=40),
            model=CodeModel(options={"hidden": 16, "heads": 2, "intermediate": 32}, shared=self.shared),
            training=RetrievalTraining(epochs=2, batch_size=32),
        )
        return open_task(config, runtime)

    def indices(self, task: Task, split: Split) -> list[int]:
        return [int(number) for part in task.parts(split) for number in part.index]

    def exact(self, model: nn.Module) -> nn.Module:
        return model.double()  # vectors of an untrained encoder are nearly equal, and so are their scores

    def listed(self, task: Task, split: Split) -> int:
        assert isinstance(task, CodeRetrieval)
        return len(task.texts.rows(split))


class TestSharedEncoder(TestCode):
    shared = True
