"""The contract of tasks, for this one."""

from collections.abc import Iterator
from typing import Any

import pytest

from automl.task import Task, open_task
from automl.tasks.detection import DetectionData, DetectionTraining
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.detection_cases import SMALL, few_scenes
from tests.helpers.task_contract import TaskTestCase


class TestDetection(TaskTestCase):
    draws_on_its_device = True

    @pytest.fixture(autouse=True)
    def few(self) -> Iterator[None]:
        with few_scenes(8, 5):
            yield

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="detection",
            data=DetectionData(),
            model=SMALL,
            training=DetectionTraining(epochs=2, batch_size=4, smallest=0.8, largest=1.3),
        )
        return open_task(config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return "convpath" in name  # of blocks that end with a zero-initialised norm
