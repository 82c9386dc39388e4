"""The numbers of a report, each against another way to compute it from the same study."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

from attention import Spec
from automl.report.costs import costs, pareto
from automl.report.listing import failures
from automl.report.module_effects import parts
from automl.report.per_class import per_class
from automl.report.read import SearchData, read_search
from automl.storage.trial_files import Answers
from search.config import Model, TrialConfig
from search.record import Role, State
from search.study import ROLE, read_history
from tests.helpers.report_cases import DIVERGED, frozen, made_up, plan_of, save_search


@pytest.fixture(scope="module")
def trials() -> list[FrozenTrial]:
    return made_up(120)


@pytest.fixture(scope="module")
def search(trials: list[FrozenTrial], tmp_path_factory: pytest.TempPathFactory) -> SearchData:
    storage = tmp_path_factory.mktemp("storage")
    save_search(storage, trials)
    return read_search("made-up", str(storage))


def make_search(storage: Path, trials: list[FrozenTrial], **plan: Any) -> SearchData:
    save_search(storage, trials, plan=plan_of(**plan))
    return read_search("made-up", str(storage))


@pytest.mark.parametrize("objectives", [("accuracy",), ("accuracy", "latency")])
def test_the_front_is_what_nobody_beats(objectives: tuple[str, ...], tmp_path: Path) -> None:
    trials = made_up(40, plan=plan_of(objectives=objectives))
    search = make_search(tmp_path, trials, objectives=objectives)
    done = {
        i: (read_history(t.user_attrs)[-1]["accuracy"], t.user_attrs["profile"]["latency"])
        for i, t in enumerate(trials)
        if t.state is TrialState.COMPLETE
    }
    expected = {
        i
        for i, (score, cost) in done.items()
        if not any(
            s >= score and c <= cost and (s > score or cost - c > 0.02 * cost) for s, c in done.values()
        )
    }
    front = pareto(search, "latency")
    assert {trial.number for trial in front} == expected
    costs = [trial.profile["latency"] for trial in front]
    assert costs == sorted(costs)


def test_reasons_that_differ_in_numbers_alone_are_one(trials: list[FrozenTrial], search: SearchData) -> None:
    rows = failures(search).rows
    texts = Counter(t.user_attrs.get("reason") for t in trials if t.constraints)
    infeasible = {reason: count for state, count, reason, *_ in rows if state == State.INFEASIBLE}
    over = sum(count for text, count in texts.items() if text and "exceeds" in text)
    assert sorted(infeasible.values()) == sorted([over, texts[DIVERGED]])
    assert over > 1
    assert any(reason == "no reason was given" for state, _, reason, *_ in rows if state == State.ERROR)


def test_models_at_chance_are_on_no_front(tmp_path: Path) -> None:
    profile = [{"latency": 1.0}, {"latency": 2.0}, {"latency": 2.03}]
    histories = [[{"epoch": 6, "resource": 6.0, "accuracy": score}] for score in (0.1, 0.5, 0.5)]
    trials = [
        frozen({}, {}, TrialConfig(), plan_of(), State.COMPLETE, history, facts)
        for history, facts in zip(histories, profile, strict=True)
    ]
    search = make_search(tmp_path / "one", trials, guessing=0.15)
    assert [trial.number for trial in pareto(search, "latency")] == [1, 2], "and 1.5 % is noise"
    none = make_search(tmp_path / "other", trials, guessing=0.6)
    assert pareto(none, "latency") == []
    assert "no trial beats chance" in costs(none).says


def test_results_by_class_are_those_of_the_best_and_the_baseline(
    trials: list[FrozenTrial], tmp_path: Path
) -> None:
    search = make_search(tmp_path, trials)
    assert per_class(search) == [], "no trial has left its answers"
    generator = np.random.default_rng(0)
    assert search.baseline is not None
    kept = {}
    for trial in (search.best, search.baseline):
        true = generator.integers(0, 3, 90)
        answered = np.where(generator.random(90) < 0.7, true, generator.integers(0, 3, 90))
        labels = ["cat", "dog", "eel", "yak"]
        answers = Answers(
            labels=labels, true=true, answered=answered, values=(true == answered).astype(float)
        )
        answers.save(search.metadata.location / trial.folder)
        kept[trial.number] = true, answered
    (section,) = per_class(search)
    assert "on the validation split" in section.lead
    classes, confusions = section.plots
    rows = {row[0]: row[1:] for row in classes.table.rows}
    assert rows.keys() == {"cat", "dog", "eel"}, "what no input is of has no result"
    assert "no inputs of yak" in classes.note
    true, answered = kept[search.best.number]
    for i, values in enumerate(zip(*precision_recall_fscore_support(true, answered), strict=True)):
        precision, recall, f1, count = values
        (baseline,) = f1_score(*kept[search.baseline.number], labels=[i], average=None)
        assert rows[labels[i]] == pytest.approx([count, recall, precision, f1, baseline])
    matrix = confusion_matrix(true, answered)
    np.fill_diagonal(matrix, 0)
    assert confusions.table.rows[0][2] == matrix.max()
    assert classes.figure is not None
    assert confusions.figure is not None


def test_parts_are_what_was_planted_in_words(search: SearchData) -> None:
    """Points of `report_cases.EFFECTS` for each module, under whatever the hyperparameters do."""
    plot = parts(search)
    assert plot.figure is not None
    rows = {row[0]: row[1:] for row in plot.table.rows}
    assert rows["ssa"][0] > rows["decomposed"][0]  # type: ignore[operator]
    assert {"each module", "sagan"} < rows.keys()
    assert any(str(name).startswith("stage1.") for name in rows)
    assert any(" at stage" in str(name) for name in rows)
    assert all(low < mean < high for mean, low, high, _ in rows.values())  # type: ignore[operator]
    assert "Highest expectation: " in plot.says
    assert "0.5 points" in plot.says


def test_where_scores_are_noise_one_seed_ranks_nothing(tmp_path: Path) -> None:
    trials, chance = made_up(60, pruning=False), np.random.default_rng(0)
    for trial in trials:
        if trial.values:
            trial.values = [0.9 + 0.01 * float(chance.standard_normal())]
    (warning,) = parts(make_search(tmp_path, trials)).warnings
    assert "One seed cannot rank these placements" in warning


def test_replicates_tell_how_far_trainings_of_one_shared_training_are_apart(tmp_path: Path) -> None:
    def trial(seed: int, score: float, perturb: float = 0.0, **placement: Spec) -> FrozenTrial:
        config = TrialConfig(model=Model(placement=placement), seed=seed)
        config = config.change(training={"insert_at": 3, "perturb": perturb})
        params = {"modules": 1, "site1": 0} if placement else {"modules": 0}
        kinds = {name: IntDistribution(0, 1) for name in params}
        history = [{"epoch": 6, "resource": 6.0, "accuracy": score}]
        trial_of = frozen(params, kinds, config, plan_of(), State.COMPLETE, history)
        if perturb:
            trial_of.set_user_attr(ROLE, str(Role.REPLICATE))
        return trial_of

    placed = {"stage1.block1": Spec("ssa")}
    trials = [trial(0, 0.90), trial(1, 0.80), *(trial(i % 2, 0.87, **placed) for i in range(4))]
    assert "replicate" not in parts(make_search(tmp_path / "none", trials)).says
    trials += [trial(0, 0.897, 1e-6), trial(1, 0.804, 1e-6)]
    search = make_search(tmp_path / "two", trials)
    says = parts(search).says  # the root of (0.3 ** 2 + 0.4 ** 2) / 2 is 0.354
    assert (
        "2 replicates, plain trainings from a shared partial training changed by a "
        "millionth: 0.35 points from that" in says
    )
    assert search.baseline.config.training.perturb == 0
