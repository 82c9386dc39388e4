"""Metrics for Prometheus, exported by Ray's agents on every node.

A gauge is a value in the memory of this process. Ray sends it every ten seconds to the agent of this node, if
there is one.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from ray.util.metrics import Gauge

from automl.config.escape import prometheus_label
from search.callback import Callback
from search.record import State, TrialRecord
from search.trial_scheduler import Plan, select_leaders


class PrometheusGauges(Callback):
    """Callback that updates Ray's gauges of a search, in a process connected to Ray.

    Args:
        name: Name of the search. It is the tag `search` of each gauge, escaped to ASCII.
        records: Records of the scheduler, which updates them.
        plan: Plan that ranks trials. None for a confirmation, where the best of all seeds has no meaning.
        slots: Function that returns the current number of slots.
        devices: Number of devices of a trial.
        device: Type of the device.
    """

    def __init__(
        self,
        name: str,
        records: Mapping[int, TrialRecord],
        plan: Plan | None = None,
        *,
        slots: Callable[[], int],
        devices: float,
        device: str,
    ) -> None:
        self.name, self.records, self.plan = name, records, plan
        self.count_slots, self.devices = slots, devices
        self.running: set[int] = set()  # trials of this process only
        self.seconds = sum(metrics["seconds"] for record in records.values() for metrics in record.history)
        self.trials = self._gauge("trials", "Trials by state.", state="")
        self.best = self._gauge("best", "Value of the best completed trial.", metric="")
        self.baseline = self._gauge(
            "best_baseline", "Value of the best completed trial without attention.", metric=""
        )
        self.hours = self._gauge("device_hours", "Spent on training.", device=device)
        self.slots = self._gauge("slots", "Trials that can run at once.")
        self.busy = self._gauge("slots_busy", "Trials that run.")
        self._tell()

    def on_trial_start(self, trial: TrialRecord) -> None:
        self.running.add(trial.number)
        self._tell()

    def on_epoch_end(self, trial: TrialRecord) -> None:
        self.seconds += trial.history[-1]["seconds"]
        self._tell_hours()

    def on_trial_end(self, trial: TrialRecord) -> None:
        self.running.discard(trial.number)
        self._tell()

    def _gauge(self, name: str, description: str, **tags: str) -> Gauge:
        gauge = Gauge(f"automl_{name}", description, ("search", *tags))
        gauge.set_default_tags({"search": prometheus_label(self.name), **tags})
        return gauge

    def _tell(self) -> None:
        counts = Counter(record.state for record in self.records.values())
        for state in State:
            self.trials.set(counts[state], {"state": str(state)})
        self.slots.set(self.count_slots())
        self.busy.set(len(self.running))
        self._tell_hours()
        if self.plan is not None:
            objective = self.plan.objectives[0]
            best, baseline = select_leaders(self.records.values(), self.plan)
            for gauge, leader in ((self.best, best), (self.baseline, baseline)):
                if leader is not None:
                    gauge.set(leader.value(objective), {"metric": prometheus_label(objective)})

    def _tell_hours(self) -> None:
        self.hours.set(self.seconds * self.devices / 3600)
