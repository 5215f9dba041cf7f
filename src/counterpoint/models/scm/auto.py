"""Model selection among SCM recipes by the held-out log density of their predictions.

Every candidate is fitted on most of the subjects and scored on the others by the log density of their rows; one that
has no density (an adversarial model) is scored by its energy score, E‖X − s'‖ − ½E‖X − X'‖ with X, X' drawn from
the model (Gneiting & Raftery 2007). The simplest candidate that is within `CLEAR` standard errors
of the best is selected and fitted on all rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Share, check_settings
from counterpoint.data.jobs import Job, context
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Candidate, Recipe, Selection
from counterpoint.models.scm.base import StructuralCausalModel, spread
from counterpoint.models.scm.density import DensitySCM, LawMechanism, default_scm
from counterpoint.nets.laws import Gaussian, Spline
from counterpoint.nets.likelihood import held_out_last
from counterpoint.nets.training import Monitor

DRAWS = 16
"""Pairs of next states drawn for every row of the energy score."""
CLEAR = 2.0
"""Standard errors above which a difference counts."""


@dataclass(frozen=True)
class AutoSCM(Recipe[StructuralCausalModel]):
    """Fit the candidates, compare them on held-out rows, and keep the simplest of the best.

    The fitted model's `selection` holds the scores, and its `structure` the recipe that was selected.
    """

    candidates: tuple[Recipe[StructuralCausalModel], ...] = (
        replace(default_scm(), law=Gaussian()),
        default_scm(),
        DensitySCM(Spline()),
    )
    """The recipes to choose from, the simplest first."""
    held_out: Share = 0.2
    """Share of the rows, by whole subjects, that the candidates are compared on."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(len(self.candidates) > 0, "AutoSCM has no candidates; give at least one recipe")
        require(0 < self.held_out < 1, f"held_out={self.held_out} leaves one side empty; give a number between 0 and 1")

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        selections = self.select(jobs, monitor, device)
        models: dict[int, StructuralCausalModel] = {}
        for number, recipe in enumerate(self.candidates):
            chosen = [i for i, selection in enumerate(selections) if selection.recipe is recipe]
            if chosen:
                fitted = recipe.fit_many([jobs[i] for i in chosen], monitor.stage(f"taken{number}"), device)
                models |= zip(chosen, fitted, strict=True)
        return [models[i].with_recipe(self, selection) for i, selection in enumerate(selections)]

    def select(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Selection]:
        """Compare the candidates on held-out rows of every job, without the last fit on all rows."""
        splits = [_split(job, self.held_out) for job in jobs]
        scores: list[list[HeldOutScores]] = [[] for _ in jobs]
        for number, recipe in enumerate(self.candidates):
            models = recipe.fit_many([learned for learned, _ in splits], monitor.stage(f"candidate{number}"), device)
            for job_scores, model, (_, held_out) in zip(scores, models, splits, strict=True):
                job_scores.append(held_out_scores(model, held_out))
        return [_selection(self.candidates, job_scores) for job_scores in scores]


@dataclass(frozen=True)
class HeldOutScores:
    """The scores of every held-out row; higher is better in both."""

    log_likelihood: Float[Tensor, " n"] | None
    negative_energy: Float[Tensor, " n"]


@torch.no_grad()
def held_out_scores(model: StructuralCausalModel, job: Job) -> HeldOutScores:
    """Scores of the model's predictions for the job's rows."""
    rows, theta, log_likelihood = job.data, job.rows_theta, None
    if isinstance(model.mechanism, LawMechanism):
        log_likelihood = _log_density(model.mechanism, rows.to(model.device), theta.to(model.device)).cpu()
    return HeldOutScores(log_likelihood, -_energy(model, rows, theta, derive(job.seed, "energy")))


def _log_density(mechanism: LawMechanism, rows: Transitions, theta: Tensor) -> Float[Tensor, " n"]:
    """Log of the members' mean density."""
    inputs = context(rows.state, rows.action, theta=theta).expand(mechanism.members, -1, -1)
    change = (rows.next_state - rows.state).expand(mechanism.members, -1, -1)
    density = mechanism.law.log_prob(inputs, change).sum(-1)
    return torch.logsumexp(density, 0) - math.log(mechanism.members)


