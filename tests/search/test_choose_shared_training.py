"""Shared partial trainings in a search and in its confirmation: which trials continue which, and when."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from attention import Spec
from automl.tasks.language_modelling import LanguageModel
from search import choices
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.placement_effects import trial_weights
from search.record import Report, Role, State, TrialRecord
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.shared_trainings import PERTURB
from search.space import SPACES, Space
from search.trial_scheduler import rank_trials
from tests.helpers.search_cases import ask_trial, make_engine, make_plan, make_study, report

EPOCHS, AT = 8, 6
TYPES = ("ssa", "sagan", "multihead")


def draw(trial: optuna.Trial) -> TrialConfig:
    """Draw up to two modules at four sites, and a learning rate."""
    placement = {
        f"stage{site + 1}.block1": Spec(trial.suggest_categorical(f"type{i}", TYPES))
        for i, site in enumerate(choices.ascending(trial, 4, most=2), start=1)
    }
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    return TrialConfig().change(
        model={"placement": placement}, training={"epochs": EPOCHS, "learning_rate": rate}
    )


SPACE = Space(
    name="s",
    draw=draw,
    baseline={"modules": 0, "learning_rate": 0.01},
    free=lambda: [{"modules": 1, "site1": 2, "type1": "ssa", "learning_rate": 0.1}],
    summary="",
)


def late(config: TrialConfig) -> TrialConfig:
    return config.change(training={"insert_at": AT})


def make(folder: Path, study: optuna.Study | None = None, seed: int = 0, **more: Any) -> SearchScheduler:
    plan = make_plan(more.pop("trials", 100))
    sampler = load_sampler("placement", seed=seed)
    return make_engine(
        study or make_study(folder),
        replace(SPACE, adjust=late),
        plan,
        sampler,
        shared_trainings=3,
        **more,
    )


def whole(record: TrialRecord, score: float) -> Report:
    """Return a report of all epochs of a trial."""
    first = AT if record.config.model.placement else 0
    history = [
        {"epoch": i, "resource": i, "accuracy": score if i == EPOCHS else 0.5}
        for i in range(first + 1, EPOCHS + 1)
    ]
    return Report(history=history, finished=True)


def test_shared_trainings_come_first_and_placements_use_ready_ones(tmp_path: Path) -> None:
    scheduler = make(tmp_path)
    shared_trainings = [ask_trial(scheduler) for _ in range(3)]
    assert [(t.role, t.config.seed, t.config.model.placement) for t in shared_trainings] == [
        (Role.BASELINE, seed, {}) for seed in range(3)
    ]
    assert scheduler.ask() is None
    assert scheduler.waiting
    scheduler.report(1, report(*[0.5] * (AT - 1)))
    assert scheduler.ask() is None, "its shared partial training is not complete"
    scheduler.report(1, report(*[0.5] * AT))
    first = ask_trial(scheduler)
    assert not scheduler.waiting
    assert (first.role, first.config.seed) == (Role.FREE, 1)
    assert list(first.config.model.placement) == ["stage3.block1"]
    assert all(ask_trial(scheduler).config.seed == 1 for _ in range(3)), "the only one that is ready"
    assert {r.config.training.learning_rate for r in scheduler.records.values()} == {0.01}
    assert all(r.config.training.insert_at == AT for r in scheduler.records.values())
    seeds = {
        number: trial.user_attrs["shared_training"] for number, trial in enumerate(scheduler.study.trials)
    }
    assert seeds == {number: record.config.seed for number, record in scheduler.records.items()}


def test_decoders_continue_full_layers_with_drawn_ones(tmp_path: Path) -> None:
    """Trial 0 fixes the hyperparameters, but not the parameters that choose layers."""

    def adjust(config: TrialConfig) -> TrialConfig:
        return config.change(training={"epochs": EPOCHS, "insert_at": AT})

    sampler = load_sampler("placement", seed=0)
    scheduler = make_engine(
        make_study(tmp_path),
        replace(SPACES["hybrid"], adjust=adjust),
        make_plan(40),
        sampler,
        shared_trainings=2,
    )
    random = np.random.default_rng(0)
    for number in range(10):
        record = ask_trial(scheduler)
        assert bool(record.config.model.placement) == (number > 1 and record.role is not Role.REPLICATE)
        scheduler.end(record.number, whole(record, 0.5 + 0.01 * random.standard_normal()))
    configs = [record.config for record in scheduler.records.values()]
    kinds = {tuple(config.model.kinds) for config in configs if isinstance(config.model, LanguageModel)}
    assert {"full"} < {kind for layers in kinds if len(set(layers)) > 1 for kind in layers}
    assert len({config.training.learning_rate for config in configs}) == 1


def test_a_placement_is_used_once_per_shared_training(tmp_path: Path) -> None:
    """One site has an effect and no other has, so it is drawn again and again."""
    scheduler, random = make(tmp_path), np.random.default_rng(0)
    for _ in range(60):
        record = ask_trial(scheduler)
        best = "stage3.block1" in record.config.model.placement
        score = 0.5 + 0.02 * best + 0.01 * random.standard_normal()
        scheduler.end(record.number, whole(record, score))
    shared_trainings = defaultdict(list)
    for record in scheduler.records.values():
        if record.role is not Role.REPLICATE:
            shared_trainings[str(record.config.model.placement)].append(record.config.seed)
    assert all(len(set(seeds)) == len(seeds) for seeds in shared_trainings.values()), (
        "which would tell nothing"
    )
    assert max(len(seeds) for name, seeds in shared_trainings.items() if name != "{}") > 1
    assert shared_trainings["{}"] == list(range(len(shared_trainings["{}"])))
    assert not any(record.state is State.PRUNED for record in scheduler.records.values())


def test_a_replicate_follows_every_eighth_placement(tmp_path: Path) -> None:
    """Effects are so small that the search stays undecided."""
    study = make_study(tmp_path)
    scheduler, random = make(tmp_path, study), np.random.default_rng(0)
    for i in range(44):
        record = ask_trial(scheduler)
        scheduler.end(record.number, whole(record, 0.9 if record.number < 3 else random.uniform(0.4, 0.8)))
        if i == 20:  # as after its end
            scheduler = make(tmp_path, study)
    records = list(scheduler.records.values())
    replicates = [record for record in records if record.role is Role.REPLICATE]
    assert len(replicates) == 3
    for i, record in enumerate(replicates, start=1):
        assert sum(bool(r.config.model.placement) for r in records[: record.number]) == 8 * i
    assert len({record.config.seed for record in replicates}) == 3
    shared_trainings = {record.config.seed: record for record in records if record.role is Role.BASELINE}
    for record in replicates:
        plain = shared_trainings[record.config.seed]
        assert record.config == plain.config.change(training={"perturb": PERTURB})
        replicate, shared_training = (
            trial_weights(study.trials[number]) for number in (record.number, plain.number)
        )
        assert replicate == shared_training, (
            "of the same block and placement, so that they differ by noise alone"
        )
    listed = rank_trials(records, make_plan())
    assert len(listed) == len(records) - 3
    assert all(record.role is not Role.REPLICATE for record in listed)


def test_a_killed_search_resumes_with_its_shared_trainings(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    scheduler = make(tmp_path, study)
    for _ in range(3):
        record = ask_trial(scheduler)
        scheduler.end(record.number, whole(record, 0.5))
    running = ask_trial(scheduler)
    again = make(tmp_path, study)
    assert ask_trial(again).number == running.number
    record = ask_trial(again)
    assert record.config.model.placement
    assert record.config.seed in range(3)
    assert record.config.training.learning_rate == 0.01


def test_a_shared_training_that_cannot_be_trained_ends_the_search(tmp_path: Path) -> None:
    scheduler = make(tmp_path)
    for _ in range(3):
        scheduler.end(ask_trial(scheduler).number, Report(infeasible="out of memory"))
    assert scheduler.ask() is None
    assert not scheduler.waiting


def test_the_search_finds_a_planted_type(tmp_path: Path) -> None:
    """Shared partial trainings differ by 0.7 points and continuations by 0.22. One type adds a point."""
    scheduler, random = make(tmp_path), np.random.default_rng(0)
    of_shared_training = 0.9 + 0.007 * random.standard_normal(100)
    cost = 0.0
    while cost < 16:
        record = ask_trial(scheduler)
        placement = record.config.model.placement
        effect = 0.01 * any(spec.type == "sagan" for spec in placement.values())
        score = of_shared_training[record.config.seed] + effect + 0.0022 * random.standard_normal()
        scheduler.end(record.number, whole(record, score))
        cost += (EPOCHS - AT) / EPOCHS if placement else 1
    best = rank_trials(scheduler.records.values(), make_plan())[0].config.model.placement
    assert any(spec.type == "sagan" for spec in best.values())


def test_in_a_confirmation_placements_wait_for_the_shared_training_of_their_seed(tmp_path: Path) -> None:
    plain = late(TrialConfig().change(training={"epochs": EPOCHS}))
    placed = plain.change(model={"placement": {"stage1.block1": Spec("ssa")}})
    planned = [
        PlannedTrial(variant=variant, role=Role.FINALIST, config=config.change(seed=seed))
        for seed in (7, 8)
        for variant, config in (("plain", plain), ("ssa", placed))
    ]
    scheduler = FixedScheduler(make_study(tmp_path), make_plan(), planned)
    begun = [ask_trial(scheduler) for _ in range(2)]
    assert [(r.variant, r.config.seed) for r in begun] == [("plain", 7), ("plain", 8)]
    assert scheduler.ask() is None
    assert scheduler.waiting
    scheduler.report(begun[1].number, report(*[0.5] * AT))
    third = ask_trial(scheduler)
    assert (third.variant, third.config.seed) == ("ssa", 8)
    scheduler.end(begun[0].number, Report(error="died"))
    fourth = ask_trial(scheduler)
    assert fourth.config.seed == 7, "which trains the shared partial training itself"
    for record in (begun[1], third, fourth):
        scheduler.end(record.number, Report(error="died"))
    assert scheduler.ask() is None
    assert not scheduler.waiting
