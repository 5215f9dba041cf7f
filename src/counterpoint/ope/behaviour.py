"""How likely whoever logged takes each action: estimated from the log, every row by a model that never saw its subject.

An estimated probability is divided by, so that a small one which is wrong is worse than a coarse one: it is cut off
below at `least`, and how well the rest is calibrated is shown (Raghu et al., 2018).
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import MOST, NEIGHBOURS, Similar
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Fraction, Positive, Share, check_settings, checked
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.problem import subject_folds
from counterpoint.policies.base import action_numbers

EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bins of the calibration curve: tenths, the lowest one cut finer, because a weight is one over it."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often actions were taken that were given about the same probability; bins without any are left out."""

    probability: Float[Tensor, " bins"]
    """Mean probability in the bin."""
    taken: Float[Tensor, " bins"]
    """Share of its pairs in which the action was the one taken."""
    pairs: Int[Tensor, " bins"]
    """Pairs of a row and an action in the bin."""

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance between the two, over all pairs."""
        return float(((self.probability - self.taken).abs() * self.pairs).sum() / self.pairs.sum())


@dataclass(frozen=True, eq=False)
class Behaviour:
    """The probability of every action in every logged row, and how far it can be believed."""

    probabilities: Float[Tensor, "n a"]
    taken: Int[Tensor, " n"]
    """The action that was taken."""
    folds: Int[Tensor, " subjects"]
    """The fold of every subject that has rows; all 0 where nothing was estimated."""

    @classmethod
    def known(cls, probabilities: Float[Tensor, "n a"], rows: Transitions) -> "Behaviour":
        """The probabilities with which the actions were really drawn."""
        taken = _check_rows(rows)
        require(
            probabilities.shape == (len(rows), _actions(rows).count),
            f"{list(probabilities.shape)} probabilities for {len(rows)} rows and {_actions(rows).count} actions;"
            " give one a row and action",
        )
        whole = (probabilities >= 0).all() & ((probabilities.sum(1) - 1).abs() < 1e-4).all()
        require(bool(whole), "probabilities of a row are negative or do not sum to 1; give those of all actions")
        certain = probabilities.gather(1, taken[:, None]) > 0
        require(bool(certain.all()), "an action was taken that had probability 0; give the probabilities of that log")
        return cls(probabilities, taken, torch.zeros(len(rows.subject.unique()), dtype=torch.long))

    @property
    def brier(self) -> float:
        """Mean Σ_a (p_a − [a taken])² (Brier, 1950): 0 for an oracle, 2 at worst."""
        squares = self.probabilities.double().square().sum(1)
        return float((squares - 2 * self._of_taken().double() + 1).mean())

    def calibration(self) -> Calibration:
        """The reliability curve of all actions together: every pair of a row and an action counts.

        The action taken alone would say nothing: it was taken, whatever its probability.
        """
        edges = torch.tensor(EDGES[1:-1])
        bins = torch.bucketize(self.probabilities, edges.to(self.probabilities), right=True)
        chosen = torch.bincount(bins.gather(1, self.taken[:, None])[:, 0], minlength=len(EDGES) - 1)
        pairs = torch.bincount(bins.flatten(), minlength=len(EDGES) - 1)
        summed = torch.bincount(bins.flatten(), self.probabilities.flatten().double(), len(EDGES) - 1)
        some = pairs > 0
        return Calibration((summed / pairs)[some].float(), (chosen / pairs)[some], pairs[some])

    def _of_taken(self) -> Float[Tensor, " n"]:
        return self.probabilities.gather(1, self.taken[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class BehaviourModel(ABC):
    """How to estimate the behaviour. Assumes a discrete action space, and that the state is what was acted on."""

    least: Fraction = 0.001
    """No action is taken to be less likely; the rest is scaled to make room."""
    most: Positive = 50_000
    """Rows that a model is fitted on, drawn at random where there are more."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def estimated(self, seen: Transitions, asked: Transitions, seed: int) -> Float[Tensor, "n a"]:
        """The probabilities of the asked rows' actions, learned from those seen; 0 for an action never seen."""

    @checked
    def cross_fit(self, rows: Transitions, folds: Positive = 5, seed: int = 0) -> Behaviour:
        """The probabilities of every row, from models fitted on the subjects of the other folds."""
        taken, actions = _check_rows(rows), _actions(rows).count
        require(self.least * actions < 1, f"least={self.least} of {actions} actions is above 1 in all; give a smaller")
        subject = rows.subject.unique(return_inverse=True)[1]
        subjects = int(subject.max()) + 1
        require(2 <= folds <= subjects, f"folds={folds} of {subjects} subjects; give 2 or more, at most one for each")
        fold = subject_folds(subjects, folds, derive(seed, "behaviour"))
        probabilities = torch.zeros(len(rows), actions)
        for number in range(folds):
            asked = fold[subject] == number
            seen = _drawn(rows[~asked], self.most, derive(seed, "rows", number))
            probabilities[asked] = self.estimated(seen, rows[asked], derive(seed, "model", number))
        return Behaviour(_bounded(probabilities, self.least), taken, fold)


