"""Estimates of the behaviour policy: action probabilities in every row, cross-fitted by subject.

Importance weights divide by these probabilities, so small errors of small probabilities have large effects. They are
bounded below by `least`, and the calibration of the others is reported (Raghu et al., 2018).
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import (
    MOST,
    NEIGHBOURS,
    SimilarRows,
)
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Checked, Fraction, Positive, Share, checked
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.learners.base import action_numbers

BIN_EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bins of the calibration curve: tenths, the lowest one split further, because weights divide by probabilities."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration curve: predicted probabilities against observed frequencies; empty bins are left out."""

    probability: Float[Tensor, " bins"]
    """Mean predicted probability in each bin."""
    taken: Float[Tensor, " bins"]
    """Share of the pairs in each bin in which the action was taken."""
    pairs: Int[Tensor, " bins"]
    """Number of pairs of a row and an action in each bin."""

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of prediction and frequency, weighted by pairs."""
        return float(((self.probability - self.taken).abs() * self.pairs).sum() / self.pairs.sum())


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Action probabilities of the behaviour policy in every logged row, and their accuracy."""

    probabilities: Float[Tensor, "n a"]
    taken: Int[Tensor, " n"]
    """The logged actions."""
    folds: Int[Tensor, " subjects"]
    """Fold of every subject in cross-fitting; 0 for all where the probabilities were given."""

    @classmethod
    def of_probabilities(cls, probabilities: Float[Tensor, "n a"], rows: Transitions) -> "Behaviour":
        """Wrap known probabilities of the logged actions; refuse invalid ones."""
        taken = _check_rows(rows)
        require(
            probabilities.shape == (len(rows), _actions(rows).count),
            f"{list(probabilities.shape)} probabilities for {len(rows)} rows and {_actions(rows).count} actions;"
            " give one a row and action",
        )
        valid = (probabilities >= 0).all() & ((probabilities.sum(1) - 1).abs() < 1e-4).all()
        require(bool(valid), "probabilities of a row are negative or do not sum to 1; give those of all actions")
        positive = probabilities.gather(1, taken[:, None]) > 0
        require(bool(positive.all()), "an action was taken that had probability 0; give the probabilities of that log")
        return cls(probabilities, taken, torch.zeros(len(rows.subject.unique()), dtype=torch.long))

    @property
    def brier(self) -> float:
        """Brier score: mean Σ_a (p_a − [a taken])² (Brier, 1950), from 0 to 2."""
        squares = self.probabilities.double().square().sum(1)
        of_taken = self.probabilities.gather(1, self.taken[:, None])[:, 0]
        return float((squares - 2 * of_taken.double() + 1).mean())

    def calibration(self) -> Calibration:
        """Compute the calibration curve over all pairs of a row and an action."""
        edges = torch.tensor(BIN_EDGES[1:-1])
        bins = torch.bucketize(self.probabilities, edges.to(self.probabilities), right=True)
        chosen = torch.bincount(bins.gather(1, self.taken[:, None])[:, 0], minlength=len(BIN_EDGES) - 1)
        pairs = torch.bincount(bins.flatten(), minlength=len(BIN_EDGES) - 1)
        summed = torch.bincount(bins.flatten(), self.probabilities.flatten().double(), len(BIN_EDGES) - 1)
        filled = pairs > 0
        return Calibration((summed / pairs)[filled].float(), (chosen / pairs)[filled], pairs[filled])


@dataclass(frozen=True, kw_only=True)
class BehaviourModel(Checked, ABC):
    """Base class of recipes for the behaviour policy.

    Assumes a discrete action space, and that the behaviour policy acted on the logged state.
    """

    least: Fraction = 0.001
    """Lower bound of all probabilities; the rest is rescaled to sum to 1."""
    most: Positive = 50_000
    """Rows that a model is fitted on, at most; a random sample of more."""

    @abstractmethod
    def predict(self, train: Transitions, test: Transitions, seed: int) -> Float[Tensor, "n a"]:
        """Fit on `train` and return the action probabilities in `test`; 0 for actions that `train` lacks."""

    @checked
    def cross_fit(self, rows: Transitions, folds: Positive = 5, seed: int = 0) -> Behaviour:
        """Estimate every row's probabilities by a model fitted on the subjects of the other folds."""
        taken, actions = _check_rows(rows), _actions(rows).count
        require(self.least * actions < 1, f"least={self.least} of {actions} actions is above 1 in all; give a smaller")
        subject = rows.subject.unique(return_inverse=True)[1]
        subjects = int(subject.max()) + 1
        require(2 <= folds <= subjects, f"folds={folds} of {subjects} subjects; give 2 or more, at most one for each")
        fold = subject_folds(subjects, folds, derive(seed, "behaviour"))
        probabilities = torch.zeros(len(rows), actions)
        for number in range(folds):
            test = fold[subject] == number
            train = _sample(rows[~test], self.most, derive(seed, "rows", number))
            probabilities[test] = self.predict(train, rows[test], derive(seed, "model", number))
        return Behaviour(_bounded_below(probabilities, self.least), taken, fold)