def _energy(model: StructuralCausalModel, rows: Transitions, theta: Tensor, seed: int) -> Float[Tensor, " n"]:
    random, unit = generator(seed), spread(rows.next_state - rows.state)
    total = torch.zeros(len(rows), device=rows.state.device)
    for _ in range(DRAWS):
        one, other = (model.sample(rows.state, rows.action, random, theta) / unit for _ in range(2))
        seen = rows.next_state / unit
        near = ((one - seen).norm(dim=1) + (other - seen).norm(dim=1)) / 2
        total += near - (one - other).norm(dim=1) / 2
    return total / DRAWS


def _selection(recipes: Sequence[Recipe[StructuralCausalModel]], scores: Sequence[HeldOutScores]) -> Selection:
    best = _best(scores)
    behind = [_behind(candidate, scores[best]) for candidate in scores]
    taken = next(i for i, distance in enumerate(behind) if distance <= CLEAR)
    names = [name_of(recipe) for recipe in recipes]
    candidates = tuple(
        Candidate(
            name,
            None if s.log_likelihood is None else float(s.log_likelihood.mean()),
            -float(s.negative_energy.mean()),
            distance,
        )
        for name, s, distance in zip(names, scores, behind, strict=True)
    )
    return Selection(recipes[taken], candidates, _why(names, behind, best, taken, len(scores[best].negative_energy)))


def _best(scores: Sequence[HeldOutScores]) -> int:
    """The highest likelihood; a model without one is best only where it is clearly ahead in the energy score."""
    with_density = [i for i, score in enumerate(scores) if score.log_likelihood is not None]
    if not with_density:
        return max(range(len(scores)), key=lambda i: float(scores[i].negative_energy.mean()))
    best = max(with_density, key=lambda i: float(scores[i].log_likelihood.mean()))  # pyright: ignore[reportOptionalMemberAccess]
    for i, score in enumerate(scores):
        if score.log_likelihood is None and _behind(scores[best], score) > CLEAR:
            best = i
    return best


def _behind(one: HeldOutScores, other: HeldOutScores) -> float:
    """Standard errors by which `one` is behind `other`, row by row, in the score that both have."""
    if one.log_likelihood is not None and other.log_likelihood is not None:
        difference = other.log_likelihood - one.log_likelihood
    else:
        difference = other.negative_energy - one.negative_energy
    error = float(difference.std()) / math.sqrt(len(difference))
    return float(difference.mean()) / error if error > 0 else 0.0


def _why(names: Sequence[str], behind: Sequence[float], best: int, taken: int, rows: int) -> str:
    if taken == best:
        others = [f"{name} by {d:.1f}" for name, d in zip(names, behind, strict=True) if d > 0]
        against = f", ahead of {' and '.join(others)} standard errors" if others else ""
        return f"{names[taken]} predicts {rows} held-out rows best{against}."
    return (
        f"{names[best]} predicts {rows} held-out rows best, but {names[taken]} is simpler and only"
        f" {behind[taken]:.1f} standard errors behind."
    )


def name_of(recipe: Recipe[StructuralCausalModel]) -> str:
    """A recipe in a word or two."""
    if not isinstance(recipe, DensitySCM):
        return type(recipe).__name__
    return type(recipe.law).__name__ + (", triangular" if recipe.order else "")


def _split(job: Job, held_out: float) -> tuple[Job, Job]:
    """The job's real rows with a next state as two jobs, no subject in both: to learn from, and to score."""
    job = job[~job.data.imagined & job.data.has_next]
    order, kept = held_out_last(job.data.subject, held_out, derive(job.seed, "auto"))
    if kept < 2 or kept > len(order) - 2:
        raise CounterpointError(f"{len(order)} rows cannot be split with held_out={held_out}; give more rows")
    parts = (("kept", order[:kept]), ("judged", order[kept:]))
    learned, held_out_job = (replace(job[rows], seed=derive(job.seed, name)) for name, rows in parts)
    return learned, held_out_job
