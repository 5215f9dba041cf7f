"""Model selection among SCM recipes by held-out predictions over several steps, and by the effects of doses.

Every candidate is fitted on most of the subjects and scored on the others. Where records have several consecutive
rows, the score is the energy score of predicted paths, E‖X − s‖ − ½E‖X − X'‖ with X, X' drawn from the model (Gneiting
& Raftery 2007), and a candidate whose dose effects contradict the orthogonal estimates (`path_scores.effect_misfit`)
is passed over if another's do not. In tables of single steps the score is the log density of a row; a candidate that
has none (an adversarial model) is scored by its energy score. The simplest candidate that is within `CLEAR` standard
errors of the best is selected and fitted on all rows.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.jobs import Job, context
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Candidate, Recipe, Selection
from counterpoint.models.effects.estimates import EffectEstimates
from counterpoint.models.scm.base import StructuralCausalModel, spread
from counterpoint.models.scm.density import DensitySCM, LawMechanism
from counterpoint.models.scm.partially_linear import PartiallyLinearSCM
from counterpoint.models.scm.path_scores import effect_misfit, path_scores
from counterpoint.nets.likelihood import held_out_last
from counterpoint.nets.training import Monitor

DRAWS = 16
"""Pairs of next states drawn for every row of the energy score."""
CLEAR = 2.0
"""Standard errors above which a difference counts."""
CONTRADICTED = 4.0
"""Effect misfit above which a model's effects contradict the log: two standard errors on average."""


@dataclass(frozen=True)
class AutoSCM(Recipe[StructuralCausalModel]):
    """Fit the candidates, compare them on held-out subjects, and keep the simplest of the best.

    The fitted model's `selection` holds the scores, and its `structure` the recipe that was selected.
    """

    candidates: tuple[Recipe[StructuralCausalModel], ...] = (PartiallyLinearSCM(), DensitySCM())
    """The recipes to choose from, the simplest first; those that are not for the columns of a table are left out."""
    held_out: Share = 0.2
    """Share of the rows, by whole subjects, that the candidates are compared on."""
    members: Positive = 2
    """Members of a candidate while it is compared; the selected one is fitted with all of its own."""

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
        learned_jobs = [learned for learned, _ in splits]
        estimates = [_effects(job) for job in learned_jobs]
        scores: list[list[HeldOutScores]] = [[] for _ in jobs]
        fitted, refusals = list[Recipe[StructuralCausalModel]](), list[str]()
        for number, recipe in enumerate(self.candidates):
            try:
                with warnings.catch_warnings():  # The selected recipe says it when it is fitted on all rows.
                    warnings.filterwarnings("ignore", "this model's form does not hold declared signs")
                    models = self._brief(recipe).fit_many(learned_jobs, monitor.stage(f"candidate{number}"), device)
            except CounterpointError as error:  # A recipe that is not for the columns of this table.
                refusals.append(str(error))
                continue
            fitted.append(recipe)
            for k, (model, (learned, held_out)) in enumerate(zip(models, splits, strict=True)):
                scores[k].append(held_out_scores(model, held_out, learned, estimates[k]))
        if not fitted:
            raise CounterpointError(refusals[0])
        return [_selection(fitted, job_scores) for job_scores in scores]

    def _brief(self, recipe: Recipe[StructuralCausalModel]) -> Recipe[StructuralCausalModel]:
        """The recipe with few members, where it has an ensemble."""
        if isinstance(recipe, PartiallyLinearSCM):
            return replace(recipe, law=replace(recipe.law, ensemble=min(self.members, recipe.law.ensemble)))
        if isinstance(recipe, DensitySCM):
            return replace(recipe, ensemble=min(self.members, recipe.ensemble))
        return recipe


@dataclass(frozen=True)
class HeldOutScores:
    """The scores of a candidate; higher is better in all but the misfit."""

    log_likelihood: Float[Tensor, " n"] | None
    """Of every held-out row."""
    negative_energy: Float[Tensor, " n"]
    """Of every held-out row."""
    negative_path: Float[Tensor, " subjects"] | None = None
    """Of every held-out subject's paths; None where records are too short."""
    effect_misfit: float | None = None
    """Distance of the dose effects from the orthogonal estimates."""


