"""The contract of tasks, for this one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from automl.task import Task, open_task
from automl.tasks.segmentation import SegmentationData, SegmentationTraining
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.segmentation_cases import SMALL as SEGMENTER
from tests.helpers.segmentation_cases import few_scenes as few_segmented
from tests.helpers.segmentation_cases import write_folder
from tests.helpers.task_contract import TaskTestCase


class TestSegmentation(TaskTestCase):
    @pytest.fixture(autouse=True)
    def few(self) -> Iterator[None]:
        with few_segmented(8, 5):
            yield

    config = TrialConfig(
        task="segmentation",
        data=SegmentationData(size=64),
        model=SEGMENTER,
        training=SegmentationTraining(epochs=2, batch_size=4),
    )

    def make(self, runtime: Any = HERE) -> Task:
        return open_task(self.config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return "convpath" in name  # of blocks that end with a zero-initialised norm


class TestSegmentationFolder(TestSegmentation):
    path: ClassVar[Path]
    # Models and scores do not depend on the source.
    test_models_of_one_seed_are_equal = test_two_workers_have_the_scores_of_one = None
    test_a_step_changes_every_parameter_and_an_epoch_is_scored = None
    test_the_model_takes_the_example_and_every_batch = None

    @pytest.fixture(autouse=True, scope="class")
    def few(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        request.cls.path = write_folder(tmp_path_factory.mktemp("folder") / "scenes", 24)

    def make(self, runtime: Any = HERE) -> Task:
        return open_task(self.config.change(data={"path": str(self.path)}), runtime)
