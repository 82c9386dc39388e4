"""Select the variants of a confirmation: finalists, the tuned baseline, and controls that explain a gain."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from random import Random
from statistics import fmean, variance
from typing import Any

from attention import Spec
from attention.spec import Placement
from automl.base.errors import InputError
from automl.base.lazy import later
from automl.base.options import format_command
from automl.config.nouns import Question
from search.config import Model, TrialConfig
from search.record import Role, State, TrialRecord, model_name, placement_names
from search.space import Space, draw_randomly
from search.trial_scheduler import Plan

optuna = later("optuna")

BUDGET = "{budget"  # begins the placeholder of a command for the length of its training
CONTROL = "conv1x1"
CONTROL_ROLES = (Role.CONTROL, Role.RANDOM, Role.FREE)  # roles of variants that explain a gain
DRAWS = 500  # draws from the space to get placements with the right number of modules
LEAST_REPEATS = 5  # least degrees of freedom of an estimate of the noise
LONGER = (1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0)  # how many times as long an opponent trains
PLAIN = 3  # number of the search's plain trials that may become the baseline


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Configuration that a confirmation compares, trained with several seeds.

    Attributes:
        name: The name, with the number of the trial. It is the key of the scores.
        role: The role, such as `finalist`.
        config: The configuration.
        trial: The number of the search's trial, or None for a configuration made for the comparison.
        plain: For a finalist, the name of the variant with its hyperparameters and the baseline's model.
        placements: The placements of which each seed has one, in turn. By default all seeds have that of
            `config`.
        is_free: Whether its model is a free answer, which cost no training to choose.
    """

    name: str
    role: Role
    config: TrialConfig
    trial: int | None = None
    plain: str = ""
    placements: Sequence[Placement] = ()
    is_free: bool = False

    def with_seed(self, seed: int) -> TrialConfig:
        """Return the configuration of the training with this seed."""
        config = replace(self.config, seed=seed)
        if not self.placements:
            return config
        return config.change(model={"placement": self.placements[seed % len(self.placements)]})

    @property
    def title(self) -> str:
        """Name without the number of the trial."""
        return self.name.removesuffix(f" (trial {self.trial})")


@dataclass(frozen=True, kw_only=True)
class VariantSet:
    """The variants of a confirmation.

    Attributes:
        variants: The variants. The best plain trial of the search is first.
        baseline_candidates: Variants that may become the tuned baseline instead: further plain trials,
            because one seed does not show which is best, and the plain backbone with each finalist's
            hyperparameters.
        warnings: Deviations from the plan.
    """

    variants: list[Variant]
    baseline_candidates: list[Variant]
    warnings: list[str]

    @property
    def baselines(self) -> list[Variant]:
        """All variants that may become the tuned baseline."""
        return [self.variants[0], *self.baseline_candidates]


