"""Selection of the variants of a confirmation."""

from dataclasses import replace
from itertools import combinations

import pytest

from attention import Spec
from automl.base.serialise import from_json, to_json
from automl.config.nouns import Question
from automl.judge.variants import Variant, ablations, select_variants
from automl.tasks.image_classification import ImageData
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.record import Role, State
from search.space import Space
from search.trial_scheduler import Plan
from tests.helpers.confirm_cases import CONV, SAGAN, SSA, record

PLAN = Plan(trials=9, budget=1, metric=ACCURACY)
OF_3 = "baseline: plain as trial 3"
TWO = {**SSA, **SAGAN}


def draw(trial):
    sites = ["stage1.block1", "stage1.block2", "stage2.block1"][: trial.suggest_int("modules", 0, 2)]
    kinds = [trial.suggest_categorical(f"type{i}", ["ssa", "conv1x1", "sagan"]) for i in range(len(sites))]
    placement = {site: Spec(kind) for site, kind in zip(sites, kinds, strict=True)}
    return TrialConfig(model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement))


SPACE = Space(name="mine", draw=draw, baseline={"modules": 0}, summary="")


def choose(*records, top=2, plan=PLAN, space=SPACE, **more):
    question, search = Question(space="mine"), ("mine", "searches")
    return select_variants(records, plan, space, question, search=search, top=top, **more)


def named(variant_set, role):
    return [variant.name for variant in variant_set.variants if variant.role is role]


@pytest.mark.parametrize(
    ("roles", "name"),
    [
        ({2: Role.FREE, 3: Role.CANDIDATE}, "best free answer: ssa @ stage1.block2.branch (trial 2)"),
        ({2: Role.FREE, 3: Role.FREE}, None),  # the finalist is one
        ({2: Role.CANDIDATE, 5: Role.FREE}, None),  # the control is one
    ],
)
def test_the_best_free_answer_is_an_opponent(roles, name):
    records = [replace(r, role=roles.get(r.number, r.role)) for r in (*RECORDS[:4], RECORDS[5])]
    variant_set = choose(*records, top=1)
    assert named(variant_set, Role.FREE) == [name] * (name is not None)
    (finalist,) = (variant for variant in variant_set.variants if variant.role is Role.FINALIST)
    assert finalist.is_free == (roles.get(3) is Role.FREE)


def finalists(variant_set):
    return [variant.trial for variant in variant_set.variants if variant.role is Role.FINALIST]


BASELINE = record(0, 0.8)
RECORDS = [
    BASELINE,
    record(1, 0.85, training={"learning_rate": 1e-3}),
    record(2, 0.9, SSA),
    record(3, 0.95, TWO, training={"learning_rate": 2e-3}),
    record(4, 0.93, SAGAN),
    record(5, 0.97, CONV),
    record(6, 0.99, SSA, state=State.PRUNED),
]


def test_finalists_are_different_trials_by_their_scores():
    variant_set = choose(*RECORDS)
    assert named(variant_set, Role.BASELINE) == ["baseline (trial 1)"]
    assert named(variant_set, Role.FINALIST) == [
        "ssa @ stage1.block2.branch + sagan @ stage2.block1 (trial 3)", "sagan @ stage2.block1 (trial 4)",
    ]  # fmt: skip
    assert named(variant_set, Role.CONTROL) == ["control: conv1x1 @ stage1.block1 (trial 5)"]
    assert variant_set.variants[0].role is Role.BASELINE
    assert variant_set.warnings == []
    again = record(7, 0.94, SAGAN)
    again.config = again.config.change(seed=9)
    assert finalists(choose(*RECORDS[:5], again, top=3)) == [3, 7, 2]
    variant_set = choose(*RECORDS[:3], top=3)
    assert variant_set.warnings[0].startswith("Only 1 of 3 finalists are confirmed: the search has no other")
    plan = Plan(trials=9, budget=1, metric=replace(ACCURACY, maximize=False))
    assert finalists(choose(*RECORDS, plan=plan)) == [2, 4]


def test_plain_trials_that_may_become_the_baseline():
    variant_set = choose(*RECORDS)
    assert [variant.name for variant in variant_set.baseline_candidates] == ["baseline (trial 0)", OF_3]
    assert [variant.plain for variant in variant_set.variants[1:3]] == [OF_3, "baseline (trial 0)"]
    assert variant_set.baseline_candidates[1].config.training.learning_rate == 2e-3
    assert variant_set.baseline_candidates[1].config.model.placement == {}
    # A lucky plain trial with other hyperparameters does not replace it.
    better = [record(10 + i, 0.86 + i / 100, training={"learning_rate": (11 + i) * 1e-3}) for i in range(4)]
    variant_set = choose(*RECORDS, *better)
    assert variant_set.variants[0].trial == 13
    assert [variant.trial for variant in variant_set.baseline_candidates] == [12, 11, None, 0]
    assert [variant.plain for variant in variant_set.variants[1:3]] == [OF_3, "baseline (trial 0)"]


