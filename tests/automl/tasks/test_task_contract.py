"""Every task fulfils the contract, also a user-defined one."""

from typing import Any

import optuna
import tabular
from automl_cases import HERE, opened
from task_contract import TaskTestCase

from automl.tasks import Task, open_task


class TestImages(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(opened().config, runtime)

    def may_stand_still(self, name: str) -> bool:
        return True  # zero-initialised norms hold back all that is before them


class TestTable(TaskTestCase):
    def make(self, runtime: Any = HERE) -> Task:
        return open_task(tabular.draw(optuna.trial.FixedTrial(tabular.draw.baseline)), runtime)  # type: ignore[attr-defined]