@dataclass(frozen=True, kw_only=True)
class Logistic(BehaviourModel):
    """Multinomial logistic regression on standardised columns."""

    penalty: Amount = 1.0
    """Strength of the ridge on the coefficients, in rows: 1 is scikit-learn's."""
    iterations: Positive = 200
    """Most iterations of L-BFGS."""
    most: Positive = 500_000
    """The regression takes seconds where trees take minutes, so that more rows may be seen."""

    def estimated(self, seen: Transitions, asked: Transitions, seed: int) -> Float[Tensor, "n a"]:
        from sklearn.linear_model import LogisticRegression

        return _classified(LogisticRegression(C=1 / self.penalty, max_iter=self.iterations, tol=1e-3), seen, asked)


@dataclass(frozen=True, kw_only=True)
class BoostedTrees(BehaviourModel):
    """Gradient-boosted trees, which find thresholds and interactions by themselves."""

    trees: Positive = 60
    """Trees an action."""
    leaves: Positive = 7
    """Most leaves of a tree."""
    learning_rate: Share = 0.15
    """How much of every tree is believed."""

    def estimated(self, seen: Transitions, asked: Transitions, seed: int) -> Float[Tensor, "n a"]:
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            learning_rate=self.learning_rate,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=seed % 2**32,
        )
        return _classified(model, seen, asked)


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(BehaviourModel):
    """The shares of actions among the most similar logged states, columns in units of their standard deviation."""

    neighbours: Positive = NEIGHBOURS
    """Similar states, at most a fifth of all."""
    most: Positive = MOST
    """Rows among which they are looked for, drawn at random where there are more."""

    def estimated(self, seen: Transitions, asked: Transitions, seed: int) -> Float[Tensor, "n a"]:
        similar = Similar(seen, self.neighbours, self.most, seed)
        found, _ = similar.nearest(asked.state)
        return similar.counted(found, _actions(seen).count) / similar.count


def _actions(rows: Transitions) -> Discrete:
    if not isinstance(rows.actions, Discrete):
        raise CounterpointError(
            "doses are continuous, and probabilities are those of a list of actions; cut them with actions=Bins()"
        )
    return rows.actions


def _check_rows(rows: Transitions) -> Int[Tensor, " n"]:
    """The actions taken in real rows with finite states; others are refused."""
    _actions(rows)
    require(len(rows) > 0, "the table has no rows; pass the logged ones")
    require(not bool(rows.imagined.any()), "nobody acted in imagined rows; pass the real rows alone (.real)")
    require(bool(rows.state.isfinite().all()), "the log has states that are not finite; fill them")
    return action_numbers(rows)


def _drawn(rows: Transitions, most: int, seed: int) -> Transitions:
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=generator(seed, "rows drawn"))[:most].sort().values]


def _classified(model: Any, seen: Transitions, asked: Transitions) -> Float[Tensor, "n a"]:
    """What a classifier of scikit-learn says; an action that it never saw has probability 0."""
    from sklearn.exceptions import ConvergenceWarning

    columns = spread_levels(seen.state, seen.schema.categories)
    centre, scale = columns.mean(0), columns.std(0)
    scale = torch.where(scale > 1e-8, scale, 1.0)
    probabilities = torch.zeros(len(asked), _actions(seen).count)
    known = seen.action_index.unique()
    if len(known) == 1:
        probabilities[:, known] = 1.0
        return probabilities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # What would go on converging has its Brier score, too.
        model.fit(((columns - centre) / scale).numpy(), seen.action_index.numpy())
    inputs = (spread_levels(asked.state, asked.schema.categories) - centre) / scale
    probabilities[:, known] = torch.from_numpy(model.predict_proba(inputs.numpy())).float()
    return probabilities


def _bounded(probabilities: Float[Tensor, "n a"], least: float) -> Float[Tensor, "n a"]:
    """None below `least`, all of them summing to 1: what lies above it is scaled down."""
    spare = (probabilities - least).clamp(min=0)
    return least + spare * (1 - least * probabilities.shape[1]) / spare.sum(1, keepdim=True)
