"""BCa intervals against scipy's, with one episode a subject and with several, which are drawn together."""

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from torch import Tensor

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.ope import intervals
from counterpoint.ope.estimators import logged_return, weighted_importance_sampling
from counterpoint.ope.intervals import bca, interval_of, paired_interval
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
    resampled,
)
from helpers.tables import refused


def log(returns: np.ndarray, subject: np.ndarray, action: np.ndarray | None = None, tilt: float = 0.0) -> OPEData:
    """Episodes of one step, two actions at even chances; the policy prefers the second one by `tilt`."""
    count = len(returns)
    rows = Transitions.logged(
        state=torch.zeros(count, 1),
        action=torch.tensor(np.zeros(count) if action is None else action).float()[:, None],
        reward=torch.tensor(returns).double(),
        next_state=torch.zeros(count, 1),
        terminated=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
        subject=torch.tensor(subject),
        episode=torch.arange(count),
        step=torch.zeros(count, dtype=torch.long),
        actions=Discrete.of([0.0, 1.0]),
    )
    even = torch.full((count, 2), 0.5).double()
    policy = even + tilt * torch.tensor([-1.0, 1.0]).double()
    return OPEData(Episodes.of(rows), policy, policy, even)


RANDOM = np.random.default_rng(0)
SKEWED = RANDOM.gamma(0.5, 2.0, 60)
SUBJECTS = np.repeat(np.arange(40), RANDOM.integers(1, 9, 40))
TOGETHER = RANDOM.gamma(0.5, 2.0, 40)[SUBJECTS] + 0.1 * RANDOM.normal(size=len(SUBJECTS))
"""Subjects with 1 to 8 episodes, and episodes of a subject that are almost the same."""


def ratio(total: np.ndarray, count: np.ndarray, axis: int = -1) -> np.ndarray:
    return total.sum(axis) / count.sum(axis)


def test_ends_are_scipys_for_the_same_draws() -> None:
    theirs = bootstrap((SKEWED,), np.mean, method="BCa", n_resamples=999, rng=np.random.default_rng(1))
    left_out = torch.tensor([np.delete(SKEWED, i).mean() for i in range(60)])
    ours = bca(float(SKEWED.mean()), torch.tensor(theirs.bootstrap_distribution), left_out)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), rel=1e-9)
    percentile = np.percentile(theirs.bootstrap_distribution, [2.5, 97.5])
    assert abs(ours.high - percentile[1]) > 0.02  # Which a percentile interval would not be.


@pytest.mark.parametrize("groups", [400, 20])
def test_one_episode_a_subject_is_the_bootstrap_of_a_mean(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "MAX_LEFT_OUT", groups)
    ours = interval_of(logged_return, log(SKEWED, np.arange(60)), draws=100_000)
    theirs = bootstrap((SKEWED,), np.mean, method="BCa", n_resamples=100_000, rng=np.random.default_rng(2))
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.estimate == pytest.approx(SKEWED.mean())
    # Two bootstraps of 100,000 differ by 0.5% of the width; sums of groups of three know the skewness less well.
    close = (0.02 if groups > 60 else 0.06) * width
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=close)


def test_subjects_are_drawn_with_all_of_their_episodes() -> None:
    question = log(TOGETHER, SUBJECTS)
    ours = interval_of(logged_return, question, draws=100_000)
    totals, counts = np.bincount(SUBJECTS, TOGETHER), np.bincount(SUBJECTS)
    theirs = bootstrap(
        (totals, counts), ratio, method="BCa", n_resamples=100_000, paired=True, vectorized=True,
        rng=np.random.default_rng(3),
    )  # fmt: skip
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.02 * width)
    apart = interval_of(logged_return, log(TOGETHER, np.arange(len(TOGETHER))), draws=2000)
    assert apart.high - apart.low < 0.7 * width  # What episodes drawn one by one would claim.