@dataclass(frozen=True, kw_only=True)
class Logistic(BehaviourModel):
    """Multinomial logistic regression on standardised columns."""

    command: ClassVar = ("logistic", "multinomial logistic regression")
    penalty: Amount = 1.0
    """Ridge penalty on the coefficients: 1/C of scikit-learn."""
    iterations: Positive = 200
    """Largest number of L-BFGS iterations."""
    most: Positive = 500_000
    """Higher than for trees, because the regression is much faster."""

    def predict(self, train: Transitions, test: Transitions, seed: int) -> Float[Tensor, "n a"]:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=1 / self.penalty, max_iter=self.iterations, tol=1e-3)
        return _classifier_probabilities(model, train, test)


@dataclass(frozen=True, kw_only=True)
class BoostedTrees(BehaviourModel):
    """Gradient-boosted trees."""

    command: ClassVar = ("trees", "gradient-boosted trees")
    trees: Positive = 60
    """Trees for each action."""
    leaves: Positive = 7
    """Largest number of leaves of a tree."""
    learning_rate: Share = 0.15
    """Shrinkage of every tree."""

    def predict(self, train: Transitions, test: Transitions, seed: int) -> Float[Tensor, "n a"]:
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            learning_rate=self.learning_rate,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=seed % 2**32,
        )
        return _classifier_probabilities(model, train, test)


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(BehaviourModel):
    """Shares of actions among the nearest logged states, in standardised columns."""

    command: ClassVar = ("neighbours", "shares of actions in similar states")
    neighbours: Positive = NEIGHBOURS
    """Number of neighbours, at most a fifth of all rows."""
    most: Positive = MOST
    """Rows that are searched, at most; a random sample of more."""

    def predict(self, train: Transitions, test: Transitions, seed: int) -> Float[Tensor, "n a"]:
        similar = SimilarRows(train, self.neighbours, self.most, seed)
        neighbours, _ = similar.nearest(test.state)
        return similar.counted(neighbours, _actions(train).count) / similar.count


def _actions(rows: Transitions) -> Discrete:
    if not isinstance(rows.actions, Discrete):
        raise CounterpointError(
            "doses are continuous, and probabilities are those of a list of actions; cut them with actions=Bins()"
        )
    return rows.actions


def _check_rows(rows: Transitions) -> Int[Tensor, " n"]:
    """Return the logged actions; refuse imagined rows and states that are not finite."""
    _actions(rows)
    require(len(rows) > 0, "the table has no rows; pass the logged ones")
    require(not bool(rows.imagined.any()), "nobody acted in imagined rows; pass the real rows alone (.real)")
    require(bool(rows.state.isfinite().all()), "the log has states that are not finite; fill them")
    return action_numbers(rows)


def _sample(rows: Transitions, most: int, seed: int) -> Transitions:
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=generator(seed, "rows drawn"))[:most].sort().values]


def _classifier_probabilities(model: Any, train: Transitions, test: Transitions) -> Float[Tensor, "n a"]:
    """Fit a scikit-learn classifier and return its probabilities; 0 for actions that `train` lacks."""
    from sklearn.exceptions import ConvergenceWarning

    columns = spread_levels(train.state, train.schema.categories)
    centre, scale = columns.mean(0), columns.std(0)
    scale = torch.where(scale > 1e-8, scale, 1.0)
    probabilities = torch.zeros(len(test), _actions(train).count)
    observed = train.action_index.unique()
    if len(observed) == 1:
        probabilities[:, observed] = 1.0
        return probabilities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # The Brier score shows whether the fit is good enough.
        model.fit(((columns - centre) / scale).numpy(), train.action_index.numpy())
    inputs = (spread_levels(test.state, test.schema.categories) - centre) / scale
    probabilities[:, observed] = torch.from_numpy(model.predict_proba(inputs.numpy())).float()
    return probabilities


def _bounded_below(probabilities: Float[Tensor, "n a"], least: float) -> Float[Tensor, "n a"]:
    """Raise probabilities below `least` to it and scale the others down, so that the sum is 1."""
    spare = (probabilities - least).clamp(min=0)
    return least + spare * (1 - least * probabilities.shape[1]) / spare.sum(1, keepdim=True)
