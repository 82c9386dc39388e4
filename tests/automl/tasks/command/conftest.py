"""Workers that play the runs of commands."""

from collections.abc import Callable

import numpy as np
import pytest
from confirm_cases import FakeCommands, FakeWorkers

import automl.trials.session
from automl.confirm.verdict import ConfirmResult
from automl.tasks.command.referee import run_referee


@pytest.fixture
def at_work(played: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeWorkers], FakeWorkers]:
    """Return a function that puts workers to work instead of Ray's, and returns them."""

    def put(workers: FakeWorkers) -> FakeWorkers:
        monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
        return workers

    return put


class LuckyCandidate(FakeCommands):
    """Commands whose candidate ignores its seed, draws N(0, 1), and fails where that is below 0."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(3)
        super().__init__(lambda variant, seed: self.drawn)

    @property
    def broken(self) -> "LuckyCandidate":
        return self

    @broken.setter
    def broken(self, value: object) -> None:
        pass

    def __contains__(self, key: tuple[str, int]) -> bool:
        self.drawn = float(self.draws.normal())
        return key[0] == "candidate" and self.drawn < 0


@pytest.fixture
def lucky(
    at_work: Callable[[FakeWorkers], FakeWorkers],
) -> Callable[[Callable[[], ConfirmResult]], ConfirmResult]:
    """Return a function that calls with a lucky candidate, and resumes until there is a verdict."""

    def judge(call: Callable[[], ConfirmResult]) -> ConfirmResult:
        at_work(LuckyCandidate())
        result = call()
        while not result.verdict.complete:
            result = run_referee(resume=result)
        return result

    return judge
