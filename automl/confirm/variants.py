"""The variants of a confirmation: finalists, the tuned baseline, and the controls that explain a gain."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from attention import InputError, Spec
from automl.config.command_line import format_command
from automl.config.settings import Settings, with_shared_training
from backbones.placement import Placement
from search.config import TrialConfig
from search.record import Role, State, TrialRecord, model_name, placement_name, placement_names
from search.space import Space, draw_randomly
from search.trial_scheduler import Plan

CONTROL = "conv1x1"
CONTROL_ROLES = (Role.CONTROL, Role.RANDOM)  # variants that explain a gain
DRAWS = 300  # of the space, to come by a placement with the right number of modules
LEAST_REPEATS = 5  # degrees of freedom of an estimate of the noise
PLAIN = 3  # plain trials of the search that may become the baseline


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the models that are compared, to be trained with several seeds.

    trial: of the search that found it, None for one that was made for the comparison.
    plain: of a finalist, the name of the variant with its hyperparameters and the baseline's model.
    """

    name: str
    role: Role
    config: TrialConfig
    trial: int | None = None
    plain: str = ""

    @property
    def title(self) -> str:
        """The name without the number of the trial."""
        return self.name.removesuffix(f" (trial {self.trial})")


@dataclass(frozen=True, kw_only=True)
class VariantSet:
    """The variants of a confirmation.

    variants: the best plain trial of the search first.
    baseline_candidates: what may become the tuned baseline in its place: further plain trials, as one seed
        does not tell which is best, and the plain backbone with each finalist's hyperparameters.
    warnings: deviations from the plan.
    """

    variants: list[Variant]
    baseline_candidates: list[Variant]
    warnings: list[str]

    @property
    def baselines(self) -> list[Variant]:
        """All variants that may become the tuned baseline."""
        return [self.variants[0], *self.baseline_candidates]

    def finalist_baselines(self) -> list[Variant]:
        """The plain variants with a finalist's hyperparameters."""
        names = {variant.plain for variant in self.variants}
        return [variant for variant in self.baselines if variant.name in names]


def select_variants(
    records: Iterable[TrialRecord],
    plan: Plan,
    space: Space,
    settings: Settings,
    *,
    top: int,
    init: str | None = None,
    noise: float | None = None,
) -> VariantSet:
    """The variants of a search's confirmation.

    The best `top` different trials that are neither a baseline nor a control are the finalists. The control
    is the best trial of 1x1 convolutions alone, or the first finalist with its attentions replaced by them
    where no such trial was completed. One variant has the first finalist's hyperparameters and number of
    modules, and a random placement. Models without a placement have neither of these two variants.

    Up to three plain trials may become the baseline, unless repeated trials show that the best is out of
    reach of the others; and so may the plain backbone with each finalist's hyperparameters.

    init: `scratch` or `shared`, as in `Settings`; the search's own where not given.
    noise: standard deviation of a score over seeds; from trials that repeat a configuration where not given.

    Raises InputError when the search has no finished baseline or no other finished trial, and for finalists
    that do not go into one shared partial training.
    """
    metric = plan.metric.name
    done = sorted(
        (r for r in records if r.state is State.COMPLETE and r.role is not Role.REPLICATE),
        key=lambda r: plan.signed_value(r, metric),
        reverse=True,
    )
    # Repetitions with other seeds are one and the same.
    different: list[TrialRecord] = []
    for record in done:
        if all(record.config.change(seed=0) != other.config.change(seed=0) for other in different):
            different.append(record)
    plain = [r for r in different if space.as_baseline(r.config) == r.config]
    controls = [r for r in different if _types(r.config) == {CONTROL}]
    finalists = [r for r in different if r not in plain and r not in controls][:top]
    if not plain or not finalists:
        what = "baseline" if not plain else "other trial"
        raise InputError(
            f"there is nothing to confirm: no {what} has completed. Resume the search: "
            f"{format_command('search --resume', str(settings.name), settings.storage)} --trials +10"
        )
    warnings = []
    if len(finalists) < top:
        warnings.append(
            f"the search has {len(finalists)} finished trials besides baselines and controls, not {top}"
        )
    noise = noise or _seed_noise(done, metric)
    reach = math.inf if noise is None else 2 * math.sqrt(2) * noise
    near = [
        r
        for r in plain[:PLAIN]
        if plan.signed_value(plain[0], metric) - plan.signed_value(r, metric) <= reach
    ]
    baselines = [_baseline(record) for record in near]
    variants = [baselines[0]]
    placements = placement_names([record.config for record in finalists])
    for record, placement in zip(finalists, placements, strict=True):
        own = _plain_of(record, baselines, plain, space)
        if own not in baselines:
            baselines.append(own)
        title = placement if record.config.model.placement else model_name(record.config)
        name = f"{title} (trial {record.number})"
        variants.append(Variant(name=name, role=Role.FINALIST, plain=own.name, **_of(record)))
    first = finalists[0].config
    if controls:
        name = f"control: {placement_name(controls[0].config, options=False)} (trial {controls[0].number})"
        variants.append(Variant(name=name, role=Role.CONTROL, **_of(controls[0])))
    elif first.model.placement:
        model = replace(first.model, placement={site: Spec(CONTROL) for site in first.model.placement})
        config = replace(first, model=model)
        variants.append(
            Variant(
                name=f"control: {placement_name(config, options=False)}", role=Role.CONTROL, config=config
            )
        )
    if first.model.placement:
        random = _random_placement(first, [f.config for f in finalists], space, settings)
        if random is None:
            warnings.append(
                "the space drew no other placement with as many modules, so no variant has a random placement"
            )
        else:
            variants.append(
                Variant(
                    name=f"random placement: {placement_name(random, options=False)}",
                    role=Role.RANDOM,
                    config=random,
                )
            )
    others = baselines[1:]
    if (init or settings.init) == "shared":
        variants, others = _with_shared_trainings(variants), []
    elif settings.shares_training:
        variants, others = _from_scratch(variants), _from_scratch(others)
    return VariantSet(variants=variants, baseline_candidates=others, warnings=warnings)


