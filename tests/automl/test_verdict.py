"""What is said of which scores."""

import json
from dataclasses import replace

import pytest
from confirm_cases import ARMS, question, scores, without
from scipy import stats

from automl.verdict import collect, judge
from search.record import Role, State, TrialRecord

BETTER = scores(ssa=0.02)


def test_better_names_the_winner_and_by_how_much():
    found = judge(question(), ARMS, BETTER)
    assert found.said == "better"
    assert found.winner is not None
    assert found.winner.name == "ssa"
    d = [100 * (BETTER["ssa"].scores[s] - BETTER["baseline"].scores[s]) for s in range(1, 11)]
    interval = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert found.lead is not None
    assert (found.lead.difference.low, found.lead.difference.high) == pytest.approx(tuple(interval))
    assert found.sentence == (
        f"ssa is better than the tuned baseline by {sum(d) / 10:.2f} points (95 % CI {interval.low:.2f} to "
        f"{interval.high:.2f}, p = 0.0039, 10 paired seeds, equal time)."
    )


@pytest.mark.parametrize(
    ("gains", "more", "word", "said"),
    [
        ({"ssa": 0.02}, {"margin": 5}, "better", "That is less than the margin of 5 points."),
        ({"ssa": -0.02, "sagan": -0.02}, {}, "worse", "No finalist is better."),
        ({}, {"margin": 5}, "equivalent", "and no finalist by as much as 5 points."),
        ({}, {}, "undecided", "fresh seeds would be needed to see 0.5 points in four of five cases."),
        ({}, {"margin": 0}, "undecided", "No detectable difference"),
    ],
)
def test_every_verdict_has_its_sentence(gains, more, word, said):
    found = judge(question(**more), ARMS, scores(**gains))
    assert found.said == word
    assert said in found.sentence
    assert (found.winner is not None) == (word == "better")


def test_a_metric_of_which_less_is_better():
    found = judge(question(maximize=False), ARMS, scores(ssa=-0.02))
    assert found.said == "better"
    assert found.lead is not None
    assert found.lead.difference.mean == pytest.approx(2, abs=0.7)


def test_a_seed_counts_once_all_finalists_have_it():
    found = judge(question(), ARMS, without(BETTER, "sagan", [7]))
    assert list(found.used) == [1, 2, 3, 4, 5, 6]
    assert found.said is None
    assert found.winner is None
    assert found.sentence.startswith("No verdict yet, with 6 of 10 seeds. So far ssa differs")


def test_no_score_yet():
    nothing = {arm.name: scores(0)[arm.name] for arm in ARMS}
    found = judge(question(), ARMS, nothing)
    assert (found.word, found.complete, found.lead) == (None, False, None)
    assert found.sentence.startswith("No verdict: fewer than two seeds")
    assert json.dumps(found.to_json(ARMS, nothing))


def test_what_diverges_cannot_win_and_takes_nothing_from_the_others():
    found = judge(question(), ARMS, without(BETTER, "ssa", [4], "the training loss became nan"))
    assert found.complete
    assert found.said != "better"
    assert found.lead is not None
    assert found.lead.arm.name == "sagan"
    assert len(found.used) == 10
    assert "ssa failed with seed 4: the training loss became nan" in found.warnings
    other = judge(question(), ARMS, without(BETTER, "sagan", range(1, 10), "the training loss became nan"))
    assert (other.said, len(other.used)) == ("better", 10)
    assert other.lead is not None
    assert other.lead.p_holm == pytest.approx(2 * other.lead.difference.p), "there were two finalists"


def test_with_a_finalist_gone_nothing_is_called_equivalent():
    made = scores()
    assert judge(question(margin=5), ARMS, made).said == "equivalent"
    assert judge(question(margin=5), ARMS, without(made, "sagan", [2], "nan")).said == "undecided"


def test_all_finalists_gone():
    made = without(without(scores(), "ssa", [2], "nan"), "sagan", [3], "nan")
    found = judge(question(), ARMS, made)
    assert (found.complete, found.word) == (True, None)
    assert len(found.warnings) == 2


