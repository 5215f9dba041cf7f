"""The range of possible returns, worked by hand."""

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.data.returns import (
    ReturnRange,
    possible_returns,
)
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions


def log(rewards: list[float], ends: bool) -> Transitions:
    """One episode with these rewards, ended by an outcome or not."""
    count = len(rewards)
    last = torch.arange(count) == count - 1
    return Transitions.logged(
        state=torch.zeros(count, 1),
        action=torch.zeros(count, 1),
        reward=torch.tensor(rewards),
        next_state=torch.zeros(count, 1),
        terminated=last & ends,
        truncated=last & (not ends),
        subject=torch.zeros(count, dtype=torch.long),
        step=torch.arange(count),
        actions=Discrete.of([0, 1]),
    )


def test_costs_of_every_step_never_add_up_to_a_gain() -> None:
    possible = possible_returns(log([-1.0, -3.0, -2.0], ends=False), discount=0.5)
    assert possible.low == pytest.approx(-3 - 1.5 - 0.75)
    assert possible.high == pytest.approx(-1.0)


def test_the_reward_of_the_end_counts_once() -> None:
    possible = possible_returns(log([0.0, 1.0, 0.0, -100.0], ends=True))
    assert possible.low == pytest.approx(-100.0)
    assert possible.high == pytest.approx(4.0)


def test_a_declared_range_stands_for_the_logged_rewards() -> None:
    possible = possible_returns(log([-1.0, -3.0], ends=False), reward_range=(-10.0, 0.0))
    assert (possible.low, possible.high, possible.declared) == (-20.0, 0.0, True)
    with pytest.raises(CounterpointError, match="smaller one first"):
        possible_returns(log([-1.0], ends=False), reward_range=(1.0, 0.0))


def test_a_longer_horizon_widens_the_range() -> None:
    assert possible_returns(log([-1.0, -2.0], ends=False), horizon=5).low == -10.0


def test_estimates_are_clipped_to_the_range() -> None:
    possible = ReturnRange(-20.0, 0.0)
    clipped = possible.clip(torch.tensor([-31_400.0, -5.0, 74.0, torch.nan]))
    assert clipped[:3].tolist() == [-20.0, -5.0, 0.0]
    assert bool(clipped[3].isnan())
    assert possible.holds(0.0)
    assert possible.holds(-20.0)
    assert not possible.holds(0.1)
