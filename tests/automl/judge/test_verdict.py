"""Outcomes and texts of verdicts."""

import json
import os
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from automl.base.serialise import from_json
from automl.judge.design import COMMANDS, MODELS, OWN_MODELS
from automl.judge.judge import judge
from automl.judge.protocol import SELECTION, Confirmation, Options
from automl.judge.scheduler import lost_metrics
from automl.judge.scores import Scores, TrainingCost, collect, most_time, training_cost
from automl.judge.statistics import Ratio, paired
from automl.judge.variants import Variant, VariantSet, best_validated
from automl.judge.verdict import Verdict
from automl.storage.metadata import collect_provenance
from search.class_metrics import ACCURACY
from search.metric import Chance
from search.record import Role, State, TrialRecord
from tests.helpers import others_slow
from tests.helpers.confirm_cases import SSA, VARIANTS, answered, config, design, scores, without

BETTER = scores(ssa=0.02)


def test_better_names_the_winner_and_has_every_score_in_json():
    verdict = judge(design(), VARIANTS, BETTER)
    assert (verdict.final, verdict.winner.name) == ("better", "ssa")
    d = [100 * (BETTER["ssa"].scores[s] - BETTER["baseline"].scores[s]) for s in range(1, 11)]
    expected = paired(d, margin=0.5, resolution=0.1, alpha=0.05 / 2)  # two finalists
    assert (verdict.lead.difference.low, verdict.lead.difference.high) == (expected.low, expected.high)
    low, high = f"{expected.low:.2f}", f"{expected.high:.2f}"
    assert verdict.lines == [
        f"Better by {sum(d) / 10:.2f} points ({low} to {high}), ahead on all 10 seeds: ssa beats the "
        "baseline. Use it: automl export --best",
        "p = 0.0039, adjusted for 2 finalists.",
        "Time 1.00 (1.00 to 1.00) of the baseline's.",
    ]
    value = json.loads(json.dumps(judge(design(), VARIANTS, BETTER).to_json()))
    assert {"difference", "interval", "settling"} <= value.keys()
    assert (value["verdict"], value["winner"], value["seeds"]) == ("better", "ssa", 10)
    assert [v["role"] for v in value["variants"]] == ["baseline", "finalist", "finalist", "control"]
    assert value["variants"][1]["scores"]["10"] == BETTER["ssa"].scores[10]
    assert value["variants"][1]["costs"]["3"] == vars(BETTER["ssa"].costs[3])
    holm = {c["variant"]: c["p_holm"] for c in value["comparisons"]}
    raw = {c["variant"]: c["difference"]["p"] for c in value["comparisons"]}
    assert holm["ssa"] == value["p"] == pytest.approx(2 * raw["ssa"])
    assert holm["conv"] is None
    assert value["time"] == value["comparisons"][0]["time"]
    assert value["time"]["low"] < value["time"]["mean"] < value["time"]["high"]


@pytest.mark.parametrize(
    ("gains", "more", "outcome", "first"),
    [
        ({"ssa": 0.02}, {"margin": 5}, "better", "Better by 1.77 points (1.26 to 2.29), ahead on all 10"),
        ({"ssa": -0.02, "sagan": -0.02}, {}, "worse", "Worse by 2.15 points (1.59 to 2.67), behind on all"),
        ({}, {"margin": 5}, "equivalent", "No finalist differs from the tuned baseline by as much as 5 poi"),
        ({}, {}, "undecided", "Undecided: -0.15 points (-0.57 to 0.32) in 10 seeds may be chance. 18 fresh"),
        ({}, {"margin": 0}, "undecided", "Undecided: -0.148 points (-0.575 to 0.324) in 10 seeds may be"),
    ],
)
def test_every_outcome_has_its_headline(gains, more, outcome, first):
    verdict = judge(design(**more), VARIANTS, scores(**gains))
    assert verdict.lines[0].startswith(first)
    assert (verdict.final, verdict.winner is not None) == (outcome, outcome == "better")


def test_other_metrics_have_their_direction_and_decimals():
    of_mrr = design(margin=0.01, scale=1.0, unit="mrr", metric="mrr")
    verdict = judge(of_mrr, VARIANTS, BETTER)
    d = [BETTER["ssa"].scores[s] - BETTER["baseline"].scores[s] for s in range(1, 11)]
    interval = paired(d, margin=0.01, resolution=0.001, alpha=0.05 / 2)
    size = f"{sum(d) / 10:.3f} mrr ({interval.low:.3f} to {interval.high:.3f})"
    assert verdict.headline == f"Better by {size}, ahead on all 10 seeds: ssa beats the baseline"
    guessing = judge(replace(of_mrr, chance=Chance(value=0.9, error=0.1, step=0.001)), VARIANTS, BETTER)
    assert guessing.remarks[0] == "The mrr of guessing is 0.9000."
    verdict = judge(design(maximize=False, chance=0.95), VARIANTS, scores(ssa=-0.02))
    assert verdict.final == "better"
    assert verdict.lead.difference.mean == pytest.approx(2, abs=0.7)
    behind = judge(design(maximize=False, chance=0.95), VARIANTS, scores(ssa=0.02))
    assert behind.headline.startswith("Undecided: +0.15 points, where above 0 is better (-")
    sentence = behind.sentence(behind.comparisons[0])
    assert "points, where above 0 is better, vs the baseline" in sentence


