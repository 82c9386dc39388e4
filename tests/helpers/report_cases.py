"""Searches for the tests of the report: made up, with the spaces, rungs and study of real ones."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from attention import Spec
from automl.base.serialise import to_json, write_json
from automl.config.settings import Settings
from automl.judge.decision import Outcome
from automl.judge.design import Design
from automl.judge.scores import TrainingCost
from automl.judge.statistics import Difference, Interval, Ratio
from automl.judge.verdict import FORMAT as VERDICT_FORMAT
from automl.judge.verdict import VERDICT_FILE, Comparison, TrainedVariant, Verdict, confirm_folder
from automl.storage.metadata import FORMAT, SEARCH_FILE
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.halving import Rungs
from search.metric import Chance, Metric
from search.record import Role, State
from search.space import SPACES, draw_randomly
from search.study import CONFIG, EPOCH, PROFILE, REASON, ROLE, TRAINABLE, VARIANT, create_study
from search.trial_scheduler import Plan

EPOCHS = 6
EFFECTS = {
    "ssa": 0.02,
    "ssa-sym": 0.015,
    "sagan": 0.0,
    "decomposed": -0.01,
    "multihead": 0.005,
    "conv1x1": 0.0,
}
DIVERGED = "the loss became nan at epoch 2: lower the learning rate"
SSA = "ssa @ stage1.block2.branch (trial 3)"
SAGAN = "sagan @ stage2.block1 + ssa @ stage3.block2.branch (trial 9)"
CONTROL = "control: conv1x1 @ stage1.block2.branch (trial 14)"
CHANCE = "random placement: multihead @ stage2.block2"


def plan_of(**changes: Any) -> Plan:
    whole: dict[str, Any] = {"trials": 60, "budget": float(EPOCHS), "metric": ACCURACY}
    return Plan(**{**whole, **changes})


def made_up(
    count: int = 60,
    *,
    plan: Plan | None = None,
    seed: int = 0,
    running: int = 0,
    space: str = "digits",
    pruning: bool = True,
) -> list[FrozenTrial]:
    """Trials as a search leaves them: complete, pruned, infeasible and broken, and `running` open ones."""
    plan = plan or plan_of()
    chance, rungs = random.Random(seed), Rungs(plan.budget)
    drawn = draw_randomly(SPACES[space], 20 * count, seed=seed, first=SPACES[space].baseline)
    trials: list[FrozenTrial] = []
    for trial, config in drawn:
        if len(trials) == count:
            break
        assert config is not None
        plain = not config.model.placement
        if len(trials) % 5 == 1 and not plain:
            continue  # a fifth tunes the baseline
        number = len(trials)
        profile = facts_of(config, chance)
        final = _final(config, chance)
        history: list[dict[str, float]] = []
        state, reason = State.COMPLETE, None
        if number >= count - running:
            state = State.RUNNING
        elif number % 17 == 5:
            state, reason = State.INFEASIBLE, f"params {3 + number / 100:.1f}M exceeds the limit of 2M"
        elif number % 29 == 7:
            state, reason = State.INFEASIBLE, DIVERGED
        elif number % 31 == 11:
            state, reason = State.ERROR, "RuntimeError: <script>alert('no')</script> & more"
        elif number % 31 == 12:
            state, reason = State.ERROR, None
        if state in (State.COMPLETE, State.RUNNING):
            for epoch in range(1, EPOCHS + 1):
                metrics = _epoch(config, plan, epoch, final, chance)
                history.append(metrics)
                if state is State.RUNNING and epoch == 2:
                    break
                group = "baseline" if plain else "candidate"
                better = 1 if plan.metric.maximize else -1
                goes_on = rungs.enter(
                    number, group, metrics["resource"], [better * metrics[plan.metric.name]]
                )
                if pruning and goes_on is False and epoch < EPOCHS:
                    state = State.PRUNED
                    break
        trials.append(
            frozen(trial.params, trial.distributions, config, plan, state, history, profile, reason)
        )
    assert len(trials) == count
    return trials


def frozen(
    params: Mapping[str, Any],
    distributions: Mapping[str, Any],
    config: TrialConfig,
    plan: Plan,
    state: State,
    history: Sequence[Mapping[str, float]] = (),
    profile: Mapping[str, float] | None = None,
    reason: str | None = None,
    variant: str = "",
) -> FrozenTrial:
    """A trial as the scheduler leaves it in a study."""
    profile = profile or {}
    attributes = {
        ROLE: "candidate" if config.model.placement else "baseline",
        CONFIG: config.to_json(),
        **{f"{EPOCH}{i}": metrics for i, metrics in enumerate(history, 1)},
        PROFILE: dict(profile),
        **({VARIANT: variant} if variant else {}),
    }
    if reason is not None:
        attributes[REASON] = reason
    ends = {
        State.COMPLETE: TrialState.COMPLETE,
        State.RUNNING: TrialState.RUNNING,
        State.ERROR: TrialState.FAIL,
    }
    return create_trial(
        state=ends.get(state, TrialState.PRUNED),
        value=history[-1][plan.metric.name] if state is State.COMPLETE else None,
        params=dict(params),
        distributions=dict(distributions),
        user_attrs=attributes,
        constraints={TRAINABLE: 1.0} if state is State.INFEASIBLE else None,
    )


def facts_of(config: TrialConfig, chance: random.Random) -> dict[str, float]:
    modules = len(config.model.placement)
    time_ratio = 1 + 0.12 * modules * chance.uniform(0.6, 1.4)
    return {
        "params": 705_000 + 20_000 * modules * chance.randint(1, 5),
        "macs": 9_500_000 + 300_000 * modules * chance.randint(1, 5),
        "memory": 2.5e7,
        "latency": 3 + 0.5 * modules * chance.random(),
        "time_ratio": time_ratio,
        "time_ratio_low": time_ratio - 0.02,
        "time_ratio_high": time_ratio + 0.02,
        "step": 0.05,
    }


def _final(config: TrialConfig, chance: random.Random) -> float:
    effect = sum(
        EFFECTS[spec.type] * (1 if "stage1" in site else 0.2) for site, spec in config.model.placement.items()
    )
    rate = {"adamw": 3e-3, "sgd": 1e-1}[config.training.optimizer]
    off = 0.03 * math.log10(config.training.learning_rate / rate) ** 2
    return min(0.999, 0.93 + effect - off + chance.gauss(0, 0.008))


def _epoch(
    config: TrialConfig, plan: Plan, epoch: int, final: float, chance: random.Random
) -> dict[str, float]:
    accuracy = final * (1 - 0.6 * math.exp(-epoch / 1.5)) / (1 - 0.6 * math.exp(-EPOCHS / 1.5))
    accuracy += chance.gauss(0, 0.01) if epoch < EPOCHS else 0.0
    metrics = {"epoch": epoch, "resource": float(epoch), "train_loss": 1 / epoch, "accuracy": accuracy}
    metrics |= {"train_accuracy": 0.9 * accuracy, "steps": 20 * epoch}
    metrics |= {"loss": 1 - accuracy, "learning_rate": 1e-3, "seconds": 1.2, "time": 1.79e9 + epoch}
    if plan.metric.name not in metrics:
        metrics[plan.metric.name] = 1.2 - accuracy  # one of which less is better
    sites = config.model.placement.items()
    return metrics | {
        f"gate.{site}": EFFECTS[spec.type] * 5 * epoch + chance.gauss(0, 0.02) for site, spec in sites
    }


def save_search(
    storage: Path,
    trials: Sequence[FrozenTrial],
    *,
    name: str = "made-up",
    plan: Plan | None = None,
    space: str = "digits",
    scale: str = "",
    **settings: Any,
) -> Path:
    """A search's folder with these trials."""
    plan = plan or plan_of()
    folder = storage / name
    folder.mkdir(parents=True)
    metadata = {
        "format": FORMAT,
        "identity": f"identity-{name}",
        "settings": to_json(
            Settings(space=space, trials=plan.trials, name=name, storage=str(storage), **settings).parsed
        ),
        "plan": to_json(plan),
        "fingerprint": "4312b18c81b2dde5",
        "data": "f62286d9f602e4ccdfc0871fe3f3123e0b139a7c93e6480fdb5d02742902eaa5",
        "provenance": {
            "command": ["automl", "search", "--space", space, "--trials", str(plan.trials), "--name", name],
            "started": "2026-11-20T15:58:07+0000",
            "python": "3.11.7",
            "system": "Linux-6.18.44-x86_64-with-glibc2.36",
            "cores": 2,
            "gpus": ["NVIDIA H200", "NVIDIA H200"],
            "commit": "a" * 40,
            "versions": {"torch": "2.15.0", "optuna": "5.0.0"},
        },
        "scale": scale,
    }
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))
    direction = StudyDirection.MAXIMIZE if plan.metric.sign > 0 else StudyDirection.MINIMIZE
    study = create_study(folder, name=name, direction=direction)
    study.add_trials(trials)
    return folder


