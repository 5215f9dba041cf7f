"""Scores of a fitted SCM over several steps: predicted paths of held-out subjects, and agreement of dose effects.

A model whose doses act over hours is not judged by its likelihood of single steps. Two scores speak of its use:

    path score       mean over k ≤ K of the energy score of s_{t+k}, predicted from s_t
    effect misfit    mean over doses, columns and steps of (ψ_k − ψ̂_k)² / (se_k² + (c·ψ̂_k)²)

with ψ_k the model's mean effect of a dose after k steps and ψ̂_k the orthogonal estimate (`models.effects`).

Doses on a predicted path are a_{t+j} + m(ŝ_{t+j}) − m(s_{t+j}), m being a regression of the doses on the state: the
clinicians react to the predicted states, and what else moved the logged doses stays. Under the logged doses themselves
the true model is not the best: doses that follow s_{t+1} tell of it, and a model in which doses stand for the states
that they follow would predict s_{t+2} better.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, spread_levels
from counterpoint.data.spaces import Discrete, nearest
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.estimates import EffectEstimates
from counterpoint.models.scm.base import StructuralCausalModel, spread
from counterpoint.models.scm.effects.paths import EffectPaths

STEPS = 4
"""Length of the predicted paths."""
DRAWS = 4
"""Pairs of paths drawn from every start."""
MOST_PATHS = 2000
"""Starts that are scored at most."""
FEWEST_PATHS = 30
"""Starts below which paths are not scored."""
RIDGE = 1e-3
"""Ridge penalty a row of the regression of doses on the standardised state."""
LARGEST = 5.0
"""Standard deviations at which the columns of that regression are clipped."""
TOLERANCE = 0.2
"""c: share of an effect that a model may be off without a penalty, whatever the size of the log."""


@torch.no_grad()
def path_scores(model: StructuralCausalModel, job: Job, seed: int) -> Float[Tensor, " subjects"] | None:
    """Return every held-out subject's mean energy score of paths; None where records are too short.

    Exogenous columns are taken from the record. A subject's factor is what its earlier rows say.
    """
    rows = job.data
    windows = rows.windows(STEPS).rows
    if len(windows) < FEWEST_PATHS:
        return None
    if len(windows) > MOST_PATHS:
        windows = windows[torch.randperm(len(windows), generator=generator(seed, "paths"))[:MOST_PATHS]]
    theta = job.rows_theta
    if model.theta_width and not theta.shape[1]:
        theta = model.factors_before(rows).mean
    first, random = windows[:, 0], generator(seed, "path noise")
    columns, reaction = _scored_columns(rows), Reaction(rows)
    total = torch.zeros(len(windows))
    for _ in range(DRAWS):
        pair = [rows.state[first], rows.state[first]]
        for step in range(STEPS):
            row = windows[:, step]
            logged = rows.next_state[row]
            actions = [reaction.action(rows.action[row], rows.state[row], state) for state in pair]
            pair = [
                _followed(model, state, action, theta[first], logged, random)
                for state, action in zip(pair, actions, strict=True)
            ]
            unit = spread(rows.next_state[windows[:, step]] - rows.state[first])
            one, other, seen = (((values - rows.state[first]) / unit)[:, columns] for values in (*pair, logged))
            total += (one - seen).norm(dim=1) / 2 + (other - seen).norm(dim=1) / 2 - (one - other).norm(dim=1) / 2
    subject = rows.subject[first].unique(return_inverse=True)[1]
    sums = torch.zeros(int(subject.max()) + 1).index_add_(0, subject, total / (DRAWS * STEPS))
    return sums / subject.bincount()


class Reaction:
    """How the doses of a log follow the state: a ridge regression on its columns and their squares."""

    def __init__(self, rows: Transitions) -> None:
        self.schema = rows.schema
        columns = self._columns(rows.state)
        self.mean, spread = columns.mean(0), columns.std(0)
        self.spread = torch.where(spread > 1e-8, spread, 1.0)
        features = self._features(rows.state)
        gram = features.T @ features + RIDGE * len(features) * torch.eye(features.shape[1]).to(features)
        action = rows.action.to(features)
        self.weights = torch.linalg.solve(gram, features.T @ (action - action.mean(0)))

    def action(
        self, logged: Float[Tensor, "n a"], state: Float[Tensor, "n s"], predicted: Float[Tensor, "n s"]
    ) -> Float[Tensor, "n a"]:
        """The logged actions, changed as they would be in the predicted states: the nearest ones that exist."""
        change = (self._features(predicted) - self._features(state)) @ self.weights
        actions, moved = self.schema.actions, logged + change.to(logged).nan_to_num(0.0)
        if isinstance(actions, Discrete):
            return nearest(actions, moved)
        return moved.clamp(logged.new_tensor(actions.low), logged.new_tensor(actions.high))

    def _columns(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n w"]:
        return spread_levels(state, self.schema.categories).double()

    def _features(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n f"]:
        z = ((self._columns(state) - self.mean) / self.spread).clamp(-LARGEST, LARGEST)
        return torch.cat([z, z.square() - 1], 1)


def _scored_columns(rows: Transitions) -> list[int]:
    """The state columns that a model has to predict."""
    given = {*rows.schema.unpredicted}
    return [column for column in range(rows.state_size) if column not in given]


def _followed(
    model: StructuralCausalModel,
    state: Float[Tensor, "n s"],
    action: Float[Tensor, "n a"],
    theta: Float[Tensor, "n t"],
    logged: Float[Tensor, "n s"],
    random: torch.Generator,
) -> Float[Tensor, "n s"]:
    """A simulated next state, with the exogenous columns of the record."""
    after = model.sample(state, action, random, theta).clone()
    exogenous = list(model.schema.exogenous)
    after[:, exogenous] = logged[:, exogenous]
    return after


@torch.no_grad()
def effect_misfit(
    model: StructuralCausalModel, rows: Transitions, estimates: EffectEstimates, seed: int
) -> float | None:
    """Return the mean squared distance of the model's effects from the estimates; None without supported ones."""
    distances = []
    paths = EffectPaths.of(model, rows, max(estimates.steps), seed)
    names = model.schema.state_names
    for dose in estimates.doses:
        column = model.schema.action_names.index(dose) if dose in model.schema.action_names else None
        supported = [one for one in estimates if one.dose == dose and one.supported and one.standard_error > 0]
        if column is None or not supported or not len(paths.rows):
            continue
        first = paths.state[paths.rows[:, 0]]
        per, contrast = supported[0].per, supported[0].contrast
        unit = first[:, names.index(per)] if per else torch.ones(len(first))
        curves = paths.effects(model.mechanism, column, contrast * unit).mean((0, 2)) / contrast
        for one in supported:
            effect = float(curves[one.step - 1, names.index(one.outcome)])
            scale = one.standard_error**2 + (TOLERANCE * one.value) ** 2
            distances.append((effect - one.value) ** 2 / scale)
    return sum(distances) / len(distances) if distances else None
