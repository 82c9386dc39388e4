"""Gauges of a search that nobody collects. tests/end_to_end/test_ray_job.py reads their values."""

from automl.trials.interrupt import Interrupt
from automl.listeners.prometheus import Meter
from automl.config.settings import Settings
from automl.trials.session import Workers
from cluster import Room, TrialResources
from search.config import TrialConfig
from search.ledger import Plan
from search.record import Role, State, TrialRecord

PLAN = Plan(trials=4, budget=2.0, metric="accuracy", maximize=True, objectives=["accuracy"])


def trial(number: int, state: State) -> TrialRecord:
    history = [{"epoch": 1.0, "resource": 1.0, "accuracy": 0.5, "seconds": 1800.0}]
    return TrialRecord(number, TrialConfig(), Role.BASELINE, state, history)


def test_without_an_agent_a_search_counts_on() -> None:
    records = {0: trial(0, State.COMPLETE), 1: trial(1, State.RUNNING)}
    shape = TrialResources(cpus=2)
    room = Room(shape, most=3, look=lambda labels: {})
    workers = Workers(
        settings=Settings(space="digits"), shape=shape, room=room, interrupt=Interrupt(), advice=""
    )
    meter = Meter("mine", records, workers, PLAN)
    assert meter.running == set(), "the other one ran in an earlier process"
    meter.started(records[1])
    meter.started(records[1])  # its process died
    assert meter.running == {1}
    records[1].history.append({**records[1].history[0], "epoch": 2.0})
    meter.reported(records[1])
    assert meter.seconds == 3 * 1800
    records[1].state = State.ERROR
    meter.ended(records[1])
    assert meter.running == set()
