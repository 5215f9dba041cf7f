"""Our estimates and intervals beside rliable's on the same scores: `python benchmarks/statistics_against_rliable.py`.

Needs `pip install rliable "pandas<3"` next to this package. Point estimates must agree to 1e-12. The ends of two
bootstrap intervals differ by chance, and jump between the few values that resampled scores of few seeds can have; so an
end of rliable's is judged by its rank among very many of our resamples, in standard errors of the rank that its own
resamples give it. The last line is a JSON object of the figures.
"""

import json
import time
from collections.abc import Callable

import numpy as np
from rliable import library, metrics

from counterpoint.core.statistics import Bootstrap, Interval, interval, iqm
from reproduction.statistics import independent_difference, paired_difference, probability_of_improvement

RESAMPLES = 5000
MANY_RESAMPLES = 100_000
CONFIDENCE = 0.95
Ours = Callable[[Bootstrap], Interval]


def returns(seeds: int, strata: int, shift: float, seed: int) -> np.ndarray:
    """CartPole-like returns, rounded to trial means so that ties and the ceiling of 500 occur."""
    random = np.random.default_rng(seed)
    level = np.linspace(120, 420, strata) + shift
    return np.clip(np.round(random.normal(level, 70, size=(seeds, strata)), -1), 10, 500)


def theirs(scores: list[np.ndarray], function: Callable[..., float]) -> tuple[Interval, float]:
    """rliable's estimate and percentile interval, and how many seconds they took."""
    value = scores[0] if len(scores) == 1 else scores
    # rliable 1.2 takes a random_state but draws from the global generator.
    np.random.seed(0)
    start = time.perf_counter()
    estimate, ends = library.get_interval_estimates(
        {"method": value}, lambda *each: np.array([function(*each)]), reps=RESAMPLES
    )
    seconds = time.perf_counter() - start
    return Interval(float(estimate["method"][0]), *ends["method"][:, 0].tolist()), seconds


def standard_errors_apart(ours: Ours, peer: Interval) -> float:
    """The least z at which both of the peer's ends lie between our percentiles z standard errors either side."""
    tail = (1 - CONFIDENCE) / 2
    error = np.sqrt(tail * (1 - tail) / RESAMPLES)
    for z in np.arange(0, tail / error, 0.25):
        wide, narrow = (
            ours(Bootstrap(MANY_RESAMPLES, confidence=1 - 2 * (tail + side * z * error))) for side in (-1, 1)
        )
        slack = 1e-9
        if wide.low - slack <= peer.low <= narrow.low + slack and narrow.high - slack <= peer.high <= wide.high + slack:
            return float(z)
    return float("inf")


def cases() -> list[tuple[str, Ours, list[np.ndarray], Callable[..., float]]]:
    """Name, our computation, rliable's scores and rliable's metric."""
    listed = []
    for seeds, strata in [(5, 1), (10, 5), (20, 3)]:
        x, y = returns(seeds, strata, 25.0, seeds), returns(seeds, strata, 0.0, seeds + 100)
        name = f"{seeds} seeds x {strata}"
        listed += [
            (f"IQM, {name}", lambda b, x=x: interval(x, iqm, b), [x], metrics.aggregate_iqm),
            (f"mean, {name}", lambda b, x=x: interval(x, np.mean, b), [x], metrics.aggregate_mean),
            (
                f"paired IQM, {name}",
                lambda b, x=x, y=y: paired_difference(x, y, iqm, b),
                [x - y],
                metrics.aggregate_iqm,
            ),
            (
                f"independent IQM, {name}",
                lambda b, x=x, y=y: independent_difference(x, y, iqm, b),
                [x, y],
                lambda x, y: metrics.aggregate_iqm(x) - metrics.aggregate_iqm(y),
            ),
            (
                f"P(X > Y), {name}",
                lambda b, x=x, y=y: probability_of_improvement(x, y, b),
                [x, y],
                metrics.probability_of_improvement,
            ),
        ]
    return listed


def compare(ours: Ours, scores: list[np.ndarray], metric: Callable[..., float]) -> dict[str, float]:
    """How far apart the estimates and the interval ends are, and how long each side took."""
    peer, peer_seconds = theirs(scores, metric)
    start = time.perf_counter()
    own = ours(Bootstrap(resamples=RESAMPLES))
    seconds = time.perf_counter() - start
    return {
        "ours": own.estimate,
        "rliable": peer.estimate,
        "estimate_distance": abs(own.estimate - peer.estimate),
        "interval_distance": max(abs(own.low - peer.low), abs(own.high - peer.high)),
        "standard_errors": standard_errors_apart(ours, peer),
        "ours_seconds": seconds,
        "rliable_seconds": peer_seconds,
    }


def main() -> None:
    print("| case | ours | rliable | estimates apart | ends apart | standard errors | ours, s | rliable, s |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    results = []
    for name, ours, scores, metric in cases():
        result = compare(ours, scores, metric)
        results.append(result)
        numbers = [f"{result[key]:.4g}" for key in result]
        print(f"| {name} | {' | '.join(numbers)} |")
    estimates_apart = max(result["estimate_distance"] for result in results)
    print(
        json.dumps(
            {
                "cases": len(results),
                "resamples": RESAMPLES,
                "largest_estimate_distance": estimates_apart,
                "estimates_agree_to_1e-12": estimates_apart < 1e-12,
                "largest_interval_distance_in_standard_errors": max(result["standard_errors"] for result in results),
                "median_speedup": float(
                    np.median([each["rliable_seconds"] / each["ours_seconds"] for each in results])
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
