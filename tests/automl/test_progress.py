import re

import pytest

from attention import Spec
from automl.progress import Progress, duration
from search.config import Model, TrialConfig
from search.record import State, TrialRecord


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (7500, "2h05m"),
        (90_000, "25h00m"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def tell(
    progress: Progress, number: int, state: State, value: float | None, reason: str | None = None
) -> None:
    """One trial's life."""
    placement = {"stage1.block2.branch": Spec("ssa")} if number else {}
    trial = TrialRecord(number, TrialConfig(model=Model(placement=placement)))
    progress.started(trial)
    if value is not None:
        trial.history.append({"epoch": 3, progress.metric: value})
        progress.reported(trial)
    trial.state, trial.reason = state, reason
    progress.ended(trial)
    progress.saved(trial)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_a_log_has_one_line_for_each_ended_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(trials=5, concurrent=1, metric="accuracy", maximize=True) as progress:
        tell(progress, 0, State.COMPLETE, 0.9)
        tell(progress, 1, State.PRUNED, 0.95)
        tell(progress, 2, State.INFEASIBLE, None, "out of memory: [tried 3 GiB]")
        tell(progress, 3, State.COMPLETE, 0.8)
        progress.started(TrialRecord(4, TrialConfig()))
    told = lines(capsys)
    best = r"best 0\.9000 \(000 xresnet18 plain\)"
    ssa = r"xresnet18 ssa@stage1\.block2\.branch"
    expected = [
        rf"000 xresnet18 plain: complete at epoch 3, accuracy 0\.9000 \| 1/5 trials, {best}",
        rf"001 {ssa}: pruned at epoch 3, accuracy 0\.9500 \| 2/5 trials, 1 pruned, {best}",
        rf"002 {ssa}: infeasible \(out of memory: \[tried 3 GiB\]\) \| 3/5 trials, "
        rf"1 pruned, 1 infeasible, {best}",
        rf"003 {ssa}: complete at epoch 3, accuracy 0\.8000 \| 4/5 trials, 1 pruned, 1 infeasible, {best}",
    ]
    assert len(told) == len(expected)
    for line, pattern in zip(told, expected, strict=True):
        assert re.match(rf"\d\d:\d\d:\d\d {pattern}, about \S+ left$", line), line


def test_with_minimize_the_least_is_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(trials=3, concurrent=1, metric="error", maximize=False)
    for number, value in enumerate([0.5, 0.25, 0.75]):
        tell(progress, number, State.COMPLETE, value)
    told = lines(capsys)
    assert [re.search(r"best (\S+) \((\d+)", line).groups() for line in told] == [  # type: ignore[union-attr]
        ("0.5000", "000"),
        ("0.2500", "001"),
        ("0.2500", "001"),
    ]
    assert "left" not in told[-1]  # all have ended


def test_a_terminal_shows_every_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    with Progress(trials=2, concurrent=1, metric="accuracy", maximize=True) as progress:
        assert progress.live
        tell(progress, 0, State.COMPLETE, 0.9)
        tell(progress, 1, State.ERROR, None, "ValueError: no")
    said = capsys.readouterr().err
    assert "001 xresnet18 ssa@stage1.block2.branch" in said
    assert "0.9000" in said
    assert "2/2 trials" in said
