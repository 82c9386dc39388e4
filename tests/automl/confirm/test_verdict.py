"""Outcomes and texts of verdicts."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from confirm_cases import VARIANTS, answered, config, design, scores, without

from attention import Spec
from automl.confirm.design import MODELS
from automl.confirm.judge import judge
from automl.confirm.protocol import Confirmation, Options
from automl.confirm.scheduler import lost_metrics
from automl.confirm.scores import Scores, TrainingCost, collect, training_cost
from automl.confirm.statistics import paired
from automl.confirm.variants import Variant, VariantSet
from automl.storage.metadata import collect_provenance
from search.class_metrics import ACCURACY
from search.metric import Chance
from search.record import Role, State, TrialRecord, placement_name

BETTER = scores(ssa=0.02)


def test_better_names_the_winner_and_the_difference():
    verdict = judge(design(), VARIANTS, BETTER)
    assert verdict.final == "better"
    assert verdict.winner is not None
    assert verdict.winner.name == "ssa"
    d = [100 * (BETTER["ssa"].scores[s] - BETTER["baseline"].scores[s]) for s in range(1, 11)]
    expected = paired(d, margin=0.5, resolution=0.1, alpha=0.05 / 2)  # two finalists
    assert verdict.lead is not None
    assert (verdict.lead.difference.low, verdict.lead.difference.high) == (expected.low, expected.high)
    assert verdict.headline == f"ssa beats the tuned baseline by {sum(d) / 10:.2f} points"
    assert verdict.figures == (
        f"ssa: +{sum(d) / 10:.2f} points, 95 % CI {expected.low:.2f} to {expected.high:.2f}. p = 0.0039, "
        f"adjusted for 2 finalists. 10 paired seeds. Equal time."
    )


@pytest.mark.parametrize(
    ("gains", "more", "outcome", "headline", "remark"),
    [
        (
            {"ssa": 0.02},
            {"margin": 5},
            "better",
            "ssa beats the tuned baseline by 1.77 points",
            "The gain is below the margin of 5 points.",
        ),
        (
            {"ssa": -0.02, "sagan": -0.02},
            {},
            "worse",
            "No finalist beats the tuned baseline: the best is worse by 2.15 points",
            "",
        ),
        (
            {},
            {"margin": 5},
            "equivalent",
            "No finalist differs from the tuned baseline by as much as 5 points",
            "",
        ),
        (
            {},
            {},
            "undecided",
            "Undecided: 10 seeds show no difference from the tuned baseline",
            "To detect 0.5 points, run 18 fresh seeds (80 % power).",
        ),
        (
            {},
            {"margin": 0},
            "undecided",
            "Undecided: 10 seeds show no difference from the tuned baseline",
            "",
        ),
    ],
)
def test_every_outcome_has_its_headline(gains, more, outcome, headline, remark):
    verdict = judge(design(**more), VARIANTS, scores(**gains))
    assert verdict.final == outcome
    assert verdict.headline == headline
    assert remark in ["", *verdict.remarks]
    assert (verdict.winner is not None) == (outcome == "better")


def test_headlines_have_at_most_15_words():
    sites = {f"stage{i}.block{i}": Spec("ssa", {"ks": 3}) if i % 2 else Spec("sagan") for i in range(1, 7)}
    several = config(sites)
    name = f"{placement_name(several)} (trial 12)"
    variants = [VARIANTS[0], replace(VARIANTS[1], name=name, config=several, trial=12), *VARIANTS[2:]]

    def judged(asked, values):
        return judge(asked, variants, {name if key == "ssa" else key: value for key, value in values.items()})

    unmeasured = {name: replace(variant, costs={}) for name, variant in BETTER.items()}
    verdicts = [
        judged(design(), BETTER),
        judged(design(), scores(ssa=-0.02, sagan=-0.03)),
        judged(design(margin=5), scores()),
        judged(design(), scores()),
        judged(design(), scores(ssa=0.02, times={"ssa": 1.2})),
        judged(design(), scores(ssa=-0.02, sagan=-0.03, times={"ssa": 0.8})),
        judged(design(margin=5), scores(times={"sagan": 0.8})),
        judged(design(), unmeasured),
        judged(design(chance=1 / 3, inputs=120), scores(level=1 / 3, sd=0.0)),
        judged(design(inputs=100), scores(sd=0.0001)),
        judge(design(), WITH_OWN, with_own(0.03)),
        judged(design(), without(BETTER, "sagan", [7])),
        judged(design(), {key: scores(0)[key] for key in BETTER}),
    ]
    headlines = [verdict.headline for verdict in verdicts]
    assert len(set(headlines)) == len(headlines)
    assert headlines[0].startswith(
        "ssa(ks=3) @ stage1.block1 + sagan @ stage2.block2 + 4 more beats the tuned baseline by "
    )
    for headline in headlines:
        assert len(re.findall(r"\S*\w\S*", headline)) <= 15, headline


def test_a_metric_from_0_to_1_is_not_rounded_away():
    of_mrr = design(margin=0.01, scale=1.0, unit="mrr", metric="mrr")
    verdict = judge(of_mrr, VARIANTS, BETTER)
    d = [BETTER["ssa"].scores[s] - BETTER["baseline"].scores[s] for s in range(1, 11)]
    interval = paired(d, margin=0.01, resolution=0.001, alpha=0.05 / 2)
    assert verdict.headline == f"ssa beats the tuned baseline by {sum(d) / 10:.3f} mrr"
    assert (
        f"ssa: +{sum(d) / 10:.3f} mrr, 95 % CI {interval.low:.3f} to {interval.high:.3f}." in verdict.figures
    )
    guessing = judge(replace(of_mrr, chance=Chance(value=0.9, error=0.1, step=0.001)), VARIANTS, BETTER)
    assert guessing.remarks[0] == "The mrr of guessing is 0.9000."


def test_metric_to_minimize():
    verdict = judge(design(maximize=False, chance=0.95), VARIANTS, scores(ssa=-0.02))
    assert verdict.final == "better"
    assert verdict.lead is not None
    assert verdict.lead.difference.mean == pytest.approx(2, abs=0.7)
    behind = judge(design(maximize=False, chance=0.95), VARIANTS, scores(ssa=0.02))
    assert "points, where above 0 is better, 95 % CI -" in behind.figures
    assert (
        "points, where above 0 is better, vs the baseline"
        in behind.comparisons[0].to_json(behind.design)["sentence"]
    )


def test_seed_counts_once_all_finalists_have_it():
    verdict = judge(design(), VARIANTS, without(BETTER, "sagan", [7]))
    assert list(verdict.used) == [1, 2, 3, 4, 5, 6]
    assert verdict.final is None
    assert verdict.winner is None
    assert verdict.headline == "No verdict yet: 6 of 10 seeds are complete"
    assert verdict.figures.startswith("So far ssa: +")


def test_no_score_yet():
    nothing = {variant.name: scores(0)[variant.name] for variant in VARIANTS}
    verdict = judge(design(), VARIANTS, nothing)
    assert (verdict.outcome, verdict.complete, verdict.lead) == (None, False, None)
    assert verdict.headline == "No verdict: fewer than two seeds are complete"
    assert verdict.figures == "A seed counts once the baseline and all finalists have trained with it."
    assert verdict.remarks == []
    assert json.dumps(verdict.to_json(VARIANTS, nothing))


def test_diverged_finalist_cannot_win_and_leaves_the_others_unchanged():
    verdict = judge(design(), VARIANTS, without(BETTER, "ssa", [4], "the training loss became nan"))
    assert verdict.complete
    assert verdict.final != "better"
    assert verdict.lead is not None
    assert verdict.lead.variant.name == "sagan"
    assert len(verdict.used) == 10
    assert "ssa failed with seed 4: the training loss became nan" in verdict.warnings
    other = judge(design(), VARIANTS, without(BETTER, "sagan", range(1, 10), "the training loss became nan"))
    assert (other.final, len(other.used)) == ("better", 10)
    assert other.lead is not None
    assert other.lead.p_holm == pytest.approx(2 * other.lead.difference.p), "there were two finalists"


def test_without_a_finalist_nothing_is_called_equivalent():
    scored = scores()
    assert judge(design(margin=5), VARIANTS, scored).final == "equivalent"
    assert judge(design(margin=5), VARIANTS, without(scored, "sagan", [2], "nan")).final == "undecided"


def test_no_outcome_if_all_finalists_failed():
    scored = without(without(scores(), "ssa", [2], "nan"), "sagan", [3], "nan")
    verdict = judge(design(), VARIANTS, scored)
    assert (verdict.complete, verdict.outcome) == (True, None)
    assert len(verdict.warnings) == 2


def test_error_costs_only_its_pair():
    scored = {**BETTER, "ssa": replace(without(BETTER, "ssa", [4])["ssa"], errors={4: "a disk was full"})}
    verdict = judge(design(), VARIANTS, scored)
    assert verdict.final == "better"
    assert 4 not in verdict.used
    assert "ssa failed with seed 4: a disk was full" in verdict.warnings


@pytest.mark.parametrize("name", ["ssa", "baseline"])
def test_pairs_that_one_side_tried_again_support_nothing(name):
    """A seed without a score leaves the verdict open. If both sides failed as often, a pair counts."""
    own = design(kind=replace(MODELS, own=True))
    tried = {**BETTER, name: replace(BETTER[name], failed_attempts={1: 1, 2: 5})}
    verdict = judge(own, VARIANTS, tried)
    assert (verdict.final, verdict.winner) == ("cannot tell", None)
    assert "runs failed and were tried again" in verdict.headline
    assert f"Failed attempts: 6 of {name}." in verdict.figures
    again = f"{name} failed and was tried again with seed 1 (1 time), 2 (5 times)"
    assert any(again in text for text in verdict.warnings)
    value = json.loads(json.dumps(verdict.to_json(VARIANTS, tried)))
    attempts = {variant["name"]: variant["failed_attempts"] for variant in value["variants"]}
    assert (value["failed_attempts"], attempts[name]) == ({name: 6}, {"1": 1, "2": 5})
    low = verdict.lead.difference.low
    assert low < 0 < judge(own, VARIANTS, BETTER).lead.difference.low
    assert judge(design(), VARIANTS, tried).final == "better", (
        "the training of models does not choose to fail"
    )
    both = {n: replace(BETTER[n], failed_attempts={1: 1, 2: 5}) for n in ("ssa", "baseline")}
    assert judge(own, VARIANTS, {**BETTER, **both}).final == "better"
    once = {1: 1, 2: 1}
    gone = replace(without(BETTER, name, [1, 2])[name], errors=once, failed_attempts=once)
    assert not judge(own, VARIANTS, {**BETTER, name: gone}).complete
    losing = scores(ssa=-0.02, sagan=-0.02)
    losing |= {
        n: replace(losing[n], failed_attempts=once)
        for n in ((name,) if name == "baseline" else ("ssa", "sagan"))
    }
    assert judge(own, VARIANTS, losing).final == "cannot tell"


def test_too_few_seeds_give_a_warning():
    verdict = judge(design(5), VARIANTS, scores(5, ssa=0.05))
    assert verdict.final == "undecided"
    assert verdict.warnings == ["Run at least 7 seeds: 5 seeds cannot show any difference with 2 finalists."]


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
    assert " of this interim analysis, adjusted for 2 finalists. " in verdict.figures
    assert verdict.lead is not None
    fixed = judge(design(len(verdict.used)), VARIANTS, some)
    assert fixed.lead is not None
    assert verdict.lead.difference.low < fixed.lead.difference.low, "an interim analysis costs confidence"


def test_remarks_on_controls():
    verdict = judge(design(), VARIANTS, scores(ssa=0.02, conv=0.02))
    (remark,) = verdict.remarks
    assert remark.startswith("ssa against conv: ")
    assert remark.endswith("so the gain is not shown to come from attention.")
    (remark,) = judge(design(), VARIANTS, BETTER).remarks
    assert "not shown" not in remark


STANDS_OUT = "Confirm conv with other seeds: it was better than the baseline, but this confirmation does not"


@pytest.mark.parametrize(
    ("scored", "more", "expected"),
    [
        (scores(conv=0.02), {}, True),
        (scores(conv=-0.02), {"maximize": False}, True),
        (scores(), {}, False),
        (scores(conv=-0.02), {}, False),
        (scores(ssa=0.03, conv=0.02), {}, False),  # a finalist is better, too
        (scores(9, conv=0.02), {}, False),  # not all seeds yet
        (scores(conv=0.02, times={"conv": 1.2}), {}, False),  # in more time
        (scores(conv=0.02, times={"conv": 1.2}), {"equal": "epochs"}, True),
    ],
)
def test_control_better_than_the_baseline_gets_a_remark_if_no_finalist_is(scored, more, expected):
    verdict = judge(design(**more), VARIANTS, scored)
    assert any(remark.startswith(STANDS_OUT) for remark in verdict.remarks) == expected


def test_json_has_every_score():
    value = json.loads(json.dumps(judge(design(), VARIANTS, BETTER).to_json(VARIANTS, BETTER)))
    assert {"verdict", "winner", "difference", "interval", "p", "seeds", "seeds_needed", "variants"} <= set(
        value
    )
    assert (value["verdict"], value["winner"], value["seeds"]) == ("better", "ssa", 10)
    assert [variant["role"] for variant in value["variants"]] == [
        "baseline",
        "finalist",
        "finalist",
        "control",
    ]
    assert value["variants"][1]["scores"]["10"] == BETTER["ssa"].scores[10]
    holm = {c["variant"]: c["p_holm"] for c in value["comparisons"]}
    raw = {c["variant"]: c["p"] for c in value["comparisons"]}
    assert holm["ssa"] == value["p"] == pytest.approx(2 * raw["ssa"])
    assert holm["conv"] is None


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
    assert verdict["ssa"].scores == {1: 0.7, 4: 0.7}
    assert verdict["ssa"].failed == {3: "nan"}
    assert verdict["ssa"].errors == {}
    assert verdict["baseline"].scores == {}


# Time.


@pytest.mark.parametrize(
    ("gain", "ratio", "outcome", "text"),
    [
        (0.02, 1.0, "better", "10 paired seeds. Equal time."),
        (0.02, 1.04, "better", "10 paired seeds. Equal time."),
        (0.02, 0.9, "better", ". 0.90 times the baseline's training time (95 % CI 0.9"),
        (0.02, 1.09, "cannot tell", "Cannot tell: the gain may come from longer training\nssa: +"),
        (-0.02, 0.9, "cannot tell", "Cannot tell: the loss may come from shorter training\n"),
        (-0.02, 1.09, "worse", ". 1.09 times the baseline's training time (95 % CI 1.0"),
    ],
)
def test_longer_training_is_not_called_better(gain, ratio, outcome, text):
    times = {"ssa": ratio, "sagan": ratio}
    verdict = judge(design(), VARIANTS, scores(ssa=gain, sagan=min(gain, 0) * 1.2, times=times))
    assert verdict.final == outcome
    assert text in f"{verdict.headline}\n{verdict.figures}"
    assert (verdict.winner is not None) == (outcome == "better")
    equal = 0.95 < ratio < 1.05
    assert ("Equal time." in verdict.figures) == equal
    interval = "Time counts as equal if its 95 % CI is within 0.95 to 1.05."
    assert (interval in verdict.remarks) == (outcome == "cannot tell")
    by_epochs = judge(
        design(equal="epochs"), VARIANTS, scores(ssa=gain, sagan=min(gain, 0) * 1.2, times=times)
    )
    assert by_epochs.final == ("better" if gain > 0 else "worse"), "equal epochs were asked for"
    assert f"Equal epochs, {ratio:.2f} times the baseline's training time." in by_epochs.figures


@pytest.mark.parametrize(
    ("ratio", "outcome"), [(1.0, "equivalent"), (1.09, "cannot tell"), (0.9, "cannot tell")]
)
def test_equivalence_needs_equal_time(ratio, outcome):
    verdict = judge(design(margin=5), VARIANTS, scores(times={"sagan": ratio}))
    assert verdict.final == outcome
    assert ("may have trained for different times" in verdict.headline) == (outcome == "cannot tell")


def test_second_finalist_wins_if_only_it_had_equal_time():
    verdict = judge(design(), VARIANTS, scores(ssa=0.03, sagan=0.02, times={"ssa": 1.2}))
    assert (verdict.final, verdict.winner and verdict.winner.name) == ("better", "sagan")


def test_varying_time_is_not_equal_time():
    scored = scores(ssa=0.02)
    shaky = {seed: TrainingCost(seconds=60 * (1.3 if seed % 2 else 0.77)) for seed in scored["ssa"].scores}
    verdict = judge(design(), VARIANTS, {**scored, "ssa": replace(scored["ssa"], costs=shaky)})
    assert verdict.final == "cannot tell"
    assert verdict.lead is not None
    assert verdict.lead.time is not None
    assert verdict.lead.time.mean == pytest.approx(1, abs=0.07)


def test_unmeasured_time_is_not_equal_time():
    scored = {name: replace(variant, costs={}) for name, variant in BETTER.items()}
    verdict = judge(design(), VARIANTS, scored)
    assert verdict.final == "cannot tell"
    assert verdict.headline == "Cannot tell: training times were not measured"
    assert "10 paired seeds. Time not measured." in verdict.figures
    assert verdict.remarks[0] == "The gain may come from longer training."
    by_epochs = judge(design(equal="epochs"), VARIANTS, scored)
    assert by_epochs.final == "better"
    assert "Equal epochs, time not measured." in by_epochs.figures
    assert json.dumps(verdict.to_json(VARIANTS, scored))


def test_processor_time_is_used_if_all_trainings_have_it():
    def costs(clock, processor):
        return {
            seed: TrainingCost(seconds=clock * (1 + seed % 3), processor_seconds=processor)
            for seed in range(1, 11)
        }

    scored = {**BETTER, "baseline": replace(BETTER["baseline"], costs=costs(50, 60.0))}
    scored["ssa"] = replace(scored["ssa"], costs=costs(90, 60.5))
    verdict = judge(design(), VARIANTS, scored)
    assert verdict.lead is not None
    assert verdict.lead.time is not None
    assert verdict.lead.time.mean == pytest.approx(60.5 / 60)
    scored["ssa"] = replace(scored["ssa"], costs=costs(90, 60.5) | {4: TrainingCost(seconds=90 * 2)})
    again = judge(design(), VARIANTS, scored)
    assert again.lead is not None
    assert again.lead.time is not None
    assert again.lead.time.mean == pytest.approx(90 / 50)


def test_training_cost_is_read_from_the_epochs():
    def epoch(number, **more):
        return {"epoch": number, "resource": number, "seconds": 2.5, "steps": 7 * number, **more}

    trial = TrialRecord(0, VARIANTS[0].config, history=[epoch(1, processor_seconds=2.0), epoch(2)])
    assert training_cost(trial) == TrainingCost(steps=14, seconds=5.0)
    trial.history[1]["processor_seconds"] = 2.25
    assert training_cost(trial) == TrainingCost(steps=14, seconds=5.0, processor_seconds=4.25)
    assert training_cost(TrialRecord(0, VARIANTS[0].config)) == TrainingCost()


def test_warnings_about_time():
    devices = {1: "a fast one", 2: "a slow one"}
    scored = {**BETTER, "ssa": replace(BETTER["ssa"], estimated=True, devices=devices)}
    scored["baseline"] = replace(scored["baseline"], devices={1: "a slow one", 2: "a slow one"})
    estimated, unlike = sorted(judge(design(), VARIANTS, scored).warnings)
    assert "partly estimated from operation counts" in estimated
    assert estimated.startswith("Do not rely on equal time for ssa: ")
    assert "the variants of 1 seed trained on different devices (a fast one, a slow one)" in unlike
    assert not judge(design(), VARIANTS, BETTER).warnings


def test_few_seeds_are_reported_as_few():
    assert " Only 8 paired seeds. Equal" in judge(design(8), VARIANTS, scores(8, ssa=0.03)).figures
    assert " 10 paired seeds. Equal" in judge(design(), VARIANTS, BETTER).figures


# Limits of a test split.


def test_cannot_tell_at_chance_level():
    at_chance = scores(level=1 / 3, sd=0.0)
    verdict = judge(design(chance=1 / 3, inputs=120), VARIANTS, at_chance)
    assert verdict.final == "cannot tell"
    assert verdict.winner is None
    assert verdict.headline == "Cannot tell: no variant is shown to beat guessing"
    assert verdict.remarks[0] == "The accuracy of guessing is 33.3 %."
    # One variant above chance is enough.
    learned = judge(design(chance=1 / 3, inputs=120), VARIANTS, scores(level=1 / 3, sagan=0.4))
    assert learned.final == "better"
    assert judge(design(chance=None), VARIANTS, scores(level=1 / 3, sagan=0.4)).final == "better"


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
    assert verdict.final == outcome
    assert (
        "Set a larger --margin than 0.5 points: one of the 100 test inputs changes the score by 1 points."
        in verdict.remarks
    ) == (outcome == "cannot tell")


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


def test_saturated_scores_have_an_interval_wider_than_zero():
    verdict = judge(design(inputs=400), VARIANTS, scores(sd=0.0, level=1.0))
    assert verdict.final == "equivalent"
    assert verdict.lead is not None
    d = verdict.lead.difference
    assert d.low < 0 < d.high
    assert d.sd == pytest.approx(0.25 / 6**0.5)


def test_interval_over_inputs_is_printed_after_that_over_seeds():
    scored = answered(scores(ssa=0.05), 400)
    verdict = judge(design(inputs=400), VARIANTS, scored)
    assert verdict.final == "better"
    assert verdict.lead is not None
    assert verdict.lead.images is not None
    d, (low, high) = verdict.lead.difference, verdict.lead.images
    assert low < d.low < d.high <= high
    assert f"to {d.high:.2f}. Over seeds and test examples {low:.2f} to {high:.2f}. p = " in verdict.figures
    value = json.loads(json.dumps(verdict.to_json(VARIANTS, scored)))
    assert value["interval_inputs"] == [low, high]
    assert f"(over seeds and test examples {low:.2f} to {high:.2f})" in value["comparisons"][0]["sentence"]
    # Only the user's code may know the number of inputs.
    unknown = judge(design(inputs=0, chance=None), VARIANTS, scored)
    assert unknown.lead is not None
    assert unknown.lead.images is not None
    # The user may have named the score of guessing without the effect of one answer, and all may be equal.
    equal = {
        name: replace(variant, values={seed: np.ones(400) for seed in variant.values})
        for name, variant in scored.items()
    }
    named = judge(design(inputs=0, chance=Chance(value=0.1, error=0, step=0)), VARIANTS, equal)
    assert named.lead is not None
    assert named.lead.images is not None
    # Without answers of a training, or with other images, there is no interval.
    for values in ({}, {**scored["ssa"].values, 3: scored["ssa"].values[3][:-1]}):
        lacking = judge(
            design(inputs=400), VARIANTS, {**scored, "ssa": replace(scored["ssa"], values=values)}
        )
        assert lacking.lead is not None
        assert lacking.lead.images is None


def test_gain_on_too_few_inputs_gets_a_remark():
    scored = {}
    for name, variant in scores().items():  # with each seed two images of 60 more
        right = np.arange(60) < (52 if name == "ssa" else 50)
        accuracies = dict.fromkeys(variant.scores, right.mean())
        scored[name] = replace(
            variant, scores=accuracies, values=dict.fromkeys(variant.scores, right.astype(float))
        )
    verdict = judge(design(inputs=60, margin=2), VARIANTS, scored)
    assert verdict.final == "better"
    assert verdict.lead is not None
    assert verdict.lead.images is not None
    assert verdict.lead.images[0] <= 0 < verdict.lead.difference.low
    assert "these 60 test examples contains 0." in " ".join(verdict.remarks)


def test_json_has_times_and_costs():
    value = judge(design(), VARIANTS, BETTER).to_json(VARIANTS, BETTER)
    assert value["variants"][1]["costs"]["3"] == vars(BETTER["ssa"].costs[3])
    assert value["time"] == value["comparisons"][0]["time"]
    low, high = value["time"]["interval"]
    assert low < value["time"]["ratio"] < high
    assert (value["equal"], value["inputs"], value["resolution"]) == ("time", 1000, 0.1)


def test_interim_analysis_never_ends_with_cannot_tell():
    """More seeds may still show that the times are equal."""
    scored = scores(20, ssa=0.03, times={"ssa": 1.2})
    verdict = judge(design(20, sequential=True), VARIANTS, scored)
    assert (verdict.final, len(verdict.used)) == ("cannot tell", 20)


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
        assert comparison.p_holm is not None
        assert (d.low > 0 or d.high < 0) == (comparison.p_holm <= 0.05)
    assert verdict.lead is not None
    assert (verdict.outcome in ("better", "worse")) == (verdict.lead.p_holm <= 0.05)


def test_too_few_seeds_have_no_interval():
    verdict = judge(design(4), VARIANTS, scores(4, ssa=0.5))
    assert ", no 95 % CI with 4 seeds. p = 0.25" in verdict.figures
    value = json.loads(json.dumps(verdict.to_json(VARIANTS, scores(4))))
    assert value["interval"] is None
    assert value["comparisons"][0]["interval"] is None


def test_advice_is_about_the_observed_difference_too():
    """The margin alone may need thousands of seeds."""
    wide = judge(design(6), VARIANTS[:2], scores(6, sd=0.08, ssa=0.07))
    assert wide.final == "undecided"
    assert wide.lead is not None
    seen, margin = wide.needed_here, wide.needed
    assert seen is not None
    assert margin is not None
    assert wide.lead.difference.mean > 5
    assert seen < 60 < 2000 < margin
    mean = f"{wide.lead.difference.mean:.2f}"
    assert f"To detect {mean} points, as seen here, run {seen} fresh seeds (80 % power)." in wide.remarks
    assert f"To detect 0.5 points, run {margin} fresh seeds (80 % power)." in wide.remarks


def slower(gate: float | None) -> dict[str, Scores]:
    """The finalist makes half of the baseline's steps in the same time, and is worse."""
    scored = scores(ssa=-0.03)
    seeds = range(1, 11)
    costs = {seed: replace(cost, steps=14) for seed, cost in scored["ssa"].costs.items()}
    of_ssa = replace(scored["ssa"], costs=costs, gates={} if gate is None else dict.fromkeys(seeds, gate))
    theirs = {seed: replace(cost, steps=30) for seed, cost in scored["baseline"].costs.items()}
    return {**scored, "ssa": of_ssa, "baseline": replace(scored["baseline"], costs=theirs)}


