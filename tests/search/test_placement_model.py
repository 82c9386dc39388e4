"""The model of placements against independent implementations of the same mathematics."""

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from search.placement_effects import (
    NOISE,
    PRIORS,
    Effect,
    IndexedModule,
    IndexedPlacement,
    Prior,
    Term,
    Weights,
    curve_weights,
    make_matrix,
    placement_weights,
)
from search.placement_model import WIDE, EffectDraw, EffectModel, Likelihood

TYPES = ("a", "b", "c")


def placement(*modules: tuple[int, str]) -> IndexedPlacement:
    return IndexedPlacement("", tuple(IndexedModule(site, kind) for site, kind in modules))


def some(count: int, seed: int = 0) -> list[IndexedPlacement]:
    """Return random placements of up to two modules on three sites."""
    random = np.random.default_rng(seed)
    placements = []
    for _ in range(count):
        sites = sorted(random.choice(3, size=random.integers(0, 3), replace=False))
        placements.append(placement(*((int(site), str(random.choice(TYPES))) for site in sites)))
    return placements


def scores(placements: list[IndexedPlacement], seed: int = 0) -> np.ndarray:
    """Return scores in which type `a` and site 1 each add a point."""
    random = np.random.default_rng(seed)
    effects = [sum((m.type == "a") + (m.site == 1) for m in candidate.modules) for candidate in placements]
    return np.array(effects) + 0.5 * random.standard_normal(len(placements))


PRIOR = {Effect(Term.TYPE, "a"): 0.8, Effect(Term.TYPE, "new"): -0.5, Effect(Term.SITE, ("", 1)): 0.6}


@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["none", "measured"])
def test_the_posterior_equals_a_conditioned_joint_gaussian(prior: Prior) -> None:
    tried, new = some(20), [*some(6, seed=1), placement((2, "new"))]
    values = scores(tried)
    model = EffectModel([placement_weights(candidate) for candidate in tried], values, prior=prior)
    effects = sorted({e for candidate in [*tried, *new] for e in placement_weights(candidate)}, key=repr)
    every = np.array(
        [[placement_weights(candidate).get(e, 0.0) for e in effects] for candidate in [*tried, *new]]
    )
    variances = np.diag([WIDE if e.term == Term.INTERCEPT else model.variance(e.term) for e in effects])
    predicted = every @ [prior.get(e, 0.0) for e in effects]  # by the prior, whose coefficient has mean 1/2
    joint = every @ variances @ every.T
    joint += model.variance(Term.COEFFICIENT) * np.outer(predicted, predicted)
    noisy = joint[:20, :20] + np.exp(model.logs[NOISE]) * np.eye(20)
    gain = joint[20:, :20] @ np.linalg.inv(noisy)
    scale, y = values.std(), (values - values.mean()) / values.std()
    mean, covariance = model.predict([placement_weights(candidate) for candidate in new])
    assert model.expect([placement_weights(candidate) for candidate in new]) == pytest.approx(mean)
    assert mean == pytest.approx(scale * (predicted[20:] / 2 + gain @ (y - predicted[:20] / 2)))
    assert covariance == pytest.approx(scale**2 * (joint[20:, 20:] - gain @ joint[:20, 20:]))


@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["none", "measured"])
def test_draws_have_the_posteriors_mean_and_covariance(prior: Prior) -> None:
    tried, new = some(15), [*some(4, seed=1), placement((0, "new"))]
    model = EffectModel([placement_weights(candidate) for candidate in tried], scores(tried), prior=prior)
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(4000):
        draw = model.draw(random)
        drawn.append(
            [model.scale * (draw.total(candidate) + draw(Effect(Term.INTERCEPT))) for candidate in new]
        )
    mean, covariance = model.predict([placement_weights(candidate) for candidate in new])
    error = np.sqrt(np.diag(covariance) / 4000)
    assert np.abs(np.mean(drawn, axis=0) - mean).max() < 5 * error.max()
    assert np.cov(np.array(drawn).T) == pytest.approx(covariance, abs=0.15 * covariance.max())


def test_variances_maximise_the_marginal_likelihood_times_the_prior() -> None:
    tried = some(40)
    values = scores(tried)
    model = EffectModel([placement_weights(candidate) for candidate in tried], values)
    y = (values - values.mean()) / values.std()

    def density(logs: dict[str, float]) -> float:
        total = WIDE + np.exp(logs[NOISE]) * np.eye(40)
        for i, candidate in enumerate(tried):
            for j, other in enumerate(tried):
                mine, theirs = placement_weights(candidate), placement_weights(other)
                total[i, j] += sum(
                    w * theirs.get(e, 0.0) * np.exp(logs[e.term])
                    for e, w in mine.items()
                    if e.term != Term.INTERCEPT
                )
        off = [(logs[term] - np.log(PRIORS[term][0])) / PRIORS[term][1] for term in logs]
        return float(multivariate_normal(np.zeros(40), total).logpdf(y) - 0.5 * np.square(off).sum())

    best = density(model.logs)
    for term in model.logs:
        for step in (-0.3, 0.3):
            assert density({**model.logs, term: model.logs[term] + step}) < best, term


def test_noise_is_estimated_from_replicates() -> None:
    tried = some(12) * 12
    model = EffectModel([placement_weights(candidate) for candidate in tried], scores(tried))
    assert model.noise == pytest.approx(0.5, rel=0.15)


