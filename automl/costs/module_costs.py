"""Costs of a placement as sums over its modules, for the solver of placements."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from automl.base.errors import InputError
from automl.base.options import option_name
from search.config import TrialConfig
from search.placement_effects import IndexedModule, IndexedPlacement, Term, Weights, placement_weights
from search.placement_model import EffectModel
from search.record import TrialRecord
from search.solver import AdditiveCost

LEAST = 4  # number of different placements from which measured costs are fitted


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
            f"measured; it has {len(measured)}. Run more trials, or give --costs FILE"
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


LIMIT_SETTINGS = {
    "params": "max_params", "macs": "max_macs", "memory": "max_memory", "latency": "max_latency_ms"
}  # fmt: skip


def _weights(placement: IndexedPlacement) -> Weights:
    return {
        effect: weight
        for effect, weight in placement_weights(placement).items()
        if effect.term not in (Term.PAIR, Term.PLACEMENT)
    }
