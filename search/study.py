"""The Optuna study of a search: one SQLite file in its folder, the durable record of what was tried."""

from pathlib import Path

import optuna
from optuna.study import StudyDirection

FILE = "study.db"


def create_study(folder: Path, *, name: str, direction: StudyDirection, seed: int) -> optuna.Study:
    """A new study called `name` in `folder`, sampled by TPE.

    Several trials run at once, so pending ones count as if they had been bad: the sampler does not
    propose one place twice while it waits.
    """
    return optuna.create_study(
        study_name=name,
        storage=f"sqlite:///{folder / FILE}",
        direction=direction,
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    )
