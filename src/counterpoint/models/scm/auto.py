"""Choosing an SCM by what the data can tell: how well each candidate foresees rows it has not seen, never by the truth.

Every candidate is fitted on most of the subjects and judged on the others by the log density it gives their rows; one
that has no density (an adversarial model) is judged by its energy score, E‖X − s'‖ − ½E‖X − X'‖ with X, X' drawn from
the model (Gneiting & Raftery 2007). The plainest candidate that chance cannot tell from the best is taken and fitted on
all rows.
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
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel, StructuralMechanism, spread
from counterpoint.models.scm.density import DensitySCM, LawMechanism, default_scm
from counterpoint.nets.laws import Gaussian, Spline
from counterpoint.nets.likelihood import held_out_last
from counterpoint.nets.training import Monitor

DRAWS = 16
"""Pairs of next states drawn for every row of the energy score."""
CLEAR = 2.0
"""Standard errors that a difference must have before it counts."""


@dataclass(frozen=True)
class Candidate:
    """What held-out rows say of one recipe."""

    name: str
    log_likelihood: float | None
    """Mean log density of a held-out row; none where the model has no density."""
    energy_score: float
    """Mean energy score of a held-out row, in standard deviations of the change; lower is better."""
    behind: float
    """How far the score it is judged by is behind the best candidate's, in standard errors; negative if ahead."""


@dataclass(frozen=True)
class Choice(SCMRecipe):
    """A recipe that was chosen among candidates, with the evidence; it stands in the fitted model's header."""

    took: SCMRecipe
    """The recipe that was taken."""
    candidates: tuple[Candidate, ...]
    """All that were compared, the plainest first."""
    why: str
    """The choice in words."""

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        """Fit the recipe that was taken; nothing is compared again."""
        fitted = self.took.fit_many(jobs, monitor, device)
        return [model.with_recipe(replace(self, took=model.recipe)) for model in fitted]

    @property
    def structure(self) -> SCMRecipe:
        return self.took

    def build(self, state: int, context: int, members: int) -> StructuralMechanism:
        return self.took.build(state, context, members)


@dataclass(frozen=True)
class AutoSCM(SCMRecipe):
    """Fit the candidates, compare them on held-out rows, keep the plainest of the best."""

    candidates: tuple[SCMRecipe, ...] = (replace(default_scm(), law=Gaussian()), default_scm(), DensitySCM(Spline()))
    """The recipes to choose from, the plainest first."""
    held_out: Share = 0.2
    """Share of the rows, by whole subjects, that the candidates are compared on."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(len(self.candidates) > 0, "AutoSCM has no candidates; give at least one recipe")
        require(0 < self.held_out < 1, f"held_out={self.held_out} leaves one side empty; give a number between 0 and 1")

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        choices = self.choose(jobs, monitor, device)
        models: dict[int, StructuralCausalModel] = {}
        for number, recipe in enumerate(self.candidates):
            mine = [i for i, choice in enumerate(choices) if choice.took is recipe]
            if mine:
                fitted = recipe.fit_many([jobs[i] for i in mine], monitor.stage(f"taken{number}"), device)
                models |= {i: _as_chosen(model, choices[i]) for i, model in zip(mine, fitted, strict=True)}
        return [models[i] for i in range(len(jobs))]

    def build(self, state: int, context: int, members: int) -> StructuralMechanism:
        raise CounterpointError(
            "AutoSCM has no mechanism of its own; fit it, and use the recipe of the model it returns"
        )

    def choose(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Choice]:
        """What each job's own rows say for each candidate, without the last fit on all rows."""
        splits = [_split(job, self.held_out) for job in jobs]
        scores: list[list[Scores]] = [[] for _ in jobs]
        for number, recipe in enumerate(self.candidates):
            models = recipe.fit_many([kept for kept, _ in splits], monitor.stage(f"candidate{number}"), device)
            for job_scores, model, (_, judged) in zip(scores, models, splits, strict=True):
                job_scores.append(held_out_scores(model, judged))
        return [_choice(self.candidates, each) for each in scores]


def _as_chosen(model: StructuralCausalModel, choice: Choice) -> StructuralCausalModel:
    """The model with the evidence for it; a state with categories was fitted by a recipe of its own."""
    return model.with_recipe(replace(choice, took=model.recipe))


@dataclass(frozen=True)
class Scores:
    """The scores of every held-out row; higher is better in both."""

    log_likelihood: Float[Tensor, " n"] | None
    negative_energy: Float[Tensor, " n"]


@torch.no_grad()
def held_out_scores(model: StructuralCausalModel, job: Job) -> Scores:
    """How well `model` foresaw the job's rows."""
    rows, theta, log_likelihood = job.data, job.rows_theta, None
    if isinstance(model.mechanism, LawMechanism):
        log_likelihood = _log_density(model.mechanism, rows.to(model.device), theta.to(model.device)).cpu()
    return Scores(log_likelihood, -_energy(model, rows, theta, derive(job.seed, "energy")))


def _log_density(mechanism: LawMechanism, rows: Transitions, theta: Tensor) -> Float[Tensor, " n"]:
    """Log of the members' mean density."""
    told = context(rows.state, rows.action, theta=theta).expand(mechanism.members, -1, -1)
    change = (rows.next_state - rows.state).expand(mechanism.members, -1, -1)
    density = mechanism.law.log_prob(told, change).sum(-1)
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


def _choice(recipes: Sequence[SCMRecipe], scores: Sequence[Scores]) -> Choice:
    best = _best(scores)
    behind = [_behind(each, scores[best]) for each in scores]
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
    return Choice(recipes[taken], candidates, _why(names, behind, best, taken, len(scores[best].negative_energy)))


def _best(scores: Sequence[Scores]) -> int:
    """The highest likelihood; a model without one is best only where it is clearly ahead in the energy score."""
    with_density = [i for i, each in enumerate(scores) if each.log_likelihood is not None]
    if not with_density:
        return max(range(len(scores)), key=lambda i: float(scores[i].negative_energy.mean()))
    best = max(with_density, key=lambda i: float(scores[i].log_likelihood.mean()))  # pyright: ignore[reportOptionalMemberAccess]
    for i, each in enumerate(scores):
        if each.log_likelihood is None and _behind(scores[best], each) > CLEAR:
            best = i
    return best


def _behind(one: Scores, other: Scores) -> float:
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
        return f"{names[taken]} foresaw {rows} held-out rows best{against}."
    return (
        f"{names[best]} foresaw {rows} held-out rows best, but {names[taken]} is plainer and only"
        f" {behind[taken]:.1f} standard errors behind, which chance explains."
    )


def name_of(recipe: SCMRecipe) -> str:
    """A recipe in a word or two."""
    if not isinstance(recipe, DensitySCM):
        return type(recipe).__name__
    return type(recipe.law).__name__ + (", triangular" if recipe.order else "")


def _split(job: Job, held_out: float) -> tuple[Job, Job]:
    """The job's real rows with a next state, cut in two between subjects."""
    job = job[~job.data.imagined & job.data.has_next]
    order, kept = held_out_last(job.data.subject, held_out, derive(job.seed, "auto"))
    if kept < 2 or kept > len(order) - 2:
        raise CounterpointError(f"{len(order)} rows cannot be split with held_out={held_out}; give more rows")
    parts = (("kept", order[:kept]), ("judged", order[kept:]))
    learned, judged = (replace(job[rows], seed=derive(job.seed, name)) for name, rows in parts)
    return learned, judged
