"""True returns of policies in a simulator: the only judge of the paper's CartPole figures."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.policies.base import Actor, Policy
from counterpoint.seeding import generator
from counterpoint.tasks.base import KnownSCM


def evaluate(
    policy: Policy, task: KnownSCM, trials: int = 10, seed: int = 0, horizon: int = 500
) -> Float[Tensor, " n"]:
    """The return of one policy in every trial."""
    return evaluate_many([policy], task, trials, seed, horizon)[0]


def evaluate_many(
    policies: Sequence[Policy], task: KnownSCM, trials: int = 10, seed: int = 0, horizon: int = 500
) -> Float[Tensor, "k n"]:
    """Returns of policies of one kind, all meeting the same first states and the same noise."""
    actor = type(policies[0]).together(policies)
    device = next(policies[0].parameters()).device
    return returns(actor, task, len(policies), trials, seed, horizon, device)


@torch.no_grad()
def returns(
    actor: Actor,
    task: KnownSCM,
    policies: int,
    trials: int,
    seed: int,
    horizon: int,
    device: torch.device = torch.device("cpu"),
) -> Float[Tensor, "k n"]:
    """Undiscounted returns, cut at the horizon; chance is drawn on the CPU, so every device sees the same."""
    begin, chance = generator(seed, "evaluation start"), generator(seed, "evaluation")
    blurs = [generator(seed, "evaluation blur") for _ in range(policies)]
    state = task.initial(trials, begin).to(device).expand(policies, -1, -1)
    alive = torch.ones(policies, trials, device=device)
    total = torch.zeros(policies, trials, device=device)
    for _ in range(horizon):
        action = actor(torch.stack([task.observe(own, blur) for own, blur in zip(state, blurs, strict=True)]))
        after = task.transition(state, action, task.noise(trials, chance).to(device).expand(policies, -1, -1))
        total += alive * task.reward(state, action, after)
        alive = alive * (~task.terminated(after)).float()
        state = after
        if device.type == "cpu" and not bool(alive.any()):
            break
    return total
