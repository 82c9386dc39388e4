"""Test `progress` if stderr is no terminal: occasional lines with the time left."""

import pytest

from automl.base import terminal
from automl.base.terminal import progress


def test_lines_report_progress_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 5.0, 30.0, 31.0, 100.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with progress("decoding images", 60_000) as advance:
        for count in (1_000, 14_000, 1_000, 44_000):
            advance(count)
    assert capsys.readouterr().err.splitlines() == [
        "decoding images: 15,000 of 60,000, about 1m30s left",
        "decoding images: 60,000 of 60,000, about 0s left",
    ]
