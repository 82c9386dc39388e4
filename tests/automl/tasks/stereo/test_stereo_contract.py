"""The contract of tasks, for this one."""

from typing import Any

import pytest

from automl.task import Task, open_task
from automl.tasks.stereo import StereoData, StereoModel, StereoTraining
from automl.tasks.stereo.data import planes
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.task_contract import TaskTestCase


class TestStereo(TaskTestCase):
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planes, "COUNTS", {"train": 8, "validation": 3, "test": 3})

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="stereo",
            data=StereoData(height=32, width=48),
            model=StereoModel(options={"width": 0.25, "blocks": 1, "pool": 8}),
            training=StereoTraining(epochs=2, batch_size=4),
        )
        return open_task(config, runtime)
