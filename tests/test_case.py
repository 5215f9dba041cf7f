"""A policy laid beside a log: an interval that holds a critic fixed is widened by the critics' own spread, once."""

import math
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import pytest
import torch

import counterpoint as cp
from counterpoint.core.statistics import Interval
from counterpoint.ope.estimators import logged_return
from counterpoint.ope.evaluation import (
    RECOMMENDED,
    OPEProblem,
    OPESettings,
    bootstrap_of,
    fit_problem,
)
from counterpoint.ope.intervals import interval_of, paired_interval, widened
from helpers.judge import GENTLE, LOGGED, Lottery

SHAPES = False
HOW = OPESettings(baselines=False, alternative_behaviours=(), draws=60, critic_draws=15, confidence=0.9)
SURE = NormalDist().inv_cdf(0.95)


@pytest.fixture(scope="module")
def case() -> OPEProblem:
    return fit_problem(LOGGED, GENTLE, HOW)


def by_hand(fixed: Interval, values: torch.Tensor) -> tuple[float, float, float]:
    """Both sides and z standard deviations of the values of resampled logs, as the legs of right-angled triangles."""
    reach, centre = SURE * float(values[1:].std()), fixed.estimate
    assert reach > 0.01 * (fixed.high - fixed.low), "or nothing would be told"
    return centre, centre - math.hypot(centre - fixed.low, reach), centre + math.hypot(fixed.high - centre, reach)


def ends(found: Interval) -> tuple[float, float, float]:
    return found.estimate, found.low, found.high


def test_widening_adds_the_squares_of_both_errors() -> None:
    assert ends(widened(Interval(1.0, 0.7, 1.4), 0.0)) == pytest.approx((1.0, 0.7, 1.4))
    z = NormalDist().inv_cdf(0.975)
    found = widened(Interval(1.0, 1.0 - 3 * z, 1.0 + 0.5 * z), 4.0)
    assert ends(found) == pytest.approx((1.0, 1.0 - 5 * z, 1.0 + math.hypot(0.5, 4) * z))
    narrow = widened(Interval(1.0, 1.0, 1.0), 4.0, confidence=0.5)
    assert narrow.high - 1 == pytest.approx(4 * NormalDist().inv_cdf(0.75))


def test_an_interval_that_holds_a_critic_fixed_has_the_critics_spread(case: OPEProblem) -> None:
    for name, estimator in case.estimators.items():
        fixed = interval_of(estimator, case.data, *bootstrap_of(HOW, 0))
        expected = by_hand(fixed, case.fqe()) if name in case.critic_estimators else ends(fixed)
        assert ends(case.interval(name, HOW, 0)) == pytest.approx(expected), name
    assert set(case.estimators) - set(case.critic_estimators) == {"WIS", "per-decision WIS"}


def test_of_some_subjects_it_is_their_critics_spread(case: OPEProblem) -> None:
    own = torch.arange(500) < 60
    among = lambda question, counts: case.estimators[RECOMMENDED](question, counts * own)
    expected = by_hand(interval_of(among, case.data, *bootstrap_of(HOW, 0)), case.fqe(own))
    assert ends(case.interval(RECOMMENDED, HOW, 0, own)) == pytest.approx(expected)
    weight = case.counts * own
    assert case.fqe(own).tolist() == pytest.approx(((weight * case.first_values).sum(1) / weight.sum(1)).tolist())


def test_differences_have_the_spread_of_differences(case: OPEProblem) -> None:
    estimator, question = case.estimators[RECOMMENDED], case.data
    fixed = paired_interval(estimator, question, question, logged_return, *bootstrap_of(HOW, 0))
    expected = by_hand(fixed, case.fqe() - logged_return(question, case.counts))
    assert ends(case.gain(HOW, 0)) == pytest.approx(expected)
    other = fit_problem(LOGGED, Lottery((0.2, 0.4, 0.4)), HOW)
    between = partial(paired_interval, estimator, question, other.data, other.estimators[RECOMMENDED])
    expected = by_hand(between(*bootstrap_of(HOW, 0)), case.fqe() - other.fqe())
    assert ends(case.gain_over(other, HOW, 0)) == pytest.approx(expected)


def test_critics_that_are_one_or_all_alike_widen_nothing(case: OPEProblem) -> None:
    for first in (case.first_values[:2], case.first_values[:1].expand(16, -1)):
        same = replace(case, first_values=first, counts=torch.ones(len(first), 500))
        fixed = interval_of(case.estimators[RECOMMENDED], case.data, *bootstrap_of(HOW, 0))
        assert ends(same.interval(RECOMMENDED, HOW, 0)) == pytest.approx(ends(fixed))


def test_every_estimate_has_the_discount_asked_for() -> None:
    """A reward of 1 in every one of four steps is worth 1 + γ + γ² + γ³, by whatever estimate, and whoever acts."""
    whole = LOGGED[torch.bincount(LOGGED.subject)[LOGGED.subject] == 4]
    rows = replace(whole, reward=torch.ones_like(whole.reward))
    found = cp.evaluate(rows, GENTLE, replace(HOW, discount=0.5, critic=cp.ope.FQE(ridge=1e-6)))
    for each in (*found.estimates, found.logged, *(part.policy for part in found.severity)):
        assert each.value == pytest.approx(1.875, abs=0.02), each.name
    assert found.difference is not None
    assert found.difference.value == pytest.approx(0.0, abs=0.02)
    assert found.discount == 0.5
