"""Find the best placement under limits that are given after a search, without training.

The model of placements, fitted to the trials of the search, predicts the gain of every placement of its
space. `search.solver` ranks what was tried and plans what was not, within the limits. The cost of a placement
is a sum over its modules.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.trial import FixedTrial, TrialState
from scipy.special import ndtr, ndtri

from attention.spec import Placement
from automl.base import live_objects, loading
from automl.base.errors import InputError
from automl.base.options import format_command, option_name
from automl.base.serialise import convert_fields
from automl.config.nouns import Question, Terms, format_cost
from automl.config.runtime import Runtime
from automl.config.settings import normalise
from automl.costs.forecast import predict_cost
from automl.data import shared
from automl.judge.scheduler import read_verdicts
from automl.judge.statistics import ALPHA
from automl.judge.variants import with_placement
from automl.storage.folder import NamedSearch, check_not_lost, find_model_search, resolve_search
from automl.storage.metadata import SearchMetadata
from automl.storage.storage import Storage
from automl.storage.user_code import check_trusted
from search.choices import MODULES, NO_TYPE, OWN, SITE, SITES, TYPE
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
from search.placement_model import EffectModel
from search.placement_planner import DrawnChoices, PlacementChoices, list_modules
from search.placement_posterior import LEVEL, best_trial, probability_of_effects
from search.placement_sampler import fit_model
from search.record import Role, TrialRecord, describe_placement
from search.solver import AdditiveCost, PlacementSolver
from search.space import Space, SpaceFunction
from search.study import open_study, read_record, read_records
from search.trial_scheduler import select_leaders

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
            base = getattr(predict_cost(self.plain, runtime), name)
            added = {}
            for module, config in configs.items():
                with suppress(InputError):  # The module does not suit its site.
                    added[module] = getattr(predict_cost(config, runtime), name) - base
            return AdditiveCost(plain=base, modules=added)
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
        plain=-(plain + model.centre),
        modules={module: max(least, -cost) for module, cost in zip(modules, added, strict=True)},
    )


def _weights(placement: IndexedPlacement) -> Weights:
    return {
        e: w for e, w in placement_weights(placement).items() if e.term not in (Term.PAIR, Term.PLACEMENT)
    }


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
        outcome: What the latest confirmation with the placement has shown, such as `worse`, or None.
        verdict: The figures of that confirmation in words, or empty.
    """

    placement: str
    params: dict[str, Any]
    gain: float
    low: float
    high: float
    better: float
    costs: dict[str, float]
    trials: int
    outcome: str | None = None
    verdict: str = ""


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
        best: The best placement. None that a confirmation has shown to be worse than the baseline.
        limits: The limits by name.
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

    @property
    def likeliest(self) -> str:
        """Return what is more probably better in words: the best placement or the baseline."""
        return self.best.placement if self.best.better >= 0.5 else self.baseline

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file for `automl confirm --solve`, which `--json` prints, too."""
        values = convert_fields(self)
        own = {"metric": self.metric.name, "params": self.best.params, "likeliest": self.likeliest}
        return {**values, **own}


def run_solve(
    search: str | NamedSearch | None = None,
    *,
    max_latency_ms: float | None = None,
    max_params: str | None = None,
    max_macs: str | None = None,
    max_memory: str | None = None,
    full: int | None = None,
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
        storage: The storage of the search. By default that of the result, or `searches`.
        space: The space of the search. Needed if it was a function of a notebook.
        trust: Allow running the user-defined code that the files of the search name.

    Returns:
        The placement with its gain and costs.

    Raises:
        InputError: The search has no completed trial with a placement, no placement
            meets the limits, or there is user-defined code without `trust`.

    Example:
        After the example of `run_search`:

        >>> solved = automl.run_solve("example", max_params="5M")
        >>> solved.best.costs["params"] <= 5e6
        True
    """
    amounts = {"max_params": max_params, "max_macs": max_macs, "max_memory": max_memory}
    terms = Terms(**normalise({**amounts, "max_latency_ms": max_latency_ms}))
    limits = {name: limit for name, limit in asdict(terms.limits).items() if limit is not None}
    name, storage = resolve_search(search, storage)
    folder, metadata = find_model_search(name, storage)
    check_not_lost(folder, metadata.location)
    shared.use_saved(folder, Storage(storage))
    records = read_records(folder, metadata.name, metadata.plan.needed)
    _check_names(name, metadata.settings.question, records, space, trust)
    loaded = metadata.draw_space(space).space
    study, model = _fit_study(folder, name, storage, records)
    problem = PlacementProblem(loaded, study, full)
    runtime = metadata.settings.terms.runtime
    additive = {limit: problem.costs(limit, records, runtime) for limit in limits}
    baseline = select_leaders(records, metadata.plan)[1]
    return _solve(problem, model, additive, limits, metadata, baseline, _read_outcomes(folder, metadata))


def _read_outcomes(folder: Path, metadata: SearchMetadata) -> list[tuple[Placement, str, str]]:
    """Return the placements of confirmed finalists with the outcome and its figures, the latest first."""
    outcomes = []
    for verdict in (verdict for _, verdict in read_verdicts(folder, metadata) if verdict.complete):
        for shown in verdict.comparisons:
            if shown.role is not Role.FINALIST or shown.p_holm is None:
                continue
            is_behind = shown.difference.mean < 0 and shown.p_holm <= ALPHA
            outcome = "worse" if is_behind else "undecided"
            if shown.variant == verdict.finalist or verdict.final in ("equivalent", "cannot tell"):
                outcome = verdict.final or outcome
            placement = verdict.variant(shown.variant).config.model.placement
            outcomes.append((placement, outcome, verdict.sentence(shown)))
    return outcomes[::-1]