def _seed_noise(records: Iterable[TrialRecord], metric: str) -> float | None:
    """Return the standard deviation of a score over seeds, from trials that repeat a configuration.

    Returns None with fewer than `LEAST_REPEATS` degrees of freedom.
    """
    repeats: dict[str, list[float]] = {}
    for record in records:
        key = json.dumps(record.config.change(seed=0).to_json(), sort_keys=True)
        repeats.setdefault(key, []).append(record.value(metric))
    free = sum(len(values) - 1 for values in repeats.values())
    if free < LEAST_REPEATS:
        return None
    squares = sum(variance(values) * (len(values) - 1) for values in repeats.values() if len(values) > 1)
    return math.sqrt(squares / free)


def _baseline(record: TrialRecord) -> Variant:
    return Variant(name=f"baseline (trial {record.number})", role=Role.BASELINE, **_of(record))


def _plain_of(
    record: TrialRecord, baselines: Sequence[Variant], plain: Sequence[TrialRecord], space: Space
) -> Variant:
    """Return the variant with a finalist's hyperparameters and the baseline's model, a new one if need be."""
    config = space.as_baseline(record.config).change(seed=0)
    for variant in (*baselines, *map(_baseline, plain)):
        if variant.config.change(seed=0) == config:
            return variant
    name = f"baseline: plain as trial {record.number}"
    return Variant(name=name, role=Role.BASELINE, config=space.as_baseline(record.config))


def _from_scratch(variants: list[Variant]) -> list[Variant]:
    return [replace(variant, config=variant.config.change(training={"insert_at": 0})) for variant in variants]


def _with_shared_trainings(variants: list[Variant]) -> list[Variant]:
    """The variants with the baseline's hyperparameters, so that all share its training up to their
    placements.
    """
    shared_training = with_shared_training(variants[0].config)
    made = []
    for variant in variants:
        model = replace(variant.config.model, placement={})
        if model != shared_training.model:
            raise InputError(
                f"{variant.name} cannot be put into the baseline's model, which has another backbone or "
                f"other options; confirm it from new weights: --init scratch"
            )
        config = shared_training.change(model={"placement": variant.config.model.placement})
        made.append(replace(variant, config=config, plain=variants[0].name if variant.plain else ""))
    return made


def best_validated(candidates: Sequence[Variant], scores: Mapping[str, Sequence[float]]) -> Variant:
    """Return the candidate with the highest mean of its `scores`, of equals the first.

    One without scores could not be trained with all seeds; it is taken where that holds for all.
    """
    return max(
        candidates, key=lambda variant: fmean(scores[variant.name]) if scores.get(variant.name) else -math.inf
    )


def ablations(variant: Variant) -> list[Variant]:
    """A variant without each of its modules in turn."""
    made = []
    for site, spec in variant.config.model.placement.items():
        rest = {s: other for s, other in variant.config.model.placement.items() if s != site}
        config = replace(variant.config, model=replace(variant.config.model, placement=rest))
        made.append(Variant(name=f"without {spec.type} @ {site}", role=Role.ABLATION, config=config))
    return made


def _of(record: TrialRecord) -> dict[str, Any]:
    return {"config": record.config, "trial": record.number}


def _types(config: TrialConfig) -> set[str]:
    return {spec.type for spec in config.model.placement.values()}


def _random_placement(
    first: TrialConfig, taken: list[TrialConfig], space: Space, settings: Settings
) -> TrialConfig | None:
    """`first` with another placement of as many modules, as the space draws it for a model of its sites."""
    for _, drawn in draw_randomly(space, DRAWS, seed=settings.seed):
        if drawn is None:
            continue
        model = drawn.model
        if model.backbone != first.model.backbone:
            continue
        if len(model.placement) != len(first.model.placement) or _types(drawn) <= {CONTROL}:
            continue
        if all(model.placement != other.model.placement for other in taken) and (
            model.options == first.model.options or _fits(first, model.placement)
        ):
            return replace(first, model=replace(first.model, placement=model.placement))
    return None


def _fits(config: TrialConfig, placement: Placement) -> bool:
    """Whether the model of `config` takes a placement that was drawn for one with other options."""
    # They import torch, and who reads a confirmation need not wait for that.
    import torch

    from automl.config.runtime import Runtime
    from automl.tasks import open_task
    from backbones import insert

    plain = replace(config, model=replace(config.model, placement={}))
    task = open_task(plain, Runtime(device=torch.device("cpu")))
    try:
        insert(task.model(), placement, task.example(2))
    except InputError:
        return False
    return True
