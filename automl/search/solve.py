"""Find the best placement under limits that are given after a search, without training.

The model of placements, fitted to the trials of the search, predicts the gain of every placement of its
space. An integer program returns the best one under the limits (`search.solver`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FixedTrial, FrozenTrial, TrialState
from scipy.special import ndtr, ndtri

from automl.base import loading
from automl.base.command_line import format_command, option_name
from automl.base.errors import InputError
from automl.base.serialise import convert_fields
from automl.base.units import format_count
from automl.config.settings import Settings
from automl.config.user_code import check_trusted
from automl.confirm.variants import with_placement
from automl.costs.exported import read_latencies
from automl.costs.forecast import predict_cost
from automl.costs.module_costs import LIMIT_SETTINGS, count_costs, fit_costs
from automl.data import shared
from automl.storage.folder import (
    NamedSearch,
    SearchMetadata,
    check_not_lost,
    find_model_search,
    resolve_search,
)
from automl.storage.storage import Storage
from search.choices import MODULES, NO_TYPE, OWN, SITE, SITES, TYPE, DrawnChoices
from search.config import TrialConfig
from search.metric import Metric
from search.placement_effects import (
    IndexedModule,
    IndexedPlacement,
    Term,
    Weights,
    is_setting,
    parse_placement,
    placement_weights,
    trial_weights,
)
from search.placement_model import UNKNOWN, EffectModel
from search.placement_planner import PlacementChoices, list_modules
from search.placement_posterior import LEVEL, best_trial, probability_of_effects
from search.placement_sampler import fit_model
from search.record import TrialRecord, describe_placement
from search.solver import AdditiveCost, PlacementSolver
from search.space import Space, SpaceFunction
from search.study import open_study, read_record, read_records
from search.trial_scheduler import select_leaders

POINTS = 8  # limits of a Pareto front


@dataclass(frozen=True, kw_only=True)
class SolvedPoint:
    """Placement with its expected gain over the baseline (larger is better), in units of the metric.

    Attributes:
        placement: The placement in words.
        params: The parameters of the placement in the space.
        gain: The posterior mean.
        low: The lower end of the 90 % interval.
        high: The upper end of the 90 % interval.
        better: The probability that it is better than the baseline. Other than the interval, it includes the
            probability that placements make no difference.
        costs: The cost of each limit's name.
        trials: The number of completed trials with the placement.
    """

    placement: str
    params: dict[str, Any]
    gain: float
    low: float
    high: float
    better: float
    costs: dict[str, float]
    trials: int


@dataclass(frozen=True, kw_only=True)
class SolveResult:
    """The best placement under limits.

    Attributes:
        search: The name of the search.
        identity: The identifier of the search.
        storage: The storage of the search.
        metric: The metric of the gains.
        trial: The number of the trial whose hyperparameters the placements have.
        baseline: The baseline in words.
        matters: The probability that placements make any difference. A priori, it is 1/2.
        config: The configuration of the best placement.
        best: The best placement.
        limits: The limits by name.
        fronts: For each limit's name, the Pareto front of gain and this cost, cheapest first. The other
            limits hold.
    """

    search: str
    identity: str
    storage: str
    metric: Metric
    trial: int
    baseline: str
    matters: float
    config: TrialConfig
    best: SolvedPoint
    limits: dict[str, float]
    fronts: dict[str, list[SolvedPoint]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file for `automl confirm --solve`, which `--json` prints, too."""
        values = convert_fields(self)
        return {**values, "metric": self.metric.name, "params": self.best.params}