def verdict_of(verdict: Outcome | None = "better", **changes: Any) -> Verdict:
    """Return a verdict on SSA in stage 1 against the baseline."""
    difference, words = {
        "better": (0.7, "Better by 0.70 points (0.30 to 1.10), ahead on all 20 seeds: ssa"),
        "worse": (-0.9, "Worse by 0.90 points, behind on all 20 seeds: no finalist beats the tuned baseline"),
        "equivalent": (0.05, "No finalist differs from the tuned baseline by as much as 0.5 points"),
        "undecided": (0.3, "Undecided: +0.30 points (-0.10 to 0.70) in 20 seeds may be chance"),
        "cannot tell": (0.5, "training times were not measured"),
        None: (0.4, ""),
    }[verdict]
    seeds = list(range(1000, 1020))
    placed = TrialConfig(model=Model(placement={"stage1.block2.branch": Spec("ssa")}))

    def variant(name: str, role: Role, shift: float, trial: int | None) -> TrainedVariant:
        return TrainedVariant(
            name=name,
            role=role,
            trial=trial,
            config=placed if name == SSA else TrialConfig(),
            scores={seed: 0.93 + shift / 100 + 0.003 * math.sin(i) for i, seed in enumerate(seeds)},
            costs={seed: TrainingCost(steps=840, seconds=61.25) for seed in seeds},
        )

    def comparison(name: str, role: Role, by: float, holm: float | None = None) -> Comparison:
        interval = Interval(lambda: (by - 0.4, by + 0.4))
        d = Difference(
            mean=by,
            sd=0.5,
            p=0.02,
            p_margin=1.0,
            count=20 if verdict else 8,
            ahead=18,
            behind=2,
            interval=interval,
        )
        time, images = Ratio(mean=1.013, low=1.0, high=1.026), (by - 1.3, by + 1.3)
        return Comparison(variant=name, role=role, difference=d, p_holm=holm, images=images, time=time)

    metric = Metric(name="accuracy", maximize=True, scale=100, unit="%", gap="points")
    value = {
        "search": "made-up",
        "design": Design(
            seeds=seeds, equal="time", margin=0.5, sequential=False, metric=metric, inputs=1000,
            chance=Chance(value=0.1, error=0.01, step=0.001),
        ),
        "complete": verdict is not None,
        "outcome": verdict or "undecided",
        "words": words,
        "finalist": SSA,
        "used": seeds if verdict else seeds[:8],
        "comparisons": [
            comparison(SSA, Role.FINALIST, difference, 0.008),
            comparison(SAGAN, Role.FINALIST, 0.1, 0.4),
            comparison(CONTROL, Role.CONTROL, -0.1),
            comparison(CHANCE, Role.RANDOM, -0.6),
        ],
        "variants": [
            variant("baseline", Role.BASELINE, 0, 0),
            variant(SSA, Role.FINALIST, difference, 3),
            variant(SAGAN, Role.FINALIST, 0.1, 9),
            variant(CONTROL, Role.CONTROL, -0.1, 14),
            variant(CHANCE, Role.RANDOM, -0.6, None),
        ],
    }  # fmt: skip
    return Verdict(**{**value, **changes})


def save_verdict(folder: Path, verdict: Verdict, confirmation: int = 1) -> Path:
    verdict_folder = folder / confirm_folder(confirmation)
    verdict_folder.mkdir()
    write_json(
        verdict_folder / VERDICT_FILE, replace(verdict, confirmation=confirmation), format=VERDICT_FORMAT
    )
    return verdict_folder / VERDICT_FILE
