"""A search that is killed again and again ends as one that was left alone: no trial lost, none counted twice.

AUTOML_KILLS sets how often: once by default, 20 for a soak.
"""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from automl.storage.storage import Storage
from automl.training import checkpoint
from search.record import CHECKPOINT_FILE
from tests.helpers.automl_cases import timeless
from tests.helpers.killable import left, open_to_others

KILLS = int(os.environ.get("AUTOML_KILLS", "1"))
TRIALS = min(30, 3 + 2 * KILLS)


@pytest.fixture
def search(new_search):
    size = ["--trials", TRIALS, "--epochs", min(6, 3 + KILLS), "--subset", 0.3, "--equal", "epochs"]
    return new_search("--space", "digits", *size)


@pytest.mark.slow("another search")
@pytest.mark.timeout(1200)
def test_trials_processes_are_killed(search):
    moments = random.Random(8)
    search.start()
    for _ in range(KILLS):
        actors = search.until("ray::TrialActor", 2)
        time.sleep(moments.uniform(0, 2))
        if actors:
            try:
                moments.choice(actors).kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(1)
    search.finish(TRIALS)


@pytest.mark.slow("another search")
@pytest.mark.timeout(2400)
def test_all_of_ray_is_killed(search):
    moments = random.Random(9)
    for _ in range(max(1, KILLS // 4)):
        search.start()
        search.until("ray::TrialActor")
        time.sleep(moments.uniform(0, 3))
        for child in search.children():
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        assert search.wait() != 0, "without Ray it cannot continue"
    search.start()
    search.finish(TRIALS)


@pytest.mark.slow("another search")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_process_group_stops_in_order(search, number):
    """Send a signal as `timeout`, Slurm and a terminal that is closed do."""
    search.start()
    search.until("ray::TrialActor")
    time.sleep(2)
    assert open_to_others(search.process.pid) == []
    below = search.children()
    os.killpg(search.process.pid, number)
    assert search.wait() == 128 + number
    assert "resume with: automl search --resume killed" in search.output().splitlines()[-1]
    assert "GCS" not in search.output()
    assert left(below) == []
    search.start()
    search.finish(TRIALS)


@pytest.mark.slow("another search")
def test_a_second_signal_stops_at_once_and_loses_nothing(search):
    search.start()
    search.until("ray::TrialActor")
    time.sleep(2)
    below = search.children()
    search.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    search.process.send_signal(signal.SIGINT)
    assert search.wait() == 130
    assert left(below) == []
    search.start()
    search.finish(TRIALS)


@pytest.mark.timeout(2400)
@pytest.mark.slow("a training, killed within its only epoch")
def test_a_training_is_killed_within_its_epoch(tmp_path):
    training = ["train", "--epochs", "1", "--dataset", "digits", "--size", "24", "--batch-size", "2"]
    undisturbed = start_training(tmp_path, *training, "--name", "whole")
    assert undisturbed.wait() == 0
    moments, killed = random.Random(10), 0
    file = tmp_path / "searches" / "killed" / CHECKPOINT_FILE

    def read(name):
        return checkpoint.read(Storage(tmp_path / "searches" / name), torch.device("cpu"))

    train = start_training(tmp_path, *training, "--name", "killed")
    while killed < 4 * KILLS and train.poll() is None:
        before = file.stat().st_mtime_ns if file.exists() else 0
        while train.poll() is None and not (file.exists() and file.stat().st_mtime_ns != before):
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 0.5))
        train.kill()
        train.wait()
        if read("killed")["history"]:
            break  # its epoch had ended
        killed += 1
        train = start_training(tmp_path, "train", "--resume", "killed")
    train.wait()
    print(f"killed {killed} times within the epoch")
    assert killed >= KILLS, killed
    whole, resumed = read("whole"), read("killed")
    assert timeless(resumed["history"]) == timeless(whole["history"])
    assert all(torch.equal(resumed["model"][name], value) for name, value in whole["model"].items())


def start_training(folder, *arguments):
    more = {"AUTOML_CHECKPOINT_SECONDS": "0.2", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/m.db"}
    return subprocess.Popen(
        [sys.executable, "-m", "automl", *arguments], cwd=folder, env={**os.environ, **more}
    )
