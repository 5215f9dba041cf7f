"""A policy laid beside a log: the question that estimators are asked, and what must be learned to answer it."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.seeding import derive
from counterpoint.core.settings import Fraction, Positive, Share, check_settings
from counterpoint.core.statistics import Interval
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Behaviour, BoostedTrees, Logistic, NearestNeighbours
from counterpoint.ope.cells import CellCounts, CellFQE, all_categories
from counterpoint.ope.confounding import Confounding
from counterpoint.ope.critic import Critic, mean_in_members
from counterpoint.ope.doubly_robust import doubly_robust, magic, weighted_doubly_robust
from counterpoint.ope.episodes import Episodes, Question, resampled, subject_folds
from counterpoint.ope.fqe import FQE
from counterpoint.ope.intervals import Counts, Estimator, interval_of, paired_interval
from counterpoint.ope.one_step import one_step_doubly_robust, widened
from counterpoint.ope.target import EpsilonMixture, Probabilities, Stochastic, target
from counterpoint.ope.verdict import Limits
from counterpoint.ope.weighting import (
    logged_return,
    per_decision_weighted_importance_sampling,
    weighted_importance_sampling,
)
from counterpoint.policies.base import Policy

RECOMMENDED = "one-step DR"
"""The estimate to go by."""
LEAST = 1e-12
"""A spread of critics that are all alike."""

BehaviourRecipe = Logistic | BoostedTrees | NearestNeighbours | CellCounts


@dataclass(frozen=True)
class OPESettings:
    """How policies are judged."""

    behaviour: BehaviourRecipe | None = None
    """How whoever logged is estimated; none for counts where all state columns are categories, else for the way, of
    logistic regression and `others`, that foresees other subjects best (the least Brier score)."""
    others: tuple[BehaviourRecipe, ...] | None = None
    """Other ways, to see how much the estimate depends on it; none for a choice of them."""
    critic: FQE | CellFQE | None = None
    """How values are fitted; none for counts where all state columns are categories, else linear in random features."""
    softened: EpsilonMixture = EpsilonMixture()
    """What is judged in place of a policy that always takes one action."""
    confounding: Confounding = Confounding()
    """Which strengths of unmeasured confounding are looked at."""
    limits: Limits = Limits()
    """Where trust ends."""
    severity: str = ""
    """State column whose first value says how ill a subject is; empty for the return foreseen from the first state."""
    discount: Share = 1.0
    """Of a reward one step later; 1 counts all steps of a record alike."""
    draws: Positive = 1000
    """Resamples of the subjects."""
    critic_draws: Positive = 200
    """Resamples on each of which a critic is fitted."""
    folds: Positive = 5
    """Parts of the subjects, each judged by behaviours and critics of the others."""
    confidence: Fraction = 0.95
    """Of the intervals."""

    def __post_init__(self) -> None:
        check_settings(self)

    def for_table(self, schema: Schema) -> "ChosenRecipes":
        """The recipes that a table decides."""
        counted = all_categories(schema)
        behaviour = self.behaviour or (CellCounts() if counted else Logistic())
        usual: tuple[BehaviourRecipe, ...] = Logistic(), NearestNeighbours(), BoostedTrees()
        usual = (CellCounts(prior=10.0),) if counted else tuple(each for each in usual if each != behaviour)
        others = usual if self.others is None else self.others
        return ChosenRecipes(behaviour, others, self.critic or (CellFQE() if counted else FQE()))


@dataclass(frozen=True)
class ChosenRecipes:
    """The recipes of one table."""

    behaviour: BehaviourRecipe
    others: tuple[BehaviourRecipe, ...]
    critic: FQE | CellFQE


def said(recipe: Any) -> str:
    """A recipe's name, and what in it is unusual."""
    own = [(field.name, getattr(recipe, field.name), field.default) for field in fields(recipe)]
    unusual = [f"{name}={value}" for name, value, usual in own if usual is not MISSING and value != usual]
    return type(recipe).__name__ + (f"({', '.join(unusual)})" if unusual else "")


Own = Bool[Tensor, " subjects"]


