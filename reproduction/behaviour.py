"""The appendix's better-than-random behaviour policy: trained for ten episodes, then followed with some exploration."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import derive
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy
from counterpoint.simulation.trials import BehaviourPolicy, random_policy, simulate
from counterpoint.tasks.base import KnownSCM

EPISODES = 10
RESTARTS = 10
"""Starts in an episode. A CartPole trial under random actions lasts about 25 steps, and ten such trials are too few to
learn from. An episode therefore starts over at a failure, ten times."""
EXPLORATION = 0.2
"""Share of random actions while the policy is trained."""
RANDOM_ACTION_SHARE = 0.7
"""Share of random actions in the log; the paper does not give it. With this share a trial lasts twice as long as under
random actions and still fails at times. At 0.2 most logs of 250 trials hold no failure, and single steps without
failures cannot be learned from."""
LEARNER = D3QN((64, 64), Schedule(steps=2000, rate="linear"), batch=128, learning_rate=1e-3)
"""Learned twice, on the first half of the episodes and on all of them; 600 updates are too few to beat random
actions."""


def exploring(policy: Policy, task: KnownSCM, share: float) -> BehaviourPolicy:
    """Return a behaviour that follows `policy` and takes a random action in a share of the steps."""

    def act(state: Float[Tensor, "n s"], random: torch.Generator) -> Float[Tensor, "n a"]:
        at_random = torch.rand(len(state), 1, generator=random) < share
        return torch.where(at_random, task.actions.sample(len(state), random), policy.act(state))

    return act


def trained_behaviours(
    task: KnownSCM, seeds: Sequence[int], random_action_share: float = RANDOM_ACTION_SHARE
) -> list[BehaviourPolicy]:
    """Train a behaviour for every seed, each from ten episodes of its own; all learn in one stack."""
    behaviours = [random_policy(task) for _ in seeds]
    tables: list[list[Transitions]] = [[] for _ in seeds]
    policies: list[Policy] = []
    for first in (0, EPISODES // 2):
        for table, act, seed in zip(tables, behaviours, seeds, strict=True):
            table += [_episode(task, act, seed, episode) for episode in range(first, first + EPISODES // 2)]
        jobs = [
            Job(concatenate(table), derive(seed, "learn", first)) for table, seed in zip(tables, seeds, strict=True)
        ]
        policies = [learned.last for learned in LEARNER.fit_many(jobs, task)]
        behaviours = [exploring(policy, task, EXPLORATION) for policy in policies]
    return [exploring(policy, task, random_action_share) for policy in policies]


def trained_behaviour(task: KnownSCM, seed: int) -> BehaviourPolicy:
    """Train the behaviour of one seed."""
    return trained_behaviours(task, [seed])[0]


def _episode(task: KnownSCM, act: BehaviourPolicy, seed: int, episode: int) -> Transitions:
    """Simulate one episode: ten starts, each followed until it fails, 200 steps at most."""
    rows = simulate(task, act, RESTARTS, 200, derive(seed, "episode", episode), stop_at_failure=True)
    return replace(rows, noise=rows.noise[:, :0])
