"""The return of every logged episode, which the return of a learned policy is printed beside."""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.data.transitions import Transitions


def logged_returns(rows: Transitions, horizon: int = 0) -> Float[Tensor, " episodes"]:
    """Undiscounted return of every episode of the real rows, over its first `horizon` steps; 0 for all of them."""
    real = rows.real
    require(len(real) > 0, "the log has no rows, so it has no returns; give rows")
    names = torch.stack([real.subject, real.episode], 1)
    _, episode = names.unique(dim=0, return_inverse=True)
    episodes = int(episode.max()) + 1
    first = torch.full((episodes,), torch.iinfo(torch.long).max, device=episode.device)
    first.scatter_reduce_(0, episode, real.step, "amin")
    counts = real.step - first[episode] < horizon if horizon else torch.ones_like(real.terminated)
    total = real.reward.new_zeros(episodes, dtype=torch.float64)
    return total.index_add_(0, episode, (real.reward * counts).double()).float()


def return_deviation(rows: Transitions, horizon: int = 0) -> float:
    """Standard deviation of the logged returns; where they are all alike the largest reward of a step, or 1."""
    returns = logged_returns(rows, horizon)
    deviation = float(returns.std()) if len(returns) > 1 else 0.0
    return deviation or float(rows.real.reward.abs().max()) or 1.0
