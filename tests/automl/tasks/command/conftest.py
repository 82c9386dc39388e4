"""Workers that play the runs of commands."""

import random
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import automl.trials.session
from automl.judge.verdict import ConfirmResult
from automl.tasks.command.referee import run_referee
from tests.helpers.confirm_cases import FakeCommands, FakeWorkers


@pytest.fixture
def at_work(played: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeWorkers], FakeWorkers]:
    """Return a function that puts workers to work instead of Ray's, and returns them.

    Seeds are drawn from a generator with a fixed seed, since played scores follow from them.
    """
    drawn = random.Random(0)
    monkeypatch.setattr(secrets, "randbelow", drawn.randrange)
    monkeypatch.setattr(secrets, "SystemRandom", lambda: drawn)

    def put(workers: FakeWorkers) -> FakeWorkers:
        monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
        return workers

    return put


class LowScores:
    """Runs that fail: a candidate that ignores its seed, draws N(0, 1) and is below 0."""

    draws = np.random.default_rng(3)

    def __contains__(self, key: tuple[str, int]) -> bool:
        self.drawn = float(self.draws.normal())
        return key[0] == "candidate" and self.drawn < 0


@pytest.fixture
def lucky(at_work: Any) -> Callable[[Callable[[], ConfirmResult]], ConfirmResult]:
    """Return a function that compares with such a candidate, and resumes until there is a verdict."""

    def judge(call: Callable[[], ConfirmResult]) -> ConfirmResult:
        low = LowScores()
        at_work(FakeCommands(lambda variant, seed: low.drawn, broken=low))
        result = call()
        while not result.verdict.complete:
            result = run_referee(resume=result)
        return result

    return judge
