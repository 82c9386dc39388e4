"""Agreement with scipy and statsmodels, and the rates that are promised, on noise from real trainings."""

from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from automl.statistics import (
    ALPHA,
    holm,
    least_pairs,
    nominal_levels,
    paired,
    pairs_needed,
    power,
    sign_flip,
    spent,
    step_down,
    unpaired,
    verdict,
)

EXPERIMENTS = 2000
TABLE = Path(__file__).parents[2] / "benchmarks" / "data" / "curves.parquet"


def pairs(count: int, seed: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    theirs = generator.normal(90, 1, count)
    return theirs + generator.normal(shift, 0.7, count), theirs


@pytest.mark.parametrize("count", [2, 5, 10, 14, 30])
def test_paired_agrees_with_scipy_and_statsmodels(count):
    a, b = pairs(count, count)
    found = paired(a - b, margin=0.5)
    reference = stats.ttest_rel(a, b)
    interval = reference.confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(a - b), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert found.p_margin == pytest.approx(ttost_paired(a, b, -0.5, 0.5)[0], abs=1e-12)
    assert found.sd == pytest.approx(np.std(a - b, ddof=1), abs=1e-12)
    assert found.count == count


@pytest.mark.parametrize("counts", [(2, 3), (8, 8), (30, 12)])
def test_unpaired_agrees_with_scipy_and_statsmodels(counts):
    a, b = pairs(counts[0], 1)[0], pairs(counts[1], 2)[1]
    found = unpaired(a, b, margin=0.5)
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert found.p_margin == pytest.approx(ttost_ind(a, b, -0.5, 0.5, usevar="unequal")[0], abs=1e-12)
    assert found.count == min(counts)
    assert found.sd is None


@pytest.mark.parametrize("count", [2, 5, 9])
def test_sign_flips_are_counted_exactly(count):
    d = np.random.default_rng(count).normal(0.4, 1, count)
    means = [np.mean(d * signs) for signs in product((1, -1), repeat=count)]
    share = np.mean([abs(mean) >= abs(d.mean()) - 1e-12 for mean in means])
    assert sign_flip(d) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("count", [2, 8, 14])
def test_sign_flips_agree_with_scipy(count):
    d = np.random.default_rng(count).normal(0.4, 1, count)
    reference = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=2**14)
    assert sign_flip(d) == pytest.approx(reference.pvalue, abs=1e-12)


def test_many_sign_flips_are_drawn_alike_each_time():
    d = np.random.default_rng(1).normal(0.3, 1, 40)
    assert sign_flip(d) == sign_flip(d)
    assert sign_flip(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.01)


def test_equal_differences_leave_no_doubt():
    same = paired([0.4] * 8, margin=0.5)
    assert (same.low, same.mean, same.high, same.p_margin) == (0.4, 0.4, 0.4, 0)
    assert same.p == pytest.approx(2 / 2**8)
    assert paired([0.0, 0.0, 0.0], margin=0.5).p == 1
    assert paired([0.6, 0.6], margin=0.5).p_margin == 1
    assert unpaired([1, 1], [1, 1], margin=0.5).p_margin == 0


def test_a_margin_of_zero_is_never_met():
    assert paired([0.1, -0.1, 0.05], margin=0).p_margin == 1


def test_one_seed_is_not_enough():
    with pytest.raises(ValueError, match="2 or more"):
        paired([1.0], margin=0.5)
    with pytest.raises(ValueError, match="2 or more"):
        unpaired([1.0], [2.0, 3.0], margin=0.5)


@pytest.mark.parametrize("seed", range(20))
def test_step_down_is_holm(seed):
    p = np.random.default_rng(seed).beta(0.3, 2, 4)
    rejected, adjusted, *_ = multipletests(p, 0.05, method="holm")
    assert step_down(p, lambda alpha: alpha) == list(rejected)
    assert holm(p) == pytest.approx(list(adjusted), abs=1e-12)


@pytest.mark.parametrize(
    ("looks", "bounds"),
    [
        # Lan and DeMets' Pocock-type boundaries for five looks, from the program of Reboussin et al. (2000).
        ((1, 2, 3, 4, 5), (2.438, 2.427, 2.410, 2.397, 2.386)),
        ((7,), (1.960,)),
    ],
)
def test_boundaries_are_those_that_are_published(looks, bounds):
    found = stats.norm.isf(np.array(nominal_levels(looks, 0.05)) / 2)
    assert found == pytest.approx(bounds, abs=1e-3)