@torch.no_grad()
def held_out_scores(
    model: StructuralCausalModel, job: Job, learned: Job | None = None, estimates: EffectEstimates | None = None
) -> HeldOutScores:
    """Scores of the model's predictions for the job's rows.

    Args:
        model: A fitted candidate.
        job: Held-out rows.
        learned: The rows that it was fitted on, along which its dose effects are computed.
        estimates: Orthogonal estimates of the dose effects; None to leave them out.
    """
    rows, theta, log_likelihood = job.data, job.rows_theta, None
    if model.theta_width and not theta.shape[1]:
        theta = model.factors_before(rows).mean
    if isinstance(model.mechanism, LawMechanism):
        log_likelihood = _log_density(model.mechanism, rows.to(model.device), theta.to(model.device)).cpu()
    energy = _energy(model, rows, theta, derive(job.seed, "energy"))
    path = path_scores(model, job, derive(job.seed, "paths"))
    misfit = None
    if learned is not None and estimates is not None:
        misfit = effect_misfit(model, learned.data, estimates, derive(job.seed, "effects"))
    return HeldOutScores(log_likelihood, -energy, None if path is None else -path, misfit)


def _effects(job: Job) -> EffectEstimates | None:
    """Orthogonal estimates of the dose effects; None where the log has too few subjects or steps for any."""
    return PartiallyLinearSCM().estimates(job.data, derive(job.seed, "effects"))


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
    names = [name_of(recipe) for recipe in recipes]
    agreeing = _agreeing(scores)
    best = max(agreeing, key=lambda i: _key(i, scores))
    for i in agreeing:  # A model without density is best only where it is clearly ahead in the energy score.
        if scores[i].log_likelihood is None and scores[i].negative_path is None:
            best = i if _behind(scores[best], scores[i]) > CLEAR else best
    behind = [_behind(candidate, scores[best]) for candidate in scores]
    taken = next(i for i in agreeing if behind[i] <= CLEAR)
    candidates = tuple(
        Candidate(
            name,
            None if s.log_likelihood is None else float(s.log_likelihood.mean()),
            -float(s.negative_energy.mean()),
            distance,
            None if s.negative_path is None else -float(s.negative_path.mean()),
            s.effect_misfit,
        )
        for name, s, distance in zip(names, scores, behind, strict=True)
    )
    why = _why(names, behind, best, taken, scores[best])
    passed = [name for i, name in enumerate(names) if i not in agreeing]
    if passed:
        why += f" The dose effects of {' and '.join(passed)} contradict the log's own."
    return Selection(recipes[taken], candidates, why)


def _agreeing(scores: Sequence[HeldOutScores]) -> list[int]:
    """The candidates whose dose effects the log does not contradict, or does as little as any other's."""
    misfits = [0.0 if score.effect_misfit is None else score.effect_misfit for score in scores]
    limit = max(CONTRADICTED, 2 * min(misfits))
    return [i for i, misfit in enumerate(misfits) if misfit <= limit]


def _key(index: int, scores: Sequence[HeldOutScores]) -> tuple[int, float]:
    """What the best candidate has most of: the path score, else the likelihood, else the energy score."""
    score = scores[index]
    if score.negative_path is not None:
        return 2, float(score.negative_path.mean())
    if score.log_likelihood is not None:
        return 1, float(score.log_likelihood.mean())
    return 0, float(score.negative_energy.mean())


def _behind(one: HeldOutScores, other: HeldOutScores) -> float:
    """Standard errors by which `one` is behind `other`, in the score that both have."""
    if one.negative_path is not None and other.negative_path is not None:
        difference = other.negative_path - one.negative_path
    elif one.log_likelihood is not None and other.log_likelihood is not None:
        difference = other.log_likelihood - one.log_likelihood
    else:
        difference = other.negative_energy - one.negative_energy
    error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return float(difference.mean()) / error if error > 0 else 0.0


def _why(names: Sequence[str], behind: Sequence[float], best: int, taken: int, scores: HeldOutScores) -> str:
    what = f"{len(scores.negative_energy)} held-out rows"
    if scores.negative_path is not None:
        what = f"the courses of {len(scores.negative_path)} held-out subjects"
    if taken == best:
        others = [f"{name} by {d:.1f}" for name, d in zip(names, behind, strict=True) if d > 0]
        against = f", ahead of {' and '.join(others)} standard errors" if others else ""
        return f"{names[taken]} predicts {what} best{against}."
    return (
        f"{names[best]} predicts {what} best, but {names[taken]} is simpler and only"
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
