"""Guarantees of a search, each on a real Ray and a real MLflow."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import numpy as np
import optuna
import psutil
import pytest
import requests
from optuna.trial import TrialState
from PIL import Image

from automl.base.errors import InputError
from automl.config.nouns import Question, Terms
from automl.costs.profile import measure
from automl.search.run_search import run_search
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification.data import open_split
from search.config import Model, TrialConfig
from search.halving import Rungs
from search.study import open_study, read_history, read_record
from tests.helpers.services import free_port, running

BIN = Path(sys.executable).parent

# A user-defined space: small and quick, with a choice that matters to memory.
SPACE = """
from search import choices
from automl.tasks.image_classification import ImageData
from search.config import Model, TrialConfig
from automl.tasks.image_classification.space import list_digits_sites

def draw(trial):
    places = [site for site in list_digits_sites() if not site.name.startswith("stem")]
    return TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.2),
        model=Model(options={"width": 0.25}, placement=choices.placement(trial, places, most=2)),
        training=choices.training(trial, epochs=4),
    )
"""


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    (tmp_path / "small.py").write_text(SPACE)
    return tmp_path


def answers(url, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            response = requests.get(url, timeout=5)
            if response.ok:
                return response
        except requests.ConnectionError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"{url} does not answer")


@pytest.fixture
def unreadable_tests(storage):
    """A folder of images of which those of the test split cannot be decoded."""
    data = storage / "data"
    generator = np.random.default_rng(0)
    for kind in ("cats", "dogs"):
        for part in ("train", "val"):
            (data / part / kind).mkdir(parents=True)
        for i in range(80):
            picture = generator.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(picture).save(data / "train" / kind / f"{i}.png")
        (data / "val" / kind / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError):
        open_split("folder", "test", path=str(data), size=24, side=24)
    return data


def drawn(trial):
    """A space that is given as a function."""
    rate = trial.suggest_float("rate", 1e-4, 1e-2, log=True)
    return TrialConfig(
        data=ImageData(source="folder", size=24),
        model=Model(options={"width": 0.25}),
        training=ImageTraining(epochs=3, batch_size=16, learning_rate=rate),
    )


@pytest.mark.slow("the study of a search, by others")
def test_a_search_reads_no_test_split_and_its_study_is_everybodys(storage, unreadable_tests, monkeypatch):
    """Optuna alone reads it, its plots and importances work on it, and optuna-dashboard serves it."""
    # Which trials are weak is up to the machine; that every third one is pruned is not.
    monkeypatch.setattr(Rungs, "enter", lambda self, number, *more: number % 3 != 2)
    options = {"trials": 4, "concurrent": 1, "validations_per_epoch": 2}
    result = run_search(space=drawn, data=unreadable_tests, name="plots", **options)
    assert Path("searches/plots/space.py").read_text().startswith("def drawn(trial):")
    assert (len(result.trials), result.counts["error"]) == (4, 0)
    assert result.best is not None
    check_runs()
    study = open_study(Path("searches/plots"), name="plots")
    pruned = [trial for trial in study.trials if trial.state is TrialState.PRUNED]
    assert len(pruned) == result.counts["pruned"] > 0
    for trial in pruned:
        assert trial.intermediate_values.keys() == {1}
        assert read_history(trial.user_attrs)[-1]["epoch"] == 0.5
    for plot in ("optimization_history", "intermediate_values", "slice", "parallel_coordinate", "timeline"):
        figure = getattr(optuna.visualization, f"plot_{plot}")(study)
        assert figure.data, plot
    done = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    if len(done) > 2:
        assert optuna.importance.get_param_importances(study)

    port = free_port()
    address = f"http://127.0.0.1:{port}/api/studies"
    command = [BIN / "optuna-dashboard", "searches/plots/study.journal", "--port", str(port)]
    with running(command, log=Path("dashboard.log"), ready=lambda: requests.get(address, timeout=5).ok):
        studies = requests.get(address, timeout=60).json()["study_summaries"]
    assert [study["study_name"] for study in studies] == ["plots"]


def check_runs():
    """Runs in MLflow have no column twice, and name the data and their source."""
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("drawn").experiment_id])
    assert len(runs) == 5
    for run in runs:
        assert not run.data.metrics.keys() & run.data.params.keys()
        assert "epoch" not in run.data.metrics
        inputs = run.inputs.dataset_inputs
        assert {item.dataset.name for item in inputs} == {"data training", "data validation"}
        assert {item.tags[0].value for item in inputs} == {"training", "validation"}
        assert run.data.tags.keys() >= {"mlflow.source.name", "mlflow.source.type"}
        if "mlflow.parentRunId" in run.data.tags:
            assert run.data.metrics.keys() >= {"memory_mb", "latency_ms", "epoch_seconds"}


@pytest.mark.slow("a whole search")
@pytest.mark.timeout(900)
def test_the_sampler_learns_a_limit(storage):
    """Half of all placements need more memory than allowed; of the last 20 of 40 trials at most 2 do."""
    drawn = Question(space="small.py:draw", subset=0.2).open()
    needed = sorted(
        measure(
            config.change(training={"batch_size": 64, "optimizer": "adamw", "mixup": 0.0}),
            config,
            Terms().runtime,
        ).memory
        for config in drawn.configs(24)
        if config.model.placement
    )
    limit = needed[len(needed) // 2]
    result = run_search(space="small.py:draw", trials=40, subset=0.2, name="limited", max_memory=str(limit))
    assert (len(result.trials), result.counts["error"]) == (40, 0)
    study = open_study(Path("searches/limited"), name="limited")
    late = [trial for trial in study.trials if any(v > 0 for v in trial.constraints.values())]
    assert sum(trial.number >= 20 for trial in late) <= 2
    for trial in study.trials:
        profile = trial.user_attrs["profile"]
        assert trial.constraints["memory"] == pytest.approx(profile["memory"] / limit - 1)
        assert (trial.constraints["memory"] > 0) == (trial in late)
        if trial in late:
            assert not read_history(trial.user_attrs), "what exceeds a limit is not trained"


@pytest.mark.slow("a whole search")
def test_the_same_seed_gives_the_same_search(storage):
    """On one slot: the same configurations, and bitwise the same metrics."""
    histories = []
    for name in ("one", "two"):
        run_search(
            space="small.py:draw",
            trials=6,
            epochs=2,
            subset=0.2,
            seed=5,
            name=name,
            equal="epochs",  # a time ratio that is not precise is measured anew
            cpus_per_trial=os.cpu_count() or 1,
        )
        study = open_study(Path(f"searches/{name}"), name=name)
        histories.append(
            [
                (
                    trial.params,
                    trial.user_attrs["config"],
                    [
                        {k: v for k, v in record.items() if k not in ("seconds", "processor_seconds", "time")}
                        for record in read_history(trial.user_attrs)
                    ],
                )
                for trial in study.trials
            ]
        )
    assert histories[0] == histories[1]


class Server:
    """An MLflow server that can be stopped and started again."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [
            BIN / "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        answers(f"{self.uri}/health", 120)

    def stop(self):
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            process.kill()
        self.process.wait()