def test_all_looks_together_have_the_level():
    looks = tuple(range(6, 21))
    bounds = stats.norm.isf(np.array(nominal_levels(looks, 0.05)) / 2)
    generator = np.random.default_rng(0)
    sums = generator.normal(size=(200_000, 20)).cumsum(1)[:, 5:] / np.sqrt(looks)
    assert (np.abs(sums) > bounds).any(1).mean() == pytest.approx(0.05, abs=0.002)
    assert spent(1, 0.05) == pytest.approx(0.05)


@pytest.mark.parametrize(("alpha", "least"), [(0.05, 6), (0.025, 7), (0.05 / 3, 7), (0.5, 2), (2 / 256, 8)])
def test_least_pairs(alpha, least):
    assert least_pairs(alpha) == least
    assert sign_flip(np.arange(1, least + 1)) <= alpha
    if least > 2:
        assert sign_flip(np.arange(1, least)) > alpha


def test_power_is_that_of_statsmodels():
    assert power(0.5, 0.8, 12, 0.05) == pytest.approx(TTestPower().power(0.5 / 0.8, 12, 0.05), abs=1e-12)
    needed = pairs_needed(0.5, 0.8)
    assert needed is not None
    assert needed == int(np.ceil(TTestPower().solve_power(0.5 / 0.8, power=0.8, alpha=0.05)))
    assert pairs_needed(100, 0.01) == least_pairs()
    assert pairs_needed(1e-9, 1) is None


# What is promised of verdicts.


@pytest.fixture(scope="module")
def noise():
    """How far single seeds lie from the mean of their placement, in points, over 723 real trainings."""
    table = pq.read_table(TABLE).to_pandas()
    table["last"] = 100 * table["accuracy"].str[-1]
    groups = table.groupby("placement")["last"]
    seeds = int(groups.size().iloc[0])
    return (table["last"] - groups.transform("mean")).to_numpy() * np.sqrt(seeds / (seeds - 1))


def experiments(noise, seeds, finalists, gains=0.0, count=EXPERIMENTS):
    """Paired differences (count, finalists, seeds) of finalists that are better by `gains` points."""
    generator = np.random.default_rng(3)
    baseline = generator.choice(noise, (count, 1, seeds))
    ours = generator.choice(noise, (count, finalists, seeds))
    return ours - baseline + np.reshape(gains, (-1, 1))


def said(differences):
    return [verdict([paired(d, margin=0.5) for d in one])[0] for one in differences]


@pytest.mark.parametrize("finalists", [1, 3])
def test_nothing_is_claimed_where_nothing_is(noise, finalists):
    words = said(experiments(noise, 10, finalists))
    assert np.isin(words, ["better", "worse"]).mean() <= 0.05


@pytest.mark.parametrize("finalists", [1, 3])
def test_looking_again_and_again_claims_nothing_either(noise, finalists):
    looks = tuple(range(least_pairs(ALPHA / finalists), 13))
    claims = 0
    for differences in experiments(noise, looks[-1], finalists):
        for i, seeds in enumerate(looks):
            now = [paired(d[:seeds], margin=0.5) for d in differences]
            word, _ = verdict(now, level=lambda alpha, i=i: nominal_levels(looks, alpha)[i])
            if word != "undecided":
                claims += word in ("better", "worse")
                break
    assert claims / EXPERIMENTS <= 0.05


@pytest.mark.parametrize("finalists", [1, 3])
def test_the_interval_covers_the_truth(noise, finalists):
    """That of the finalist which leads, too, though it is picked for its mean."""
    gains = np.array([0.4, 0.0, -0.3])[:finalists]
    covered = []
    for differences in experiments(noise, 10, finalists, gains):
        found = [paired(d, margin=0.5) for d in differences]
        _, lead = verdict(found)
        covered.append(found[lead].low <= gains[lead] <= found[lead].high)
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("finalists", [1, 3])
def test_the_promised_power_holds(noise, finalists):
    gain, sd = 1.5, float(np.sqrt(2) * noise.std())
    seeds = pairs_needed(gain, sd, ALPHA / finalists)
    assert seeds is not None
    gains = np.array([gain, 0.0, 0.0])[:finalists]
    words = said(experiments(noise, seeds, finalists, gains, count=1000))
    assert np.mean([word == "better" for word in words]) == pytest.approx(0.8, abs=0.05)


def test_a_difference_within_the_margin_is_seldom_called_equivalent_at_its_edge(noise):
    words = said(experiments(noise, 40, 1, 0.5, count=500))
    assert np.mean([word == "equivalent" for word in words]) <= 0.07
