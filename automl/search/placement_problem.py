"""The placements of a search's space and their costs, for `automl solve`.

The cost of a placement is a sum over its modules.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

from optuna import Study
from optuna.trial import FixedTrial, TrialState

from automl.base.errors import InputError
from automl.base.options import option_name
from automl.config.runtime import Runtime
from automl.costs.forecast import predict_cost
from automl.judge.variants import with_placement
from search.choices import MODULES, NO_TYPE, OWN, SITE, SITES, TYPE
from search.config import TrialConfig
from search.placement_effects import (
    IndexedModule,
    IndexedPlacement,
    Term,
    Weights,
    parse_placement,
    placement_weights,
)
from search.placement_model import EffectModel
from search.placement_planner import DrawnChoices, PlacementChoices, list_modules
from search.placement_posterior import best_trial
from search.record import TrialRecord, describe_placement
from search.solver import AdditiveCost
from search.space import Space
from search.study import read_record

LEAST = 4  # number of different placements from which measured costs are fitted
LIMIT_SETTINGS = {
    "params": "max_params", "macs": "max_macs", "memory": "max_memory", "latency": "max_latency_ms"
}  # fmt: skip


class PlacementProblem:
    """Placements of a search's space, beside the hyperparameters of its best trial.

    Args:
        full: The number of full layers of a hybrid decoder.

    Raises:
        InputError: The space draws no placements, or not so many full layers.
    """

    def __init__(self, space: Space, study: Study, full: int | None) -> None:
        self.space, self.best = space, best_trial(study)
        record = read_record(self.best)
        assert record is not None, "a search created it"
        self.record = record
        self._drawn = DrawnChoices()
        self.complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        placements = (parse_placement(trial.params, trial.distributions) for trial in self.complete)
        self.tried = Counter(placement for placement in placements if placement is not None)
        self.choices = self._choices(full)
        self.plain = record.config.change(model={"placement": {}})

    def _choices(self, full: int | None) -> PlacementChoices:
        drawn: Any = FixedTrial(self.best.params)
        self.space(drawn)
        if SITES not in drawn.user_attrs:
            raise InputError(
                f"automl solve needs a space that draws placements with search.choices; {self.space.name!r} "
                f"does not"
            )
        prefix, sites = drawn.user_attrs[SITES]
        count = drawn.distributions[MODULES]
        least, most = count.low, count.high
        if full is not None:
            if not self.record.config.model.own_layer:
                raise InputError(
                    f"--full is for hybrid decoders; leave it out with space {self.space.name!r}"
                )
            if not least <= sites - full <= most:
                raise InputError(f"--full must lie between {sites - most} and {sites - least}; got {full}")
            least = most = sites - full
        for trial in self.complete:
            self._drawn.add(trial)
        # The options of a type are known once a trial has had it.
        tried = {module.type for placement in self.tried for module in placement.modules}
        choices = self._drawn.placements(prefix, sites, least=least, most=most)
        return replace(choices, types=[kind for kind in choices.types if kind in tried])

    def params(self, placement: IndexedPlacement) -> dict[str, Any]:
        """Return the parameters with which the space draws a placement."""
        params: dict[str, Any] = {MODULES: len(placement.modules)}
        for i, (site, kind, options) in enumerate(placement.modules, start=1):
            params[f"{self.choices.prefix}{SITE}{i}"] = site
            if kind != NO_TYPE:
                params[f"{TYPE}{i}"] = kind
            numbers = {name: value for (other, name), value in self._drawn.numbers.items() if other == kind}
            for name, value in {**numbers, **dict(options)}.items():
                params[f"{OWN}{i}.{name}" if "." in name else f"{name}{i}"] = value
        return params

    def config(self, placement: IndexedPlacement) -> TrialConfig:
        """Return the configuration of a placement."""
        return with_placement(self.space, self.record.config, {**self.best.params, **self.params(placement)})

    def single(self, module: IndexedModule) -> TrialConfig:
        """Return the configuration of one module alone, whether the space draws it or not."""
        return self.config(IndexedPlacement(self.choices.prefix, (module,)))

    def words(self, placement: IndexedPlacement) -> str:
        """Return the name of a placement."""
        return describe_placement(self.config(placement))

    def costs(self, name: str, trials: Sequence[TrialRecord], runtime: Runtime) -> AdditiveCost:
        """Return what modules add to a cost: exactly, or from the measurements of the search."""
        modules = list(list_modules(self.choices))
        configs = {module: self.single(module) for module in modules}
        replaces = bool(self.plain.model.own_layer)
        if name in ("params", "macs"):
            return count_costs(
                lambda config: getattr(predict_cost(config, runtime), name), self.plain, configs
            )
        measured = [
            (placement, trial)
            for trial in trials
            if (placement := parse_placement(trial.params))
            and _hardware(trial, name) == _hardware(self.record, name)
        ]
        return fit_costs(name, measured, modules, least=-inf if replaces else 0.0)


def _hardware(record: TrialRecord, name: str) -> tuple[Any, ...]:
    """Return what a measured cost depends on, beside the placement."""
    model = record.config.model
    training = record.config.training.batch_size if name == "memory" else None
    return model.backbone, model.options, record.device, training


def count_costs(
    count: Callable[[TrialConfig], float], plain: TrialConfig, configs: Mapping[IndexedModule, TrialConfig]
) -> AdditiveCost:
    """Return a cost that is known without measurement, such as parameters. It is exact.

    Modules that do not suit their sites are left out. `configs` holds the configuration with each module
    alone.
    """
    base, added = count(plain), {}
    for module, config in configs.items():
        with suppress(InputError):  # The module does not suit its site.
            added[module] = count(config) - base
    return AdditiveCost(plain=base, modules=added)


def fit_costs(
    name: str,
    trials: Iterable[tuple[IndexedPlacement, TrialRecord]],
    modules: Sequence[IndexedModule],
    *,
    least: float = 0.0,
) -> AdditiveCost:
    """Fit what each module adds to a measured cost. The sum is a prediction.

    The effects of sites, types and options are shrunk as those on the score are, so that a module that was
    never measured has the cost of similar ones. A module that replaces another one may reduce costs, down to
    `least`. The trials are of one backbone and differ in nothing else that has this cost. Raises InputError
    if too few placements were measured.
    """
    measured = {placement: record.profile[name] for placement, record in trials if name in record.profile}
    if len(measured) < LEAST:
        raise InputError(
            f"{option_name(LIMIT_SETTINGS[name])} needs the {name} of {LEAST} placements that this search "
            f"measured; it has {len(measured)}. Run more trials"
        )
    prefix = next((placement.prefix for placement in measured if placement.prefix), "")
    # A slow measurement is cut off as a low score is.
    model = EffectModel(
        [_weights(placement) for placement in measured], [-cost for cost in measured.values()]
    )
    alone = [_weights(IndexedPlacement(prefix, (module,))) for module in modules]
    for weights in alone:
        weights.pop(next(effect for effect in weights if effect.term == Term.INTERCEPT))
    plain, *added = model.predict([_weights(IndexedPlacement("", ())), *alone])[0].tolist()
    return AdditiveCost(
        plain=-(plain + float(model.centres.mean())),
        modules={module: max(least, -cost) for module, cost in zip(modules, added, strict=True)},
    )


def _weights(placement: IndexedPlacement) -> Weights:
    return {
        e: w for e, w in placement_weights(placement).items() if e.term not in (Term.PAIR, Term.PLACEMENT)
    }
