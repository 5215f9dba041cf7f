"""Effects of a dose inside a fitted model: counterfactual paths along stretches of logged rows."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import context
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel, StructuralMechanism

MOST_STARTS = 512
"""Logged rows from which mean effects are computed."""


@dataclass(frozen=True)
class EffectPaths:
    """Stretches of logged rows with the noise that the law abducts from them, along which effects are computed."""

    rows: Int[Tensor, "n k"]
    state: Float[Tensor, "m s"]
    action: Float[Tensor, "m a"]
    after: Float[Tensor, "m s"]
    theta: Float[Tensor, "m t"]
    schema: Schema

    @classmethod
    def of(cls, model: StructuralCausalModel, rows: Transitions, steps: int, seed: int) -> "EffectPaths":
        """Up to `MOST_STARTS` stretches of `steps` consecutive rows."""
        rows = rows.with_next()
        windows = rows.windows(steps).rows
        if len(windows) > MOST_STARTS:
            drawn = torch.randperm(len(windows), generator=generator(seed, "effect paths"))[:MOST_STARTS]
            windows = windows[drawn]
        theta = model.subjects(rows) if model.theta_width else rows.state[:, :0]
        return cls(windows, rows.state, rows.action, rows.next_state, theta, rows.schema)

    @torch.no_grad()
    def effects(
        self, mechanism: StructuralMechanism, dose: int, contrast: Float[Tensor, " n"]
    ) -> Float[Tensor, "m k n s"]:
        """Each member's change of the state after 1 … k steps if `contrast` more is given in the first step."""
        members, exogenous = mechanism.members, list(self.schema.exogenous)
        path = self.state[self.rows[:, 0]].expand(members, -1, -1)
        effects = []
        for step in range(self.rows.shape[1]):
            row = self.rows[:, step]
            before, action, after, theta = (
                table[row].expand(members, -1, -1) for table in (self.state, self.action, self.after, self.theta)
            )
            noise = mechanism.abduct(context(before, action, theta=theta), before, after)
            given = action.clone()
            if step == 0:
                given[..., dose] += contrast
            predicted = mechanism.predict(context(path, given, theta=theta), path, noise).clone()
            predicted[..., exogenous] = after[..., exogenous]
            path = self.schema.held(predicted, path, given)
            effects.append(path - after)
        return torch.stack(effects, 1)
