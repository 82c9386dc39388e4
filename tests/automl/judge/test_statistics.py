"""Agreement with scipy and statsmodels, and error rates on noise from real trainings."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from automl.judge.decision import (
    EXTRA_PAIRS,
    compute_power,
    detectable,
    holm,
    nominal_levels,
    pairs_needed,
    spent_alpha,
    step_down,
)
from automl.judge.rules import Evidence, decide
from automl.judge.statistics import (
    ALPHA,
    above_chance,
    least_pairs,
    paired,
    paired_ratio,
    reach_over_inputs,
    sign_flip,
)
from automl.judge.stream import _difference
from tests.helpers import others_slow

EXPERIMENTS = 8000 if os.environ.get("AUTOML_LONG") else 1500
INTERIM = min(3000, EXPERIMENTS)
TABLE = Path(__file__).parents[3] / "benchmarks" / "data" / "nette-0.parquet"


def pairs(count: int, seed: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    theirs = generator.normal(90, 1, count)
    return theirs + generator.normal(shift, 0.7, count), theirs


@pytest.mark.parametrize("count", [2, 5, 10, 14, 30])
def test_paired_agrees_with_scipy_and_statsmodels(count):
    a, b = pairs(count, count)
    difference = paired(a - b, margin=0.5)
    assert difference.mean == pytest.approx(np.mean(a - b), abs=1e-12)
    assert difference.p_margin == pytest.approx(ttost_paired(a, b, -0.5, 0.5)[0], abs=1e-12)
    assert difference.sd == pytest.approx(np.std(a - b, ddof=1), abs=1e-12)
    assert difference.count == count


SHAPES = {
    "even": lambda generator, count: generator.normal(0.5, 1, count),
    "skewed": lambda generator, count: generator.gamma(1, 1, count) - 0.6,
    "solved or not": lambda generator, count: generator.normal(generator.random(count) < 0.9, 0.03),
    "steps": lambda generator, count: np.round(generator.normal(0.5, 1, count), 1),
    "constant": lambda generator, count: np.full(count, 0.4),
}


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3, 0.002])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [2, 5, 6, 8, 10, 14, 20])
def test_an_interval_is_what_its_test_does_not_reject(count, shape, alpha):
    """So a printed interval never excludes 0 beside a large p."""
    for seed in range(5):
        d = SHAPES[shape](np.random.default_rng(seed), count)
        difference = paired(d, margin=0.5, resolution=0.01, alpha=alpha)
        assert (difference.low > 0 or difference.high < 0) == (difference.p <= alpha * (1 + 1e-9))
        assert (difference.bounds is not None) == (count >= least_pairs(alpha))
        if difference.bounds:
            for end, inwards in ((difference.low, 1), (difference.high, -1)):
                just_in, just_out = (
                    paired(d - end - inwards * direction * 1e-6, margin=0.5, resolution=0.01).p
                    for direction in (1, -1)
                )
                assert just_out * (1 - 1e-4) <= alpha <= just_in * (1 + 1e-4)


@pytest.mark.parametrize("count", [2, 5, 8, 9, 14])
def test_sign_flips_agree_with_scipy(count):
    d = np.random.default_rng(count).normal(0.4, 1, count)
    reference = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=2**14)
    assert sign_flip(d) == pytest.approx(reference.pvalue, abs=1e-12)


def test_many_sign_flips_are_drawn_alike_and_the_larger_p_counts():
    d = np.random.default_rng(1).normal(0.3, 1, 40)
    assert sign_flip(d) == sign_flip(d)
    assert sign_flip(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.01)
    even = np.array([-1.0, 0.5, 1.0, 1.5, 3.0])
    assert paired(even, margin=0.5).p == pytest.approx(sign_flip(even)), "five pairs never show anything"
    # A tail towards 0: how far does it go? Plain t is the smallest of the three, and ten times it is not.
    for short in ([2.0, 1.9, 2.1, 1.8, 0.4, 2.0, 2.2, -1.1], [2.0, 1.9, 2.1, 1.8, 0.1, 2.0, 2.2, 1.9]):
        d, skew, n = np.array(short), stats.skew(short), 8
        ratio, plain = d.mean() / d.std(ddof=1), stats.ttest_1samp(d, 0).pvalue
        t = np.sqrt(n) * (ratio + skew * ratio**2 / 3 + skew**2 * ratio**3 / 27 + skew / 6 / n)
        hall = 2 * stats.t.sf(abs(t), n - 1)
        assert hall > 10 * plain
        for p in (paired(d, margin=0.5).p, paired(-d, margin=0.5).p):
            assert p == pytest.approx(max(sign_flip(d), 10 * plain))


def test_equal_differences_are_known_to_a_step_of_the_scores():
    same = paired([0.4] * 8, margin=0.5, resolution=0.1)
    error = 0.1 / np.sqrt(6) / np.sqrt(8)
    assert (same.low, same.high) == pytest.approx(stats.t(7, 0.4, error).interval(0.95))
    assert same.p_margin == pytest.approx(stats.t.cdf((0.4 - 0.5) / error, 7))
    assert same.p == pytest.approx(2 / 2**8)
    coarse = paired([0.4] * 8, margin=0.5, resolution=2.0)
    assert coarse.p_margin > 0.05, "in steps of two points half a point cannot be seen"
    assert coarse.high > 0.5
    assert paired([0.0, 0.0, 0.0], margin=0.5, resolution=0.1).p == 1
    wide = [0.1, 0.9, 0.4, 0.2]
    assert paired(wide, margin=0.5, resolution=0.1) == paired(wide, margin=0.5)
    zero = paired([0.0] * 8, margin=0.5)
    assert (zero.mean, zero.p, zero.p_margin) == (0, 1, 1)
    assert decide(Evidence(differences=[zero])).outcome == "undecided"
    assert paired([0.6, 0.6], margin=0.5).p_margin == 1
    assert paired([0.1, -0.1, 0.05], margin=0).p_margin == 1, "a margin of 0 is never met"


# Rates of `better` with the number of pairs, where the baseline never solves the task and the candidate in 90
# of 100. Sign flips alone have 73, 99 and 100.
@pytest.mark.parametrize(("count", "least"), [(6, 0.66), (8, 0.97), (10, 0.99), (12, 0.99)])
def test_a_task_that_is_solved_or_not_has_power(count, least):
    generator = np.random.default_rng(0)
    solved = 100.0 * (generator.random((300, count)) < 0.9) + generator.normal(0, 3, (300, count))
    assert np.mean([paired(d, margin=0.5).p <= ALPHA for d in solved]) > least


@pytest.mark.parametrize("seed", range(5))
def test_a_larger_difference_never_has_a_larger_p(seed):
    d = np.random.default_rng(seed).gumbel(0, 1, 12)
    ps = [paired(d - d.mean() + gain, margin=0.5).p for gain in np.linspace(1, 8, 30)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(ps))


def test_a_ratio_is_of_the_logarithms_without_a_disturbed_pair():
    ours, theirs = [1.1, 1.3, 1.2], [1.0, 1.0, 1.1]
    ratio = paired_ratio(ours, theirs)
    logs = np.log(ours) - np.log(theirs)
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx(tuple(np.exp([logs.mean(), *interval])))
    back = paired_ratio(theirs, ours)
    assert (back.low, back.high) == pytest.approx((1 / ratio.high, 1 / ratio.low))
    logs = np.array([0.01, -0.012, 0.004, -0.006, 0.009, -0.003, 0.0, 0.3])
    ratio, mirrored = (paired_ratio(np.exp(sign * logs), np.ones(8)) for sign in (1, -1))
    assert ratio.high < 1.03 > 1 / mirrored.low


@pytest.mark.parametrize("count", [2, 7, 8, 10, 25])
def test_the_interval_of_a_ratio_holds_the_true_one_in_95_of_100(count):
    random = np.random.default_rng(count)
    ratios = [paired_ratio(np.exp(random.normal(0.2, 0.05, count)), np.ones(count)) for _ in range(400)]
    assert 0.92 < np.mean([ratio.low < np.exp(0.2) < ratio.high for ratio in ratios]) < 0.98


def test_the_error_over_images_does_not_shrink_with_seeds():
    uneven = [0.2, 0.6, 0.5, 0.3]  # nor is it the only error
    above = [([0.5] * 5, 100), ([0.4] * 5, 1000)]
    below = [([0.4] * 5, 100), ([0.4] * 500, 100), (uneven, 10_000), ([1 / 3], 100), ([0.1] * 5, 1000)]
    for scores, inputs in above + below:
        is_above = above_chance(scores, 1 / 3, (2 / 9 / inputs) ** 0.5)
        assert is_above == ((scores, inputs) in above), (scores, inputs)


@pytest.mark.parametrize("seed", others_slow([0, 1, 2, 3, 18], 1, 18))
def test_step_down_is_holm(seed):
    p = np.random.default_rng(seed).beta(0.3, 2, 4)
    rejected, adjusted, *_ = multipletests(p, 0.05, method="holm")
    assert step_down(p, lambda alpha: alpha) == list(rejected)
    assert holm(p) == pytest.approx(list(adjusted), abs=1e-12)


@pytest.mark.parametrize(
    ("analyses", "bounds"),
    [
        # Lan and DeMets' O'Brien-Fleming-type boundaries, from the program of Reboussin et al. (2000).
        ((1, 2, 3, 4, 5), (4.877, 3.357, 2.680, 2.290, 2.031)),
        ((1, 2), (2.963, 1.969)),
        ((7,), (1.960,)),
    ],
)
def test_boundaries_are_those_that_are_published(analyses, bounds):
    bound = stats.norm.isf(np.array(nominal_levels(analyses, 0.05)) / 2)
    assert bound == pytest.approx(bounds, abs=1e-3)


def test_all_analyses_together_have_the_level():
    analyses = tuple(range(6, 21))
    bounds = stats.norm.isf(np.array(nominal_levels(analyses, 0.05)) / 2)
    generator = np.random.default_rng(0)
    sums = generator.normal(size=(200_000, 20)).cumsum(1)[:, 5:] / np.sqrt(analyses)
    assert (np.abs(sums) > bounds).any(1).mean() == pytest.approx(0.05, abs=0.002)
    assert spent_alpha(1, 0.05) == pytest.approx(0.05)


@pytest.mark.parametrize(("alpha", "least"), [(0.05, 6), (0.025, 7), (0.05 / 3, 7), (0.5, 2), (2 / 256, 8)])
def test_least_pairs(alpha, least):
    assert least_pairs(alpha) == least
    assert sign_flip(np.arange(1, least + 1)) <= alpha
    if least > 2:
        assert sign_flip(np.arange(1, least)) > alpha


def test_power_is_that_of_statsmodels():
    power = TTestPower().power(0.5 / 0.8, 12, 0.05)
    assert compute_power(0.5, 0.8, 12, 0.05) == pytest.approx(power, abs=1e-12)
    needed = TTestPower().solve_power(0.5 / 0.8, power=0.8, alpha=0.05)
    assert pairs_needed(0.5, 0.8) == int(np.ceil(needed)) + EXTRA_PAIRS
    assert {pairs_needed(size, 1) for size in np.linspace(3, 100, 200)} == {least_pairs()}
    assert pairs_needed(1e-9, 1) is None
    assert pairs_needed(0.2, 1) is None, "more than 100"


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("count", [5, 8, 10, 100])
def test_the_detectable_difference_needs_these_pairs(count, alpha):
    shown = detectable(2.0, count, alpha)
    if count < least_pairs(alpha):
        assert shown is None
    else:
        assert pairs_needed(1.001 * shown, 2.0, alpha) == count
        assert pairs_needed(0.95 * shown, 2.0, alpha) != count


# Error rates of verdicts.


def trainings():
    """Return recorded trainings from scratch, and the score of each on each image, 0 or 100."""
    rows = pq.read_table(TABLE).to_pylist()
    images = len(rows[0]["losses"])
    hits = np.array([np.unpackbits(np.frombuffer(row["hits"], np.uint8))[:images] for row in rows])
    return rows, 100.0 * hits


@pytest.fixture(scope="module")
def noise():
    """Return the deviations of real trainings from the mean of their placement, in points."""
    rows, hits = trainings()
    placements: dict[str, list[float]] = {}
    for row, score in zip(rows, hits.mean(1), strict=True):
        placements.setdefault(row["placement"], []).append(score)
    scores = np.array([values for values in placements.values() if len(values) == len(placements["plain"])])
    seeds = scores.shape[1]
    return ((scores - scores.mean(1, keepdims=True)) * np.sqrt(seeds / (seeds - 1))).ravel()


def experiments(noise, seeds, finalists, gains=0.0, count=EXPERIMENTS):
    """Return paired differences (count, finalists, seeds) of finalists better by `gains` points."""
    generator = np.random.default_rng(3)
    baseline = generator.choice(noise, (count, 1, seeds))
    scores = generator.choice(noise, (count, finalists, seeds))
    return scores - baseline + np.reshape(gains, (-1, 1))


def decide_all(differences):
    samples = ([paired(d, margin=0.5) for d in sample] for sample in differences)
    return [decide(Evidence(differences=sample)).outcome for sample in samples]


@pytest.mark.parametrize("finalists", others_slow([1, 3], 1))
def test_rates_and_power_of_verdicts_on_noise(noise, finalists):
    assert np.isin(decide_all(experiments(noise, 10, finalists)), ["better", "worse"]).mean() <= 0.05
    analyses = tuple(range(least_pairs(ALPHA / finalists), 13))
    claims = 0
    for differences in experiments(noise, analyses[-1], finalists, count=INTERIM):
        for i, seeds in enumerate(analyses):
            now = [paired(d[:seeds], margin=0.5) for d in differences]
            evidence = Evidence(differences=now, level=lambda alpha, i=i: nominal_levels(analyses, alpha)[i])
            outcome = decide(evidence).outcome
            if outcome != "undecided":
                claims += outcome in ("better", "worse")
                break
    assert claims / INTERIM <= 0.05
    # This holds for the leading finalist, too, although it is chosen by its mean.
    gains = np.array([0.4, 0.0, -0.3])[:finalists]
    covered = []
    for differences in experiments(noise, 10, finalists, gains):
        results = [paired(d, margin=0.5) for d in differences]
        lead = Evidence(differences=results).lead
        covered.append(results[lead].low <= gains[lead] <= results[lead].high)
    assert 0.93 <= np.mean(covered) <= 0.97
    sd = float(np.sqrt(2) * noise.std())
    gain = 0.5 * sd
    seeds = pairs_needed(gain, sd, ALPHA / finalists)
    gains = np.array([gain, 0.0, 0.0])[:finalists]
    outcomes = decide_all(experiments(noise, seeds, finalists, gains, count=EXPERIMENTS // 10))
    error = np.sqrt(0.8 * 0.2 / len(outcomes))
    assert np.mean([outcome == "better" for outcome in outcomes]) == pytest.approx(0.8, abs=0.02 + 2 * error)


# Tenths of the images, on which the spread is from 3 to 5 points and the skewness from -0.7 to 0.5; and made
# noise that is more skewed, as accuracies are after few epochs.
UNLIKE = [0, 1, 7, 8, "made"]
PLAIN = 6  # with the least spread


@pytest.fixture(scope="module")
def pools():
    """Return accuracies of real trainings on tenths of the images, in points, minus their mean."""
    scores = [hits.mean(1) for hits in np.array_split(trainings()[1], 10, axis=1)]
    pool = -2.2 * np.random.default_rng(5).gamma(2.0, size=10_000)
    return {**{i: values - values.mean() for i, values in enumerate(scores)}, "made": pool - pool.mean()}


def unlike(pools, pool, seeds, finalists=1, count=EXPERIMENTS):
    """Return paired differences of variants that differ only in spread and skewness."""
    generator = np.random.default_rng(4)
    scores = generator.choice(pools[pool], (count, finalists, seeds))
    return scores - generator.choice(pools[PLAIN], (count, 1, seeds))


@pytest.mark.parametrize("seeds", others_slow([6, 10, 14], 10))
@pytest.mark.parametrize("pool", others_slow(UNLIKE, "made"))
def test_nothing_is_claimed_of_variants_that_differ_in_spread_and_skewness_alone(pools, pool, seeds):
    assert np.isin(decide_all(unlike(pools, pool, seeds)), ["better", "worse"]).mean() <= 0.05


@pytest.mark.parametrize("pool", others_slow(UNLIKE, "made"))
def test_the_interval_covers_the_truth_of_unlike_variants(pools, pool):
    results = [paired(d, margin=0.5) for samples in unlike(pools, pool, 10) for d in samples]
    assert 0.93 <= np.mean([d.low <= 0 <= d.high for d in results]) <= 0.97


def answers(generator, seeds, images, spread=0.01):
    """Return the differences of right answers of two variants that are equally good in the population.

    Each image has a probability of its own, another one for each variant; each training is off by `spread`.
    """
    hard = generator.normal(2, 1.5, images)
    right = []
    for _ in range(2):
        chance = 1 / (1 + np.exp(-hard - generator.normal(0, 0.8, images)))
        chance = chance + generator.normal(0, spread, (seeds, 1))
        right.append(generator.random((seeds, images)) < chance)
    return np.subtract(*right, dtype=np.int8)


@pytest.mark.parametrize(("seeds", "images", "spread"), [(10, 50, 0.01), (6, 200, 0.03), (40, 100, 0.01)])
def test_the_interval_over_images_covers_the_truth(seeds, images, spread):
    generator = np.random.default_rng(0)
    samples = [answers(generator, seeds, images, spread) for _ in range(400)]
    assert 0.93 <= np.mean([abs(d.mean()) <= reach_over_inputs(d) for d in samples]) <= 0.97


def test_intervals_over_images():
    generator = np.random.default_rng(1)
    few, many = (
        np.mean([reach_over_inputs(answers(generator, seeds, 50)) for _ in range(50)]) for seeds in (10, 400)
    )
    assert many > 0.6 * few
    of_seeds = [answers(generator, 400, 50).mean(1) for _ in range(50)]
    alone = np.mean([stats.t.ppf(0.975, 399) * d.std(ddof=1) / 20 for d in of_seeds])
    assert many > 3 * alone
    large = np.mean([reach_over_inputs(answers(generator, 10, 5000)) for _ in range(20)])
    assert large < 0.4 * few, "more images do"
    assert reach_over_inputs(np.zeros((10, 100), np.int8)) >= 1.96 / 100
    assert reach_over_inputs(np.zeros((1, 1), np.int8)) > 1
    seeds = np.repeat(np.array([[0], [1], [0], [-1]]), 1000, axis=1)  # all of the spread is the seeds'
    alone = stats.t.ppf(0.975, 3) * seeds.mean(1).std(ddof=1) / 2
    assert reach_over_inputs(seeds) == pytest.approx(alone, rel=0.01)


def test_a_difference_within_the_margin_is_seldom_called_equivalent_at_its_edge(noise):
    outcomes = decide_all(experiments(noise, 40, 1, 0.5, count=EXPERIMENTS // 10))
    assert np.mean([outcome == "equivalent" for outcome in outcomes]) <= 0.07


def test_signs_in_words():
    gains = {"ahead on all 2 seeds": [1, 2], "behind on 1 of 2 seeds": [-9, 2], "behind on the 1 seed": [-2]}
    assert [_difference(np.array(d), None, None).signs for d in gains.values()] == [*gains]
