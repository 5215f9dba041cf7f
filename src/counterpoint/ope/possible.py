"""Estimates held to the range of returns that an episode can have: none outside it is right.

What is moved is value and ends; how far it lay outside is kept, for a value outside says that the estimator failed.
"""

from dataclasses import replace

from counterpoint.data.return_range import ReturnRange, possible_returns
from counterpoint.data.transitions import Transitions
from counterpoint.ope.episodes import Episodes
from counterpoint.ope.result import Estimate, Part, Sensitivity
from counterpoint.tasks.base import Task


def possible_range(rows: Transitions, log: Transitions, discount: float = 1.0, task: Task | None = None) -> ReturnRange:
    """The possible returns of the episodes that are judged, `rows`, by the rewards of the whole log.

    A range of rewards that the task or the table's schema declares stands for the logged rewards.
    """
    declared = getattr(task, "reward_range", None) or rows.schema.knowledge.reward_range
    return possible_returns(log, discount, declared, Episodes.of(rows).places.shape[1])


def hold(found: Estimate, possible: ReturnRange) -> Estimate:
    """The estimate of a return, value and ends moved to the nearest possible return."""
    return _moved(
        found, *(_clipped(each, possible.low, possible.high) for each in (found.value, found.low, found.high))
    )


def hold_difference(found: Estimate, one: Estimate, other: Estimate, possible: ReturnRange) -> Estimate:
    """The difference of two estimates that were held: that of their values, no end further than possible returns are.

    The first is at most `possible.high`, so no end is above that less the lower end of the other.
    """
    value = found.value
    if one.outside or other.outside:
        value = None if one.value is None or other.value is None else one.value - other.value
    least = possible.low - (possible.high if other.high is None else other.high)
    most = possible.high - (possible.low if other.low is None else other.low)
    low, high = _clipped(found.low, least, most), _clipped(found.high, least, most)
    if value is not None:
        low, high = (None if low is None else min(low, value)), (None if high is None else max(high, value))
    return _moved(found, value, low, high)


def hold_part(part: Part, possible: ReturnRange) -> Part:
    """The policy's estimate among some subjects, held."""
    return replace(part, policy=hold(part.policy, possible))


def hold_sensitivity(found: Sensitivity, possible: ReturnRange) -> Sensitivity:
    """The recommended estimate by other behaviour models, held."""
    return replace(found, behaviour=tuple(hold(each, possible) for each in found.behaviour))


def held_notes(estimates: tuple[Estimate, ...], possible: ReturnRange) -> tuple[str, ...]:
    """A line for every estimate that was moved."""
    return tuple(
        f"{each.name} was {each.before}; it is held to the possible range {possible}" for each in estimates if each.held
    )


def _clipped(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else min(max(value, low), high)


def _moved(found: Estimate, value: float | None, low: float | None, high: float | None) -> Estimate:
    before = found.value, found.low, found.high
    if (value, low, high) == before:
        return found
    return replace(found, value=value, low=low, high=high, unheld=before)
