"""A search whose study does not fit on the disk."""

import errno
import os
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler

import automl.trials.session
from automl.base.errors import InputError
from automl.config.nouns import Place, Terms
from automl.storage.storage import Storage
from automl.trials.session import Interrupt, Workers
from automl.trials.trial import Trainings
from cluster.connect import ClusterCapacity
from cluster.resources import TrialResources
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler
from search.space import memory_study
from tests.helpers.confirm_cases import PLAN


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk full at FOLDER, about 10 MB needed, "),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk full at FOLDER, about 10 MB needed, "),
        (PermissionError(errno.EACCES, "no", "FOLDER/study.journal"), r"\[Errno 13\] no"),
    ],
    ids=["disk", "quota", "rights"],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_full_disk_is_reported_with_advice(
    error: OSError, message: str, wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*what: object, **more: object) -> None:
        if wrapped:
            raise RuntimeError("Tune's") from error
        raise error

    monkeypatch.setattr(automl.trials.session, "run_trials", fail)
    workers = Workers(
        place=Place(),
        shape=TrialResources(),
        capacity=ClusterCapacity(TrialResources(), most=1, list_nodes=lambda labels: {}),
        interrupt=Interrupt(),
        advice="resume it",
    )
    message = message.replace("FOLDER", str(tmp_path))
    with pytest.raises(
        InputError, match=rf"the study in {tmp_path} cannot be written \({message}.*free disk space, then"
    ):
        workers.run(
            FixedScheduler(memory_study(RandomSampler()), PLAN, []),
            Trainings(location=Storage(str(tmp_path)), baseline=TrialConfig(), terms=Terms()),
            folder=tmp_path,
            callbacks=[],
            summary=str,
        )
