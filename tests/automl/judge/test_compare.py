"""Comparison of searches and runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

import automl.trials.session
from automl.base.errors import InputError
from automl.judge.compare import run_compare
from automl.judge.run_confirm import run_confirm
from automl.judge.statistics import paired
from automl.storage.storage import Storage
from automl.tasks.image_classification.task import ImageClassification
from automl.tracking.run_spec import RunSpec
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.config import TrialConfig
from search.record import State, TrialRecord
from tests.helpers.confirm_cases import SSA, FakeWorkers, config, fake_search

LEAD = "ssa @ stage1.block2.branch"


DETECTION = f"{__file__}:Detection"


class Detection(ImageClassification):
    """Another task with the same types of configuration."""


def training(
    config: TrialConfig, scores: dict[int, float], metric: str = "accuracy", last: float | None = None
) -> str:
    """Log runs of one configuration with these scores, as `automl train` does, and return their IDs.

    A second epoch adds `last` to each score.
    """
    run_ids = []
    for seed, score in scores.items():
        tracker = Tracker(
            MlflowWriter(RunSpec(experiment="train", checkpoint=lambda record: Storage("nowhere")))
        )
        history = [{"epoch": 1, "resource": 1, "accuracy": score, metric: score}]
        if last is not None:
            history.append({"epoch": 2, "resource": 2, "accuracy": score + last})
        trial = TrialRecord(0, config.change(seed=seed), state=State.COMPLETE, history=history)
        tracker.on_trial_end(trial)
        tracker.close()
        run_ids.append(tracker.runs[0])
    return ",".join(run_ids)


def values(mean: float, seeds: range, which: int) -> dict[int, float]:
    noise = np.random.default_rng(which).normal(0, 0.003, len(seeds))
    return dict(zip(seeds, (mean + noise).tolist(), strict=True))


PLAIN, OTHER = config(), config(SSA)


def test_runs_of_the_same_seeds_are_compared_pair_by_pair(store: MlflowClient) -> None:
    theirs, ours = values(0.8, range(8), 1), values(0.82, range(8), 2)
    (compared,) = run_compare([training(PLAIN, theirs), training(OTHER, ours)])
    reference = paired([100 * (ours[seed] - theirs[seed]) for seed in range(8)], margin=0.5)
    assert (compared.outcome, compared.paired, compared.difference.count) == ("better", True, 8)
    assert compared.difference.low == pytest.approx(reference.low)
    assert "validation split" in compared.sentence
    (back,) = run_compare([training(OTHER, ours), training(PLAIN, theirs)])
    assert back.outcome == "worse"
    assert back.difference.mean == pytest.approx(-compared.difference.mean)


def test_variants_have_a_short_name_a_count_a_mean_and_a_deviation(store: MlflowClient) -> None:
    theirs, ours = values(0.8, range(8), 1), values(0.82, range(8), 2)
    runs = training(PLAIN, theirs, last=-0.1), training(OTHER, ours)
    (compared,) = run_compare(runs)
    assert compared.reference.label == "xresnet18(width=0.25) plain"
    assert compared.variant.label == "xresnet18(width=0.25) ssa @ stage1.block2.branch"
    assert (compared.variant.name, compared.variant.count) == (runs[1], 8)
    assert compared.variant.mean == pytest.approx(np.mean(list(ours.values())))
    assert compared.variant.sd == pytest.approx(np.std(list(ours.values()), ddof=1))
    assert compared.reference.mean == pytest.approx(np.mean(list(theirs.values())) - 0.1)
    assert compared.reference.best_mean == pytest.approx(np.mean(list(theirs.values())))
    faster = PLAIN.change(training={"learning_rate": 0.008})
    (compared,) = run_compare([runs[0], training(faster, ours)])
    assert compared.variant.label == "xresnet18(width=0.25) plain, learning_rate=0.008"
    (compared,) = run_compare([runs[0], training(PLAIN, ours)])
    assert compared.reference.label == f"xresnet18(width=0.25) plain, {runs[0][:8]}"


def test_runs_of_other_seeds_are_compared_unpaired(store: MlflowClient) -> None:
    theirs, ours = values(0.8, range(8), 1), values(0.82, range(10, 16), 2)
    (compared,) = run_compare([training(PLAIN, theirs), training(OTHER, ours)])
    assert (compared.outcome, compared.paired, compared.difference.count) == ("better", False, 6)
    assert "not paired" in compared.sentence


def test_equal_within_the_margin(store: MlflowClient) -> None:
    runs = [training(PLAIN, values(0.8, range(8), 1)), training(OTHER, values(0.8, range(8), 2))]
    assert run_compare(runs, margin=2)[0].outcome == "equivalent"
    assert run_compare(runs, margin=0.01)[0].outcome == "undecided"


def test_constant_scores_give_cannot_tell(store: MlflowClient) -> None:
    same = dict.fromkeys(range(8), 1.0)
    (compared,) = run_compare([training(PLAIN, same), training(OTHER, same)], margin=2)
    assert compared.outcome == "cannot tell", "neither the spread of seeds nor the number of images is known"


def test_p_is_adjusted_for_several_comparisons(store: MlflowClient) -> None:
    runs = [training(PLAIN, values(0.8, range(8), i)) for i in range(4)]
    comparisons = run_compare(runs)
    ps = sorted(comparison.difference.p for comparison in comparisons)
    assert min(comparison.p_holm for comparison in comparisons) == pytest.approx(min(1, 3 * ps[0]))


@pytest.fixture
def confirmed(store: MlflowClient, untracked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake_search(tmp_path / "searches")

    def score(variant: str, seed: int) -> float:
        noise = 0.002 * float(np.random.default_rng([len(variant), seed]).normal())
        return 0.9 + noise + (0.02 if variant.startswith(LEAD) else 0)

    monkeypatch.setattr(automl.trials.session, "open_workers", FakeWorkers(score).open)
    result = run_confirm("mine", top=2, seeds=8, sequential=False)
    assert run_compare(["mine:baseline", result])[0].outcome == "better", "a result stands for its search"
    return folder


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
    assert (variant["name"], variant["count"], variant["best_mean"]) == ("mine:baseline", len(scores), None)
    assert (variant["mean"], variant["sd"]) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    assert lines[1].split() == [
        "mine:baseline",
        str(len(scores)),
        f"{100 * variant['mean']:.4g}",
        f"{100 * variant['sd']:.4g}",
    ]
    assert value["comparisons"][0]["interval"] == pytest.approx(verdict["interval"])
    assert "test split" in lines[4]


def test_margin_below_one_input_gives_cannot_tell(confirmed, cli) -> None:
    verdict = json.loads((confirmed / "confirm" / "verdict.json").read_text())
    for factor, outcome in ((0.9, "cannot tell"), (1.1, "equivalent")):
        margin = str(factor * 100 * verdict["design"]["chance"]["step"])
        _, out, _ = cli("compare", "mine:baseline", "mine:control", "--margin", margin, "--json")
        (comparison,) = json.loads(out)["comparisons"]
        assert comparison["outcome"] == outcome


def test_default_margin_is_at_least_one_input(confirmed, cli) -> None:
    file = confirmed / "confirm" / "verdict.json"
    verdict = json.loads(file.read_text())
    verdict["design"]["chance"]["step"] = 0.025
    file.write_text(json.dumps(verdict))
    _, out, _ = cli("compare", "mine:baseline", "mine:control", "--json")
    assert '"outcome": "equivalent"' in out
    assert "margin 2.5, the effect of one input" in out


def test_single_name_is_compared_with_the_latest_search(confirmed, store, cli) -> None:
    runs = training(PLAIN, values(0.9, range(8), 1), metric="test_accuracy")
    code, out, err = cli("compare", runs)
    assert code == 0
    assert "the latest search in searches is mine\n" in err
    assert "mine against xresnet18(width=0.25) plain: better, +" in out
    assert run_compare(["mine:baseline"])[0].name == "mine"


def test_untrained_control_names_the_command_to_train_it(confirmed, cli) -> None:
    file = confirmed / "confirm" / "verdict.json"
    verdict = json.loads(file.read_text())
    (control,) = (variant for variant in verdict["variants"] if variant["role"] == "control")
    control["scores"] = {}
    file.write_text(json.dumps(verdict))
    code, _, err = cli("compare", "mine:baseline", "mine:control")
    assert code == 2
    assert "Train it with: automl confirm --search mine --controls" in err


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["mine"], "'mine' is the latest search itself; name two or more to compare"),
        (["mine", "unknown"], "'unknown' is neither a search in searches nor a run"),
        (["mine", "mine:nothing"], "unknown variant of mine 'nothing'"),
        (["mine", "RUNS"], "no split has scores of all"),
        (["mine", "mine:baseline", "--margin", "-1"], "--margin must be 0 or more"),
    ],
)
def test_mistakes_are_reported(confirmed, store, cli, names, message) -> None:
    runs = training(PLAIN, values(0.9, range(8), 1))
    code, _, err = cli("compare", *(runs if name == "RUNS" else name for name in names))
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("reference", "other", "message"),
    [
        ((PLAIN, range(1)), (OTHER, range(1)), "one seed does not show"),
        ((PLAIN, range(3)), (OTHER.change(data={"subset": 0.5}), range(3)), "different data in their splits"),
        ((PLAIN, range(3)), (OTHER.change(task=DETECTION), range(3)), "is of task image-classification"),
    ],
)
def test_incomparable_models_are_rejected(store, reference, other, message) -> None:
    runs = [training(config, values(0.9, seeds, 1)) for config, seeds in (reference, other)]
    with pytest.raises(InputError, match=message):
        run_compare(runs)


def below_search(scores: dict[int, float], digest: str, config: TrialConfig = PLAIN) -> str:
    """Log runs below those of a confirmation and a search of data with this digest. Return their IDs."""
    ids = training(config, scores)
    client = MlflowClient()
    experiment = client.get_run(ids.split(",")[0]).info.experiment_id
    search = client.create_run(experiment).info.run_id
    client.log_param(search, "data", digest)
    confirmation = client.create_run(experiment, tags={"mlflow.parentRunId": search}).info.run_id
    for run_id in ids.split(","):
        client.set_tag(run_id, "mlflow.parentRunId", confirmation)
    return ids


def test_runs_of_other_data_are_rejected(store: MlflowClient) -> None:
    first, again = (below_search(values(0.8, range(3), i), "a" * 16) for i in (1, 2))
    other = below_search(values(0.8, range(3), 3), "b" * 16, OTHER)
    unknown = training(PLAIN, values(0.8, range(3), 4))
    assert run_compare([first, again])
    assert run_compare([first, unknown])
    with pytest.raises(InputError, match=f"were trained on different data .{'a' * 16}, "):
        run_compare([first, other])
    mixed = below_search({7: 0.8}, "b" * 16)
    with pytest.raises(InputError, match="had different data"):
        run_compare([f"{first},{mixed}", again])


def test_runs_of_one_sample_may_only_differ_in_their_seeds(store) -> None:
    mixed = training(PLAIN, {0: 0.8}) + "," + training(OTHER, {1: 0.8})
    with pytest.raises(InputError, match="differ in more than their seeds"):
        run_compare([mixed, mixed])
    twice = training(PLAIN, {0: 0.8}) + "," + training(PLAIN, {0: 0.81})
    with pytest.raises(InputError, match="have the seed 0"):
        run_compare([twice, twice])


def test_unconfirmed_search_is_rejected(store, tmp_path) -> None:
    fake_search(tmp_path / "searches")
    with pytest.raises(InputError, match=r"has not been confirmed.*automl confirm --search mine"):
        run_compare(["mine", "mine"])