def test_a_seed_counts_once_all_finalists_have_it():
    verdict = judge(design(), VARIANTS, without(BETTER, "sagan", [7]))
    assert (list(verdict.used), verdict.final, verdict.winner) == ([1, 2, 3, 4, 5, 6], None, None)
    assert (verdict.headline, verdict.advice) == ("No verdict yet: 6 of 10 seeds are complete", "")
    assert re.match(r"ssa: So far \+\d\.\d\d points, no 95 % CI with 6 seeds\. p = ", verdict.figures)
    nothing = {variant.name: scores(0)[variant.name] for variant in VARIANTS}
    verdict = judge(design(), VARIANTS, nothing)
    assert (verdict.outcome, verdict.complete, verdict.lead, verdict.remarks) == (None, False, None, [])
    assert verdict.headline == "No verdict: fewer than two seeds are complete"
    assert verdict.figures == "A seed counts once the baseline and all finalists have trained with it."
    assert json.dumps(verdict.to_json())


def test_failed_trainings_of_finalists():
    verdict = judge(design(), VARIANTS, without(BETTER, "ssa", [4], "the training loss became nan"))
    assert verdict.final != "better"
    assert (verdict.complete, verdict.lead.variant, len(verdict.used)) == (True, "sagan", 10)
    assert "ssa failed with seed 4: the training loss became nan" in verdict.warnings
    twice = judge(design(), VARIANTS, without(BETTER, "ssa", [3, 4], "nan"))
    assert "ssa failed with seed 3, 4: nan" in twice.warnings
    other = judge(design(), VARIANTS, without(BETTER, "sagan", range(1, 10), "the training loss became nan"))
    assert (other.final, len(other.used)) == ("better", 10)
    assert other.lead.p_holm == pytest.approx(2 * other.lead.difference.p), "there were two finalists"
    scored = scores()
    assert judge(design(margin=5), VARIANTS, scored).final == "equivalent"
    assert judge(design(margin=5), VARIANTS, without(scored, "sagan", [2], "nan")).final == "undecided"
    scored = without(without(scores(), "ssa", [2], "nan"), "sagan", [3], "nan")
    verdict = judge(design(), VARIANTS, scored)
    assert (verdict.complete, verdict.outcome) == (True, None)
    assert len(verdict.warnings) == 2
    scored = {**BETTER, "ssa": replace(without(BETTER, "ssa", [4])["ssa"], errors={4: "a disk was full"})}
    verdict = judge(design(), VARIANTS, scored)
    assert verdict.final == "better"
    assert 4 not in verdict.used
    assert "ssa failed with seed 4: a disk was full" in verdict.warnings


@pytest.mark.parametrize("name", ["ssa", "baseline"])
def test_pairs_that_one_side_tried_again_support_nothing(name):
    """A seed without a score leaves the verdict open. If both sides failed as often, a pair counts."""
    own = design(kind=OWN_MODELS)
    tried = {**BETTER, name: replace(BETTER[name], failed_attempts={1: 1, 2: 5})}
    verdict = judge(own, VARIANTS, tried)
    assert (verdict.final, verdict.winner) == ("cannot tell", None)
    assert "runs failed and were tried again" in verdict.headline
    assert f"Failed attempts: 6 of {name}." in verdict.figures
    again = f"{name} failed and was tried again with seed 1 (1 time), 2 (5 times)"
    assert any(again in text for text in verdict.warnings)
    value = json.loads(json.dumps(verdict.to_json()))
    attempts = {variant["name"]: variant["failed_attempts"] for variant in value["variants"]}
    assert (value["failed_attempts"], attempts[name]) == ({name: 6}, {"1": 1, "2": 5})
    low = verdict.lead.difference.low
    assert low < 0 < judge(own, VARIANTS, BETTER).lead.difference.low
    assert judge(design(), VARIANTS, tried).final == "better", "a training does not choose to fail"
    both = {n: replace(BETTER[n], failed_attempts={1: 1, 2: 5}) for n in ("ssa", "baseline")}
    assert judge(own, VARIANTS, {**BETTER, **both}).final == "better"
    once = {1: 1, 2: 1}
    gone = replace(without(BETTER, name, [1, 2])[name], errors=once, failed_attempts=once)
    assert not judge(own, VARIANTS, {**BETTER, name: gone}).complete
    losing = scores(ssa=-0.02, sagan=-0.02)
    names = [name] if name == "baseline" else ["ssa", "sagan"]
    losing |= {n: replace(losing[n], failed_attempts=once) for n in names}
    assert judge(own, VARIANTS, losing).final == "cannot tell"


def test_only_sequential_confirmations_stop_early():
    early = scores(40, ssa=0.03)
    some = {
        name: replace(s, scores={k: v for k, v in s.scores.items() if k <= 25}) for name, s in early.items()
    }
    assert judge(design(40), VARIANTS, some).final is None
    verdict = judge(design(40, sequential=True), VARIANTS, some)
    assert verdict.final == "better"
    assert len(verdict.used) < 25
    # Later scores change nothing.
    assert judge(design(40, sequential=True), VARIANTS, early).used == verdict.used
    late = without(early, "ssa", [len(verdict.used) + 1], "nan")
    assert judge(design(40, sequential=True), VARIANTS, late).final == "better"
    assert verdict.figures.endswith(" of this interim analysis, adjusted for 2 finalists.")
    fixed = judge(design(len(verdict.used)), VARIANTS, some)
    assert verdict.lead.difference.low < fixed.lead.difference.low, "an interim analysis costs confidence"


