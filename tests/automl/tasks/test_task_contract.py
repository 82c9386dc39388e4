"""Every task fulfils the contract, also a user-defined one."""

from pathlib import Path
from typing import Any

import optuna
import pytest

from automl.task import Task, open_task
from search.config import TASKS
from tests.helpers import tabular
from tests.helpers.automl_cases import HERE, opened
from tests.helpers.task_contract import TaskTestCase


class TestImages(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(opened().config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return True  # zero-initialised norms hold back all that is before them


class TestTable(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(tabular.draw(optuna.trial.FixedTrial(tabular.draw.baseline)), runtime)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name, spec in TASKS.items() if spec.task and not spec.loop])
def test_each_built_in_task_fulfils_it(name: str) -> None:
    """The tests of each task that uses the common loop have the contract, in the folder of its name."""
    here = Path(__file__)
    files = here.parent.joinpath(name.replace("-", "_")).glob("test_*.py")
    contents = [file.read_text() for file in (files if name != opened().config.task else [here])]
    assert any("(TaskTestCase):" in content for content in contents)
