"""Classification of errors: fault of the trial or of its node."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optuna.samplers import RandomSampler

import automl.trials.ray_workers
from automl.base.errors import InputError
from automl.config.device import UnusableGpu
from automl.config.nouns import Place, Terms
from automl.storage.cache_folder import once
from automl.storage.storage import Storage
from automl.trials.job import Job, Replaced, Trainings, classify_error
from automl.trials.ray_workers import RayWorkers, _report_lost_head
from automl.trials.session import SIGNALS, Interrupt, Stopped, record_signals
from cluster.connect import ClusterCapacity
from cluster.resources import TrialResources
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler
from search.record import CHECKPOINT_FILE
from search.space import memory_study
from tests.helpers.confirm_cases import PLAN

FULL = Path("/dev/full")  # A device of Linux on which every write fails with a full disk.


def raise_and_catch(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


def test_errors_of_the_trial_and_of_its_node(tmp_path: Path) -> None:
    try:
        raise KeyError("no such thing")
    except KeyError as error:
        report = classify_error(error, Storage(str(tmp_path)))
    assert report.is_last
    assert (report.error, report.fault) == ("KeyError: 'no such thing'", None)
    assert "Traceback" in str(report.traceback)
    for file, is_of_node in (("own.csv", False), (tmp_path / "checkpoint.pt", True)):
        error = raise_and_catch(PermissionError(errno.EACCES, "not allowed", str(file)))
        report = classify_error(error, Storage(str(tmp_path)))
        assert (report.error is None, report.fault is not None) == (is_of_node, is_of_node)
    # The trial continues on another node, or when the search is resumed.
    report = classify_error(raise_and_catch(UnusableGpu("the driver is too old")), Storage(str(tmp_path)))
    assert not report.is_last
    assert (report.error, report.fault) == (None, "the driver is too old")


def test_a_process_that_was_replaced_writes_no_checkpoint(storage: Storage) -> None:
    """A node that was cut off or stood still may wake up with a training that another node continues."""
    folder = storage / "trials" / "0000"
    stamp = folder.stamp(CHECKPOINT_FILE)
    cut_off, other = (Job(config=TrialConfig(), runtime=None, folder=folder, stamp=stamp) for _ in range(2))
    for content in (b"first", b"second epoch"):
        with other.saving():
            folder.write(CHECKPOINT_FILE, content)
    with pytest.raises(Replaced, match="another process continues the trial"), cut_off.saving():
        folder.write(CHECKPOINT_FILE, b"first")
    assert folder.read(CHECKPOINT_FILE) == b"second epoch"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_full_disk_is_a_fault_of_the_node(tmp_path: Path) -> None:
    with pytest.raises((OSError, RuntimeError)) as error, FULL.open("wb") as file:
        torch.save({"weight": torch.zeros(100_000)}, file)
    report = classify_error(error.value, Storage(str(tmp_path)))
    assert not report.is_last, "the trial continues on another node"
    assert report.error is None
    assert str(report.fault).startswith(f"disk full at {tmp_path}, ")
    assert "B are free (No space left on device): " in str(report.fault)


def test_a_full_disk_or_cache_is_a_fault_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))

    def make(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InputError) as error:
        once(tmp_path / "cache" / "data", make, needed=7e6)
    report = classify_error(error.value, Storage(str(tmp_path / "elsewhere")))
    assert "no disk space left for the dataset's cache" in str(report.fault)
    assert f"disk full at {tmp_path / 'cache'}, about 7MB needed" in str(report.fault)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_recorded(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with record_signals("resume with: x") as interrupt:
        interrupt.waits = True
        assert interrupt.signal is None
        os.kill(os.getpid(), number)
        assert interrupt.signal == number
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert capsys.readouterr().err == "stopping; once more to stop at once\n"
    with pytest.raises(Stopped, match=str(128 + number)), record_signals("resume with: x"):
        os.kill(os.getpid(), number)
    assert capsys.readouterr().err == "stopping; resume with: x\n"


def test_the_second_signal_or_the_end_of_ray_after_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm and systemd send a signal to the processes of Ray, too."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    with record_signals("resume with: x") as interrupt:
        interrupt.waits = True
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err == "stopping; once more to stop at once\nresume with: x\n"
    interrupt = Interrupt()
    interrupt.signal = signal.SIGTERM
    with pytest.raises(SystemExit, match="143"):
        _report_lost_head("resume with: x", interrupt, "address")
    assert capsys.readouterr().err == "resume with: x\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_ends_a_command_as_ctrl_c_does(number: int) -> None:
    """All commands and entry points run like this. `nohup` ignores SIGHUP."""
    code = f"""
import os, signal, sys
from automl.cli.main import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1:] else signal.SIG_DFL)
run((), program=lambda *_, **options: os.kill(os.getpid(), {number}))
"""
    for nohup in (False, True):
        command = [sys.executable, "-c", code, *["nohup"] * nohup]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        ignored = nohup and number == signal.SIGHUP
        first = "stopping\n" if number == signal.SIGINT else ""
        expected = (0, "") if ignored else (128 + number, f"{first}stopped\n")
        assert (process.returncode, process.stderr) == expected


@pytest.mark.parametrize("wrapped", [False, True])
def test_full_disk_is_reported_with_advice(
    wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*what: object, **more: object) -> None:
        if wrapped:
            raise RuntimeError("Tune's") from error
        raise error

    monkeypatch.setattr(automl.trials.ray_workers, "run_trials", fail)
    workers = RayWorkers(
        place=Place(),
        shape=TrialResources(),
        capacity=ClusterCapacity(TrialResources(), most=1, list_nodes=lambda labels: {}),
        interrupt=Interrupt(),
        advice="resume it",
    )
    with pytest.raises(InputError, match=rf"the study in {tmp_path} cannot be written \(disk full at "):
        workers.run(
            FixedScheduler(memory_study(RandomSampler()), PLAN, []),
            Trainings(location=Storage(str(tmp_path)), baseline=TrialConfig(), terms=Terms()),
            folder=tmp_path,
            callbacks=[],
            summary=str,
        )
    assert workers.interrupt.waits
