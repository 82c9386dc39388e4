"""Comparison of the variants of confirmations."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import automl.judge.trainings
import automl.trials.session
from automl.base.errors import InputError
from automl.data.manifest import Manifest
from automl.judge.compare import Sample, _check_comparable, _compare, run_compare
from automl.judge.run_confirm import run_confirm
from automl.judge.statistics import paired
from automl.tasks.image_classification.task import ImageClassification
from search.class_metrics import ACCURACY
from tests.helpers.confirm_cases import SSA, FakeWorkers, NoTracker, config, fake_search

LEAD = "ssa @ stage1.block2.branch"
IMAGES = Manifest.from_splits({"train": [("a", "cat", bytes(16))]})


class Other(ImageClassification):
    """Another task with the same types of configuration."""


def sample(mean: float, seeds: range, which: int, sd: float = 0.003, name: str = "") -> Sample:
    noise = np.random.default_rng(which).normal(0, sd, len(seeds))
    scores = dict(zip(seeds, (mean + noise).tolist(), strict=True))
    return Sample(
        name=name or f"search{which}", config=config(), metric=ACCURACY, scores=scores, resolution=0.0,
        images=IMAGES,
    )  # fmt: skip


def test_models_of_the_same_seeds_are_compared_pair_by_pair() -> None:
    theirs, ours = sample(0.8, range(8), 1), sample(0.82, range(8), 2)
    (compared,) = _compare([theirs, ours], None)
    reference = paired([100 * (ours.scores[seed] - theirs.scores[seed]) for seed in range(8)], margin=0.5)
    assert (compared.outcome, compared.difference.count) == ("better", 8)
    assert compared.difference.low == pytest.approx(reference.low)
    (back,) = _compare([ours, theirs], None)
    assert back.outcome == "worse"
    assert back.difference.mean == pytest.approx(-compared.difference.mean)
    with pytest.raises(InputError, match="two or more seeds in common; they have 1"):
        _compare([theirs, sample(0.82, range(7, 16), 2)], None)


def test_outcomes_depend_on_the_margin_and_the_number_of_comparisons() -> None:
    equal = [sample(0.8, range(8), i) for i in range(4)]
    assert _compare(equal[:2], 2)[0].outcome == "equivalent"
    assert _compare(equal[:2], 0.01)[0].outcome == "undecided"
    (compared,) = _compare([sample(1.0, range(8), i, sd=0.0) for i in (1, 2)], 2)
    assert compared.outcome == "cannot tell", "neither the spread of seeds nor the number of images is known"
    comparisons = _compare(equal, None)
    ps = sorted(comparison.difference.p for comparison in comparisons)
    assert min(comparison.p_holm for comparison in comparisons) == pytest.approx(min(1, 3 * ps[0]))


def test_incomparable_models_are_rejected() -> None:
    reference, other = sample(0.9, range(3), 1), config(SSA)
    for changes, message in (
        ({"config": other.change(data={"subset": 0.5})}, "different data in their splits"),
        ({"config": other.change(task=f"{__file__}:Other")}, "is of task image-classification"),
        ({"metric": replace(ACCURACY, name="auc")}, "has the metric accuracy, search1 has auc"),
        ({"images": Manifest.from_splits({"train": [("b", "cat", bytes(16))]})}, "used different data"),
    ):
        with pytest.raises(InputError, match=message):
            _check_comparable(reference, replace(reference, **changes))
    _check_comparable(reference, replace(reference, config=other.change(data={"size": 64})))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The searches folder of a confirmed search."""
    folder = fake_search(tmp_path_factory.mktemp("compare") / "searches")

    def score(variant: str, seed: int) -> float:
        noise = 0.002 * float(np.random.default_rng([len(variant), seed]).normal())
        return 0.9 + noise + (0.02 if variant.startswith(LEAD) else 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parents[1])
        patch.setattr(automl.judge.trainings, "MlflowProcess", nullcontext)
        patch.setattr(automl.judge.trainings, "Tracker", NoTracker)
        patch.setattr(automl.trials.session, "open_workers", FakeWorkers(score).open)
        result = run_confirm("mine", top=2, seeds=8, sequential=False)
        assert run_compare(["mine:baseline", result])[0].outcome == "better", "a result stands for its search"
    return folder.parent


@pytest.fixture
def confirmed(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(finished, tmp_path / "searches")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "searches" / "mine"


def test_a_search_stands_for_its_winner_and_has_other_variants(confirmed, cli) -> None:
    code, out, err = cli("compare", "mine:baseline", "mine", "mine:control", "--json")
    assert code == 0
    value, lines = json.loads(out), err.splitlines()
    assert value["reference"] == "mine:baseline"
    assert [comparison["outcome"] for comparison in value["comparisons"]] == ["better", "equivalent"]
    assert lines[4].startswith("mine against mine:baseline: better, +")
    verdict = json.loads((confirmed / "confirm" / "verdict.json").read_text())
    scores = list(verdict["variants"][0]["scores"].values())
    variant = value["variants"][0]
    assert (variant["name"], variant["count"]) == ("mine:baseline", len(scores))
    assert (variant["mean"], variant["sd"]) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    shown = [f"{100 * variant[key]:.4g}" for key in ("mean", "sd")]
    assert lines[1].split() == ["mine:baseline", str(len(scores)), *shown]
    assert value["comparisons"][0]["interval"] == pytest.approx(verdict["interval"])
    assert "test split" in lines[4]
    verdict = json.loads((confirmed / "confirm" / "verdict.json").read_text())
    for factor, outcome in ((0.9, "cannot tell"), (1.1, "equivalent")):
        margin = str(factor * 100 * verdict["design"]["chance"]["step"])
        _, out, _ = cli("compare", "mine:baseline", "mine:control", "--margin", margin, "--json")
        (comparison,) = json.loads(out)["comparisons"]
        assert comparison["outcome"] == outcome
    file = confirmed / "confirm" / "verdict.json"
    verdict = json.loads(file.read_text())
    verdict["design"]["chance"]["step"] = 0.025
    file.write_text(json.dumps(verdict))
    _, out, _ = cli("compare", "mine:baseline", "mine:control", "--json")
    assert '"outcome": "equivalent"' in out
    assert "margin 2.5, the effect of one input" in out
