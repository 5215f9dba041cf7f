"""True returns of policies, by running them in a simulator."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, checked
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.shapes import Theta
from counterpoint.policies.base import Policy, joint_actor
from counterpoint.simulation.rollout import Actor, Rollout, TaskSimulator
from counterpoint.tasks.base import KnownSCM, check_task


@checked
def true_return(
    policy: Policy,
    task: KnownSCM,
    trials: int = 10,
    seed: int = 0,
    horizon: Count = 0,
    theta: Theta = NO_THETA,
) -> Float[Tensor, " n"]:
    """Run one policy and return the reward total of every trial.

    Arguments:
        trials: number of episodes.
        horizon: steps after which an episode is cut; 0 for the task's own.
        theta: each subject's factor, for a policy that is conditioned on it.
    """
    require(
        theta.shape[1] == policy.factor_width or not policy.factor_width,
        "the policy is conditioned on every subject's factor, and a new subject's is not known; learn one that infers"
        " it (ctrl-p), or pass theta",
    )
    return true_returns([policy], task, trials, seed, horizon, theta)[0]


@checked
def true_returns(
    policies: Sequence[Policy],
    task: KnownSCM,
    trials: int = 10,
    seed: int = 0,
    horizon: int = 0,
    theta: Theta = NO_THETA,
) -> Float[Tensor, "k n"]:
    """Run policies of one class from the same first states with the same noise, and return their reward totals.

    In a task with differing subjects, trial i is of subject i, and `theta` is the factor that the policies are given.
    """
    for policy in policies:
        check_task(task, policy.schema, "policy")
    actor = joint_actor(policies)
    return returns(actor, task, len(policies), trials, seed, horizon, policies[0].device, theta)


@torch.no_grad()
def returns(
    actor: Actor,
    task: KnownSCM,
    policies: int,
    trials: int,
    seed: int,
    horizon: int = 0,
    device: torch.device = torch.device("cpu"),
    theta: Theta = NO_THETA,
) -> Float[Tensor, "k n"]:
    """Undiscounted returns of stacked policies; noise is drawn on the CPU, so that every device uses the same."""
    require(trials > 0, f"{trials} trials say nothing; ask for 1 or more")
    task = task.of_subjects(torch.arange(trials, device=device))
    observation_noise = [generator(seed, "evaluation blur") for _ in range(policies)]

    def act(state: Float[Tensor, "k n s"], factor: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        observed = [task.observe(states, random) for states, random in zip(state, observation_noise, strict=True)]
        return actor(torch.stack(observed), factor)

    start = task.initial(trials, generator(seed, "evaluation start")).to(device).expand(policies, -1, -1)
    simulator = TaskSimulator(task)
    noise = simulator.fresh(trials, derive(seed, "evaluation"), device)
    return Rollout(simulator, task, act).returns(start, noise, horizon or task.horizon, theta)
