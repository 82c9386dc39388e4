"""Retention of checkpoints."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from automl.callbacks.retention import CheckpointRetention
from automl.storage.storage import Storage
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Role, State, TrialRecord
from search.trial_scheduler import Plan, select_leaders


def plan(*, maximize: bool = True, guessing: float | None = None) -> Plan:
    return Plan(trials=None, budget=1, metric=replace(ACCURACY, maximize=maximize), guessing=guessing)


def trial(folder: Path, number: int, value: float, state: State = State.COMPLETE) -> TrialRecord:
    """Create an ended trial with a checkpoint."""
    role = Role.BASELINE if number in (0, 4) else Role.CANDIDATE
    history = [{"epoch": 1, "resource": 1, "accuracy": value}]
    record = TrialRecord(number, TrialConfig(), role, state, history)
    (folder / record.folder).mkdir(parents=True)
    (folder / record.folder / CHECKPOINT_FILE).touch()
    return record


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(file.parent.name) for file in folder.glob(f"trials/*/{CHECKPOINT_FILE}"))


@pytest.mark.parametrize(
    ("keep", "maximize", "stay"),
    [(1, True, [0, 3]), (3, True, [0, 1, 3, 5]), (9, True, [0, 1, 3, 4, 5]), (1, False, [4])],
)
def test_best_trials_and_best_baseline_are_kept(
    keep: int, maximize: bool, stay: list[int], tmp_path: Path
) -> None:
    deleted: list[int] = []
    retention = CheckpointRetention(
        Storage(tmp_path),
        plan(maximize=maximize),
        [],
        keep=keep,
        deleted=lambda record: deleted.append(record.number),
    )
    pruned = (2, 6)
    gone_at_once: set[int] = set()
    for number, value in enumerate([0.5, 0.7, 0.95, 0.9, 0.1, 0.6, 0.99]):
        state = State.PRUNED if number in pruned else State.COMPLETE
        retention.on_trial_end(trial(tmp_path, number, value, state))
        if number not in checkpoints(tmp_path):
            gone_at_once.add(number)
    assert checkpoints(tmp_path) == stay
    assert set(pruned) <= gone_at_once
    # A trial that lost it later than at its own end is reported again, once.
    assert sorted(deleted) == sorted(set(range(7)) - set(stay) - gone_at_once)
    assert {int(folder.name) for folder in tmp_path.glob("trials/*")} == set(stay), "no empty folders"


@pytest.mark.parametrize("state", [State.PRUNED, State.INFEASIBLE, State.ERROR])
def test_checkpoints_of_unfinished_trials_are_deleted(state: State, tmp_path: Path) -> None:
    retention = CheckpointRetention(Storage(tmp_path), plan(), [], keep=3)
    retention.on_trial_end(trial(tmp_path, 1, 0.9, state))
    assert checkpoints(tmp_path) == []


def test_running_trials_and_other_files_stay(tmp_path: Path) -> None:
    running = trial(tmp_path, 1, 0.1, State.RUNNING)
    retention = CheckpointRetention(Storage(tmp_path), plan(), [running, trial(tmp_path, 2, 0.5)], keep=1)
    retention.on_trial_start(running)
    retention.on_epoch_end(running)
    retention.on_trial_end(trial(tmp_path, 3, 0.9))
    assert checkpoints(tmp_path) == [1, 3]


def test_trials_of_an_earlier_run_count(tmp_path: Path) -> None:
    retention = CheckpointRetention(
        Storage(tmp_path), plan(), [trial(tmp_path, i, value) for i, value in ((1, 0.9), (2, 0.8))], keep=1
    )
    retention.on_trial_end(trial(tmp_path, 3, 0.5))
    assert checkpoints(tmp_path) == [1]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBUSY, errno.EIO])
def test_deletion_errors_are_logged(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Storage, name: str) -> None:
        raise OSError(code, os.strerror(code))

    deleted: list[TrialRecord] = []
    retention = CheckpointRetention(Storage(tmp_path), plan(), [], keep=1, deleted=deleted.append)
    monkeypatch.setattr(Storage, "remove", refuse)
    for number, value in ((1, 0.5), (2, 0.9)):
        retention.on_trial_end(trial(tmp_path, number, value))
    assert checkpoints(tmp_path) == [1, 2]
    assert deleted == [], "MLflow still names it"
    assert f"trials/0001 cannot be deleted: [Errno {code}]" in caplog.text


def test_files_beside_a_checkpoint_stay(tmp_path: Path) -> None:
    record = trial(tmp_path, 1, 0.5, State.ERROR)
    (tmp_path / record.folder / "error.txt").write_text("why")
    CheckpointRetention(Storage(tmp_path), plan(), [], keep=1).on_trial_end(record)
    assert [file.name for file in (tmp_path / record.folder).iterdir()] == ["error.txt"]


def measured(number: int, value: float, expected: float | None = None) -> TrialRecord:
    history = [{"epoch": 1, "resource": 1, "accuracy": value}]
    return TrialRecord(number, TrialConfig(), Role.CANDIDATE, State.COMPLETE, history, expected=expected)


def test_trials_at_chance_lead_nothing_but_one_stays(tmp_path: Path) -> None:
    guessing = plan(guessing=0.15)
    records = [measured(0, 0.12, expected=0.95), measured(1, 0.8), measured(2, 0.9)]
    best, _ = select_leaders(records, guessing)
    assert best is records[2]
    assert select_leaders(records[:1], guessing)[0] is records[0], (
        "where all guess, one is named all the same"
    )
    retention = CheckpointRetention(Storage(tmp_path), plan(guessing=0.15), [], keep=1)
    for number, value in ((1, 0.1), (2, 0.12), (3, 0.11)):
        retention.on_trial_end(trial(tmp_path, number, value))
    assert checkpoints(tmp_path) == [2]