def select_variants(
    records: Iterable[TrialRecord],
    plan: Plan,
    space: Space,
    question: Question,
    *,
    search: tuple[str, str],
    top: int,
    seeds: int = 1,
    noise: float | None = None,
    finalist: TrialRecord | None = None,
) -> VariantSet:
    """Select the variants of a search's confirmation.

    The finalists are the best `top` different trials that are neither a baseline nor a control. The control
    is the best trial of 1x1 convolutions alone. If no such trial was completed, it is the first finalist with
    1x1 convolutions instead of its attentions. Of hybrid decoders, the control is a uniform interleaving of
    the first finalist's layers (`Space.controls`). One variant has the first finalist's hyperparameters and
    number of modules, and another random placement with each seed, since a single draw may be good or bad by
    accident. Models without a placement have no control and no random placements. One variant is the search's
    best free answer, unless another has its model.

    Up to three plain trials may become the baseline, unless repeated trials show that the others are far
    behind the best. The plain backbone with each finalist's hyperparameters may become the baseline, too.

    Args:
        search: The name of the search, and its storage.
        seeds: The number of seeds, which is the largest number of random placements.
        noise: The standard deviation of a score over seeds. By default from trials that repeat a
            configuration.
        finalist: The only finalist, instead of the best trials. It has the number of the trial with its
            hyperparameters, but may have another placement.

    Raises:
        InputError: The search has no finished baseline or no other finished trial.
    """
    metric = plan.metric.name
    done = sorted(
        (r for r in records if r.state is State.COMPLETE),
        key=plan.signed_value,
        reverse=True,
    )
    different: list[TrialRecord] = []  # the first of those that differ only in the seed
    for record in done:
        if all(record.config.change(seed=0) != other.config.change(seed=0) for other in different):
            different.append(record)
    plain = [r for r in different if space.as_baseline(r.config) == r.config]
    controls = [r for r in different if _types(r.config) == {CONTROL}]
    finalists = [r for r in different if r not in plain and r not in controls][:top]
    if finalist is not None:
        finalists = [finalist]
    if not plain or not finalists:
        what = "baseline" if not plain else "other trial"
        raise InputError(
            f"there is nothing to confirm: no {what} has completed. Resume the search: "
            f"{format_command('search --resume', *search)} --trials +10"
        )
    warnings = []
    if len(finalists) < top:
        warnings.append(
            f"Only {len(finalists)} of {top} finalists are confirmed: the search has no other finished "
            f"trials besides baselines and controls."
        )
    # Plain trials in reach of the noise between seeds may become the baseline.
    noise = noise or _seed_noise(done, metric)
    lowest = plan.signed_value(plain[0]) - (math.inf if noise is None else 2 * math.sqrt(2) * noise)
    baselines = [_baseline(record) for record in plain[:PLAIN] if plan.signed_value(record) >= lowest]
    variants = [baselines[0]]
    placements = placement_names([record.config for record in finalists])
    for record, placement in zip(finalists, placements, strict=True):
        own = _plain_of(record, baselines, plain, space)
        if own not in baselines:
            baselines.append(own)
        variants.append(_finalist(record, placement, own, is_solved=record is finalist))
    first = finalists[0].config
    variants += _controls(first, controls, variants, space)
    free = next((r for r in different if r.role is Role.FREE and r not in plain and r not in controls), None)
    if free is not None:
        same = [variant.config.model == free.config.model for variant in variants]
        variants = [
            replace(v, is_free=v.is_free or is_same) for v, is_same in zip(variants, same, strict=True)
        ]
        if not any(same):
            name = (
                f"best free answer: {free.config.model.placement_name(options=False)} (trial {free.number})"
            )
            variants.append(
                Variant(name=name, role=Role.FREE, config=free.config, trial=free.number, is_free=True)
            )
    if first.model.placement:
        taken = [variant.config.model.placement for variant in variants]
        drawn = list(islice(_random_placements(first, taken, space, question.seed), seeds))
        if not drawn:
            warnings.append(
                "No variant has a random placement: the space drew no other placement with as many modules."
            )
        else:
            config = first.change(model={"placement": drawn[0]})
            name = f"random placement: {len(drawn)} drawn"
            variants.append(Variant(name=name, role=Role.RANDOM, config=config, placements=drawn))
    return VariantSet(variants=variants, baseline_candidates=baselines[1:], warnings=warnings)


def _explaining(what: str, config: TrialConfig, role: Role) -> Variant:
    return Variant(name=f"{what}: {config.model.placement_name(options=False)}", role=role, config=config)


def _controls(
    first: TrialConfig, controls: Sequence[TrialRecord], variants: Sequence[Variant], space: Space
) -> list[Variant]:
    """Return the controls of the first finalist, as in `select_variants`."""
    if space.controls is not None:
        taken = [variant.config.model.placement for variant in variants]
        configs = space.controls(first).items()
        return [_explaining(what, c, Role.RANDOM) for what, c in configs if c.model.placement not in taken]
    if controls:
        name = (
            f"control: {controls[0].config.model.placement_name(options=False)} (trial {controls[0].number})"
        )
        return [Variant(name=name, role=Role.CONTROL, config=controls[0].config, trial=controls[0].number)]
    if not first.model.placement:
        return []
    config = first.change(model={"placement": {site: Spec(CONTROL) for site in first.model.placement}})
    return [_explaining("control", config, Role.CONTROL)]


def _seed_noise(records: Iterable[TrialRecord], metric: str) -> float | None:
    """Return the standard deviation of a score over seeds, from trials that repeat a configuration."""
    # Returns None with fewer than `LEAST_REPEATS` degrees of freedom.
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
    layers = record.config.model.placement_name(options=False)
    name = f"baseline{'' if layers == 'plain' else f': {layers}'} (trial {record.number})"
    return Variant(name=name, role=Role.BASELINE, config=record.config, trial=record.number)


