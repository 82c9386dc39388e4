"""The arms of a confirmation: finalists, the tuned baseline, and the controls that explain a gain."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from attention import InputError, Spec
from automl.config.settings import Settings, command, on_trunk
from backbones.placement import Placement
from search.config import TrialConfig
from search.record import Role, State, TrialRecord, model_name, where
from search.spaces import Space, random_draws
from search.trial_scheduler import Plan

CONTROL = "conv1x1"
CONTROL_ROLES = (Role.CONTROL, Role.RANDOM)  # arms that explain a gain
DRAWS = 300  # of the space, to come by a placement with the right number of modules


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the models that are compared, to be trained with several seeds.

    trial: of the search that found it, None for one that was made for the comparison.
    """

    name: str
    role: Role
    config: TrialConfig
    trial: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArmSet:
    """The arms of a confirmation.

    arms: the tuned baseline of the search first. score: that one's validation score.
    baseline_candidates: the plain backbone with the finalists' hyperparameters. What the sampler found for a
        finalist may be as good without its attention, so each is trained once as in the search, and the best
        by validation becomes the baseline.
    warnings: deviations from the plan.
    """

    arms: list[Arm]
    score: float
    baseline_candidates: list[Arm]
    warnings: list[str]


def choose_arms(
    records: Iterable[TrialRecord],
    plan: Plan,
    space: Space,
    settings: Settings,
    *,
    top: int,
    init: str | None = None,
) -> ArmSet:
    """The arms of a search's confirmation.

    The best `top` different trials that are neither a baseline nor a control are the finalists. The control
    is the best trial of 1x1 convolutions alone, or the first finalist with its attentions replaced by them
    where no such trial was completed. One arm has the first finalist's hyperparameters and number of modules,
    and a random placement. Models without a placement have neither of these two arms.

    init: `scratch` or `trunk`, as in `Settings`; the search's own where not given.

    Raises InputError when the search has no finished baseline or no other finished trial, and for finalists
    that do not go into one trunk.
    """
    metric = plan.metric.name
    done = sorted(
        (r for r in records if r.state is State.COMPLETE and r.role is not Role.PLACEBO),
        key=lambda r: plan.worth(r, metric),
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
            f"{command('search --resume', str(settings.name), settings.storage)} --trials +10"
        )
    warnings = []
    if len(finalists) < top:
        warnings.append(
            f"the search has {len(finalists)} finished trials besides baselines and controls, not {top}"
        )
    arms = [Arm(name=f"baseline (trial {plain[0].number})", role=Role.BASELINE, **_of(plain[0]))]
    arms += [
        Arm(name=f"{_name(r.config)} (trial {r.number})", role=Role.FINALIST, **_of(r)) for r in finalists
    ]
    first = finalists[0].config
    if controls:
        name = f"control: {where(controls[0].config)} (trial {controls[0].number})"
        arms.append(Arm(name=name, role=Role.CONTROL, **_of(controls[0])))
    elif first.model.placement:
        model = replace(first.model, placement={site: Spec(CONTROL) for site in first.model.placement})
        config = replace(first, model=model)
        arms.append(Arm(name=f"control: {where(config)}", role=Role.CONTROL, config=config))
    if first.model.placement:
        random = _random_placement(first, [f.config for f in finalists], space, settings)
        if random is None:
            warnings.append(
                "the space drew no other placement with as many modules, so no arm has a random placement"
            )
        else:
            arms.append(Arm(name=f"random placement: {where(random)}", role=Role.RANDOM, config=random))
    baseline_candidates = _baseline_candidates(finalists, plain, space)
    if (init or settings.init) == "trunk":
        arms, baseline_candidates = _on_trunks(arms), []
    elif settings.grafts:
        arms = [replace(arm, config=arm.config.change(training={"graft_at": 0})) for arm in arms]
    return ArmSet(
        arms=arms, score=plain[0].value(metric), baseline_candidates=baseline_candidates, warnings=warnings
    )


def _on_trunks(arms: list[Arm]) -> list[Arm]:
    """The arms with the baseline's hyperparameters, so that all share its training up to their placements."""
    trunk = on_trunk(arms[0].config)
    made = []
    for arm in arms:
        model = replace(arm.config.model, placement={})
        if model != trunk.model:
            raise InputError(
                f"{arm.name} cannot be put into the baseline's model, which has another backbone or other "
                f"options; confirm it from new weights: --init scratch"
            )
        made.append(replace(arm, config=trunk.change(model={"placement": arm.config.model.placement})))
    return made


def _baseline_candidates(finalists: list[TrialRecord], plain: list[TrialRecord], space: Space) -> list[Arm]:
    baseline_candidates: list[Arm] = []
    for record in finalists:
        config = space.as_baseline(record.config)
        taken = [*(r.config for r in plain), *(arm.config for arm in baseline_candidates)]
        if all(config.change(seed=0) != other.change(seed=0) for other in taken):
            baseline_candidates.append(
                Arm(name=f"baseline: plain as trial {record.number}", role=Role.BASELINE, config=config)
            )
    return baseline_candidates


def ablations(arm: Arm) -> list[Arm]:
    """An arm without each of its modules in turn."""
    made = []
    for site, spec in arm.config.model.placement.items():
        rest = {s: other for s, other in arm.config.model.placement.items() if s != site}
        config = replace(arm.config, model=replace(arm.config.model, placement=rest))
        made.append(Arm(name=f"without {spec.type}@{site}", role=Role.ABLATION, config=config))
    return made


def _of(record: TrialRecord) -> dict[str, Any]:
    return {"config": record.config, "trial": record.number}


def _name(config: TrialConfig) -> str:
    model = config.model
    return where(config) if model.placement else model_name(model.backbone, model.options)


def _types(config: TrialConfig) -> set[str]:
    return {spec.type for spec in config.model.placement.values()}


def _random_placement(
    first: TrialConfig, taken: list[TrialConfig], space: Space, settings: Settings
) -> TrialConfig | None:
    """`first` with another placement of as many modules, as the space draws it for a model of its sites."""
    for _, drawn in random_draws(space, DRAWS, seed=settings.seed):
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