def run_solve(
    search: str | NamedSearch | None = None,
    *,
    max_latency_ms: float | None = None,
    max_params: str | None = None,
    max_macs: str | None = None,
    max_memory: str | None = None,
    full: int | None = None,
    costs: str | None = None,
    storage: str | None = None,
    space: str | SpaceFunction | Space | None = None,
    trust: bool = False,
) -> SolveResult:
    """Return the placement with the highest expected gain under limits. Nothing is trained or downloaded.

    Args:
        search: The name of the search, or its result. By default the latest search in `storage`.
        max_latency_ms: Limit on the latency of one input [ms].
        max_params: Limit on parameters, such as `5M`.
        max_macs: Limit on multiply-accumulates of one input, such as `2G`.
        max_memory: Limit on the memory of a training step, such as `4GB`.
        full: The number of full layers of a hybrid decoder.
        costs: File of `automl cost --export-costs` with latencies on another machine.
        storage: The storage of the search. By default that of the result, or `searches`.
        space: The space of the search. Needed if it was a function of a notebook.
        trust: Allow running the user-defined code that the files of the search name.

    Raises:
        InputError: The search has no completed trial with a placement or several objectives, no placement
            meets the limits, the file of costs does not fit, or there is user-defined code without `trust`.
    """
    settings = Settings(
        space="digits",
        max_latency_ms=max_latency_ms,
        max_params=max_params,
        max_macs=max_macs,
        max_memory=max_memory,
    )
    limits = {name: limit for name, limit in asdict(settings.limits).items() if limit is not None}
    if costs is not None and "latency" not in limits:
        raise InputError("--costs has latencies for --max-latency-ms; add the limit, or leave --costs out")
    name, storage = resolve_search(search, storage)
    folder, metadata = find_model_search(name, storage)
    check_not_lost(folder, metadata)
    if len(metadata.plan.objectives) > 1:
        raise InputError(
            f"automl solve needs a search with one objective; {name!r} has "
            f"{', '.join(metadata.plan.objectives)}"
        )
    shared.use_saved(folder, Storage(storage))
    records = read_records(folder, metadata.name, metadata.plan.needed)
    _check_names(metadata, records, space, trust)
    loaded = metadata.draw_space(space).space
    study = open_study(folder, name=metadata.name) if records else None
    model = None if study is None else fit_model(study)
    tried = [] if model is None else model.tried[0]
    if study is None or model is None or not any(placement.modules for placement in tried):
        raise InputError(
            f"no trial of {name!r} with a placement has completed; train some: "
            f"{format_command('search --resume', name, storage)} --trials +10"
        )
    trials = study.get_trials(deepcopy=False)
    best = best_trial(study)
    record = read_record(best)
    assert record is not None, "a search created it"
    problem = _Problem(loaded, best, record, trials, full)
    measured = [(placement, trial) for trial in records if (placement := parse_placement(trial.params))]
    additive = {limit: _costs(limit, problem, measured, metadata.settings, costs) for limit in limits}
    solver = PlacementSolver(model, problem.choices, problem.tried, additive)
    solved = solver.solve(limits)
    if solved is None:
        raise _nothing_meets(limits, solver, problem)
    fronts = {limit: solver.front(limit, limits, POINTS) for limit in limits}
    chosen = list(dict.fromkeys([solved, *(placement for front in fronts.values() for placement in front)]))
    weights = [effects for trial in problem.complete if (effects := trial_weights(trial)) is not None]
    baseline = select_leaders(records, metadata.plan)[1]
    against, matters, solved_points = _points(
        chosen, model, metadata.plan.metric, best, baseline, problem, additive, weights
    )
    points = dict(zip(chosen, solved_points, strict=True))
    return SolveResult(
        search=name,
        identity=metadata.identity,
        storage=storage,
        metric=metadata.plan.metric,
        trial=best.number,
        baseline=against,
        matters=matters,
        config=problem.config(solved),
        best=points[solved],
        limits=limits,
        fronts={limit: [points[placement] for placement in front] for limit, front in fronts.items()},
    )


def _check_names(
    metadata: SearchMetadata, records: Sequence[TrialRecord], space: object, trust: bool
) -> None:
    """Raise InputError for code that only the files of the search name, and for a model to be downloaded.

    `space` is the space that the user gave instead of the search's own, or None.
    """
    settings = metadata.settings
    names = [] if space is not None else [settings.space_name]
    names += [settings.backbone or "", *(settings.attention_types or ())]
    names += [name for r in records for name in (r.config.model.backbone, *r.config.user_code())]
    code = [name for name in names if loading.is_user_defined(name) and not loading.is_in_process(name)]
    check_trusted(f"solving {metadata.name!r}", code, trust=trust)
    for model in {r.config.model.backbone: r.config.model for r in records}.values():
        model.check_local()


class _Problem:
    """Placements of a search's space, beside the hyperparameters of its best trial."""

    def __init__(
        self,
        space: Space,
        best: FrozenTrial,
        record: TrialRecord,
        trials: Sequence[FrozenTrial],
        full: int | None,
    ) -> None:
        self.space, self._best, self.record = space, best, record
        self._drawn = DrawnChoices()
        self.complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        placements = (parse_placement(trial.params, trial.distributions) for trial in self.complete)
        self.tried = Counter(placement for placement in placements if placement is not None)
        self.choices = self._choices(self.complete, full)
        self.plain = record.config.change(model={"placement": {}})

    def _choices(self, trials: Sequence[FrozenTrial], full: int | None) -> PlacementChoices:
        drawn: Any = FixedTrial(self._best.params)
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
        for trial in trials:
            self._drawn.add(trial)
        # The options of a type are known once a trial has had it.
        tried = {module.type for placement in self.tried for module in placement.modules}
        return PlacementChoices(
            prefix=prefix,
            sites=sites,
            types=[kind for kind in self._drawn.types or [NO_TYPE] if kind in tried],
            options=self._drawn.options,
            most=most,
            least=least,
        )

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
        return with_placement(self.space, self.record.config, {**self._best.params, **self.params(placement)})

    def single(self, module: IndexedModule) -> TrialConfig:
        """Return the configuration of one module alone, whether the space draws it or not."""
        return self.config(IndexedPlacement(self.choices.prefix, (module,)))

    def words(self, placement: IndexedPlacement) -> str:
        """Return the name of a placement."""
        return describe_placement(self.config(placement))