def _finalist(record: TrialRecord, placement: str, own: Variant, *, is_solved: bool) -> Variant:
    """Return a finalist, whose hyperparameters `own` has. A solved one may have no trial."""
    title = placement if record.config.model.placement else model_name(record.config)
    name = f"{title} (solved)" if is_solved else f"{title} (trial {record.number})"
    return Variant(
        name=name,
        role=Role.FINALIST,
        plain=own.name,
        config=record.config,
        trial=None if is_solved else record.number,
        is_free=record.role is Role.FREE and not is_solved,
    )


def _plain_of(
    record: TrialRecord, baselines: Sequence[Variant], plain: Sequence[TrialRecord], space: Space
) -> Variant:
    """Return the variant with a finalist's hyperparameters and the baseline's model. Create it if needed."""
    config = space.as_baseline(record.config).change(seed=0)
    for variant in (*baselines, *map(_baseline, plain)):
        if variant.config.change(seed=0) == config:
            return variant
    config = space.as_baseline(record.config)
    name = f"baseline: {config.model.placement_name(options=False)} as trial {record.number}"
    return Variant(name=name, role=Role.BASELINE, config=config)


def with_placement(space: Space, config: TrialConfig, params: Mapping[str, Any]) -> TrialConfig:
    """Return a configuration with the placement that a space draws from all its parameters.

    Raises InputError if the space rejects them.
    """
    try:
        drawn = space(optuna.trial.FixedTrial(dict(params)))
    except optuna.TrialPruned:
        raise InputError(f"space {space.name!r} rejects the placement {dict(params)}") from None
    return config.change(model={"placement": drawn.model.placement})


def best_validated(candidates: Sequence[Variant], scores: Mapping[str, Sequence[float]]) -> Variant:
    """Return the candidate with the highest mean of its `scores`, the first of equals.

    A candidate without scores could not be trained with all seeds. It is returned only if no other has
    scores.
    """
    return max(
        candidates, key=lambda variant: fmean(scores[variant.name]) if scores.get(variant.name) else -math.inf
    )


def lengthen(variant: Variant, least: float) -> Variant | None:
    """Return a variant with at least `least` times as many steps, or None if it cannot train so long."""
    longer = next((factor for factor in LONGER if factor >= least), None)
    command = getattr(variant.config.model, "command", BUDGET)
    if longer is None or BUDGET not in command:
        return None
    config = variant.config.change(longer=longer)
    return Variant(name=f"{variant.name}, {longer:g} times as long", role=Role.LONGER, config=config)


def ablations(variant: Variant) -> list[Variant]:
    """Return the variants that lack one module each."""
    variants = []
    for site, spec in variant.config.model.placement.items():
        rest = {s: other for s, other in variant.config.model.placement.items() if s != site}
        config = variant.config.change(model={"placement": rest})
        own = config.model.own_layer  # which returns
        name = f"{own} instead of {spec.name} @ {site}" if own else f"without {spec.name} @ {site}"
        variants.append(Variant(name=name, role=Role.ABLATION, config=config))
    return variants


def _types(config: TrialConfig) -> set[str]:
    return {spec.type for spec in config.model.placement.values()}


def _random_placements(
    first: TrialConfig, taken: list[Placement], space: Space, seed: int
) -> Iterator[Placement]:
    """Yield different placements with as many modules as `first` has, drawn from the space."""
    # All drawn sites come once before any comes again, since a space that draws in order prefers some.
    at: dict[frozenset[str], list[Model]] = {}
    for _, drawn in draw_randomly(space, DRAWS, seed=seed):
        if drawn is None or space.as_baseline(drawn) == drawn:
            continue
        model = drawn.model
        if model.backbone != first.model.backbone or model.placement in taken:
            continue
        if len(model.placement) == len(first.model.placement) and not _types(drawn) <= {CONTROL}:
            taken = [*taken, model.placement]
            at.setdefault(frozenset(model.placement), []).append(model)
    groups = list(at.values())
    Random(seed).shuffle(groups)
    for model in filter(None, chain.from_iterable(zip_longest(*groups))):
        if model.options == first.model.options or _fits(first, model.placement):
            yield model.placement


def _fits(config: TrialConfig, placement: Placement) -> bool:
    """Return whether the model of `config` accepts a placement that was drawn for other options."""
    # These import torch, which takes seconds and is not needed to read a confirmation.
    import torch

    from automl.config.runtime import Runtime
    from automl.task import open_task
    from backbones import insert

    task = open_task(config.change(model={"placement": {}}), Runtime(device=torch.device("cpu")))
    try:
        insert(task.model(), placement, task.example(2))
    except InputError:
        return False
    return True
