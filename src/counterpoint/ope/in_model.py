"""What a policy is worth by a model: simulated from the log's first states, or replayed with subjects' own noise.

Both count as many steps as the longest logged episode has, as estimators from the log alone do, and both are right as
far as the model is: their intervals speak of whom it met and of where members differ, not of what all members miss.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Share, checked
from counterpoint.data.schema import agree
from counterpoint.models.base import Model
from counterpoint.ope.episodes import Episodes
from counterpoint.ope.member_returns import MemberReturns
from counterpoint.ope.replay import replay
from counterpoint.policies.base import Policy
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout, on_device
from counterpoint.tasks.base import KnownSCM, Task, check_task

AT_ONCE = 2**16
"""Episodes simulated side by side."""


@torch.no_grad()
@checked
def value_in_model(
    episodes: Episodes,
    policy: Policy,
    model: Model,
    task: Task,
    discount: Share = 1.0,
    rollouts: Positive = 4,
    seed: int = 0,
) -> MemberReturns:
    """The mean return of `rollouts` simulated episodes from every episode's first state, in every member.

    Subjects have the factors that the model infers from their records. A policy that wants factors is told them; a
    personal one begins with subjects whom it does not know, and learns about them from step to step.
    """
    agree(policy.schema, model.schema, "policy", "model")
    agree(model.schema, episodes.rows.schema, "model", "table")
    check_task(task, policy.schema, "policy")
    require(
        policy.factor_width in (0, model.theta_width),
        f"the policy wants factors of {policy.factor_width} columns and the model finds {model.theta_width}; use the"
        " model it was learned with",
    )
    first = episodes.places[:, 0]
    state, factors = episodes.rows.state[first], model.subjects(episodes.rows)[first]
    each = max(AT_ONCE // (model.mechanism.members * rollouts), 1)
    how, horizon = (discount, rollouts), episodes.places.shape[1]
    parts = [
        _returns(*some, policy, model, task, (horizon, *how, derive(seed, "rollouts", place)))
        for place, some in enumerate(zip(state.split(each), factors.split(each), strict=True))
    ]
    returns = torch.cat(parts)
    require(bool(returns.isfinite().all()), "the model leads to returns that are not finite; check it (check-scm)")
    return MemberReturns(returns, episodes.subject)


def _returns(
    state: Float[Tensor, "e s"],
    factors: Float[Tensor, "e t"],
    policy: Policy,
    model: Model,
    task: Task,
    how: tuple[int, float, int, int],
) -> Float[Tensor, "e m"]:
    """Returns in every member, the mean over rollouts; a member's episodes are neighbours."""
    horizon, discount, rollouts, seed = how
    simulator, shape = ModelSimulator([model]), (model.mechanism.members, len(state), rollouts)
    start, told = (x[None, :, None].expand(*shape, -1).flatten(0, 2)[None].to(model.device) for x in (state, factors))
    own = on_device(policy, model.device)
    rollout = Rollout(simulator, on_device(task, model.device), type(own).together([own]))
    total = rollout.returns(start, simulator.fresh(start.shape[1], seed), horizon, told, discount=discount)
    return total.view(shape).mean(-1).T.cpu()


@checked
def counterfactual_value(
    episodes: Episodes,
    policy: Policy,
    model: Model | KnownSCM,
    task: Task,
    discount: Share = 1.0,
    seed: int = 0,
) -> MemberReturns:
    """CF-PE (Buesing et al. 2019): every subject's record replayed with its own noise, and on behind its end.

    Noise that no record shows, behind an end or in a step without a next state, is drawn anew: without it, who died
    early would be judged by a few steps, and the policy that saves them would not be credited.
    """
    found = replay(episodes.rows, policy, model, task, discount=discount, horizon=episodes.places.shape[1], seed=seed)
    return found.members