def _fit_study(
    folder: Path, name: str, storage: str, records: Sequence[TrialRecord]
) -> tuple[Study, EffectModel]:
    """Return the study of a search and the model of its placements. Raise InputError if there are none."""
    study = open_study(folder, name=name) if records else None
    model = None if study is None else fit_model(study)
    if study is None or model is None or not any(placement.modules for placement in model.tried[0]):
        raise InputError(
            f"no trial of {name!r} with a placement has completed; train some: "
            f"{format_command('search --resume', name, storage)} --trials +10"
        )
    return study, model


def _solve(
    problem: PlacementProblem,
    model: EffectModel,
    costs: Mapping[str, AdditiveCost],
    limits: dict[str, float],
    metadata: SearchMetadata,
    baseline: TrialRecord | None,
    outcomes: Sequence[tuple[Placement, str, str]],
) -> SolveResult:
    """Solve a problem. `costs` are what modules add to each cost with a limit."""

    def find_outcome(placement: IndexedPlacement) -> tuple[str | None, str]:
        modules = problem.config(placement).model.placement
        return next(((outcome, text) for other, outcome, text in outcomes if other == modules), (None, ""))

    solver = PlacementSolver(model, problem.choices, problem.tried, costs)
    worse: list[IndexedPlacement] = []
    while (solved := solver.solve(limits, worse)) is not None and find_outcome(solved)[0] == "worse":
        worse.append(solved)
    if solved is None and worse:
        raise InputError("a confirmation has shown each placement within the limits to be worse; raise them")
    if solved is None:
        raise _nothing_meets(limits, solver, problem)
    metric = metadata.plan.metric
    against, matters, point = _describe(solved, model, metric, baseline, problem, costs)
    outcome, verdict = find_outcome(solved)
    return SolveResult(
        search=metadata.name,
        identity=metadata.identity,
        storage=metadata.storage,
        metric=metric,
        trial=problem.best.number,
        baseline=against,
        matters=matters,
        config=problem.config(solved),
        best=replace(point, outcome=outcome, verdict=verdict),
        limits=limits,
    )


def _check_names(
    search: str, question: Question, records: Sequence[TrialRecord], space: object, trust: bool
) -> None:
    """Raise InputError for code that only the files of the search name, and for a model to be downloaded."""
    # `space` is the space that the user gave instead of the search's own, or None.
    names = [] if space is not None else [question.space_name]
    names += [question.backbone or "", *(question.attention_types or ())]
    names += [name for r in records for name in (r.config.model.backbone, *r.config.user_code())]
    own = (name for name in names if loading.is_user_defined(name) and not live_objects.is_live(name))
    code = [name for name in own if loading.get_loaded_object(name) is None]  # no file is run for the others
    check_trusted(f"solving {search!r}", code, trust=trust)
    for model in {r.config.model.backbone: r.config.model for r in records}.values():
        model.check_local()


def _nothing_meets(
    limits: Mapping[str, float], solver: PlacementSolver, problem: PlacementProblem
) -> InputError:
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
    return f"{cost:,.0f}" if name == "params" else format_cost(name, cost)


def show_limit(name: str, limit: float) -> str:
    """Format a limit as an option."""
    value = f"{limit:g}" if name == "latency" else format_cost(name, limit)
    return f"{option_name(LIMIT_SETTINGS[name])} {value}"


def _describe(
    placement: IndexedPlacement,
    model: EffectModel,
    metric: Metric,
    baseline: TrialRecord | None,
    problem: PlacementProblem,
    costs: Mapping[str, AdditiveCost],
) -> tuple[str, float, SolvedPoint]:
    """Return the name of the baseline, the probability that placements matter, and the gain over it."""
    # In most spaces the baseline is a placement without modules, and the model predicts the difference.
    # Hybrid decoders have uniform baselines, which are no placements. There the score of the best one is
    # subtracted.
    if problem.choices.least == 0 or baseline is None:
        name = "no attention"
        base = {effect: -weight for effect, weight in placement_weights(IndexedPlacement("", ())).items()}
        score, noise = 0.0, 0.0
        trials = [effects for trial in problem.complete if (effects := trial_weights(trial)) is not None]
        matters = probability_of_effects(model, trials)
    else:
        name = f"{describe_placement(baseline.config)} (trial {baseline.number})"
        own = trial_weights(problem.best) or {}
        base = {effect: weight for effect, weight in own.items() if is_setting(effect)}
        score = metric.sign * baseline.value(metric.name) - model.centre
        noise, matters = model.noise, 1.0
    weights = {**placement_weights(placement)}
    for effect, weight in base.items():
        weights[effect] = weights.get(effect, 0.0) + weight
    means, covariance = model.predict([weights])
    mean, deviation = float(means[0]) - score, math.sqrt(max(float(covariance[0, 0]), 0.0) + noise**2)
    width = float(ndtri((1 + LEVEL) / 2)) * deviation
    point = SolvedPoint(
        placement=problem.words(placement),
        params=problem.params(placement),
        gain=mean,
        low=mean - width,
        high=mean + width,
        better=matters * float(ndtr(mean / deviation)) if deviation else 0.0,
        costs={limit: cost(placement) for limit, cost in costs.items()},
        trials=problem.tried[placement],
    )
    return name, matters, point