def test_an_error_costs_a_pair_and_nothing_else():
    made = {**BETTER, "ssa": replace(without(BETTER, "ssa", [4])["ssa"], errors={4: "a disk was full"})}
    found = judge(question(), ARMS, made)
    assert found.said == "better"
    assert 4 not in found.used
    assert "ssa failed with seed 4: a disk was full" in found.warnings


def test_too_few_seeds_say_so():
    found = judge(question(5), ARMS, scores(5, ssa=0.05))
    assert found.said == "undecided"
    assert found.warnings == ["5 seeds with 2 finalists can show no difference, however large; it takes 7"]


def test_one_stops_early_only_if_asked():
    early = scores(40, ssa=0.03)
    some = {
        name: replace(s, scores={k: v for k, v in s.scores.items() if k <= 12}) for name, s in early.items()
    }
    assert judge(question(40), ARMS, some).said is None
    found = judge(question(40, sequential=True), ARMS, some)
    assert found.said == "better"
    assert len(found.used) < 12
    # What comes in later changes nothing.
    assert judge(question(40, sequential=True), ARMS, early).used == found.used
    late = without(early, "ssa", [len(found.used) + 1], "nan")
    assert judge(question(40, sequential=True), ARMS, late).said == "better"
    assert "at this look, " in found.sentence
    assert found.lead is not None
    fixed = judge(question(len(found.used)), ARMS, some)
    assert fixed.lead is not None
    assert found.lead.difference.low < fixed.lead.difference.low, "a look costs confidence"


def test_what_the_controls_tell():
    found = judge(question(), ARMS, scores(ssa=0.02, conv=0.02))
    (remark,) = found.remarks
    assert remark.startswith("ssa against conv: ")
    assert remark.endswith("so that the gain is not shown to come from attention.")
    (remark,) = judge(question(), ARMS, BETTER).remarks
    assert "not shown" not in remark


def test_plain_values_have_every_score():
    value = json.loads(json.dumps(judge(question(), ARMS, BETTER).to_json(ARMS, BETTER)))
    assert {"verdict", "winner", "difference", "interval", "p", "seeds", "seeds_needed", "arms"} <= set(value)
    assert (value["verdict"], value["winner"], value["seeds"]) == ("better", "ssa", 10)
    assert [arm["role"] for arm in value["arms"]] == ["baseline", "finalist", "finalist", "control"]
    assert value["arms"][1]["scores"]["10"] == BETTER["ssa"].scores[10]
    holm = {c["arm"]: c["p_holm"] for c in value["comparisons"]}
    raw = {c["arm"]: c["p"] for c in value["comparisons"]}
    assert holm["ssa"] == value["p"] == pytest.approx(2 * raw["ssa"])
    assert holm["conv"] is None


def test_scores_are_collected_from_what_has_ended():
    def trial(number: int, arm: str, seed: int, state: State, reason: str | None = None) -> TrialRecord:
        history = [{"epoch": 1, "resource": 1, "accuracy": 0.8, "test_accuracy": 0.7}]
        config = ARMS[0].config.change(seed=seed)
        return TrialRecord(number, config, Role.FINALIST, state, history, reason=reason, arm=arm)

    found = collect(
        ARMS,
        [
            trial(0, "ssa", 1, State.COMPLETE),
            trial(1, "ssa", 2, State.RUNNING),
            trial(2, "ssa", 3, State.INFEASIBLE, "nan"),
            trial(3, "ssa", 4, State.ERROR, "boom"),
            trial(4, "ssa", 4, State.COMPLETE),
            trial(6, "ssa", 99, State.COMPLETE),
            trial(5, "somebody else", 1, State.COMPLETE),
        ],
        "test_accuracy",
        [1, 2, 3, 4],
    )
    assert found["ssa"].scores == {1: 0.7, 4: 0.7}
    assert found["ssa"].failed == {3: "nan"}
    assert found["ssa"].errors == {}
    assert found["baseline"].scores == {}
