"""The paper's CartPole results: numbers read off the vector figures of arXiv 2012.09092.

Figure 2a (SD) and 2b (HD) log with a random policy; their twins in the appendix log with a non-random one.

A point is a mean return and half its error bar. The paper does not say what its error bars are (a standard deviation, a
standard error, an interval), so they are drawn as they stand and never compared with our intervals as like with like.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from counterpoint.core.tables import read_csv


@dataclass(frozen=True)
class PaperPoint:
    """One point of one of the paper's four CartPole figures."""

    dataset: Literal["SD", "HD"]
    """SD: one gravity, several data sizes; HD: five gravities"""
    behaviour: Literal["random", "non-random"]
    """the policy that logged the data"""
    method: str
    """as the paper names it: CTRL_g, CTRL_p, Base-D, Base-S, Base-M, D3QN, STEVE, BCQ, PETS"""
    setting: str
    """"50 trials" … "250 trials" for SD, the planet whose gravity it is for HD"""
    mean_return: float
    half_error_bar: float


@cache
def paper_points() -> tuple[PaperPoint, ...]:
    """Every point of the four figures."""
    with resources.as_file(resources.files("reproduction.pages") / "paper_figures.csv") as path:
        return tuple(PaperPoint(**row) for row in read_csv(path))


def paper_returns_by_size(behaviour: Literal["random", "non-random"] = "random") -> list[dict[str, Any]]:
    """Figure 2a, or its twin, as the rows that `figures.returns_by_size` draws: method, trials, low, estimate, high."""
    points = [point for point in paper_points() if point.dataset == "SD" and point.behaviour == behaviour]
    return [{"method": point.method, "trials": int(point.setting.split()[0]), **_bar(point)} for point in points]


def paper_returns_by_gravity(behaviour: Literal["random", "non-random"] = "random") -> list[dict[str, Any]]:
    """Figure 2b, or its twin, as rows: method, gravity, low, estimate, high."""
    points = [point for point in paper_points() if point.dataset == "HD" and point.behaviour == behaviour]
    return [{"method": point.method, "gravity": point.setting, **_bar(point)} for point in points]


def _bar(point: PaperPoint) -> dict[str, float]:
    mean, half = point.mean_return, point.half_error_bar
    return {"low": mean - half, "estimate": mean, "high": mean + half}
