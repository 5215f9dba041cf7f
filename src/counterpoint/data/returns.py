"""Returns of the logged episodes, and the range that the return of an episode can have.

    n steps, of which the last may end the episode:  low = min_n Σ_{t<n-1} γ^t·a + γ^{n-1}·min(a, c),   n = 1 … L

a and c are the smallest rewards of rows that go on and of rows that end with an outcome, L the longest episode; the
largest return likewise with the largest rewards.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Positive, Share, checked
from counterpoint.data.knowledge import ROUNDED, check_range
from counterpoint.data.transitions import Transitions


@dataclass(frozen=True)
class ReturnRange:
    """Smallest and largest return that an episode can have; an estimate outside the range is an error of its model."""

    low: float
    high: float
    declared: bool = False
    """Whether the user declared the range of the rewards; otherwise it is that of the log."""

    def clip(self, returns: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Clip returns to the range; NaN stays NaN."""
        return returns.clamp(self.low, self.high)

    def holds(self, value: float) -> bool:
        """Return whether a return is possible, rounding aside."""
        slack = 1e-6 * max(1.0, abs(self.low), abs(self.high))
        return self.low - slack <= value <= self.high + slack

    def __str__(self) -> str:
        source = "declared rewards" if self.declared else "the log's rewards"
        return f"{self.low:.4g} to {self.high:.4g} by {source}"


@checked
def possible_returns(
    rows: Transitions,
    discount: Share = 1.0,
    reward_range: tuple[float, float] | None = None,
    horizon: Positive | None = None,
) -> ReturnRange:
    """Return the range of the returns of episodes like those of `rows`.

    Args:
        rows: A log; its real rows give the range of the rewards and the length of the longest episode.
        discount: Discount per step.
        reward_range: Smallest and largest reward of a step where the user declared them; rewards outside are refused.
        horizon: Steps of the longest episode; None for that of the log.
    """
    real = rows.real
    require(len(real) > 0, "the log has no rows, so it has no range of returns; give rows")
    length = int(real.step.max()) + 1 if horizon is None else horizon
    low, high, low_end, high_end = _rewards(real, reward_range)
    steps = torch.arange(length, dtype=torch.float64)
    weight = discount**steps
    before = weight.cumsum(0) - weight
    smallest = before * low + weight * min(low, low_end)
    largest = before * high + weight * max(high, high_end)
    return ReturnRange(float(smallest.min()), float(largest.max()), reward_range is not None)


def _rewards(real: Transitions, declared: tuple[float, float] | None) -> tuple[float, float, float, float]:
    """Return the smallest and largest reward of rows that go on, and of rows that end with an outcome."""
    if declared is not None:
        check_rewards(real.reward, declared)
        return (*declared, *declared)
    going = real.reward[~real.terminated].double()
    ending = real.reward[real.terminated].double()
    both = [part if len(part) else other for part, other in ((going, ending), (ending, going))]
    return float(both[0].min()), float(both[0].max()), float(both[1].min()), float(both[1].max())


def check_rewards(reward: Float[Tensor, " n"], declared: tuple[float, float], column: str = "reward") -> None:
    """Refuse logged rewards outside the declared range, rounding aside."""
    check_range(declared)
    low, high = declared
    slack = ROUNDED * max(1.0, abs(low), abs(high))
    wrong = int(((reward < low - slack) | (reward > high + slack)).sum())
    require(
        not wrong,
        f"{wrong} rewards in '{column}' are outside the declared range {low:g} to {high:g}; correct the rows or"
        " the declaration",
    )


def logged_returns(rows: Transitions, horizon: int | None = None) -> Float[Tensor, " episodes"]:
    """Return the undiscounted return of every episode of the real rows, over its first `horizon` steps or all."""
    real = rows.real
    require(len(real) > 0, "the log has no rows, so it has no returns; give rows")
    names = torch.stack([real.subject, real.episode], 1)
    _, episode = names.unique(dim=0, return_inverse=True)
    episodes = int(episode.max()) + 1
    first = torch.full((episodes,), torch.iinfo(torch.long).max, device=episode.device)
    first.scatter_reduce_(0, episode, real.step, "amin")
    counts = torch.ones_like(real.terminated) if horizon is None else real.step - first[episode] < horizon
    total = real.reward.new_zeros(episodes, dtype=torch.float64)
    return total.index_add_(0, episode, (real.reward * counts).double()).float()


def return_deviation(rows: Transitions, horizon: int | None = None) -> float:
    """Return the standard deviation of the logged returns; where it is 0 the largest absolute reward, or 1."""
    returns = logged_returns(rows, horizon)
    deviation = float(returns.std()) if len(returns) > 1 else 0.0
    return deviation or float(rows.real.reward.abs().max()) or 1.0
