"""Paired and independent differences over training seeds, with stratified bootstrap intervals.

The definitions are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical
Precipice"; `counterpoint.core.statistics` has the interval of one method.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from counterpoint.core.errors import CounterpointError
from counterpoint.core.statistics import BOOTSTRAP, Bootstrap, Interval, Statistic, interval, iqm, resample, stratified


def paired_difference(
    method: ArrayLike, baseline: ArrayLike, statistic: Statistic = iqm, bootstrap: Bootstrap = BOOTSTRAP
) -> Interval:
    """The statistic of `method - baseline`, seed by seed, where both were trained on the same data seeds.

    Resampling pairs removes what a data set makes easy or hard for both, so the interval is narrower than that of
    `independent_difference` wherever the two methods' scores are correlated.
    """
    left, right = stratified(method, "method"), stratified(baseline, "baseline")
    if left.shape != right.shape:
        raise CounterpointError(
            f"method has scores {list(left.shape)} and baseline {list(right.shape)} [seeds, strata];"
            " give both the same seeds in the same order, or use independent_difference"
        )
    return interval(left - right, statistic, bootstrap)


def paired_mean(method: ArrayLike, baseline: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean of `method - baseline`, seed by seed, with Student's interval: right for few seeds of normal scores."""
    from scipy.stats import t

    left, right = stratified(method, "method"), stratified(baseline, "baseline")
    if left.shape != right.shape or left.shape[1] != 1:
        raise CounterpointError("method and baseline are no two scores of the same seeds; give [seeds] of each")
    difference = (left - right)[:, 0]
    mean, error = float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)
    reach = float(t.ppf((1 + confidence) / 2, len(difference) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def independent_difference(
    method: ArrayLike, baseline: ArrayLike, statistic: Statistic = iqm, bootstrap: Bootstrap = BOOTSTRAP
) -> Interval:
    """`statistic(method) - statistic(baseline)` where the seeds of the two have nothing in common."""
    left, right = _same_strata(method, baseline)
    resampled = resample(left, statistic, bootstrap, 0) - resample(right, statistic, bootstrap, 1)
    return bootstrap.around(statistic(left, axis=None) - statistic(right, axis=None), resampled)


def probability_of_improvement(method: ArrayLike, baseline: ArrayLike, bootstrap: Bootstrap = BOOTSTRAP) -> Interval:
    r"""$P(X > Y) + \tfrac12 P(X = Y)$ for a random seed of each method, averaged over strata (Mann-Whitney)."""
    left, right = _same_strata(method, baseline)
    # wins[i, j, k]: does seed i of the method beat seed j of the baseline in stratum k
    wins = (np.sign(left[:, None] - right[None]) + 1) / 2
    total = np.zeros(bootstrap.resamples)
    for stratum in range(wins.shape[2]):
        drawn_left = _draw_weights(len(left), bootstrap, 0, stratum)
        drawn_right = _draw_weights(len(right), bootstrap, 1, stratum)
        total += np.sum(drawn_left @ wins[:, :, stratum] * drawn_right, axis=1)
    return bootstrap.around(float(wins.mean()), total / wins.shape[2])


def simultaneous(differences: ArrayLike, bootstrap: Bootstrap = BOOTSTRAP) -> list[Interval]:
    r"""The mean of every column of `[seeds, comparisons]`, with intervals that hold all together, not one by one:

    $$\bar d_j \pm c \, s_j / \sqrt n, \quad c: P(\max_j |t_j(\varepsilon)| \le c) = 95\%,$$

    where $t_j(\varepsilon)$ is the t statistic of $\varepsilon_i (d_{ij} - \bar d_j)$ and a coin gives seed i one sign
    for all columns (Westfall & Young, 1993: single-step max-t). Two methods that are alike can be swapped seed by seed,
    which is what a sign does, so that about 5% of such families show a difference. Comparisons that share seeds and
    methods move together, which Holm's correction would not know, and it has no intervals.
    """
    values = stratified(differences, "differences")
    count, mean, spread = len(values), values.mean(0), values.std(0, ddof=1)
    signs = np.random.default_rng([bootstrap.seed, 2]).choice([-1.0, 1.0], size=(bootstrap.resamples, count))
    centred = (values - mean)[:, spread > 0]
    flipped = signs @ centred / count
    left = np.maximum((centred**2).mean(0) - flipped**2, 0.0) / (count - 1)
    statistic = np.divide(np.abs(flipped), np.sqrt(left), out=np.full_like(flipped, np.inf), where=left > 0)
    critical = np.quantile(statistic.max(1, initial=0.0), bootstrap.confidence, method="higher")
    width = np.zeros_like(mean)
    width[spread > 0] = critical * spread[spread > 0] / count**0.5
    return [Interval(float(m), float(m - w), float(m + w)) for m, w in zip(mean, width, strict=True)]


def pair(
    method: Mapping[Any, float], baseline: Mapping[Any, float]
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " seeds"]]:
    """Two `{seed: score}` tables as arrays in one order of seeds; a seed that only one of them has is an error."""
    unmatched = [seed for seed in [*method, *baseline] if seed not in method or seed not in baseline]
    if unmatched:
        absent = "baseline" if unmatched[0] in method else "method"
        raise CounterpointError(
            f"{len(unmatched)} seeds are not in both tables (first: {unmatched[0]!r}, absent from {absent});"
            " run them or drop them"
        )
    return np.array([method[seed] for seed in method], float), np.array([baseline[seed] for seed in method], float)


def _same_strata(
    method: ArrayLike, baseline: ArrayLike
) -> tuple[Float[np.ndarray, "seeds strata"], Float[np.ndarray, "others strata"]]:
    left, right = stratified(method, "method"), stratified(baseline, "baseline")
    if left.shape[1] != right.shape[1]:
        raise CounterpointError(
            f"method has {left.shape[1]} strata and baseline {right.shape[1]}; give both the same tasks, in one order"
        )
    return left, right


def _draw_weights(seeds: int, bootstrap: Bootstrap, stream: int, stratum: int) -> Float[np.ndarray, "resamples seeds"]:
    """How often each seed is drawn, over the number of seeds: a resample as weights rather than as indices."""
    random = np.random.default_rng([bootstrap.seed, stream, stratum])
    return random.multinomial(seeds, np.full(seeds, 1 / seeds), size=bootstrap.resamples) / seeds
