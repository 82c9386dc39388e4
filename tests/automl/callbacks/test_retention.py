"""Retention of checkpoints."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from automl.callbacks.retention import CheckpointRetention, front
from automl.storage.storage import Storage
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Role, State, TrialRecord
from search.trial_scheduler import Plan, select_leaders


def plan(*objectives: str, maximize: bool = True, guessing: float | None = None) -> Plan:
    return Plan(
        trials=None,
        budget=1,
        metric=replace(ACCURACY, maximize=maximize),
        objectives=objectives or ("accuracy",),
        guessing=guessing,
    )


def trial(
    folder: Path, number: int, value: float, state: State = State.COMPLETE, macs: float = 0
) -> TrialRecord:
    """Create an ended trial with a checkpoint."""
    role = Role.BASELINE if number in (0, 4) else Role.CANDIDATE
    history = [{"epoch": 1, "resource": 1, "accuracy": value}]
    record = TrialRecord(number, TrialConfig(), role, state, history, profile={"macs": macs})
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


POINTS = [(0.5, 5.0), (0.6, 6.0), (0.4, 5.5), (0.9, 9.0), (0.3, 4.0), (0.6, 6.0)]


def test_with_several_objectives_the_front_stays(tmp_path: Path) -> None:
    both = plan("accuracy", "macs")
    retention = CheckpointRetention(Storage(tmp_path), both, [], keep=1)
    records = [trial(tmp_path, i, value, macs=macs) for i, (value, macs) in enumerate(POINTS)]
    for record in records:
        retention.on_trial_end(record)
    assert [record.number for record in front(reversed(records), both)] == [0, 1, 3, 4, 5]
    assert checkpoints(tmp_path) == [0, 1, 3, 4, 5]
    records[3].state = State.PRUNED
    assert [record.number for record in front(records, both)] == [0, 1, 4, 5]


def measured(number: int, value: float, **profile: float) -> TrialRecord:
    history = [{"epoch": 1, "resource": 1, "accuracy": value}]
    return TrialRecord(number, TrialConfig(), Role.CANDIDATE, State.COMPLETE, history, profile=profile)


@pytest.mark.parametrize(
    ("cost", "other", "numbers"),
    [("latency", 10.1, [0, 1]), ("latency", 10.3, [0]), ("macs", 10.1, [0]), ("latency", 10.0, [0, 1])],
)
def test_noise_pushes_nobody_off_the_front(cost: str, other: float, numbers: list[int]) -> None:
    records = [measured(0, 0.9, **{cost: 10.0}), measured(1, 0.9, **{cost: other})]
    assert [record.number for record in front(records, plan("accuracy", cost))] == numbers
    worse = [records[0], measured(1, 0.89, **{cost: other})]
    assert [record.number for record in front(worse, plan("accuracy", cost))] == [0]


def test_trials_at_chance_lead_nothing_but_one_stays(tmp_path: Path) -> None:
    both = plan("latency", "accuracy", guessing=0.15)
    records = [measured(0, 0.12, latency=1.0), measured(1, 0.8, latency=5.0), measured(2, 0.9, latency=9.0)]
    assert [record.number for record in front(records, both)] == [1, 2]
    best, _ = select_leaders(records, both)
    assert best is records[1]
    assert front(records[:1], both) == []
    assert select_leaders(records[:1], both)[0] is records[0], "where all guess, one is named all the same"
    retention = CheckpointRetention(Storage(tmp_path), plan("accuracy", "macs", guessing=0.15), [], keep=3)
    for number, value in ((1, 0.1), (2, 0.12), (3, 0.11)):
        retention.on_trial_end(trial(tmp_path, number, value))
    assert checkpoints(tmp_path) == [2]
