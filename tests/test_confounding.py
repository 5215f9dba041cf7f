"""Unmeasured confounding: the bound is the true extremum, grows with the strength, and is the estimate without any."""

from itertools import product

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.ope.intervals import (
    MAX_STRENGTH,
    Confounding,
    bounded,
    bounds,
    breakdown_strength,
    extremes,
    weight_range,
)
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
    resampled,
)

WARD = cp.Ward()
ROWS = cp.simulate(WARD, cp.random_policy(WARD), trials=60, steps=4, seed=0)


def question(subjects: int = 60, share: float = 0.6) -> OPEData:
    """A policy that prefers the first dose, in a log of random ones."""
    rows = cp.simulation.trial_subset(ROWS, subjects)
    chances = torch.tensor([share, (1 - share) / 2, (1 - share) / 2])
    every, uniform = chances.expand(len(rows), -1), torch.full((len(rows), 3), 1 / 3)
    return OPEData(Episodes.of(rows), every, every * rows.has_next[:, None], uniform)


def weighted(question: OPEData, counts: Tensor) -> Tensor:
    weight = counts[:, question.episodes.subject] * question.weight[:, -1]
    return (weight * question.episodes.returns(1.0).double()).sum(1) / weight.sum(1)


@pytest.mark.parametrize("seed", range(8))
def test_the_extremes_are_those_of_all_corners(seed: int) -> None:
    """A ratio of linear functions is extreme at a corner of the box of weights; ties and zero weights among them."""
    random = torch.Generator().manual_seed(seed)
    value = torch.randint(-2, 3, (8,), generator=random).double()
    weight = torch.rand(8, generator=random).double() * (torch.rand(8, generator=random) > 0.2)
    low, high = weight / 1.7, weight * 2.3
    counts = torch.randint(0, 3, (5, 8), generator=random).double()
    counts[:, weight.argmax()] += 1
    corners = torch.tensor(list(product((False, True), repeat=8)))
    every = torch.where(corners, high, low)[:, None] * counts
    brute = (every * value).sum(-1) / every.sum(-1)
    lowest, highest = extremes(value, low, high, counts)
    torch.testing.assert_close(lowest, brute.amin(0))
    torch.testing.assert_close(highest, brute.amax(0))


@pytest.mark.parametrize("per", ["record", "step"])
def test_no_confounding_is_the_estimate_and_more_is_wider(per) -> None:
    asked, counts = question(), resampled(60, 20, 0)
    lowest, highest = bounded(asked, counts, 1.0, per)
    torch.testing.assert_close(lowest, weighted(asked, counts))
    torch.testing.assert_close(highest, lowest)
    for strength in (1.1, 1.5, 3.0):
        low, high = bounded(asked, counts, strength, per)
        assert (low < lowest).all()
        assert (high > highest).all()
        lowest, highest = low, high


def test_the_bounds_are_tans_at_every_step_or_once_a_record() -> None:
    """1/μ = 3, Λ = 2: an action that the policy takes with .6 weighs .6·(1 + 2·2) = 3 at most and .6·(1 + 2/2) = 1.2 at
    least, where without confounding it weighs 1.8; a record's weight is doubled or halved once."""
    asked = question()
    chances = torch.tensor([0.6, 0.2, 0.2]).double()[asked.rows.action_index]
    worth = lambda factor: torch.where(
        asked.episodes.present, asked.episodes.table(chances * factor), torch.ones(()).double()
    ).prod(1)
    for per, least, most in (("step", worth(2), worth(5)), ("record", worth(3) / 2, worth(3) * 2)):
        low, high = weight_range(asked, 2.0, per)  # pyright: ignore[reportArgumentType]
        unit = float(most[0] / high[0])
        torch.testing.assert_close(unit * high, most, rtol=1e-5, atol=0)
        torch.testing.assert_close(unit * low, least, rtol=1e-5, atol=0)


def test_a_finding_at_one_decision_is_within_the_bound_of_a_record() -> None:
    """Per record, Λ bounds what an unmeasured finding at any one decision can do."""
    asked = question()
    low, high = (each / asked.weight[:, -1] for each in weight_range(asked, 2.0, "record"))
    odds = (1 / 3 + (1 - 1 / 3) * 2.0, 1 / 3 + (1 - 1 / 3) / 2.0)
    assert float(low[0]) < odds[1] * float(low[0] * 2)
    assert (odds[0] * low * 2 < high).all()
    assert (odds[1] * low * 2 > low).all()


def test_bounds_hold_the_interval_of_resampled_tables() -> None:
    asked, counts = question(), resampled(60, 200, 0)
    found = bounds(asked, counts, Confounding((1.0, 2.0)))
    assert found[0].lowest == pytest.approx(found[0].highest)
    assert found[0].lowest == pytest.approx(float(weighted(asked, torch.ones(1, 60).double())))
    for bound in found:
        assert bound.low < bound.lowest <= bound.highest + 1e-9 < bound.high
    assert found[1].low < found[0].low
    assert found[1].high > found[0].high


def test_a_conclusion_is_lost_where_the_bound_meets_the_log() -> None:
    """Against a value that the lower bound reaches at strength 1.6 exactly."""
    asked, counts = question(), resampled(60, 100, 0)
    lowest, highest = bounded(asked, counts, 1.6, "record")
    spread = torch.linspace(-1e-9, 1e-9, 100).double()
    for reached in (lowest, highest):
        assert breakdown_strength(asked, counts, reached + spread, "record") == pytest.approx(1.6, abs=1e-3)
    assert breakdown_strength(asked, counts, weighted(asked, counts), "record") is None
    assert breakdown_strength(asked, counts, weighted(asked, counts) - 100, "record") == MAX_STRENGTH


def test_strengths_are_checked() -> None:
    with pytest.raises(cp.CounterpointError, match="strengths"):
        Confounding((0.5,))
    with pytest.raises(cp.CounterpointError, match="no strength"):
        Confounding(())
