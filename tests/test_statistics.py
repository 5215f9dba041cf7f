"""Estimates against numbers worked by hand and by rliable; intervals against coverage and known widths."""

import numpy as np
import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.core.statistics import Bootstrap, Interval, interval, iqm
from reproduction.statistics import (
    independent_difference,
    pair,
    paired_difference,
    probability_of_improvement,
    simultaneous,
)

METHOD = np.array(
    [
        [212.0, 340.5, 498.0],
        [187.4, 355.0, 500.0],
        [250.1, 301.2, 471.3],
        [199.9, 322.8, 500.0],
        [231.6, 367.7, 455.5],
        [175.2, 310.0, 489.9],
        [220.0, 298.4, 500.0],
    ]
)
BASELINE = np.array(
    [
        [180.0, 322.8, 470.2],
        [187.4, 290.3, 500.0],
        [205.5, 305.6, 440.8],
        [160.7, 331.1, 462.4],
        [199.9, 344.0, 500.0],
        [171.3, 276.5, 433.0],
        [214.8, 312.9, 481.6],
    ]
)


def test_iqm_by_hand() -> None:
    assert iqm([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5  # 3, 4, 5, 6 are left
    assert iqm([1.0, 2.0, 4.0, 8.0, 1000.0]) == pytest.approx(14 / 3)  # 2, 4, 8 are left
    assert iqm([1.0, 2.0, 6.0]) == 3.0  # too few to cut


def test_iqm_reduces_one_axis_or_all() -> None:
    scores = np.array([[0.0, 10.0, 20.0, 90.0], [1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_allclose(iqm(scores, axis=1), [15.0, 2.5])
    np.testing.assert_allclose(iqm(scores, axis=0), scores.mean(axis=0))
    assert iqm(scores) == pytest.approx((2 + 3 + 4 + 10) / 4)


# Made with rliable 1.2.0 (arch 7.2.0): library.get_interval_estimates({"a": scores}, metric) after np.random.seed(1),
# since it draws from the global generator; reps=50000, and 20000 for the probability of improvement.
GOLDEN = {
    "iqm": (336.73636363636365, 324.1545454545455, 350.57272727272726),
    "mean": (342.2142857142857, 332.73785714285714, 351.73809523809524),
    "paired iqm": (20.39999999999999, 8.145227272727263, 31.59090909090909),
    "paired mean": (18.842857142857138, 7.914285714285707, 29.347619047619045),
    "improvement": (0.6972789115646258, 0.5272108843537415, 0.8470238095238022),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_agrees_with_rliable(name: str) -> None:
    bootstrap = Bootstrap(resamples=20_000)
    ours = {
        "iqm": lambda: interval(METHOD, iqm, bootstrap),
        "mean": lambda: interval(METHOD, np.mean, bootstrap),
        "paired iqm": lambda: paired_difference(METHOD, BASELINE, iqm, bootstrap),
        "paired mean": lambda: paired_difference(METHOD, BASELINE, np.mean, bootstrap),
        "improvement": lambda: probability_of_improvement(METHOD, BASELINE, bootstrap),
    }[name]()
    estimate, low, high = GOLDEN[name]
    assert ours.estimate == pytest.approx(estimate, abs=1e-12)
    # An end is known to about 1% of the width at 20000 resamples; 3% is wide of chance and narrow of a wrong method.
    assert ours.low == pytest.approx(low, abs=0.03 * (high - low))
    assert ours.high == pytest.approx(high, abs=0.03 * (high - low))


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_interval_covers_the_truth_as_often_as_it_says(confidence: float) -> None:
    scores = np.random.default_rng(0).normal(100.0, 20.0, size=(400, 20))
    intervals = [interval(each, np.mean, Bootstrap(1000, confidence)) for each in scores]
    covered = np.mean([not each.excludes(100.0) for each in intervals])
    # 400 repeats know a share to 0.025; with 20 seeds a percentile interval is some 2% too narrow.
    assert confidence - 0.07 < covered < confidence + 0.04


def test_width_of_a_mean_is_that_of_its_standard_error() -> None:
    scores = np.random.default_rng(1).normal(0.0, 5.0, size=200)
    found = interval(scores, np.mean, Bootstrap(20_000))
    assert found.high - found.low == pytest.approx(2 * 1.96 * scores.std() / np.sqrt(200), rel=0.03)


def test_strata_are_resampled_apart() -> None:
    random = np.random.default_rng(2)
    apart = random.normal([0.0, 1000.0], size=(10, 2))
    pooled_would_be_wide = interval(apart, np.mean)
    assert pooled_would_be_wide.high - pooled_would_be_wide.low < 2
    opposite = np.stack([apart[:, 0], -apart[:, 0]], axis=1)
    rows_together_would_be_zero = interval(opposite, np.mean)
    assert rows_together_would_be_zero.high - rows_together_would_be_zero.low > 0.5


def test_pairing_narrows_the_interval_of_correlated_scores() -> None:
    random = np.random.default_rng(3)
    difficulty = random.normal(200.0, 50.0, size=15)
    baseline, method = difficulty + random.normal(0, 5, 15), difficulty + 12 + random.normal(0, 5, 15)
    paired = paired_difference(method, baseline, np.mean)
    independent = independent_difference(method, baseline, np.mean)
    assert paired.estimate == pytest.approx(independent.estimate)
    assert paired.high - paired.low < 0.3 * (independent.high - independent.low)
    assert paired.excludes(0.0)
    assert not independent.excludes(0.0)


def test_independent_difference_has_the_width_of_both() -> None:
    random = np.random.default_rng(4)
    x, y = random.normal(0, 3, 100), random.normal(0, 4, 150)
    found = independent_difference(x, y, np.mean, Bootstrap(20_000))
    error = np.sqrt(x.var() / 100 + y.var() / 150)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.03)


def test_probability_of_improvement_by_hand() -> None:
    # 1 beats none of (2, 2, 4); 2 ties with two; 3 beats two: (0 + 1 + 2) / 9.
    assert probability_of_improvement([1, 2, 3], [2, 2, 4]).estimate == pytest.approx(1 / 3)
    assert probability_of_improvement([2, 2, 4], [1, 2, 3]).estimate == pytest.approx(2 / 3)
    assert probability_of_improvement([5, 6], [1, 2, 3]) == Interval(1.0, 1.0, 1.0)
    same = probability_of_improvement([7, 7, 7], [7, 7])
    assert (same.estimate, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))


def test_probability_of_improvement_compares_within_strata() -> None:
    # Across strata the method's 1 would lose to the baseline's 100.
    assert probability_of_improvement([[1, 101], [2, 102]], [[0, 100], [0, 100]]).estimate == 1.0


def test_the_seed_decides_the_resampling() -> None:
    assert interval(METHOD, iqm, Bootstrap(seed=5)) == interval(METHOD, iqm, Bootstrap(seed=5))
    assert interval(METHOD, iqm, Bootstrap(seed=5)) != interval(METHOD, iqm, Bootstrap(seed=6))


def test_an_interval_reads_as_estimate_and_ends() -> None:
    assert f"{Interval(12.34, 10.0, 14.06):.1f}" == "12.3 [10.0, 14.1]"


def test_pair_puts_both_in_one_order() -> None:
    method, baseline = pair({3: 30.0, 1: 10.0}, {1: 1.0, 3: 3.0})
    np.testing.assert_array_equal(method - baseline, [27.0, 9.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interval([1.0, np.nan, 3.0]), r"not finite \(first at index \[1\]\)"),
        (lambda: interval([[1.0, 2.0], [3.0, np.inf]]), r"first at index \[1, 1\]"),
        (lambda: interval([1.0]), "needs at least 2"),
        (lambda: iqm([]), "empty"),
        (lambda: interval(np.zeros((2, 2, 2))), r"give \[seeds\] or \[seeds, strata\]"),
        (lambda: paired_difference([1.0, 2.0, 3.0], [1.0, 2.0]), "same seeds in the same order"),
        (lambda: probability_of_improvement(METHOD, BASELINE[:, :2]), "3 strata and baseline 2"),
        (lambda: pair({1: 1.0, 2: 2.0}, {1: 1.0}), "first: 2, absent from baseline"),
        (lambda: pair({1: 1.0}, {1: 1.0, 4: 2.0}), "first: 4, absent from method"),
        (lambda: Bootstrap(confidence=95.0), "confidence"),
    ],
)
def test_mistakes_are_named_in_one_line(call, message: str) -> None:
    with pytest.raises(CounterpointError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_simultaneous_intervals_hold_together_and_single_ones_do_not() -> None:
    """Forty comparisons of methods that are alike, sharing a method: nothing should be found in 95 of 100 families."""
    random, brief = np.random.default_rng(0), Bootstrap(resamples=400)
    families = [random.normal(size=(20, 1)) + random.normal(size=(20, 40)) for _ in range(200)]
    quiet = lambda differences: not any(found.excludes(0.0) for found in simultaneous(differences, brief))
    assert 0.91 <= np.mean([quiet(differences) for differences in families]) <= 0.99
    alone = [all(quiet(column[:, None]) for column in differences.T) for differences in families[:30]]
    assert np.mean(alone) < 0.7


def test_simultaneous_intervals_of_one_comparison_are_those_of_students_t() -> None:
    from scipy.stats import t

    values = np.random.default_rng(3).normal(5.0, 2.0, size=(20, 1))
    (found,) = simultaneous(values, Bootstrap(resamples=20000))
    half = t.ppf(0.975, 19) * values.std(ddof=1) / 20**0.5
    assert found.estimate == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.04)
    assert simultaneous(np.repeat(values, 9, 1), Bootstrap(resamples=20000))[8] == found, "a copy is no new comparison"


def test_simultaneous_intervals_of_what_never_varies_and_of_two_seeds() -> None:
    values = np.random.default_rng(3).normal(size=(20, 3))
    values[:, 1] = 7.0
    assert simultaneous(values)[1] == Interval(7.0, 7.0, 7.0)
    assert np.isinf(simultaneous([[1.0], [5.0]])[0].high), "two seeds can tell nothing"
