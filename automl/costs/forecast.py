"""Predicts the costs of a configuration before it is built.

Parameters and MACs are exact from the start: the backbone is counted once, and the modules have formulas, or
are counted once at each site. Memory and latency are measured on every trial. After a few trials, a linear
fit is precise enough to skip configurations far above a limit.
"""

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from automl.base.errors import InputError
from automl.base.units import format_count, format_size
from automl.config.nouns import Limits, Terms
from automl.config.runtime import Runtime
from automl.task import open_task
from backbones import Site, sites
from backbones.cost import attention_cost, count_macs
from backbones.site import unknown_site
from search.config import TrialConfig
from search.record import Callback, TrialRecord

MIN_TRIALS = 4  # number of trials from which a line is fitted
# Fraction by which a predicted measurement must exceed the limit. Nearer configurations are measured.
MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class PredictedCost:
    """Predicted cost of a model.

    Attributes:
        params: Number of parameters.
        macs: MACs of one input.
        saved: Number of values that the attention modules keep for the backward pass, for one input.
    """

    params: int
    macs: int
    saved: int


def predict_cost(config: TrialConfig, runtime: Runtime) -> PredictedCost:
    """Compute the cost of the model of a configuration.

    Raises:
        InputError: A site of the placement does not exist.
    """
    # The model does not depend on training and seed, so they are removed from the key of the cache. That of
    # the user's own code may depend on its hyperparameters.
    training = type(config.training)() if config.training.reported is None else config.training
    plain = replace(config, model=replace(config.model, placement={}), training=training, seed=0)
    text = json.dumps(plain.to_json(), sort_keys=True)
    params, macs, sites_by_name = _count_model(text, runtime)
    for name in config.model.placement.keys() - sites_by_name.keys():
        raise unknown_site(open_task(plain, runtime).model(), name, list(sites_by_name.values()))
    costs = {name: attention_cost(spec, sites_by_name[name]) for name, spec in config.model.placement.items()}
    # No formula covers the layer that a module replaces, so such a model is built and counted.
    replacing = {name: spec for name, spec in config.model.placement.items() if sites_by_name[name].replaces}
    if replacing:
        changed = replace(plain, model=replace(config.model, placement=replacing))
        params, macs, _ = _count_model(json.dumps(changed.to_json(), sort_keys=True), runtime)
    added = [cost for name, cost in costs.items() if name not in replacing]
    return PredictedCost(
        params=params + sum(cost.parameters for cost in added),
        macs=macs + sum(cost.macs for cost in added),
        saved=sum(cost.memory for cost in costs.values()),
    )


@cache
def _count_model(text: str, runtime: Runtime) -> tuple[int, int, dict[str, Site]]:
    """Return parameters, MACs and sites of the model of a configuration, given as JSON text."""
    task = open_task(TrialConfig.from_json(json.loads(text)), runtime)
    model = task.model().eval()
    example = task.example(1)
    sites_by_name = {site.name: site for site in sites(model, example)}
    return sum(p.numel() for p in model.parameters()), count_macs(model, example), sites_by_name


class Forecast(Callback):
    """Callback that predicts violations of a search's limits. It is fitted to finished measurements."""

    def __init__(self, terms: Terms) -> None:
        self.limits, self.runtime = terms.limits, terms.runtime
        self._measured: dict[int, tuple[TrialConfig, dict[str, float]]] = {}

    def __call__(self, config: TrialConfig) -> dict[str, float]:
        """Predict the relative excess of `config` over each limit. It is below 0 if the limit is kept."""
        limits = self.limits
        if limits.nothing:
            return {}
        excess: dict[str, float] = {}
        for name, limit in (("params", limits.params), ("macs", limits.macs)):
            if limit is not None:
                excess[name] = getattr(predict_cost(config, self.runtime), name) / limit - 1
        if limits.cache is not None:
            excess["cache"] = config.cache_bytes() / limits.cache - 1
        for name, limit in (("memory", limits.memory), ("latency", limits.latency)):
            if limit is not None and (value := self._predict(name, config)) is not None:
                excess[name] = value / limit - 1 - MARGIN
        return excess

    def _predict(self, name: str, config: TrialConfig) -> float | None:
        """Predict a measurement by least squares over trials with the same backbone."""
        model = config.model
        same = [
            (other, profile[name])
            for other, profile in self._measured.values()
            if (other.model.backbone, other.model.options) == (model.backbone, model.options)
        ]
        if len(same) < MIN_TRIALS:
            return None
        rows = np.array([self._features(name, other) for other, _ in same])
        scale = np.abs(rows).max(axis=0) + 1e-12
        weights, *_ = np.linalg.lstsq(rows / scale, np.array([fact for _, fact in same]), rcond=None)
        return float(np.array(self._features(name, config)) / scale @ weights)

    def _features(self, name: str, config: TrialConfig) -> list[float]:
        expected = predict_cost(config, self.runtime)
        if name == "latency":
            return [1.0, float(len(config.model.placement)), float(expected.macs)]
        batch = config.training.batch_size
        return [1.0, float(expected.params), float(batch), float(batch * expected.saved)]

    def on_trial_end(self, trial: TrialRecord) -> None:
        if trial.profile and not self.limits.nothing:
            self._measured.setdefault(trial.number, (trial.config, trial.profile))

    on_epoch_end = on_trial_end


def check_limits(configs: list[TrialConfig], limits: Limits, runtime: Runtime) -> None:
    """Raise `InputError` if no configuration keeps the limits on parameters, MACs and the cache."""
    if limits.cache is not None:
        if not configs[0].data.decoding_context:
            raise InputError(f"--max-cache is for language models; leave it out for task {configs[0].task}")
        _check_cache(configs, limits.cache)
    if limits.params is None and limits.macs is None:
        return
    costs = [predict_cost(config, runtime) for config in configs]
    for name, limit in (("params", limits.params), ("macs", limits.macs)):
        least = min(getattr(c, name) for c in costs)
        if limit is not None and least > limit:
            raise InputError(
                f"nothing in this space meets --max-{name} {format_count(limit)}: the smallest of "
                f"{len(costs)} configurations has {format_count(least)}"
            )


def _check_cache(configs: list[TrialConfig], limit: float) -> None:
    """Raise `InputError` if no placement keeps the limit of `--max-cache` [bytes]. Name the cheapest."""
    fewest = max(configs, key=lambda config: len(config.model.placement))
    specs = {str(spec): spec for config in configs for spec in config.model.placement.values()}
    cheapest = [
        fewest.change(model={"placement": dict.fromkeys(fewest.model.placement, spec)})
        for spec in specs.values()
    ]
    best = min([*configs, *cheapest], key=TrialConfig.cache_bytes)
    if (least := best.cache_bytes()) > limit:
        names = [spec.name for spec in best.model.placement.values()]
        others = len(best.model.kinds) - len(names)
        layers = [f"{len(names)} of {names[0]}"] * bool(names) + [f"{others} of full attention"] * bool(
            others
        )
        context = best.data.decoding_context
        raise InputError(
            f"no placement meets --max-cache {format_size(limit)} at {context:,} tokens: the cheapest has "
            f"{' and '.join(layers)} and keeps {format_size(least)}. Raise the limit, or "
            f"shorten --context"
        )
