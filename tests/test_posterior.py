"""Members as posterior draws: the regression against scikit-learn's, the draws against their law, mirrors exactly."""

from dataclasses import replace

import torch
from sklearn.linear_model import ARDRegression

import counterpoint as cp
from counterpoint.data.jobs import Job
from counterpoint.models.scm.posterior import linear_posterior
from helpers.recipes import BRIEF, MODELS, ROWS, SCMS

SLOPES = torch.tensor([[1.5, 0.0, 0.0, -0.7], [0.0, 0.0, 0.0, 0.0]])
RECIPE = cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF)
TASK = cp.CartPole(mirror_declared=True)
LOG = cp.simulate(TASK, cp.random_policy(TASK), 8, 20, seed=2)


def regression(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(1, rows, 4, generator=random)
    y = x @ SLOPES.T + 0.5 * torch.randn(1, rows, 2, generator=random) + torch.tensor([2.0, 0.0])
    return torch.cat([x, torch.ones(1, rows, 1)], -1), y


def test_the_posterior_is_that_of_automatic_relevance_determination() -> None:
    x, y = regression(80)
    mean, covariance, variance = linear_posterior(x, y)
    theirs = ARDRegression(max_iter=1000, tol=1e-8, threshold_lambda=1e12).fit(x[0, :, :-1].numpy(), y[0, :, 0].numpy())
    torch.testing.assert_close(mean[0, 0, :-1], torch.tensor(theirs.coef_).double(), atol=5e-3, rtol=0)
    assert abs(float(variance[0, 0]) - 1 / theirs.alpha_) < 0.02
    spread = covariance[0, 0].diagonal()[[0, 3]].sqrt()
    torch.testing.assert_close(spread, torch.full((2,), (1 / theirs.alpha_ / 80) ** 0.5).double(), rtol=0.25, atol=0)


def test_the_noise_variance_counts_degrees_of_freedom() -> None:
    """1, 2 and 3 around their own mean: 2 squared over 3 − 1, and the mean's variance is a third of it."""
    mean, covariance, variance = linear_posterior(torch.ones(1, 3, 1), torch.tensor([[[1.0], [2.0], [3.0]]]))
    found = torch.stack([mean.flatten(), variance.flatten(), covariance.flatten()])
    torch.testing.assert_close(found[:, 0], torch.tensor([2.0, 1.0, 1 / 3]).double(), atol=1e-6, rtol=0)


def test_what_says_nothing_is_left_out_and_not_guessed_at() -> None:
    x, y = regression(40, seed=3)
    mean, covariance, _ = linear_posterior(x, y)
    told, idle = [0, 3], [1, 2]
    spread = covariance[0, 0].diagonal().sqrt()
    assert mean[0, 0, idle].abs().max() < 0.1 < mean[0, 0, told].abs().min()
    assert spread[idle].max() < 0.5 * spread[told].min()
    plain = torch.linalg.lstsq(x[0], y[0]).solution[:4, 1]
    assert mean[0, 1, :-1].abs().max() < 0.5 * plain.abs().max()


def test_a_row_that_counts_half_twice_counts_once() -> None:
    x, y = regression(30)
    once, twice = linear_posterior(x, y), linear_posterior(x.repeat(1, 2, 1), y.repeat(1, 2, 1), weight=0.5)
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(one, other)


def test_draws_spread_as_the_posterior_does_and_closer_with_more_rows() -> None:
    spreads = {}
    for trials in (4, 40):
        rows = cp.simulate(cp.CartPole(), cp.random_policy(cp.CartPole()), trials, 20, seed=1)
        model = RECIPE.fit(rows)
        drawn = cp.models.PosteriorDraws(200)(model, Job(rows))
        assert drawn.mechanism.members == 200
        spreads[trials] = drawn.mechanism.law.slope.std(0)
    told = (1, 0)  # The position's change follows the velocity.
    assert spreads[4][told] > 2 * spreads[40][told] > 0


def test_a_draw_is_an_exact_model_still() -> None:
    drawn = cp.models.PosteriorDraws(3)(RECIPE.fit(LOG), Job(LOG))
    torch.testing.assert_close(drawn.counterfactual(LOG, LOG.action), LOG.next_state, atol=1e-4, rtol=1e-3)
    other = cp.models.PosteriorDraws(3)(RECIPE.fit(LOG), Job(LOG, seed=1))
    assert not torch.equal(drawn.mechanism.law.slope, other.mechanism.law.slope)


def test_a_declared_mirror_holds_exactly_in_every_draw() -> None:
    law = cp.models.PosteriorDraws(4)(RECIPE.fit(LOG), Job(LOG)).mechanism.law
    assert bool((law.y.mean == 0).all())
    torch.testing.assert_close(law.context.mean[0, 0], torch.tensor([0.0, 0, 0, 0, 0.5]), atol=1e-6, rtol=0)
    undeclared = replace(LOG, schema=cp.CartPole().schema)
    assert bool((cp.models.PosteriorDraws(4)(RECIPE.fit(undeclared), Job(undeclared)).mechanism.law.y.mean != 0).all())


def test_mirrored_rows_are_no_more_evidence_than_the_rows() -> None:
    undeclared, spreads = replace(LOG, schema=cp.CartPole().schema), []
    for rows in (LOG, undeclared):
        law = cp.models.PosteriorDraws(400)(RECIPE.fit(rows), Job(rows)).mechanism.law
        spreads.append((law.slope / law.context.scale.mT).std(0)[1, 0])
    assert 0.85 < spreads[0] / spreads[1] < 1.15


def test_a_model_without_a_linear_part_keeps_its_members() -> None:
    for recipe, rows in (SCMS["triangular"], (MODELS["gaussian dynamics"], ROWS)):
        model = recipe.fit(rows)
        assert cp.models.PosteriorDraws(7)(model, Job(rows)) is model