def test_remarks_on_controls():
    verdict = judge(design(), VARIANTS, scores(ssa=0.02, conv=0.02))
    (remark,) = verdict.remarks
    assert remark.startswith("ssa against conv: ")
    assert remark.endswith("so the gain is not shown to come from attention.")
    (remark,) = judge(design(), VARIANTS, BETTER).remarks
    assert "not shown" not in remark


@pytest.mark.parametrize(
    ("role", "gain", "end"),
    [
        (Role.FREE, -0.01, "ssa beats the baseline and the best free answer (by 2."),
        (Role.FREE, 0.02, "ssa beats the baseline; no search was needed: sagan does as well"),
        (Role.FREE, 0.04, "ssa beats the baseline; no search was needed: sagan does better"),
        (Role.FINALIST, 0.018, "ssa beats the baseline; no search was needed: sagan does as well"),
        (Role.FINALIST, 0.05, "sagan beats the baseline, a free answer, so no search was needed"),
    ],
)
def test_a_winner_is_compared_with_the_best_free_answer(role, gain, end):
    name = "best free answer: sagan" if role is Role.FREE else "sagan"
    free = replace(VARIANTS[2], name=name, role=role, is_free=True)
    scored = scores(ssa=0.02, sagan=gain)
    scored[name] = scored.pop("sagan")
    verdict = judge(design(), [*VARIANTS[:2], free, VARIANTS[3]], scored)
    assert verdict.outcome == "better"
    assert end in verdict.headline
    if gain == 0.02:  # a lead above the margin that may be chance
        close = judge(
            design(margin=0.1),
            [*VARIANTS[:2], free, VARIANTS[3]],
            {**scored, name: scores(sagan=0.016)["sagan"]},
        )
        lead = next(c.lead for c in close.comparisons if c.variant == name)
        assert lead.low <= 0 < 0.1 <= lead.mean
        assert close.headline.endswith("it is not shown to beat the free answer sagan")
    del scored[name]
    alone = judge(design(), [*VARIANTS[:2], VARIANTS[3]], scored)
    assert "free" not in alone.headline


