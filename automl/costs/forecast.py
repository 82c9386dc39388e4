"""Predicts the costs of a configuration before it is built: its backbone counted once, attentions by formula.

Parameters and MACs are exact from the start. Memory and latency are measured on every trial; once a few have
been, a linear fit predicts the rest well enough to skip what is far above a limit.
"""

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from attention import Cost, InputError, Spec
from automl.config.runtime import Runtime
from automl.config.settings import Settings
from automl.config.units import format_count
from automl.tasks import open_task
from backbones import Site, sites
from backbones.macs import count_macs
from backbones.unknown_site import unknown_site
from search.callback import Callback
from search.config import TrialConfig
from search.record import TrialRecord

LEARNED = 4  # trials from which a line is drawn
MARGIN = (
    0.05  # by which a forecast of a measured fact must exceed the limit: near it, it is tried and measured
)


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Of a whole model: parameters, MACs of one input, and values that the attentions keep for an input."""

    params: int
    macs: int
    saved: int


def model_cost(config: TrialConfig, runtime: Runtime) -> ModelCost:
    """Return the cost of the model of a configuration."""
    # Of training and seed the model does not depend.
    training = type(config.training)()
    plain = replace(config, model=replace(config.model, placement={}), training=training, seed=0)
    text = json.dumps(plain.to_json(), sort_keys=True)
    params, macs, places = _counted(text, runtime)
    for name in config.model.placement.keys() - places.keys():
        raise unknown_site(open_task(plain, runtime).model(), name, list(places.values()))
    costs = {name: _cost(spec, places[name]) for name, spec in config.model.placement.items()}
    # What a module takes the place of has no formula.
    counted = {name: spec for name, spec in config.model.placement.items() if places[name].replaces}
    if counted:
        changed = replace(plain, model=replace(config.model, placement=counted))
        params, macs, _ = _counted(json.dumps(changed.to_json(), sort_keys=True), runtime)
    added = [cost for name, cost in costs.items() if name not in counted]
    return ModelCost(
        params=params + sum(cost.parameters for cost in added),
        macs=macs + sum(cost.macs for cost in added),
        saved=sum(cost.memory for cost in costs.values()),
    )


def _cost(spec: Spec, site: Site) -> Cost:
    return spec.cost(site.channels, site.positions)


@cache
def _counted(text: str, runtime: Runtime) -> tuple[int, int, dict[str, Site]]:
    """Count parameters and MACs of the model of a configuration, and find its sites."""
    task = open_task(TrialConfig.from_json(json.loads(text)), runtime)
    model = task.model().eval()
    one = task.example(1)
    places = {site.name: site for site in sites(model, one)}
    return sum(p.numel() for p in model.parameters()), count_macs(model, one), places


class Forecast(Callback):
    """Predicts violations of a search's limits; a callback that is fitted to measurements."""

    def __init__(self, settings: Settings) -> None:
        self.limits, self.runtime = settings.limits, settings.runtime
        self._measured: dict[int, tuple[TrialConfig, dict[str, float]]] = {}

    def __call__(self, config: TrialConfig) -> dict[str, float]:
        """Predict by how much `config` exceeds each limit; below 0 if it does not."""
        limits = self.limits
        if limits.nothing:
            return {}
        expected = model_cost(config, self.runtime)
        known: dict[str, float] = {}
        if limits.params is not None:
            known["params"] = expected.params / limits.params - 1
        if limits.macs is not None:
            known["macs"] = expected.macs / limits.macs - 1
        for name, limit in (("memory", limits.memory), ("latency", limits.latency)):
            if limit is not None and (value := self._line(name, config)) is not None:
                known[name] = value / limit - 1 - MARGIN
        return known

    def _line(self, name: str, config: TrialConfig) -> float | None:
        """Predict a measurement by least squares over trials with the same backbone."""
        model = config.model
        same = [
            (other, profile[name])
            for other, profile in self._measured.values()
            if (other.model.backbone, other.model.options) == (model.backbone, model.options)
        ]
        if len(same) < LEARNED:
            return None
        rows = np.array([self._features(name, other) for other, _ in same])
        scale = np.abs(rows).max(axis=0) + 1e-12
        weights, *_ = np.linalg.lstsq(rows / scale, np.array([fact for _, fact in same]), rcond=None)
        return float(np.array(self._features(name, config)) / scale @ weights)

    def _features(self, name: str, config: TrialConfig) -> list[float]:
        expected = model_cost(config, self.runtime)
        if name == "latency":
            return [1.0, float(len(config.model.placement)), float(expected.macs)]
        batch = config.training.batch_size
        return [1.0, float(expected.params), float(batch), float(batch * expected.saved)]

    def on_epoch_end(self, trial: TrialRecord) -> None:
        self.on_trial_end(trial)

    def on_trial_end(self, trial: TrialRecord) -> None:
        if trial.profile and not self.limits.nothing:
            self._measured.setdefault(trial.number, (trial.config, trial.profile))


def check_limits(configs: list[TrialConfig], settings: Settings) -> None:
    """Raise InputError if no configuration keeps the limits on parameters and MACs."""
    limits = settings.limits
    if limits.params is None and limits.macs is None:
        return
    costs = [model_cost(config, settings.runtime) for config in configs]
    for name, limit in (("params", limits.params), ("macs", limits.macs)):
        least = min(getattr(c, name) for c in costs)
        if limit is not None and least > limit:
            raise InputError(
                f"nothing in this space meets --max-{name} {format_count(limit)}: the smallest of "
                f"{len(costs)} configurations has {format_count(least)}"
            )
