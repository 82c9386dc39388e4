"""Workers that play the runs of commands."""

from collections.abc import Callable

import pytest
from confirm_cases import FakeWorkers

import automl.trials.session


@pytest.fixture
def at_work(played: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeWorkers], FakeWorkers]:
    """Return a function that puts workers to work instead of Ray's, and returns them."""

    def put(workers: FakeWorkers) -> FakeWorkers:
        monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
        return workers

    return put