@pytest.mark.parametrize(
    ("gate", "cause"),
    [
        (None, "A step of the finalist takes longer, so there were fewer steps."),
        (0.4, "A step of the finalist takes longer, so there were fewer steps."),
        (0.0117, "The gates stayed below 0.012, so the model is close to the plain backbone."),
    ],
)
def test_fewer_steps_are_named_as_the_cause_of_a_loss(gate, cause):
    verdict = judge(design(), VARIANTS[:2], slower(gate))
    assert verdict.final == "worse"
    assert "14 steps against 30." in verdict.figures
    assert cause in verdict.remarks
    even = judge(design(equal="epochs"), VARIANTS[:2], slower(gate))
    assert cause not in even.remarks


OWN = Variant(name="own", role=Role.PLAIN, config=config())
WITH_OWN = [VARIANTS[0], replace(VARIANTS[1], plain="own"), OWN]


def with_own(gain: float, seeds: range = range(1, 11), failed: bool = False) -> dict[str, Scores]:
    """The plain backbone with the finalist's hyperparameters is better than the baseline by `gain`."""
    scored = scores(ssa=0.03)
    noise = 0.005 * np.random.default_rng(9).normal(size=10)
    values = {seed: 0.9 + gain + noise[seed - 1] for seed in seeds}
    return {**scored, "own": Scores(scores=values, failed={3: "nan"} if failed else {})}


