"""Whether a fitted model holds the declared signs of effects: more of a dose never lowers, or raises, a column."""

import warnings

import torch

from counterpoint.core.errors import CounterpointWarning
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, context
from counterpoint.models.base import Mechanism

ROWS = 1000
"""Rows of the log that are looked at."""
ROUNDED = 1e-5
"""Changes below this share of a column's spread are rounding."""


@torch.no_grad()
def sign_violations(mechanism: Mechanism, job: Job) -> list[tuple[str, str, float]]:
    """Return (action column, state column, share of the rows) of every declared sign that the mechanism violates.

    In each row the dose is raised to the highest one, everything else alike, the noise too.
    """
    schema = job.data.schema
    rows = job.data[~job.data.imagined & job.data.has_next]
    if not schema.knowledge.signs or not len(rows):
        return []
    rows = rows[:: -(-len(rows) // ROWS)]
    factors = mechanism.context_width - rows.state_size - rows.action.shape[1]
    theta = torch.zeros(len(rows), factors)
    device = mechanism.device
    state = rows.state.to(device).expand(mechanism.members, -1, -1)
    noise = mechanism.prior(len(rows), generator(job.seed, "signs")).to(device).expand(mechanism.members, -1, -1)
    highest = torch.tensor(schema.actions.high)
    violations: list[tuple[str, str, float]] = []
    for action, column, sign in schema.knowledge.signs:
        dose, place = schema.action_names.index(action), schema.state_names.index(column)
        more = rows.action.clone()
        more[:, dose] = highest[dose]
        after = [
            mechanism.predict(
                context(rows.state, chosen, theta=theta).to(device).expand(len(state), -1, -1), state, noise
            )
            for chosen in (rows.action, more)
        ]
        effect = sign * (after[1] - after[0])[..., place].mean(0)
        share = float((effect < -ROUNDED * rows.state[:, place].std().to(effect)).float().mean())
        if share > 0:
            violations.append((action, column, share))
    return violations


def warn_of_signs(mechanism: Mechanism, job: Job) -> None:
    """Warn where a fitted mechanism violates a declared sign."""
    signs = {(action, column): sign for action, column, sign in job.data.schema.knowledge.signs}
    for action, column, share in sign_violations(mechanism, job):
        verb = "lowers" if signs[action, column] > 0 else "raises"
        warnings.warn(
            f"this model's form does not hold declared signs, and in {share:.0%} of the rows more '{action}' {verb}"
            f" '{column}', against the declaration; do not rely on its effects there",
            CounterpointWarning,
            stacklevel=2,
        )
