"""A search of a training function that is killed ends as one that was left alone: no epoch trained twice."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import psutil
import pytest
import torch

from automl.config.runtime import Runtime
from automl.tasks.function.loop import RunningTrial
from automl.tasks.function.space import find_function
from search.record import State
from search.study import read_records
from tests.helpers import FOLDER
from tests.helpers.killable import Search, open_to_others


def until_logged(search: Search, lines: int) -> None:
    end = time.monotonic() + 120
    while len(logged(search)) < lines and search.process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert search.process.poll() is None, search.output()


TRAIN = f"{FOLDER / 'logged_training.py'}:train"
SLOTS = 2


@pytest.fixture
def start_search(tmp_path: Path, new_search: Callable[..., Search]) -> Callable[..., Search]:
    (tmp_path / "data").mkdir()

    def start(trials: int, *more: object) -> Search:
        options = ["--train", TRAIN, "--metric", "accuracy", "--data", "data", "--equal", "epochs"]
        search = new_search(*options, "--trials", trials, *more)
        search.start()
        return search

    return start


def logged(search: Search) -> Counter[str]:
    file = search.folder / "data" / "epochs"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


def kill_driver(search: Search) -> None:
    search.kill()
    search.start()


def check(search: Search, trials: int, kills: int, tolerance: float = 1e-6) -> None:
    assert search.wait() == 0, search.output()
    search.check_whole(trials)
    records = read_records(search.search_folder, search.name)
    epochs = logged(search)
    assert set(epochs.values()) == {1}, "no epoch is trained again after its checkpoint"
    expected = sum(len(record.history) - (record.state is State.COMPLETE) for record in records)
    # A process may die between a checkpoint and its line. One that is pruned logs no line.
    pruned = sum(record.state is State.PRUNED for record in records)
    assert expected - pruned - SLOTS * kills <= len(epochs) <= expected

    torch.set_num_threads(1)
    for record in records:
        config = record.config.change(data={"path": None})
        trial = RunningTrial(config, Runtime(device=torch.device("cpu")), fitting=config.training.epochs)
        with closing(trial.run(find_function(TRAIN))) as reports:
            alone = list(islice(reports, len(record.history)))
        losses, expected_losses = ([metrics["loss"] for metrics in each] for each in (record.history, alone))
        assert losses == pytest.approx(expected_losses, abs=tolerance)


@pytest.mark.gpu
def test_search_on_shares_of_a_gpu_is_killed(
    start_search: Callable[..., Search], gpus_per_trial: Callable[[float], list[str]], gpu: torch.device
) -> None:
    search = start_search(3, *gpus_per_trial(0.25), "--concurrent", SLOTS)
    file = search.folder / "data" / "processes"
    while not file.exists() or len({line.split()[0] for line in file.open()}) < SLOTS:  # trials at once
        assert search.process.poll() is None, search.output()
        time.sleep(0.05)
    kill_driver(search)
    check(search, 3, kills=1, tolerance=1e-6 if gpu.type == "cpu" else 1e-2)
    assert {device for line in file.open() for device in line.split()[1:]} == {str(gpu)}


@pytest.mark.slow("a whole search")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0])
def test_search_is_killed_at_ten_random_moments(start_search: Callable[[int], Search], seed: int) -> None:
    moments = random.Random(seed)
    search = start_search(16)
    for i in range(10):
        if i % 2:
            time.sleep(moments.uniform(4, 14))  # from before Ray is up to the middle of a training
            kill_driver(search)
        elif actors := search.until("ray::TrialActor"):
            time.sleep(moments.uniform(0, 2))
            with suppress(psutil.NoSuchProcess):
                moments.choice(actors).kill()
    check(search, 16, kills=10)


@pytest.mark.slow("a whole search")
@pytest.mark.timeout(600)
def test_trial_of_two_workers_trains_as_with_one_and_survives_the_death_of_a_worker(start_search) -> None:
    search = start_search(2, "--workers-per-trial", 2)
    until_logged(search, 1)
    workers = search.until("RayTrainWorker", 2)
    # The store by which torch's workers find each other knows no address but all.
    assert [name for name, _ in open_to_others(search.process.pid)] == ["ray::RayTrainWorker"]
    workers[1].kill()
    check(search, 2, kills=1, tolerance=1e-4)
    records = read_records(search.search_folder, search.name)
    assert {metrics["workers"] for record in records for metrics in record.history} == {2}


AUTOML = Path(sys.executable).parent / "automl"


@pytest.fixture
def neighbours() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.slow("a whole search")
@pytest.mark.usefixtures("neighbours")
def test_load_is_not_called_a_gain(tmp_path):
    def automl(*arguments):
        run = subprocess.run(
            [AUTOML, *arguments],
            cwd=tmp_path,
            env={**os.environ, "AUTOML_CACHE": str(tmp_path / "cache")},  # nothing is known of the machine
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert run.returncode == 0, run.stderr
        return run

    automl("search", "--space", "digits", "--trials", "3", "--epochs", "1", "--seed", "3", "--name", "busy")
    run = automl("confirm", "--top", "1", "--seeds", "6", "--json")
    verdict = json.loads(run.stdout)
    assert verdict["complete"]
    assert verdict["verdict"] != "better", verdict["figures"]

    folder = tmp_path / "searches" / "busy"
    records = read_records(folder, "busy") + read_records(folder / "confirm", "busy-confirm")
    paces = []
    for record in records:
        kinds = [spec.type for spec in record.config.model.placement.values()]
        if kinds == ["ssa"] and record.config.training.batch_size == 64:
            paces.append((record.profile["time_ratio"], record.profile["time_ratio_imprecise"]))
    assert paces
    assert all(is_estimated or 1.0 <= time_ratio <= 1.15 for time_ratio, is_estimated in paces), paces

    # The reported time is that of the trainings.
    low, high = verdict["time"]["low"], verdict["time"]["high"]
    assert f"({low:.2f} to {high:.2f}) of the baseline's" in verdict["cost"]
