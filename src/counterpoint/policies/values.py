"""Estimate the values of any policy by rollouts in a model, with an interval over its members.

Q(s, a) = E_m E_u Σ_t γ^t P(not ended before t)·r_t,    s_0 = s, a_0 = a, then a_t = π(s_t),    in member m
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import SimilarRows
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Fraction, Positive, checked
from counterpoint.data.conversion import convert_states
from counterpoint.data.jobs import NO_THETA, check_factors
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model, SubjectFactors
from counterpoint.policies.base import Policy
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout, on_device
from counterpoint.tasks.base import Task, check_task


@dataclass(frozen=True)
class ActionValues:
    """The value of each action in each state; with one column, the value of the policy."""

    members: Float[Tensor, "m n a"]
    """The mean return in every member of the model."""
    share: float
    """Share of the members between `low` and `high`."""

    @property
    def mean(self) -> Float[Tensor, "n a"]:
        return self.members.mean(0)

    @property
    def low(self) -> Float[Tensor, "n a"]:
        return self.members.quantile((1 - self.share) / 2, 0)

    @property
    def high(self) -> Float[Tensor, "n a"]:
        return self.members.quantile((1 + self.share) / 2, 0)

    @property
    def best(self) -> Int[Tensor, " n"]:
        """The action of the largest mean."""
        return self.mean.argmax(-1)

    @property
    def agreement(self) -> Float[Tensor, " n"]:
        """Share of the members in which that action is the best."""
        return (self.members.argmax(-1) == self.best).float().mean(0)


@checked
@torch.no_grad()
def rollout_values(
    policy: Policy,
    model: Model,
    task: Task,
    state: Any,
    theta: Theta = NO_THETA,
    every_action: bool = True,
    episodes: Positive = 16,
    horizon: Positive | None = None,
    discount: Fraction = 1.0,
    share: Fraction = 0.9,
    seed: int = 0,
    logged: Transitions | None = None,
) -> ActionValues:
    """Estimate Q(s, a) of every action of a finite space, or V(s), by rollouts in every member of a model.

    Args:
        policy: The policy that chooses the actions after the first step.
        model: The fitted model in which episodes are simulated.
        task: Reward and end of the episodes.
        state: First states.
        theta: The subjects' factors, one row or a row for every state.
        every_action: Whether the first action is each action in turn; otherwise it is the policy's, for V(s) in one
            column.
        episodes: Episodes in every member, with the same noise for all actions.
        horizon: Steps of an episode; None for the task's.
        discount: Discount per step.
        share: Share of the members between `low` and `high`.
        seed: Seed of the noise.
        logged: The training rows; a state unlike all of them is refused, because the model would extrapolate.
    """
    if every_action and not isinstance(policy.actions, Discrete):
        raise CounterpointError("continuous doses have no list of actions to value; set every_action to False for V(s)")
    agree(policy.schema, model.schema, "policy", "model")
    check_task(task, policy.schema, "policy")
    states = convert_states(state, policy.schema.states).values
    factors = check_factors(theta, len(states)).expand(len(states), -1)
    _check_like(states, logged)
    simulator = ModelSimulator([model])
    first = policy.actions.table() if every_action and isinstance(policy.actions, Discrete) else None
    actions = 1 if first is None else len(first)
    shape = simulator.members, len(states), actions, episodes

    def everywhere(x: Tensor) -> Tensor:
        return x.expand(*shape, -1).reshape(1, torch.Size(shape).numel(), x.shape[-1]).to(model.device)

    random = torch.Generator().manual_seed(seed)
    prior = model.mechanism.prior
    noise = lambda t: (everywhere(prior(episodes, random)[None, None, None]),)
    plan = lambda t: everywhere(first[None, None, :, None]) if first is not None and t == 0 else None
    rollout = Rollout(simulator, on_device(task, model.device), on_device(policy, model.device).actor())
    start = everywhere(states[None, :, None, None])
    context = everywhere(factors[None, :, None, None])
    total = rollout.returns(start, noise, horizon or task.horizon, context, plan, discount)
    require(bool(total.isfinite().all()), "rollouts from these states lead to numbers that are not finite; check them")
    return ActionValues(total.view(shape).mean(-1).cpu(), share)


@checked
def subject_values(
    policy: Policy,
    model: Model,
    task: Task,
    state: Float[Tensor, "n s"],
    factors: SubjectFactors,
    draws: Positive = 16,
    episodes: Positive = 16,
    share: Fraction = 0.9,
    seed: int = 0,
) -> ActionValues:
    """Estimate Q(s, a) for subjects whose factors have a normal posterior; V(s) where doses are continuous.

    The interval is over the model's members and `draws` draws of the factors. One posterior serves all states.
    """
    draws = draws if model.theta_width else 1
    which = torch.arange(len(factors.mean)).expand(len(state)).repeat_interleave(draws)
    drawn = SubjectFactors(factors.mean[which], factors.covariance[which]).draw(generator(seed, "factors"))
    every_action = isinstance(policy.actions, Discrete)
    states = state.repeat_interleave(draws, 0)
    members = rollout_values(policy, model, task, states, drawn, every_action, episodes, seed=seed, share=share).members
    return ActionValues(members.unflatten(1, (len(state), draws)).transpose(1, 2).flatten(0, 1), share)


def _check_like(states: Float[Tensor, "n s"], logged: Transitions | None) -> None:
    if logged is None:
        return
    unlike = (~SimilarRows(logged).rows(states)[1]).nonzero()
    require(
        len(unlike) == 0,
        f"the state at row {int(unlike[0]) if len(unlike) else 0} is unlike every state of the log; leave it out, or"
        " pass no log to have the model extrapolate",
    )
