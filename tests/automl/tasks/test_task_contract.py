"""Every task fulfils the contract, also a user-defined one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import tabular
from automl_cases import HERE, opened
from code_corpus import write_corpus
from detection_cases import SMALL, few_scenes
from segmentation_cases import SMALL as SEGMENTER
from segmentation_cases import few_scenes as few_segmented
from segmentation_cases import write_folder
from task_contract import TaskTestCase

from automl.tasks import Split, Task, open_task
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.task import CodeRetrieval
from automl.tasks.detection import DetectionData, DetectionTraining
from automl.tasks.segmentation import SegmentationData, SegmentationTraining
from automl.tasks.sequence_classification import SequenceData
from automl.tasks.stereo import StereoData, StereoModel, StereoTraining
from automl.tasks.stereo.data import planes
from search.config import Model, TrialConfig
from search.config.classification import ClassificationTraining


class TestImages(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(opened().config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return True  # zero-initialised norms hold back all that is before them


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


class TestTable(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(tabular.draw(optuna.trial.FixedTrial(tabular.draw.baseline)), runtime)  # type: ignore[attr-defined]


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

    def listed(self, task: Task, split: Split) -> int:
        assert isinstance(task, CodeRetrieval)
        return len(task.texts.rows(split))


class TestSharedEncoder(TestCode):
    shared = True


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


class TestSegmentation(TaskTestCase):
    @pytest.fixture(autouse=True)
    def few(self) -> Iterator[None]:
        with few_segmented(8, 5):
            yield

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="segmentation",
            data=SegmentationData(size=64),
            model=SEGMENTER,
            training=SegmentationTraining(epochs=2, batch_size=4),
        )
        return open_task(config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return "convpath" in name  # of blocks that end with a zero-initialised norm


class TestSegmentationFolder(TestSegmentation):
    @pytest.fixture(autouse=True)
    def few(self, tmp_path: Path) -> None:
        self.path = write_folder(tmp_path / "scenes", 24)

    def make(self, runtime: Any = HERE) -> Task:
        return open_task(super().make().config.change(data={"path": str(self.path)}), runtime)
