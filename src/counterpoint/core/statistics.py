"""How sure a few training seeds make us: interquartile means, stratified bootstrap intervals and paired differences.

One score is what one training seed achieved, itself the mean of its evaluation trials (10 in the paper, Section 5.1);
what is resampled is therefore seeds, never trials. Scores are `[seeds]`, or `[seeds, strata]` where a stratum is a task
or a data size whose seeds are resampled apart from the others'. The definitions are those of Agarwal et al. (2021),
"Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from collections.abc import Callable
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
    values = stratified(scores, "scores")
    return bootstrap.around(statistic(values, axis=None), resample(values, statistic, bootstrap, 0))


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


def stratified(scores: ArrayLike, name: str) -> Float[np.ndarray, "seeds strata"]:
    values = _finite(scores, name)
    if values.ndim not in (1, 2):
        raise CounterpointError(f"{name} has shape {list(values.shape)}; give [seeds] or [seeds, strata]")
    if len(values) < 2:
        raise CounterpointError(f"{name} has 1 training seed; an interval over seeds needs at least 2")
    return values.reshape(len(values), -1)


def resample(
    values: Float[np.ndarray, "seeds strata"], statistic: Statistic, bootstrap: Bootstrap, stream: int
) -> Float[np.ndarray, " resamples"]:
    # rliable's stratified bootstrap, as benchmarks/statistics_against_rliable.py checks; scipy's does not pool strata.
    random = np.random.default_rng([bootstrap.seed, stream])
    drawn = random.integers(len(values), size=(bootstrap.resamples, *values.shape))
    samples = np.take_along_axis(values[None], drawn, axis=1)
    return statistic(samples.reshape(bootstrap.resamples, -1), axis=-1)
