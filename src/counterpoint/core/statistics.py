"""How sure a few training seeds make us: interquartile means, stratified bootstrap intervals and paired differences.

One score is what one training seed achieved, itself the mean of its evaluation trials (10 in the paper, Section 5.1);
what is resampled is therefore seeds, never trials. Scores are `[seeds]`, or `[seeds, strata]` where a stratum is a task
or a data size whose seeds are resampled apart from the others'. The definitions are those of Agarwal et al. (2021),
"Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from counterpoint.core.errors import CounterpointError

Statistic = Callable[..., Any]
"""`statistic(values, axis)` reduces one axis, or all of them where axis is None: `iqm`, `np.mean`, `np.median`."""


@dataclass(frozen=True)
class Interval:
    """A point estimate between the ends of its confidence interval."""

    estimate: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """As in `f"{interval:.1f}"`, which reads `12.3 [10.0, 14.1]`."""
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval."""
        return not self.low <= value <= self.high


@dataclass(frozen=True)
class Bootstrap:
    """Percentile bootstrap over training seeds."""

    resamples: int = 5000
    """how often the seeds are drawn again with replacement"""
    confidence: float = 0.95
    """the share of resampled estimates inside the interval"""
    seed: int = 0
    """the resampling's own randomness"""

    def __post_init__(self) -> None:
        if self.resamples < 1 or not 0 < self.confidence < 1:
            raise CounterpointError(
                f"a bootstrap needs resamples >= 1 and 0 < confidence < 1, got {self.resamples} and {self.confidence}"
            )

    def around(self, estimate: float, resampled: Float[np.ndarray, " resamples"]) -> Interval:
        """The percentile interval of the resampled estimates."""
        tail = 50 * (1 - self.confidence)
        low, high = np.percentile(resampled, [tail, 100 - tail])
        return Interval(float(estimate), float(low), float(high))


BOOTSTRAP = Bootstrap()


def iqm(scores: ArrayLike, axis: int | None = None) -> Any:
    """Interquartile mean, of all values or along `axis`: a quarter of them (rounded down) is cut from each end.

    Example:
        >>> float(iqm([0.0, 1.0, 2.0, 300.0]))
        1.5
    """
    from scipy.stats import trim_mean

    return trim_mean(_finite(scores, "scores"), 0.25, axis=axis)  # pyright: ignore[reportArgumentType]


def interval(scores: ArrayLike, statistic: Statistic = iqm, bootstrap: Bootstrap = BOOTSTRAP) -> Interval:
    """The statistic over all seeds and strata, with its stratified bootstrap interval."""
    values = _stratified(scores, "scores")
    return bootstrap.around(statistic(values, axis=None), _resampled(values, statistic, bootstrap, 0))


def paired_difference(
    method: ArrayLike, baseline: ArrayLike, statistic: Statistic = iqm, bootstrap: Bootstrap = BOOTSTRAP
) -> Interval:
    """The statistic of `method - baseline`, seed by seed, where both were trained on the same data seeds.

    Resampling pairs removes what a data set makes easy or hard for both, so the interval is narrower than that of
    `independent_difference` wherever the two methods' scores are correlated.
    """
    left, right = _stratified(method, "method"), _stratified(baseline, "baseline")
    if left.shape != right.shape:
        raise CounterpointError(
            f"method has scores {list(left.shape)} and baseline {list(right.shape)} [seeds, strata];"
            " give both the same seeds in the same order, or use independent_difference"
        )
    return interval(left - right, statistic, bootstrap)


def independent_difference(
    method: ArrayLike, baseline: ArrayLike, statistic: Statistic = iqm, bootstrap: Bootstrap = BOOTSTRAP
) -> Interval:
    """`statistic(method) - statistic(baseline)` where the seeds of the two have nothing in common."""
    left, right = _same_strata(method, baseline)
    resampled = _resampled(left, statistic, bootstrap, 0) - _resampled(right, statistic, bootstrap, 1)
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
    values = _stratified(differences, "differences")
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


def _finite(scores: ArrayLike, name: str) -> Float[np.ndarray, "*shape"]:
    values = np.asarray(scores, dtype=float)
    if values.size == 0:
        raise CounterpointError(f"{name} is empty; give at least one score")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise CounterpointError(
            f"{name} has {len(bad)} values that are not finite (first at index {bad[0].tolist()});"
            " drop those seeds or run them again"
        )
    return values


def _stratified(scores: ArrayLike, name: str) -> Float[np.ndarray, "seeds strata"]:
    values = _finite(scores, name)
    if values.ndim not in (1, 2):
        raise CounterpointError(f"{name} has shape {list(values.shape)}; give [seeds] or [seeds, strata]")
    if len(values) < 2:
        raise CounterpointError(f"{name} has 1 training seed; an interval over seeds needs at least 2")
    return values.reshape(len(values), -1)


def _same_strata(
    method: ArrayLike, baseline: ArrayLike
) -> tuple[Float[np.ndarray, "seeds strata"], Float[np.ndarray, "others strata"]]:
    left, right = _stratified(method, "method"), _stratified(baseline, "baseline")
    if left.shape[1] != right.shape[1]:
        raise CounterpointError(
            f"method has {left.shape[1]} strata and baseline {right.shape[1]}; give both the same tasks, in one order"
        )
    return left, right


def _resampled(
    values: Float[np.ndarray, "seeds strata"], statistic: Statistic, bootstrap: Bootstrap, stream: int
) -> Float[np.ndarray, " resamples"]:
    # rliable's stratified bootstrap, as benchmarks/statistics_against_rliable.py checks; scipy's does not pool strata.
    random = np.random.default_rng([bootstrap.seed, stream])
    drawn = random.integers(len(values), size=(bootstrap.resamples, *values.shape))
    samples = np.take_along_axis(values[None], drawn, axis=1)
    return statistic(samples.reshape(bootstrap.resamples, -1), axis=-1)


def _draw_weights(seeds: int, bootstrap: Bootstrap, stream: int, stratum: int) -> Float[np.ndarray, "resamples seeds"]:
    """How often each seed is drawn, over the number of seeds: a resample as weights rather than as indices."""
    random = np.random.default_rng([bootstrap.seed, stream, stratum])
    return random.multinomial(seeds, np.full(seeds, 1 / seeds), size=bootstrap.resamples) / seeds