@pytest.mark.slow("a whole search")
@pytest.mark.parametrize("back", ["in time", "too late"])
def test_mlflow_goes_away_and_comes_back(storage, monkeypatch, back):
    server = Server(storage)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    command = [
        BIN / "automl", "search", "--space", "small.py:draw", "--trials", "12", "--subset", "0.3",
        "--epochs", "4", "--name", "patient", "--json",
    ]  # fmt: skip
    try:
        with open("out", "w") as out, open("err", "w") as err:
            search = subprocess.Popen(command, stdout=out, stderr=err)
        wait_for("err", "3/12 trials", search)
        server.stop()
        wait_for("err", "7/12 trials", search)  # training continues
        if back == "in time":
            server.start()
        assert search.wait(300) == 0, Path("err").read_text()
        result = json.loads(Path("out").read_text())
        assert (result["trials"], result["errors"]) == (12, 0)
        if back == "too late":
            assert result["untracked"] > 0
            assert "automl sync patient" in Path("err").read_text()
            server.start()
            done = subprocess.run([BIN / "automl", "sync", "patient"], capture_output=True, text=True)
            assert (done.returncode, done.stdout) == (0, "search patient: 12 trials are in MLflow\n"), done
        else:
            assert result["untracked"] == 0, Path("searches/patient/log.txt").read_text()
        check_mirror(server.uri)
    finally:
        server.stop()


def wait_for(file, text, process):
    end = time.monotonic() + 240
    while text not in Path(file).read_text():
        assert process.poll() is None, Path(file).read_text()
        if time.monotonic() > end:
            raise TimeoutError(Path(file).read_text())
        time.sleep(0.1)


def check_mirror(uri):
    """MLflow has what the study has, once."""
    study = open_study(Path("searches/patient"), name="patient")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("draw").experiment_id
    runs = client.search_runs([experiment], "tags.`automl.trial` LIKE '%'")
    assert sorted(int(run.data.tags["automl.trial"]) for run in runs) == list(range(12))
    for run in runs:
        record = read_record(study.trials[int(run.data.tags["automl.trial"])])
        history = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy")]
        assert history == [(metrics["epoch"], metrics["accuracy"]) for metrics in record.history]
        assert run.data.tags["state"] == record.state
        assert run.data.metrics["time_ratio"] == pytest.approx(record.profile["time_ratio"])
    (parent,) = client.search_runs([experiment], "tags.`automl.search` = 'patient'")
    best = client.get_run(parent.data.tags["automl.best_run"])
    assert int(best.data.tags["automl.trial"]) == study.best_trial.number


@pytest.mark.slow("a whole search")
def test_a_time_limit_ends_the_search(storage):
    result = run_search(space="small.py:draw", budget="20s", subset=0.2, name="brief")
    assert not result.stopped
    assert len(result.trials) == result.counts["complete"] + result.counts["pruned"]
    assert result.counts["error"] == 0
