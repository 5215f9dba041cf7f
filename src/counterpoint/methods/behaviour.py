"""The appendix's better-than-random behaviour: a policy trained for ten episodes, followed with some exploration."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy
from counterpoint.policies.d3qn import D3QN
from counterpoint.seeding import derive
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.simulate import BehaviourPolicy, random_policy, simulate

EPISODES = 10
EXPLORATION = 0.2
"""Share of random actions, in training and in the log; the paper is silent."""
LEARNER = D3QN(hidden=(64, 64), schedule=Schedule(steps=200), batch=64, learning_rate=1e-3)
"""After every episode a small D3QN is learned on all episodes so far."""


def exploring(policy: Policy, task: KnownSCM, share: float = EXPLORATION) -> BehaviourPolicy:
    """Follow `policy`, but take a random action in a share of the steps."""

    def act(state: Float[Tensor, "n s"], random: torch.Generator) -> Float[Tensor, "n a"]:
        wander = torch.rand(len(state), 1, generator=random) < share
        return torch.where(wander, task.actions.sample(len(state), random), policy.act(state))

    return act


def trained_behaviours(task: KnownSCM, seeds: Sequence[int]) -> list[BehaviourPolicy]:
    """One behaviour a seed, each from its own ten episodes; all learn in one stack."""
    behaviours = [random_policy(task) for _ in seeds]
    tables = [_episode(task, act, seed, 0) for act, seed in zip(behaviours, seeds, strict=True)]
    for episode in range(1, EPISODES + 1):
        jobs = [Job(table, derive(seed, "learn", episode)) for table, seed in zip(tables, seeds, strict=True)]
        behaviours = [exploring(learned.last, task) for learned in LEARNER.fit_many(jobs, task)]
        if episode < EPISODES:
            new = [_episode(task, act, seed, episode) for act, seed in zip(behaviours, seeds, strict=True)]
            tables = [concatenate([table, more]) for table, more in zip(tables, new, strict=True)]
    return behaviours


def trained_behaviour(task: KnownSCM, seed: int) -> BehaviourPolicy:
    """The behaviour of one seed."""
    return trained_behaviours(task, [seed])[0]


def _episode(task: KnownSCM, act: BehaviourPolicy, seed: int, episode: int) -> Transitions:
    """One episode until it fails, 200 steps at most."""
    rows = simulate(task, act, 1, 200, derive(seed, "episode", episode), stop_at_failure=True)
    return replace(rows, noise=rows.noise[:, :0])
