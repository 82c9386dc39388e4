"""Ray Tune under our searcher, on a real local Ray, with training replaced by a table of scores."""

import os
import sys

import optuna
import pytest
import ray
from optuna.trial import TrialState
from ray import tune

from cluster import connect
from search.config import TrialConfig
from search.record import State
from search.searcher import FINISHED, INFEASIBLE, StudySearcher
from search.spaces import SPACES
from search.study import create_study
from search.tuner import HOPELESS, grace, run_trials

EPOCHS = 9

# The actors' processes cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Scripted(tune.Trainable):
    """Scores by the trial's number; every third is good, every fourth cannot be trained."""

    def setup(self, config):
        self.config, self.epoch = config, 0

    def reset_config(self, new_config):
        self.setup(new_config)
        return True

    def step(self):
        number = self.config["number"]
        if number % 4 == 3:
            return {INFEASIBLE: "too large", "done": True}
        self.epoch += 1
        score = (0.5 if number % 3 == 0 else 0.1) + self.epoch / 100 - number / 1000
        finished = self.epoch == EPOCHS
        metrics = {"epoch": self.epoch, "accuracy": score, "process": os.getpid()}
        return {
            "metrics": metrics,
            "epoch": self.epoch,
            "accuracy": score,
            FINISHED: finished,
            "done": finished,
        }

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "number"), "w") as file:
            file.write(str(self.config["number"]))

    def load_checkpoint(self, checkpoint_dir):
        pass


class Failing(Scripted):
    def step(self):
        raise KeyError("no such thing")


class Heard:
    def __init__(self):
        self.events = []

    def started(self, trial):
        self.events.append(("started", trial.number))

    def reported(self, trial):
        self.events.append(("reported", trial.number, trial.history[-1]["epoch"]))

    def ended(self, trial):
        self.events.append(("ended", trial.number, str(trial.state)))

    def saved(self, trial):
        self.events.append(("saved", trial.number))


@pytest.fixture(scope="module")
def local_ray():
    with connect():
        yield


def run(folder, trainable, trials):
    study = create_study(folder, name="s", direction=optuna.study.StudyDirection.MAXIMIZE, seed=0)
    searcher = StudySearcher(
        study, SPACES["digits"], metric="accuracy", time_attr="epoch", adjust=lambda config: config
    )
    heard = Heard()
    records = run_trials(
        trainable,
        searcher,
        trials=trials,
        budget=EPOCHS,
        resources={"cpu": 1},
        concurrent=2,
        folder=folder,
        listeners=[heard],
    )
    return study, records, heard.events


def test_trials_end_as_they_should_and_everybody_hears(local_ray, tmp_path):
    study, records, events = run(tmp_path, Scripted, trials=12)
    assert [record.number for record in records] == list(range(12))
    states = {state: [r.number for r in records if r.state is state] for state in State}
    assert states[State.INFEASIBLE] == [3, 7, 11]
    assert 0 in states[State.COMPLETE]
    assert len(states[State.PRUNED]) >= 3, "ASHA cuts the weak ones"
    assert not states[State.ERROR] + states[State.RUNNING]

    optuna_states = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.PRUNED}
    for record, trial in zip(records, study.trials, strict=True):
        assert TrialConfig.from_json(trial.user_attrs["config"]) == record.config
        if record.state is State.INFEASIBLE:
            assert trial.constraints["trainable"] > 0
        else:
            assert optuna_states[trial.state] is record.state
            told = {int(metrics["epoch"]): metrics["accuracy"] for metrics in record.history}
            assert trial.intermediate_values == told
        if record.state is State.COMPLETE:
            assert len(record.history) == EPOCHS
            assert trial.value == record.history[-1]["accuracy"]

    for record in records:
        mine = [event for event in events if event[1] == record.number]
        assert mine[0] == ("started", record.number)
        assert ("ended", record.number, str(record.state)) in mine
        assert [e[2] for e in mine if e[0] == "reported"] == list(range(1, len(record.history) + 1))
    for record in records:
        if record.state is State.COMPLETE:
            with open(os.path.join(record.checkpoint, "number")) as file:
                assert file.read() == str(record.number)

    processes = {metrics["process"] for record in records for metrics in record.history}
    assert len(processes) <= 4, "actors are reused from trial to trial"


def test_a_search_of_nothing_but_errors_stops_early(local_ray, tmp_path):
    _, records, _ = run(tmp_path, Failing, trials=12)
    failed = [record for record in records if record.state is State.ERROR]
    assert HOPELESS <= len(failed) < 12
    assert {record.reason for record in failed} == {"KeyError: 'no such thing'"}


@pytest.mark.parametrize(
    ("budget", "first"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (18, 2), (27, 3), (50, 6), (90, 10)]
)
def test_the_first_rung(budget, first):
    assert grace(budget) == first