@pytest.mark.parametrize(("spread", "near"), [(0.001, []), (0.02, [0])])
def test_plain_trials_far_behind_the_best_are_no_candidates(spread, near):
    """The noise over seeds is estimated from trials that repeat a configuration."""
    again = [record(20 + i, 0.7 + spread * (-1) ** i, CONV) for i in range(7)]
    for i, repeated in enumerate(again):
        repeated.config = repeated.config.change(seed=i + 1)
    variant_set = choose(*RECORDS[:2], *RECORDS[3:4], *again, top=1)
    assert [variant.trial for variant in variant_set.baseline_candidates if variant.trial is not None] == near
    with_noise = choose(*RECORDS[:2], *RECORDS[3:4], *again, top=1, noise=0.02)
    assert [variant.trial for variant in with_noise.baseline_candidates if variant.trial is not None] == [0]


def test_random_placements_differ_and_prefer_no_sites():
    variant_set = choose(*RECORDS, seeds=4)
    (chance,) = (variant for variant in variant_set.variants if variant.role is Role.RANDOM)
    finalist, other = variant_set.variants[1:3]
    configs = [chance.with_seed(seed) for seed in range(4, 12)]
    for seed, config in enumerate(configs, 4):
        assert len(config.model.placement) == 2
        assert config.model.placement not in (finalist.config.model.placement, other.config.model.placement)
        assert {spec.type for spec in config.model.placement.values()} != {"conv1x1"}
        assert (config.training, config.seed) == (finalist.config.training, seed)
    placements = [config.model.placement for config in configs]
    assert placements[:4] == placements[4:], "the placement depends only on the seed"
    assert all(placements[i] not in placements[:i] for i in range(4)), "no placement is drawn twice"
    assert chance.config.model == chance.with_seed(0).model
    assert from_json(Variant, to_json(chance), "chance") == chance
    assert choose(*RECORDS, seeds=4) == variant_set, "the draws depend only on the seed of the search"
    # The space draws two of six sites in order: the last two in a fifth of its draws, others in a 25th.
    sites = [f"stage{stage}.block{block}" for stage in (1, 2, 3) for block in (1, 2)]

    def ordered(trial):
        first = trial.suggest_int("first", 0, 4)
        second = trial.suggest_int(f"after{first}", first + 1, 5)
        kind = trial.suggest_categorical("kind", ["ssa", "sagan"])
        return RECORDS[0].config.change(model={"placement": {sites[i]: Spec(kind) for i in (first, second)}})

    variant_set = choose(*RECORDS, seeds=30, space=Space(name="o", draw=ordered, baseline={}, summary=""))
    (chance,) = (variant for variant in variant_set.variants if variant.role is Role.RANDOM)
    pairs = [frozenset(placement) for placement in chance.placements]
    assert len(chance.placements) == 30
    assert set(pairs[:15]) == set(pairs[15:]) == set(map(frozenset, combinations(sites, 2)))
    only = Space(name="only", draw=lambda trial: TrialConfig(), baseline={}, summary="")
    variant_set = choose(*RECORDS, space=only)
    assert named(variant_set, Role.RANDOM) == []
    assert "No variant has a random placement" in variant_set.warnings[0]


def test_controls_and_ablations():
    (control,) = (variant for variant in choose(*RECORDS[:5]).variants if variant.role is Role.CONTROL)
    assert control.trial is None
    assert control.config.model.placement == {site: Spec("conv1x1") for site in TWO}
    assert control.config.training.learning_rate == 2e-3
    variant = choose(*RECORDS).variants[1]
    variants = ablations(variant)
    names = [variant.name for variant in variants]
    assert names == ["without ssa @ stage1.block2.branch", "without sagan @ stage2.block1"]
    assert [set(variant.config.model.placement) for variant in variants] == [set(SAGAN), set(SSA)]


def test_other_values_of_trials_count():
    weights = {"weights": "/shared partial training.pt", "weights_digest": "abc"}
    changed = [replace(r, config=r.config.change(model=weights)) for r in RECORDS]
    variant_set = choose(*changed)
    assert named(variant_set, Role.RANDOM)
    models = [variant.config.model for variant in variant_set.variants]
    assert {(model.weights, model.weights_digest) for model in models} == {tuple(weights.values())}
    lucky, strong = replace(RECORDS[2], expected=0.8), replace(RECORDS[4], expected=0.9)
    variants = choose(BASELINE, strong, lucky, top=1).variants
    assert [variant.trial for variant in variants[:2]] == [0, 4]


def test_a_placement_drawn_for_other_options_counts_where_it_fits():
    """Depth is an option of a ViT. A placement in a block that the model lacks does not fit."""

    def deep(trial):
        depth = trial.suggest_categorical("depth", [2, 4])
        at = trial.suggest_int(f"at{depth}", 1, depth)
        return shallow(depth, f"stage1.block{at}", trial.suggest_categorical("type", ["ssa", "sagan"]))

    def shallow(depth, site, kind):
        options = {"depth": depth, "embed_dim": 12, "patch_size": 8, "pool": "mean"}
        model = Model(backbone="vit", options=options, placement={site: Spec(kind)})
        return TrialConfig(data=ImageData(size=24), model=model)

    plain = shallow(2, "stage1.block1", "ssa").change(model={"placement": {}})
    records = [
        replace(record(0, 0.8), config=plain),
        replace(record(1, 0.9), config=shallow(2, "stage1.block1", "ssa")),
    ]
    space = Space(name="deep", draw=deep, baseline={}, summary="")
    variant_set = choose(*records, top=1, space=space)
    (variant,) = (variant for variant in variant_set.variants if variant.role is Role.RANDOM)
    assert variant.config.model.options["depth"] == 2
    assert set(variant.config.model.placement) <= {"stage1.block1", "stage1.block2"}
