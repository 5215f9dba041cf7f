"""True returns of policies in environments that Gymnasium ships, which nobody here wrote."""

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import checked
from counterpoint.policies.base import Policy
from reproduction.tasks.classic_simulation import gym_returns


@checked
def evaluate_in_gym(policy: Policy, gym_id: str, episodes: int = 20, seed: int = 0) -> Float[Tensor, " n"]:
    """The undiscounted return of one policy in every episode, cut where the environment cuts it."""
    act = policy.actor()
    choose = lambda state: act(state[None].to(policy.device), state.new_zeros(1, len(state), 0).to(policy.device))[0]
    return gym_returns(choose, policy.actions, gym_id, episodes, seed)
