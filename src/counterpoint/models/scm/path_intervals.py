"""Counterfactuals of several steps along logged records, with intervals.

    ŝ_{k+1} = f(ŝ_k, a'_k, θ, u_k),   u_k = f⁻¹(s_k, a_k, θ, s_{k+1})

Every member follows a path of its own, under its own noise and its own draws of the subject's factor, so that what it
gets wrong adds up over the steps as it would. The rest is as after one step (`models.scm.intervals`); the distance of
the plan is the largest so far.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.data.jobs import NO_THETA, context
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import check_actions, places
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.intervals import CounterfactualInterval, check_members, half_width

BLOCK = 4096
"""Windows that are computed at once."""


@torch.no_grad()
def counterfactual_paths(
    model: StructuralCausalModel,
    rows: Transitions,
    windows: Int[Tensor, "n k"],
    plan: Float[Tensor, "n k a"],
    level: float,
    theta: Theta = NO_THETA,
) -> CounterfactualInterval[Tensor]:
    """Return the states after each step of other plans along logged rows, [n, k, s], with their intervals.

    Args:
        model: A fitted model with several members.
        rows: Records of the subjects; those of the windows have a next state.
        windows: Row numbers of consecutive steps, as `rows.windows(k).rows` gives them.
        plan: The actions in these steps.
        level: The share of the counterfactuals that the intervals are to hold, as 0.9.
        theta: Factors of the rows' subjects; inferred from the rows where they are left out.
    """
    check_members(model.mechanism.members, level)
    require(
        plan.shape[:2] == windows.shape,
        f"a plan of {tuple(plan.shape[:2])} actions for {tuple(windows.shape)} steps; give one action for each step",
    )
    check_actions(model.actions, plan.flatten(0, 1))
    require(bool(rows.has_next[windows].all()), "a window has a row without a next state; leave such windows out")
    mean, drawn = model.interval_factors(rows, theta)
    parts = [
        _paths(model, rows, part, actions, level, mean, drawn)
        for part, actions in zip(windows.split(BLOCK), plan.split(BLOCK), strict=True)
    ]
    return CounterfactualInterval(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _paths(
    model: StructuralCausalModel,
    rows: Transitions,
    windows: Int[Tensor, "n k"],
    plan: Float[Tensor, "n k a"],
    level: float,
    mean: Tensor,
    drawn: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The paths under the mean factors, and both ends of their intervals."""
    value = rows.state[windows[:, 0]]
    path = value.expand(model.mechanism.members, -1, -1)
    distance, computed = value.new_zeros(len(value)), list(model.schema.unpredicted)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for step, (row, action) in enumerate(zip(windows.unbind(1), plan.unbind(1), strict=True), 1):
        distance = distance.maximum(model.dose_distance(value, action))
        together = _step(model, rows, row, value.expand_as(path), action, mean, combined=True)
        path = _step(model, rows, row, path, action, drawn)
        value = together
        half = half_width(path, value - rows.next_state[row], distance, level, step)
        exact = path[:, :, computed].amax(0) == path[:, :, computed].amin(0)
        half[:, computed] = half[:, computed] * ~exact  # Static, exogenous, or a sum of the doses.
        steps.append((value, *model.interval_ends(value, half)))
    answers, low, high = (torch.stack(column, 1) for column in zip(*steps, strict=True))
    return answers, low, high


def _step(
    model: StructuralCausalModel,
    rows: Transitions,
    row: Int[Tensor, " n"],
    path: Float[Tensor, "m n s"],
    action: Float[Tensor, "n a"],
    theta: Tensor,
    combined: bool = False,
) -> Tensor:
    """One step of every member's path under the noise of the logged row; of all together where they are combined."""
    mechanism, home = model.mechanism, path.device
    device = model.device
    own = theta[row].transpose(0, 1) if theta.ndim == 3 else theta[row]
    before, taken, after, asked = (
        table.to(device).expand(mechanism.members, -1, -1)
        for table in (rows.state[row], rows.action[row], rows.next_state[row], action)
    )
    noise = mechanism.abduct(context(before, taken, theta=own), before, after)
    predicted = mechanism.predict(context(path.to(device), asked, theta=own), path.to(device), noise).clone().to(home)
    if combined:
        predicted, path = mechanism.combine(predicted), path[0]
    exogenous = places(model.schema.exogenous, home)
    predicted[..., exogenous] = rows.next_state[row][:, exogenous].expand(*predicted.shape[:-1], -1)
    return model.schema.held(predicted, path, action.expand(*path.shape[:-1], -1))