def _costs(
    name: str,
    problem: _Problem,
    trials: Sequence[tuple[IndexedPlacement, TrialRecord]],
    settings: Settings,
    file: str | None,
) -> AdditiveCost:
    """Return what modules add to a cost: from a file, exactly, or from the measurements of the search."""
    modules = list(list_modules(problem.choices))
    configs = {module: problem.single(module) for module in modules}
    replaces = bool(problem.plain.model.own_layer)
    if name == "latency" and file is not None:
        if replaces:
            raise InputError("--costs has modules that are added, not layers of decoders; leave it out")
        return read_latencies(Path(file), problem.plain, configs)
    if name in ("params", "macs"):
        return count_costs(
            lambda config: getattr(predict_cost(config, settings.runtime), name), problem.plain, configs
        )
    same = [
        (placement, other)
        for placement, other in trials
        if _hardware(other, name) == _hardware(problem.record, name)
    ]
    return fit_costs(name, same, modules, least=-inf if replaces else 0.0)


def _hardware(record: TrialRecord, name: str) -> tuple[Any, ...]:
    """Return what a measured cost depends on, beside the placement."""
    model = record.config.model
    training = record.config.training.batch_size if name == "memory" else None
    return model.backbone, model.options, record.device, training


def _nothing_meets(limits: Mapping[str, float], solver: PlacementSolver, problem: _Problem) -> InputError:
    """Return the error for limits that no placement meets, with the cheapest placement."""
    for name, limit in limits.items():
        cheapest = solver.cheapest(name)
        assert cheapest is not None, "without limits there is a placement"
        if (cost := solver.costs[name](cheapest)) > limit:
            return InputError(
                f"no placement meets {show_limit(name, limit)}: the cheapest, {problem.words(cheapest)}, has "
                f"{show_cost(name, cost)}. Raise the limit"
            )
    assert cheapest is not None, "there is a limit"
    options = " and ".join(show_limit(name, limit) for name, limit in limits.items())
    costs = ", ".join(f"{other} {show_cost(other, solver.costs[other](cheapest))}" for other in limits)
    return InputError(
        f"no placement meets {options} together: {problem.words(cheapest)}, which has the least {name}, has "
        f"{costs}. Raise a limit"
    )


def show_cost(name: str, cost: float) -> str:
    """Format a cost with its unit."""
    if name == "params":
        return f"{cost:,.0f}"
    return f"{cost:.4g} ms" if name == "latency" else f"{format_count(cost)}{'B' if name == 'memory' else ''}"


def show_limit(name: str, limit: float) -> str:
    """Format a limit as an option."""
    value = f"{limit:g}" if name == "latency" else f"{format_count(limit)}{'B' if name == 'memory' else ''}"
    return f"{option_name(LIMIT_SETTINGS[name])} {value}"


def _points(
    placements: Sequence[IndexedPlacement],
    model: EffectModel,
    metric: Metric,
    best: FrozenTrial,
    baseline: TrialRecord | None,
    problem: _Problem,
    costs: Mapping[str, AdditiveCost],
    weights: Sequence[Weights],
) -> tuple[str, float, list[SolvedPoint]]:
    """Return the name of the baseline, the probability that placements matter, and their gains over it.

    In most spaces the baseline is a placement without modules, and the model predicts the difference. Hybrid
    decoders have uniform baselines, which are no placements. There the score of the best one is subtracted.
    """
    if problem.choices.least == 0 or baseline is None:
        name = "no attention"
        base = {effect: -weight for effect, weight in placement_weights(IndexedPlacement("", ())).items()}
        score, noise = 0.0, 0.0
        matters = probability_of_effects(model, weights, without=(*UNKNOWN, Term.IN_BLOCK))
    else:
        name = f"{describe_placement(baseline.config)} (trial {baseline.number})"
        base = {
            effect: weight for effect, weight in (trial_weights(best) or {}).items() if is_setting(effect)
        }
        score = metric.sign * baseline.value(metric.name) - float(model.centres.mean())
        noise, matters = model.noise, 1.0
    sums = [{**placement_weights(placement)} for placement in placements]
    for effects in sums:
        for effect, weight in base.items():
            effects[effect] = effects.get(effect, 0.0) + weight
    means, covariance = model.predict(sums)
    means, deviations = means - score, np.sqrt(np.maximum(np.diag(covariance), 0) + noise**2)
    half = ndtri((1 + LEVEL) / 2) * deviations
    points = [
        SolvedPoint(
            placement=problem.words(placement),
            params=problem.params(placement),
            gain=float(mean),
            low=float(mean - width),
            high=float(mean + width),
            better=matters * float(ndtr(mean / deviation)) if deviation else 0.0,
            costs={limit: cost(placement) for limit, cost in costs.items()},
            trials=problem.tried[placement],
        )
        for placement, mean, deviation, width in zip(placements, means, deviations, half, strict=True)
    ]
    return name, matters, points