@pytest.mark.parametrize("kind", [MODELS, OWN_MODELS, COMMANDS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("outcome", ["better", "worse", "undecided", "open", "none"])
def test_a_verdict_reads_what_it_has_written(outcome, kind):
    """Its words are the same then, since they are made of its values."""
    gain, seeds = {"better": 0.02, "worse": -0.03}.get(outcome, 0.0), 20 if outcome == "open" else 10
    scored = answered(scores(ssa=gain, sagan=gain, conv=0.01, times={"ssa": 1.1}), 50)
    scored["ssa"] = replace(scored["ssa"], failed_attempts={2: 1}, failed={3: "nan"} if seeds > 10 else {})
    if outcome == "none":
        scored = without(scored, "baseline", range(1, 10))
    verdict = judge(design(seeds, kind=kind, sequential=outcome == "better"), VARIANTS, scored)
    verdict = replace(verdict, search="mine", steps=(10.0, 20.0))
    read = from_json(Verdict, json.loads(json.dumps(verdict.to_json())), "verdict", strict=False)
    assert read == verdict
    assert (read.lines, read.remarks, read.to_json()) == (verdict.lines, verdict.remarks, verdict.to_json())


def test_scores_are_collected_from_ended_trials():
    def trial(number: int, variant: str, seed: int, state: State, reason: str | None = None) -> TrialRecord:
        history = [{"epoch": 1, "resource": 1, "accuracy": 0.8, "test_accuracy": 0.7}]
        config = VARIANTS[0].config.change(seed=seed)
        return TrialRecord(number, config, Role.FINALIST, state, history, reason=reason, variant=variant)

    verdict = collect(
        VARIANTS,
        [
            trial(0, "ssa", 1, State.COMPLETE),
            trial(1, "ssa", 2, State.RUNNING),
            trial(2, "ssa", 3, State.INFEASIBLE, "nan"),
            trial(3, "ssa", 4, State.ERROR, "boom"),
            trial(4, "ssa", 4, State.COMPLETE),
            trial(6, "ssa", 99, State.COMPLETE),
            trial(5, "unknown variant", 1, State.COMPLETE),
        ],
        "test_accuracy",
        [1, 2, 3, 4],
    )
    ssa, plain = verdict["ssa"], verdict["baseline"]
    assert (ssa.scores, ssa.failed, ssa.errors, plain.scores) == ({1: 0.7, 4: 0.7}, {3: "nan"}, {}, {})


# Time.


LONGER = Variant(name="baseline, 1.1 times as long", role=Role.LONGER, config=config().change(longer=1.1))
OWN = Variant(name="own", role=Role.PLAIN, config=config(learning_rate=2e-3))
OWN_LONGER = replace(LONGER, name="own, 1.1 times as long", config=OWN.config.change(longer=1.1))
WITH_OWN = [VARIANTS[0], replace(VARIANTS[1], plain="own"), OWN]


def opponent(gain: float, seeds: range = range(1, 11), failed: bool = False) -> Scores:
    """Return the scores of an opponent that is better than the baseline by `gain`."""
    noise = 0.005 * np.random.default_rng(9).normal(size=10)
    values = {seed: 0.9 + gain + noise[seed - 1] for seed in seeds}
    return Scores(scores=values, failed={3: "nan"} if failed else {})


@pytest.mark.parametrize(
    ("ratio", "more", "awaited"),
    [
        (1.0, {}, []),
        (0.9, {}, []),
        (1.012, {}, []),  # within 2 %, with its interval
        (1.09, {}, ["baseline, 1.1 times as long"]),
        (1.099, {}, ["baseline, 1.2 times as long"]),  # the upper end of the interval counts
        (3.5, {}, ["baseline, 4 times as long"]),
        (1.09, {"equal": "epochs"}, []),
        (1.09, {"equal": "none"}, []),
    ],
)
def test_a_gain_in_more_time_waits_for_the_baseline_that_trained_longer(ratio, more, awaited):
    for gain, outcome in ((0.02, "better"), (-0.02, "worse")):
        scored = scores(ssa=gain, times={"ssa": ratio})
        verdict = judge(design(**more), VARIANTS[:2], scored)
        needed = awaited if gain > 0 else []  # a loss in more time is one in equal time, too
        assert [variant.name for variant in verdict.awaited] == needed
        assert verdict.final == (None if needed else outcome)
        assert not needed or verdict.headline == "No verdict yet: 1 opponent of a finalist still to train"
        times = {"time": "Time", "epochs": "Equal epochs, time", "none": "Any time, here"}
        mean = verdict.lead.time.mean
        assert verdict.cost.startswith(f"{times[verdict.design.equal]} {mean:.2f} (")
    less = scores(ssa=-0.02, times={"ssa": ratio})
    text = ", in 10 % less time: " in judge(design(**more), VARIANTS[:2], less).headline
    assert text == (ratio == 0.9)


@pytest.mark.parametrize(
    ("gain", "failed", "outcome", "end"),
    [
        (0.0, False, "better", "ahead on all 10 seeds: ssa beats the baseline"),
        (0.02, False, "undecided", "but the tuned baseline trained 1.1 times as long does as well"),
        (0.017, False, "undecided", "but the tuned baseline trained 1.1 times as long may do as well"),
        # One that cannot be trained is no opponent.
        (0.03, True, "better", "ahead on all 10 seeds: ssa beats the baseline"),
    ],
)
def test_better_needs_a_gain_over_the_baseline_that_trained_longer(gain, failed, outcome, end):
    variants = [*VARIANTS[:2], LONGER]
    scored = {**scores(ssa=0.02, times={"ssa": 1.09}), LONGER.name: opponent(gain, failed=failed)}
    verdict = judge(design(), variants, scored)
    assert verdict.final == outcome
    assert verdict.headline.endswith(end)
    against = "the tuned baseline trained 1.1 times as long"
    assert (f"Against {against} {1.77 - 100 * gain:+.1f}"[:-1] in verdict.figures) == (not failed)
    assert [each.name for each in verdict.lead.opponents] == [against] * (not failed)
    assert 1.09 < verdict.lead.most_time <= 1.1
    # The seeds that settle it are those of the difference that is not shown.
    assert (verdict.settling is None) == (not end.endswith("may do as well"))


def test_other_opponents_that_cannot_train_as_long():
    verdict = judge(design(), VARIANTS[:2], scores(ssa=0.02, times={"ssa": 5}))
    assert (verdict.final, verdict.advice) == ("undecided", "")
    assert verdict.headline.endswith("but takes up to 5.02 times as long")
    assert [each.difference for each in verdict.lead.opponents] == [None]
    scored = scores(ssa=0.03, sagan=0.02, times={"ssa": 5})
    verdict = judge(design(), VARIANTS, scored)
    assert (verdict.final, verdict.winner and verdict.winner.name) == ("better", "sagan")


@pytest.mark.parametrize(
    ("longer", "own", "outcome", "end"),
    [
        (0.0, 0.0, "better", ""),
        (0.02, 0.0, "undecided", "the tuned baseline trained 1.1 times as long does as well"),
        (0.0, 0.02, "undecided", "with its hyperparameters trained 1.1 times as long does as well"),
        (0.0, None, None, ""),
        (None, 0.03, None, ""),
    ],
)
def test_both_plain_models_get_the_time(longer, own, outcome, end):
    """The plain model in the baseline's time is no opponent then: it does not train."""
    variants = [*WITH_OWN, LONGER, OWN_LONGER]
    scored = {**scores(ssa=0.02, times={"ssa": 1.09}), "own": opponent(0.0, range(1, 4))}
    gains = [(LONGER, longer), (OWN_LONGER, own)]
    for variant, gain in gains:
        scored[variant.name] = opponent(gain or 0.0, range(1, 11 if gain is not None else 4))
    verdict = judge(design(), variants, scored)
    awaited = [variant for variant, gain in gains if gain is None]
    assert (verdict.final, verdict.awaited) == (outcome, awaited)
    assert verdict.headline.endswith(end)


@pytest.mark.parametrize(("gain", "outcome"), [(0.0, "equivalent"), (0.08, "undecided"), (None, None)])
def test_equivalence_is_shown_to_the_baseline_that_trained_longer_too(gain, outcome):
    scored = scores(times={"ssa": 1.09})
    scored[LONGER.name] = opponent(gain or 0.0, range(1, 11 if gain is not None else 4))
    verdict = judge(design(margin=5), [*VARIANTS[:2], LONGER], scored)
    assert (verdict.final, verdict.awaited) == (outcome, [LONGER] if gain is None else [])


def timed(ratio: float, precision: float) -> dict[int, Ratio]:
    """Return time ratios before ten trainings, the last of which was timed precisely."""
    wide = {seed: Ratio(mean=ratio, low=0.8 * ratio, high=1.25 * ratio) for seed in range(1, 10)}
    return {**wide, 10: Ratio(mean=ratio, low=ratio / precision, high=ratio * precision)}


@pytest.mark.parametrize(
    ("noise", "ratios", "most"),
    [
        (0.0, False, 1.0),
        (0.25, False, 1.39),
        (0.25, True, 1.05 * 1.02),  # the steps were timed in turn, apart from the noisy trainings
        (0.0, True, 1.0),  # the smaller of both
    ],
)
def test_most_time_is_that_of_the_trainings_or_of_their_timed_steps(noise, ratios, most):
    def trained(ratio: float, noise: float) -> Scores:
        costs = {seed: TrainingCost(seconds=60 * (1 + noise * (-1) ** seed)) for seed in range(1, 11)}
        return Scores(costs=costs, ratios=timed(ratio, 1.05) if ratios else {})

    exact = {seed: Ratio(mean=1.0, low=1.0, high=1.0) for seed in range(1, 11)}
    baseline = replace(trained(1.0, 0.0), ratios=exact if ratios else {})
    # The finalist's steps take 1.3 times as long, so it was given as many fewer.
    assert most_time(trained(1.3, noise), baseline, range(1, 11)) == pytest.approx(most, abs=0.03)
    assert most_time(Scores(), baseline, range(1, 11)) is None


def test_timed_steps_are_those_that_each_training_was_given():
    ratios = timed(1.3, 1.01) | {1: Ratio(mean=1.0, low=0.9, high=1.1)}  # 1.3 times too many steps
    ratio = Scores(ratios=ratios).timed(range(1, 11))
    assert ratio.mean == pytest.approx(0.9 + 0.1 * 1.3)
    assert (ratio.low, ratio.high) == (pytest.approx(ratio.mean / 1.01), pytest.approx(ratio.mean * 1.01))
    assert Scores(ratios=ratios).timed(range(1, 12)) is None


def test_unmeasured_or_uneven_time_is_named():
    scored = {name: replace(variant, costs={}) for name, variant in BETTER.items()}
    verdict = judge(design(), VARIANTS, scored)
    assert (verdict.final, verdict.cost, verdict.advice) == ("cannot tell", "Time not measured.", "")
    assert verdict.headline == "Cannot tell: training times were not measured"
    assert "longer training. Compare again, with fresh seeds" in verdict.remarks[0]
    by_epochs = judge(design(equal="epochs"), VARIANTS, scored)
    assert (by_epochs.final, by_epochs.cost) == ("better", "Time not measured.")
    assert json.dumps(verdict.to_json())
    devices = {1: "a fast one", 2: "a slow one"}
    scored = {**BETTER, "ssa": replace(BETTER["ssa"], devices=devices)}
    scored["baseline"] = replace(scored["baseline"], devices={1: "a slow one", 2: "a slow one"})
    (unlike,) = judge(design(), VARIANTS, scored).warnings
    assert "the variants of 1 seed trained on different devices (a fast one, a slow one)" in unlike
    assert not judge(design(), VARIANTS, BETTER).warnings


def test_the_cost_of_trainings_is_processor_time_if_all_have_it():
    def costs(clock, processor):
        return {
            seed: TrainingCost(seconds=clock * (1 + seed % 3), processor_seconds=processor)
            for seed in range(1, 11)
        }

    scored = {**BETTER, "baseline": replace(BETTER["baseline"], costs=costs(50, 60.0))}
    scored["ssa"] = replace(scored["ssa"], costs=costs(90, 60.5))
    assert judge(design(), VARIANTS, scored).lead.time.mean == pytest.approx(60.5 / 60)
    scored["ssa"] = replace(scored["ssa"], costs=costs(90, 60.5) | {4: TrainingCost(seconds=90 * 2)})
    assert judge(design(), VARIANTS, scored).lead.time.mean == pytest.approx(90 / 50)

    def epoch(number, **more):
        return {"epoch": number, "resource": number, "seconds": 2.5, "steps": 7 * number, **more}

    trial = TrialRecord(0, VARIANTS[0].config, history=[epoch(1, processor_seconds=2.0), epoch(2)])
    assert training_cost(trial) == TrainingCost(steps=14, seconds=5.0)
    trial.history[1]["processor_seconds"] = 2.25
    assert training_cost(trial) == TrainingCost(steps=14, seconds=5.0, processor_seconds=4.25)
    assert training_cost(TrialRecord(0, VARIANTS[0].config)) == TrainingCost()


# Limits of a test split.


def test_chance_and_saturated_scores():
    at_chance = scores(level=1 / 3, sd=0.0)
    verdict = judge(design(chance=1 / 3, inputs=120), VARIANTS, at_chance)
    assert (verdict.final, verdict.winner) == ("cannot tell", None)
    assert verdict.headline == "Cannot tell: no variant is shown to beat guessing"
    assert verdict.remarks[0] == "The accuracy of guessing is 33.3 %."
    # One variant above chance is enough.
    learned = judge(design(chance=1 / 3, inputs=120), VARIANTS, scores(level=1 / 3, sagan=0.4))
    assert learned.final == "better"
    assert judge(design(chance=None), VARIANTS, scores(level=1 / 3, sagan=0.4)).final == "better"
    verdict = judge(design(inputs=400), VARIANTS, scores(sd=0.0, level=1.0))
    assert verdict.final == "equivalent"
    d = verdict.lead.difference
    assert d.low < 0 < d.high
    assert d.sd == pytest.approx(0.25 / 6**0.5)


@pytest.mark.parametrize(
    ("margin", "inputs", "gain", "outcome"),
    [
        (0.5, 100, 0.0, "cannot tell"),
        (0.5, 1000, 0.0, "equivalent"),
        (0.0, 100, 0.0, "undecided"),
        (0.5, 100, 0.05, "better"),
    ],
)
def test_margin_below_one_input_cannot_be_resolved(margin, inputs, gain, outcome):
    verdict = judge(design(margin=margin, inputs=inputs), VARIANTS, scores(sd=0.0001, ssa=gain))
    remark = (
        "Set a larger --margin than 0.5 points: one of the 100 test inputs changes the score by 1 points."
    )
    assert (verdict.final, remark in verdict.remarks) == (outcome, outcome == "cannot tell")


@pytest.mark.parametrize("inputs", [40, 160, 1000])
@pytest.mark.parametrize("margin", [None, 0.5])
def test_default_margin_is_at_least_one_input(inputs, margin):
    confirmation = Confirmation(
        number=1,
        options=Options(margin=margin),
        seeds=list(range(1, 11)),
        variant_set=VariantSet(variants=VARIANTS, baseline_candidates=[], warnings=[]),
        provenance=collect_provenance(),
        inputs=inputs,
        chance=Chance(value=0.1, error=0.01, step=1 / inputs),
    )
    verdict = judge(confirmation.design(ACCURACY, "epochs"), VARIANTS, scores(sd=0.0001))
    assert verdict.design.margin == (margin or max(0.5, 100 / inputs))
    assert verdict.final == ("equivalent" if margin is None or inputs == 1000 else "cannot tell")
    line = f"The margin is {100 / inputs:.3g} points, the effect of one of the {inputs} test inputs."
    assert (line in verdict.remarks) == (margin is None and inputs < 200)


def test_the_interval_over_inputs_and_its_remark():
    scored = answered(scores(ssa=0.05), 400)
    verdict = judge(design(inputs=400), VARIANTS, scored)
    assert verdict.final == "better"
    d, (low, high) = verdict.lead.difference, verdict.lead.images
    assert low < d.low < d.high <= high
    assert f" ({d.low:.2f} to {d.high:.2f}), ahead" in verdict.headline
    assert verdict.figures.startswith(f"Over seeds and test examples {low:.2f} to {high:.2f}. p = ")
    value = json.loads(json.dumps(verdict.to_json()))
    assert value["interval_inputs"] == [low, high]
    sentence = verdict.sentence(verdict.comparisons[0])
    assert f"(over seeds and test examples {low:.2f} to {high:.2f})" in sentence
    # Only the user's code may know the number of inputs.
    assert judge(design(inputs=0, chance=None), VARIANTS, scored).lead.images is not None
    # The user may have named the score of guessing without the effect of one answer, and all may be equal.
    equal = {
        name: replace(variant, values={seed: np.ones(400) for seed in variant.values})
        for name, variant in scored.items()
    }
    named = judge(design(inputs=0, chance=Chance(value=0.1, error=0, step=0)), VARIANTS, equal)
    assert named.lead.images is not None
    # Without answers of a training, or with other images, there is no interval.
    for values in ({}, {**scored["ssa"].values, 3: scored["ssa"].values[3][:-1]}):
        lacking = {**scored, "ssa": replace(scored["ssa"], values=values)}
        assert judge(design(inputs=400), VARIANTS, lacking).lead.images is None
    scored = {}
    for name, variant in scores().items():  # with each seed two images of 60 more
        right = np.arange(60) < (52 if name == "ssa" else 50)
        values = dict.fromkeys(variant.scores, right.astype(float))
        scored[name] = replace(variant, scores=dict.fromkeys(values, right.mean()), values=values)
    verdict = judge(design(inputs=60, margin=2), VARIANTS, scored)
    assert verdict.final == "better"
    assert verdict.lead.images[0] <= 0 < verdict.lead.difference.low
    assert "these 60 test examples contains 0." in " ".join(verdict.remarks)


def test_an_interim_analysis_waits_for_the_longer_opponents_and_goes_on():
    """With the first seeds that show a lead, then with more of them if the opponent does as well."""
    scored, longer = scores(10, ssa=0.03, times={"ssa": 1.09}), {**LONGER.config.to_json()}
    assert longer["longer"] == 1.1
    variants, asked = [*VARIANTS[:2], LONGER], design(10, sequential=True)
    first = judge(asked, variants, {**scored, LONGER.name: Scores()})
    count = len(first.used)
    assert (first.awaited, count < 10) == ([LONGER], True)
    for gain, outcome, used in ((0.0, "better", count), (0.03, None, count + 1)):
        beside = {**scored, LONGER.name: opponent(gain, range(1, count + 1))}
        verdict = judge(asked, variants, beside)
        assert (verdict.final, len(verdict.used)) == (outcome, used)
    last = judge(asked, variants, {**scored, LONGER.name: opponent(0.03)})
    assert (last.final, len(last.used)) == ("undecided", 10)


@pytest.mark.parametrize("seed", range(12))
def test_interval_and_p_are_of_the_same_test(seed):
    """The interval excludes 0 exactly if p, adjusted for all finalists, is small enough."""
    generator = np.random.default_rng(seed)
    gains = {"ssa": 0.02 * generator.random(), "sagan": -0.02 * generator.random()}
    scored = scores(8, sd=0.01, **gains)
    skewed = {s: v + 0.03 * generator.gamma(0.5) for s, v in scored["ssa"].scores.items()}
    verdict = judge(design(8), VARIANTS, {**scored, "ssa": replace(scored["ssa"], scores=skewed)})
    for comparison in verdict.comparisons[:2]:
        d = comparison.difference
        assert (d.low > 0 or d.high < 0) == (comparison.p_holm <= 0.05)
    assert (verdict.outcome in ("better", "worse")) == (verdict.lead.p_holm <= 0.05)


def test_few_seeds_and_their_advice():
    verdict = judge(design(4), VARIANTS, scores(4, ssa=0.5))
    assert verdict.headline == "Undecided: +50.23 points in 4 seeds may be chance"
    assert verdict.warnings == ["Run at least 7 seeds: 4 seeds cannot show any difference with 2 finalists."]
    assert verdict.figures.startswith("ssa: p = 0.25")
    assert "--seeds 7" in verdict.advice, "the least that show anything"
    value = json.loads(json.dumps(verdict.to_json()))
    assert (value["interval"], value["comparisons"][0]["difference"]["interval"]) == (None, [None, None])
    # The margin alone may need thousands of seeds.
    wide = judge(design(6), VARIANTS[:2], scores(6, sd=0.08, ssa=0.07))
    assert wide.final == "undecided"
    assert wide.lead.difference.mean > 5
    assert wide.settling == 13
    assert wide.advice.endswith("settle it with 80 % power: automl confirm --again --seeds 13")
    assert wide.shown < wide.lead.difference.mean


def test_texts_are_short_and_never_absurd():
    """Over random scores: no number of seeds that were used or are out of reach, no denial of a lead."""
    generator, counts = np.random.default_rng(0), Counter[str]()
    for _ in range(300):
        count, sd, gain = (
            generator.choice(each) for each in ([3, 6, 10], [0.002, 0.02, 0.2], [0, 0.02, 0.4])
        )
        ratio, own = generator.choice([0.9, 1.0, 1.08, 6]), generator.choice([-0.1, 0.0, gain])
        asked = design(int(count), margin=float(generator.choice([0, 0.5, 5])))
        variants, scored = [*WITH_OWN, LONGER, OWN_LONGER], {}
        for variant in variants:
            shift = {"ssa": gain, "baseline": 0.0}.get(variant.name, own)
            values = np.clip(0.5 + shift + sd * generator.normal(size=count), 0, 1).tolist()
            costs = {seed: TrainingCost(seconds=60.0) for seed in range(1, count + 1)}
            if variant.name == "ssa":
                costs = {seed: TrainingCost(seconds=60.0 * ratio) for seed in costs}
            scored[variant.name] = Scores(scores=dict(enumerate(values, start=1)), costs=costs)
        verdict = judge(asked, variants, scored)
        text = "\n".join(verdict.lines)
        counts[verdict.final or "open"] += 1
        assert len(verdict.lines) <= 3
        assert "no difference" not in text
        assert "None" not in text
        for seeds in re.findall(r"--seeds (\d+)|(\d+) fresh seeds", text):
            assert count < int("".join(seeds)) <= 100
        assert not re.search(r"\b(\w+(?: \w+){5,})\b.*\b\1\b", text), text  # nothing is repeated
    assert {"better", "worse", "undecided"} <= counts.keys()


@pytest.mark.parametrize(
    ("gain", "outcome", "end"),
    [(0.0, "better", ""), (0.03, "undecided", ", but the baseline with its hyperparameters does as well")],
)
def test_better_needs_a_gain_over_the_finalists_own_plain_model(gain, outcome, end):
    verdict = judge(design(), WITH_OWN, {**scores(ssa=0.03), "own": opponent(gain)})
    (own,) = verdict.lead.opponents
    assert (own.difference.low > 0) == (gain == 0)
    assert verdict.figures.removeprefix("ssa: ").startswith("Against the baseline with its hyperparameters ")
    assert verdict.final == outcome
    assert verdict.headline.endswith(end)


def test_the_plain_model_of_a_leading_finalist_is_awaited_and_may_fail():
    some = opponent(0.0, range(1, 4))
    verdict = judge(design(), WITH_OWN, {**scores(ssa=0.03), "own": some})
    assert (verdict.complete, verdict.awaited) == (False, [OWN])
    worse = judge(design(), WITH_OWN, {**scores(ssa=-0.03), "own": some})
    assert (worse.final, worse.awaited) == ("worse", [])
    failed = opponent(0.03, range(4, 11), failed=True)
    verdict = judge(design(), WITH_OWN, {**scores(ssa=0.03), "own": failed})
    assert verdict.final == "better"
    assert "own failed with seed 3: nan" in verdict.warnings


def test_a_winner_that_loses_in_another_metric_is_named() -> None:
    baseline, winner = VARIANTS[:2]
    seeds = range(1, 7)

    def trial(variant: Variant, seed: int, loss: float) -> TrialRecord:
        noise = 0.01 * (seed % 3)
        history = [{"epoch": 1, "resource": 1, "test_accuracy": 0.5 + noise, "test_loss": loss + noise}]
        config = variant.config.change(seed=seed)
        return TrialRecord(seed, config, Role.FINALIST, State.COMPLETE, history, variant=variant.name)

    def lost(by: float, metric: str = "test_accuracy") -> list[str]:
        losses = [(baseline, [1.0] * 6), (winner, [1 + by * (1 + seed / 10) for seed in seeds])]
        records = [trial(v, seed, loss) for v, own in losses for seed, loss in zip(seeds, own, strict=True)]
        return lost_metrics(winner, baseline, records, seeds, metric)

    (warning,) = lost(0.2)
    assert warning.startswith(f"{winner.name} is worse than {baseline.name} in loss: -0.27 nats (95 % CI -0.")
    assert lost(-0.2) == lost(0.0) == lost(0.2, "test_loss") == []


SEEDS, EXPERIMENTS = 8, 250 if os.environ.get("AUTOML_LONG") else 30
OF_COMMANDS = design(equal="none", chance=None, margin=0, kind=COMMANDS)


def simulate(spread: float, noise: float, generator: np.random.Generator) -> bool:
    """Return whether a search and a confirmation call attention better, which is the identity here.

    Four plain configurations compete in the search, by one validation score each. The finalist has the
    hyperparameters of the first, the published ones, which are the best of them. Scores are off by `noise`
    points with each seed, and the configurations are `spread` points apart.
    """
    quality = spread * np.sort(generator.normal(size=4))[::-1]
    scores = {f"plain {i}": 70 + quality[i] + noise * generator.normal(size=SEEDS) for i in range(4)}
    scores["ssa"] = 70 + quality[0] + noise * generator.normal(size=SEEDS)
    searched = np.argsort(-(quality + noise * generator.normal(size=4)))
    candidates = [Variant(name=f"plain {i}", role=Role.BASELINE, config=config()) for i in (*searched[:3], 0)]
    validation = {
        variant.name: scores[variant.name] + noise * generator.normal(size=SEEDS) for variant in candidates
    }
    selection = {name: values[:SELECTION].tolist() for name, values in validation.items()}
    baseline = best_validated(candidates, selection)
    own = [replace(candidates[-1], role=Role.PLAIN)] if candidates[-1].name != baseline.name else []
    finalist = Variant(name="ssa", role=Role.FINALIST, config=config(SSA), plain=candidates[-1].name)
    trained = {
        name: Scores(
            scores=dict(enumerate((values / 100).tolist(), start=1)),
            costs={seed: TrainingCost(steps=1, seconds=1.0) for seed in range(1, SEEDS + 1)},
        )
        for name, values in scores.items()
    }
    return judge(design(SEEDS), [baseline, finalist, *own], trained).final == "better"


SETTINGS = [(2, 2), (2, 8), (8, 2), (5, 5), (8, 8), (3, 6), (6, 3), (8, 4)]


def test_a_noisily_chosen_baseline_makes_no_winner():
    """In 240 searches, or 2,000."""
    generator = np.random.default_rng(0)
    claims = [simulate(spread, noise, generator) for spread, noise in SETTINGS for _ in range(EXPERIMENTS)]
    assert np.mean(claims) <= 0.05


@pytest.mark.parametrize("least", others_slow([-2.0, -1.0, 0.0], -1.0, 0.0))
@pytest.mark.parametrize("side", ["ssa", "baseline"])
def test_a_run_that_is_tried_again_until_it_is_lucky_makes_no_winner(side, least):
    """Neither a candidate that fails below a score, nor a baseline that fails above one."""
    generator, claims, sign = np.random.default_rng(1), 0, 1 if side == "ssa" else -1
    variants = [
        Variant(name="baseline", role=Role.BASELINE, config=config()),
        Variant(name="ssa", role=Role.FINALIST, config=config(SSA)),
    ]
    for _ in range(300):
        drawn, attempts = generator.normal(size=(2, 10)), {}
        for i, score in enumerate(drawn[1]):
            while sign * score < least:
                score = generator.normal()
                attempts[i + 1] = attempts.get(i + 1, 0) + 1
            drawn[1, i] = score
        scored = {
            name: Scores(scores=dict(enumerate(row.tolist(), start=1)))
            for name, row in zip(("baseline", "ssa")[::sign], drawn, strict=True)
        }
        scored[side] = replace(scored[side], failed_attempts=attempts)
        claims += judge(OF_COMMANDS, variants, scored).final == "better"
    assert claims <= 0.04 * 300