@dataclass(frozen=True, eq=False)
class OPEProblem:
    """A policy laid beside a log: the question, and what was learned to answer it."""

    question: Question
    policy: Probabilities
    """The policy before any softening."""
    certain: bool
    """Whether it always takes one action."""
    behaviours: dict[str, Behaviour]
    """Whoever logged, in all rows of `log`, by the name of the way: as estimated first, and in other ways."""
    critic: Critic
    """Of every row, by a member that has not seen its subject."""
    first: Float[Tensor, "b e"]
    """The value of every episode's first state in critics of resampled logs, the first of which is the log itself."""
    counts: Float[Tensor, "b subjects"]
    """Those resamples."""
    log: Transitions
    """The rows that are judged, and behind them those of other subjects."""

    @property
    def estimators(self) -> dict[str, Estimator]:
        """What a resampled log says with critic and behaviour held fixed; those of `corrected` rest on the critic."""
        weighted = {"WIS": weighted_importance_sampling, "per-decision WIS": per_decision_weighted_importance_sampling}
        return {**self.corrected, **weighted}

    @property
    def corrected(self) -> dict[str, Estimator]:
        rest = {"DR": doubly_robust, "WDR": weighted_doubly_robust, "MAGIC": magic}
        named: dict[str, Callable[..., Tensor]] = {RECOMMENDED: one_step_doubly_robust, **rest}
        return {name: partial(each, critic=self.critic) for name, each in named.items()}

    def fitted(self, own: Own | None = None) -> Float[Tensor, " b"]:
        """What every critic of a resampled log says of it, or of some of its subjects."""
        return mean_in_members(self.question.episodes, self.first, self.counts if own is None else self.counts * own)

    def interval(self, name: str, how: OPESettings, seed: int, own: Own | None = None) -> Interval:
        """An estimate, of some of the subjects or of all; a fixed critic's own spread is added to it."""
        found = interval_of(within(self.estimators[name], own), self.question, *chance(how, seed))
        return widened(found, spread(self.fitted(own)), how.confidence) if name in self.corrected else found

    def gain(self, how: OPESettings, seed: int) -> Interval:
        """The recommended estimate less what whoever logged earned, in the same subjects."""
        question, estimator = self.question, self.estimators[RECOMMENDED]
        found = paired_interval(estimator, question, question, logged_return, *chance(how, seed))
        apart = self.fitted() - logged_return(question, self.counts)
        return widened(found, spread(apart), how.confidence)

    def gain_over(self, other: "OPEProblem", how: OPESettings, seed: int) -> Interval:
        """The same less another policy's, whose critics have seen the same resampled logs."""
        estimators = self.estimators[RECOMMENDED], other.estimators[RECOMMENDED]
        found = paired_interval(estimators[0], self.question, other.question, estimators[1], *chance(how, seed))
        return widened(found, spread(self.fitted() - other.fitted()), how.confidence)

    def with_behaviour(self, behaviour: Behaviour) -> "OPEProblem":
        """The same case by another estimate of whoever logged."""
        acted = behaviour.probabilities[: len(self.question.rows)]
        return replace(self, question=replace(self.question, behaviour=acted))


def chance(how: OPESettings, seed: int) -> tuple[int, float, int]:
    """Draws, confidence and seed of an interval over subjects: the same subjects for all."""
    return how.draws, how.confidence, derive(seed, "subjects")


def spread(values: Float[Tensor, " b"]) -> float:
    """Standard deviation over the resampled logs."""
    return max(float(values[1:].std()), LEAST) if len(values) > 2 else LEAST


def within(estimator: Estimator, own: Own | None) -> Estimator:
    """The same estimator among some of the subjects."""

    def among(question: Question, counts: Counts) -> Float[Tensor, " b"]:
        return estimator(question, counts if own is None else counts * own)

    return among


def lay_beside(
    rows: Transitions,
    policy: Policy | Stochastic,
    how: OPESettings,
    others: Transitions | None = None,
    model: Model | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
    behaviours: dict[str, Behaviour] | None = None,
) -> OPEProblem:
    """Ask the policy, estimate who logged (unless that was done), fit the critics."""
    episodes, found = Episodes.of(rows), target(policy, rows, model, seed)
    log = whole_log(rows, others)
    behaviours = behaviours or estimate_behaviours(how, log, seed, monitor)
    acted = next(iter(behaviours.values())).probabilities[: len(rows)]
    judged = found.softened(how.softened, rows, acted)
    question = Question(episodes, judged.now, judged.after, acted, how.discount)
    recipe, own = how.for_table(rows.schema).critic, derive(seed, "critic")
    folds = subject_folds(episodes.subjects, min(how.folds, episodes.subjects), own)
    critic = recipe.cross_fit(question, folds, own, monitor.stage("critic"))
    drawn = resampled(episodes.subjects, how.critic_draws, derive(seed, "critics"))
    counts = torch.cat([torch.ones_like(drawn[:1]), drawn])
    first = recipe.first_values(question, counts, own, monitor.stage("resampled critics"))
    return OPEProblem(question, found.now, found.certain, behaviours, critic, first, counts, log)


def whole_log(rows: Transitions, others: Transitions | None) -> Transitions:
    """The rows that are judged, and behind them those of other subjects."""
    return concatenate([rows, others]) if others is not None and len(others) else rows


def estimate_behaviours(how: OPESettings, log: Transitions, seed: int, monitor: Monitor) -> dict[str, Behaviour]:
    """Whoever logged, in every way asked for; the best first, where none was asked for first."""
    chosen, found, folds = how.for_table(log.schema), {}, min(how.folds, len(log.subject.unique()))
    recipes = chosen.behaviour, *chosen.others
    for done, recipe in enumerate(recipes):
        monitor.report("who logged", done, len(recipes))
        found[said(recipe)] = recipe.cross_fit(log, folds, derive(seed, "behaviour"))
    monitor.report("who logged", len(recipes), len(recipes))
    if how.behaviour is not None or all_categories(log.schema):  # Counts have seen the rows that they are scored on.
        return found
    return dict(sorted(found.items(), key=lambda named: named[1].brier))
