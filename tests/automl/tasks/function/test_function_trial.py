"""Trials of training functions in this process: equal to built-in ones, resumed, and failed."""

import pytest
import torch
from mlflow import MlflowClient

from attention import Spec
from automl.config.nouns import Terms
from automl.storage.storage import Storage
from automl.storage.trial_files import read_answers
from automl.tasks.function import FunctionModel
from automl.training import checkpoint
from automl.trials.job import Trainings
from automl.trials.trial import build_assignment, train_trial
from search.config import TrialConfig
from search.config.sections import OwnTraining
from search.metric import Metric
from tests.helpers import FOLDER, others_slow
from tests.helpers.automl_cases import CPU, HERE, timeless
from tests.helpers.train_as_built_in import CONFIG

AS_BUILT_IN = FOLDER / "train_as_built_in.py"
PLACEMENT = {"stage2.block1": Spec("ssa")}


def assignment(config, folder, *, test=False, equal="epochs"):
    return build_assignment(
        config,
        folder,
        Trainings(
            location=folder.parent,
            baseline=config.change(model={"placement": {}}),
            terms=Terms(equal=equal, test=test),
            profile=False,
        ),
    )


def own_config(file, placement=None, *, epochs=3, seed=0):
    return TrialConfig(
        task="function",
        model=FunctionModel(backbone=f"{file}:train", placement=placement or {}),
        training=OwnTraining(epochs=epochs, batch_size=32, reports=Metric(name="accuracy", maximize=True)),
        seed=seed,
    )


@pytest.mark.parametrize("placement", others_slow([{}, PLACEMENT], PLACEMENT), ids=["plain", "placed"])
def test_function_trains_as_the_built_in_task(placement, tmp_path):
    built_in = CONFIG.change(model={"placement": placement}, seed=5)
    own = own_config(AS_BUILT_IN, placement, seed=5)
    histories, answers, weights = [], [], []
    for name, config in (("built-in", built_in), ("own", own)):
        *_, report = train_trial(assignment(config, tmp_path / name, test=True), HERE)
        assert report.finished
        histories.append(report.history)
        folder = Storage(tmp_path / name)
        answers.append(read_answers(folder).values)
        weights.append(checkpoint.read(folder, CPU)["model"])
    names = ["accuracy", "loss", "test_accuracy", "test_loss"]
    for expected, metrics in zip(*histories, strict=True):
        assert {n: v for n, v in metrics.items() if n in names} == pytest.approx(
            {n: v for n, v in expected.items() if n in names}, abs=1e-6
        )
        assert metrics["resource"] == expected["resource"]
    assert {"test_accuracy", "test_loss"} < set(histories[1][-1])
    assert (answers[0] == answers[1]).all()
    assert all(torch.equal(weights[1][name], value) for name, value in weights[0].items())


TRAIN = """
import torch
from torch import nn

STATE = {state}

def train(trial):
    torch.rand(3)
    model = trial.place(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), example=torch.zeros(2, 1, 8, 8))
    if STATE:
        trial.state(model=model)
    for epoch in trial.epochs(3):
        with open({log!r}, "a") as log:
            log.write(f"{{epoch}}")
        {body}
"""


def write_function(folder, *, state=True, body="trial.report(accuracy=torch.rand(1, generator=trial.rng))"):
    file = folder / "train.py"
    file.write_text(TRAIN.format(state=state, log=str(folder / "log"), body=body))
    return file


@pytest.mark.parametrize(("state", "epochs"), [(True, "012"), (False, "0012")])
def test_another_process_resumes_a_killed_trial(state, epochs, tmp_path):
    """Without `trial.state` it starts over, with the same numbers."""
    config = own_config(write_function(tmp_path, state=state))
    whole = list(train_trial(assignment(config, tmp_path / "whole"), HERE))
    (tmp_path / "log").unlink()
    work = train_trial(assignment(config, tmp_path / "0"), HERE)
    first = next(work)
    work.close()
    rest = list(train_trial(assignment(config, tmp_path / "0"), HERE))
    assert (tmp_path / "log").read_text() == epochs
    assert timeless(rest[-1].history) == timeless(whole[-1].history)
    assert timeless(first.history) == timeless(whole[0].history)
    # Killed after its last epoch but before its report was received, it reports again.
    (again,) = train_trial(assignment(config, tmp_path / "0"), HERE)
    assert again.finished
    assert again.history == rest[-1].history


def test_metric_that_is_not_finite_makes_a_trial_infeasible(tmp_path):
    config = own_config(write_function(tmp_path, body="trial.report(accuracy=float('nan') if epoch else 0)"))
    first, last = train_trial(assignment(config, tmp_path / "0"), HERE)
    assert first.infeasible is None
    assert last.infeasible == "trial.report: accuracy became nan in epoch 2"
    assert len(last.history) == 1


USES = """
        with open("beside.txt") as beside:
            assert beside.read() == "here"
        (trial.folder / "best.pt").write_text("mine")
        import mlflow
        mlflow.log_param("epochs", "mine")
        mlflow.log_metric("mine", epoch)
        trial.report(accuracy=0.5)
"""


@pytest.mark.slow("a training")
def test_function_runs_where_the_search_was_started(tmp_path, monkeypatch):
    """A trial's process is in a folder of Ray Tune. Its function reads files and logs metrics elsewhere."""
    (tmp_path / "beside.txt").write_text("here")
    (tmp_path / "tune").mkdir()
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    config = own_config(write_function(tmp_path, body=USES), epochs=2)
    folder = Storage(tmp_path / "0")
    for number in range(2):
        monkeypatch.chdir(tmp_path)
        work = assignment(config.change(seed=number), folder.local)
        monkeypatch.chdir(tmp_path / "tune")
        assert [report.error for report in train_trial(work, HERE)] == [None, None]
        assert (folder.local / "best.pt").read_text() == "mine"
        folder.clear()
    runs = MlflowClient(store).search_runs(["0"])
    assert [(run.data.metrics["mine"], run.info.status) for run in runs] == [(1, "FINISHED")] * 2
