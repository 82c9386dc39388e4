"""The contract of tasks, for this one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automl.task import Task, open_task
from automl.tasks.sequence_classification import SequenceData
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining
from tests.helpers.automl_cases import HERE
from tests.helpers.task_contract import TaskTestCase


class TestSequences(TaskTestCase):
    """Sequences of one length."""

    shortest = 12

    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        arrays = {}
        for part, count in (("train", 60), ("test", 20)):
            y = np.arange(count) % 3
            x = draw.normal(size=(count, 2, 12)).astype(np.float32) + y[:, None, None]
            lengths = draw.integers(self.shortest, 13, count)
            arrays |= {f"x_{part}": x, f"y_{part}": y, f"lengths_{part}": lengths}
        self.path = tmp_path / "made.npz"
        np.savez(self.path, **arrays)

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="sequence-classification",
            data=SequenceData(path=str(self.path)),
            model=Model(backbone="lstm", options={"hidden": 8, "layers": 1}),
            training=ClassificationTraining(epochs=2, batch_size=8),
        )
        return open_task(config, runtime)


class TestPaddedSequences(TestSequences):
    shortest = 5
