"""Gauges of a search without a collector. tests/end_to_end/test_ray_job.py reads their values."""

from automl.callbacks.prometheus import PrometheusGauges
from cluster.capacity import ClusterCapacity
from cluster.resources import TrialResources
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import Role, State, TrialRecord
from search.trial_scheduler import Plan

PLAN = Plan(trials=4, budget=2.0, metric=ACCURACY, objectives=["accuracy"])


def trial(number: int, state: State) -> TrialRecord:
    history = [{"epoch": 1.0, "resource": 1.0, "accuracy": 0.5, "seconds": 1800.0}]
    return TrialRecord(number, TrialConfig(), Role.BASELINE, state, history)


def test_without_an_agent_a_search_counts_on() -> None:
    records = {0: trial(0, State.COMPLETE), 1: trial(1, State.RUNNING)}
    shape = TrialResources(cpus=2)
    capacity = ClusterCapacity(shape, most=3, list_nodes=lambda labels: {})
    gauges = PrometheusGauges(
        "mine", records, PLAN, slots=capacity.slots, devices=shape.workers, device="core"
    )
    assert gauges.running == set(), "the other one ran in an earlier process"
    gauges.on_trial_start(records[1])
    gauges.on_trial_start(records[1])  # its process died
    assert gauges.running == {1}
    records[1].history.append({**records[1].history[0], "epoch": 2.0})
    gauges.on_epoch_end(records[1])
    assert gauges.seconds == 3 * 1800
    records[1].state = State.ERROR
    gauges.on_trial_end(records[1])
    assert gauges.running == set()