def test_a_diverged_trial_does_not_drown_the_effects() -> None:
    tried = some(60)
    values = scores(tried)
    values[7] = -1000.0
    model = EffectModel([placement_weights(candidate) for candidate in tried], values)
    mean, _ = model.predict([placement_weights(placement((1, "a"))), placement_weights(placement((0, "b")))])
    assert mean[0] - mean[1] == pytest.approx(2.0, abs=0.7)


def test_scores_in_other_units_change_only_the_units() -> None:
    tried = some(30)
    values, wanted = scores(tried), [placement_weights(placement((1, "a")))]
    candidate = EffectModel([placement_weights(p) for p in tried], values).predict(wanted)
    other = EffectModel([placement_weights(p) for p in tried], 7 + values / 100).predict(wanted)
    assert 100 * other[0] == pytest.approx(candidate[0], rel=1e-3)
    assert 1e4 * other[1] == pytest.approx(candidate[1], rel=1e-3)


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.5, 0.5, 0.5]])
def test_scores_that_do_not_differ(values: list[float]) -> None:
    model = EffectModel([placement_weights(candidate) for candidate in some(len(values))], values)
    mean, covariance = model.predict([placement_weights(placement((1, "a")))])
    assert np.isfinite(mean).all()
    assert (covariance > 0).all()


def test_a_draw_without_trials_follows_the_prior_and_half_of_what_was_measured() -> None:
    random = np.random.default_rng(0)
    drawn = [EffectDraw(None, np.empty(0), random)(Effect(Term.TYPE, "a")) for _ in range(2000)]
    assert np.var(drawn) == pytest.approx(PRIORS[Term.TYPE][0], rel=0.15)
    draw = EffectDraw(None, np.empty(0), random)
    assert draw(Effect(Term.TYPE, "a")) == draw(Effect(Term.TYPE, "a")) != draw(Effect(Term.TYPE, "b"))
    prior = {Effect(Term.TYPE, "a"): 2.0}
    drawn = [EffectDraw(None, np.empty(0), random, prior)(Effect(Term.TYPE, "a")) for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx(2 / 2, abs=0.1)
    assert np.var(drawn) == pytest.approx(PRIORS[Term.TYPE][0] + 4 * PRIORS[Term.COEFFICIENT][0], rel=0.15)


@pytest.mark.parametrize("agreement", [1, 0, -1])
def test_a_coefficient_follows_the_agreement_with_the_new_scores(agreement: int) -> None:
    """The effects of twelve types are those of the prior, unrelated ones, or their opposite."""
    random = np.random.default_rng(0)
    axes, _ = np.linalg.qr(np.column_stack([np.ones(12), random.standard_normal((12, 2))]))
    known, unrelated = 12**0.5 * axes[:, 1:].T  # mean 0, variance 1, and orthogonal
    true = agreement * known if agreement else unrelated
    tried = [placement((0, str(kind))) for kind in range(12)] * 3
    values = [true[int(p.modules[0].type)] + 0.5 * random.standard_normal() for p in tried]
    prior = {Effect(Term.TYPE, str(kind)): float(effect) for kind, effect in enumerate(known)}
    model = EffectModel([placement_weights(p) for p in tried], values, prior=prior)
    mean, _ = model.predict([{Effect(Term.COEFFICIENT): 1.0}])
    assert mean[0] / model.scale == pytest.approx(agreement, abs=0.25)


RANDOM = np.random.default_rng(0)
PLACED = some(40)
CASES: dict[str, list[Weights]] = {
    "placements": [placement_weights(placement) for placement in PLACED],
    "hyperparameters": [placement_weights(p) | curve_weights("rate", RANDOM.random()) for p in PLACED],
    "some placements": [
        placement_weights(p) if i % 2 else curve_weights("rate", RANDOM.random())
        for i, p in enumerate(PLACED)
    ],
    "no placements": [curve_weights("rate", RANDOM.random()) for _ in PLACED],
}


@pytest.mark.parametrize("name", CASES)
def test_the_likelihood_is_that_of_a_dense_covariance(name: str) -> None:
    trials = CASES[name]
    columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for t in trials for e in t))}
    terms: defaultdict[str, list[int]] = defaultdict(list)
    for effect, column in columns.items():
        terms[effect.term].append(column)
    z, y = make_matrix(trials, columns), RANDOM.normal(size=len(trials))
    kernels = [(part := z[:, list(of_term)].toarray()) @ part.T for of_term in terms.values()]
    likelihood = Likelihood(z, terms, Term.PLACEMENT)
    for _ in range(3):
        variances, noise = np.exp(RANDOM.normal(-2, 2, len(terms))), float(np.exp(RANDOM.normal(-1, 1)))
        weighted = [v * kernel for v, kernel in zip([*variances, noise], [*kernels, np.eye(40)], strict=True)]
        covariance, inverse = sum(weighted), np.linalg.inv(sum(weighted))
        density = multivariate_normal(np.zeros(40), covariance).logpdf(y)
        value, gradient = likelihood.loss(y, variances, noise)
        assert value == pytest.approx(-density - 20 * np.log(2 * np.pi), abs=1e-8)
        inner = np.outer(inverse @ y, inverse @ y) - inverse
        assert gradient == pytest.approx([-0.5 * np.sum(inner * kernel) for kernel in weighted], abs=1e-8)
        likelihood.factor(variances, noise)
        assert likelihood.solve(covariance) == pytest.approx(np.eye(40), abs=1e-8)
        assert likelihood.precisions() == pytest.approx(np.diag(inverse), abs=1e-8)