def test_the_interval_covers_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        action = random.integers(0, 2, 150)
        returns = random.normal(1.0, 1.0, 50)[np.arange(150) // 3] + action + random.normal(size=150)
        question = log(returns, np.arange(150) // 3, action, tilt=0.3)
        covered += not interval_of(weighted_importance_sampling, question, draws=200, seed=seed).excludes(1.8)
    assert 0.89 <= covered / 120 <= 0.99  # 120 repeats know 0.95 to 0.02.


def test_memory_is_bounded_and_changes_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    question, largest = log(SKEWED, np.arange(60)), []

    def watched(asked: OPEData, counts: Tensor) -> Tensor:
        largest.append(len(counts))
        return logged_return(asked, counts)

    whole = interval_of(watched, question, draws=4000)
    assert max(largest) == 4000
    largest.clear()
    monkeypatch.setattr(intervals, "MAX_COUNTS", 60 * 100)
    parts = interval_of(watched, question, draws=4000)
    assert max(largest) == 100
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=0.05 * (whole.high - whole.low))


def test_groups_left_out_are_those_of_one_subject_where_these_are_few() -> None:
    found = torch.cat(list(intervals._leaving_out(7, 0)))
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, (1.0 - torch.eye(7)).tolist()))
    many = torch.cat(list(intervals._leaving_out(1000, 0)))
    assert many.shape == (400, 1000)
    assert (1 - many).sum(0).tolist() == [1.0] * 1000  # Everybody is left out once.
    assert set((1 - many).sum(1).tolist()) == {2.0, 3.0}


def test_a_difference_is_paired() -> None:
    action = RANDOM.integers(0, 2, len(SUBJECTS))
    question, other = (log(TOGETHER + 0.5 * action, SUBJECTS, action, tilt) for tilt in (0.2, 0.15))
    same = paired_interval(weighted_importance_sampling, question, question)
    assert (same.estimate, same.low, same.high) == (0.0, 0.0, 0.0)
    wis = weighted_importance_sampling
    paired, alone = paired_interval(wis, question, other), interval_of(wis, question)
    assert paired.estimate == pytest.approx(alone.estimate - interval_of(wis, other).estimate)
    assert paired.high - paired.low < 0.3 * (alone.high - alone.low)
    against_log = paired_interval(wis, question, other, baseline=logged_return)
    assert against_log.estimate == pytest.approx(alone.estimate - interval_of(logged_return, other).estimate)


def test_a_resample_that_says_nothing_leaves_no_ends() -> None:
    action = np.zeros(60)
    action[0] = 1.0
    found = interval_of(weighted_importance_sampling, log(SKEWED, np.arange(60), action, tilt=0.5))
    assert (found.estimate, found.low, found.high) == pytest.approx((SKEWED[0], -np.inf, np.inf))


def test_estimates_that_do_not_vary_have_no_width() -> None:
    found = interval_of(logged_return, log(np.full(12, 3.0), np.arange(12)))
    assert (found.estimate, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


def test_the_seed_decides_the_draws() -> None:
    question = log(SKEWED, np.arange(60))
    assert interval_of(logged_return, question, seed=1) == interval_of(logged_return, question, seed=1)
    assert interval_of(logged_return, question, seed=1) != interval_of(logged_return, question, seed=2)
    assert resampled(50, 3, 0).sum(1).tolist() == [50.0] * 3


def test_folds_are_of_one_size_and_random() -> None:
    found = subject_folds(103, 5, 0)
    assert sorted(found.bincount().tolist()) == [20, 20, 21, 21, 21]
    assert not torch.equal(found, subject_folds(103, 5, 1))
    assert not torch.equal(found, torch.arange(103) % 5)


def test_mistakes_are_named_in_one_line() -> None:
    question = log(SKEWED, np.arange(60))
    assert "one subject" in refused(lambda: interval_of(logged_return, log(SKEWED, np.zeros(60, int))))
    other = log(SKEWED[::-1].copy(), np.arange(60))
    assert "different tables" in refused(lambda: paired_interval(logged_return, question, other))
    assert "draws=0" in refused(lambda: interval_of(logged_return, question, draws=0))
