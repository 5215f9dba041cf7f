"""Scores of a fitted SCM over several steps: predicted paths of held-out subjects, and agreement of dose effects.

A model whose doses act over hours is not judged by its likelihood of single steps. Two scores speak of its use:

    path score       mean over k ≤ K of the energy score of s_{t+k}, predicted from s_t under the logged doses
    effect misfit    mean over doses, columns and steps of (ψ_k − ψ̂_k)² / (se_k² + (c·ψ̂_k)²)

with ψ_k the model's mean effect of a dose after k steps and ψ̂_k the orthogonal estimate (`models.effects`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
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
    columns = _scored_columns(rows)
    total = torch.zeros(len(windows))
    for _ in range(DRAWS):
        pair = [rows.state[first], rows.state[first]]
        for step in range(STEPS):
            row = windows[:, step]
            logged = rows.next_state[row]
            pair = [_followed(model, state, rows.action[row], theta[first], logged, random) for state in pair]
            unit = spread(rows.next_state[windows[:, step]] - rows.state[first])
            one, other, seen = (((values - rows.state[first]) / unit)[:, columns] for values in (*pair, logged))
            total += (one - seen).norm(dim=1) / 2 + (other - seen).norm(dim=1) / 2 - (one - other).norm(dim=1) / 2
    subject = rows.subject[first].unique(return_inverse=True)[1]
    sums = torch.zeros(int(subject.max()) + 1).index_add_(0, subject, total / (DRAWS * STEPS))
    return sums / subject.bincount()


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