def test_better_needs_a_gain_over_the_finalists_own_plain_model():
    verdict = judge(design(), WITH_OWN, with_own(0.0))
    assert verdict.final == "better"
    assert "Against the plain backbone with its own hyperparameters (own): +" in verdict.remarks[0]
    assert verdict.lead is not None
    assert verdict.lead.plain is not None
    assert verdict.lead.plain.low > 0


def test_gain_of_the_hyperparameters_is_not_one_of_attention():
    verdict = judge(design(), WITH_OWN, with_own(0.03))
    assert verdict.final == "cannot tell"
    assert verdict.headline == "Cannot tell: the gain may come from the hyperparameters"


def test_verdict_waits_for_the_plain_model_of_a_leading_finalist():
    verdict = judge(design(), WITH_OWN, with_own(0.0, seeds=range(1, 4)))
    assert (verdict.complete, verdict.awaited) == (False, [OWN])
    worse = judge(design(), WITH_OWN, {**with_own(0.0, seeds=range(1, 4)), **scores(ssa=-0.03)})
    assert (worse.final, worse.awaited) == ("worse", [])


def test_failed_plain_model_does_not_change_the_outcome():
    verdict = judge(design(), WITH_OWN, with_own(0.03, seeds=range(4, 11), failed=True))
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
