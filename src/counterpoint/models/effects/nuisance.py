"""Regressions on the history, cross-fitted by subject: no row is predicted by a fit that saw its subject.

A ridge on the features and their products gives every target; gradient-boosted trees on what the ridge leaves are
added to a target where they lower its error on held-out subjects.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from counterpoint.core.seeding import derive

PENALTIES = (1e-5, 1e-3, 1e-2, 1e-1)
"""Ridge penalties a row that are tried, for standardised features; of each target the best on held-out subjects."""
WORTH = 0.99
"""Share of the ridge's held-out error that trees must come below in the first fold to be fitted in the others."""
TREES = 60
LEAVES = 8
STEP = 0.1
BINS = 63


@dataclass(frozen=True)
class CrossFit:
    """Regressions of one set of rows with the same folds.

    Attributes:
        features: columns of the trees.
        expanded: columns of the ridge: standardised features with products.
        fold: fold of every row; all rows of a subject have the same.
        most_rows: rows that one fit of trees sees at most, a random part of the subjects.
        seed: seed of the trees and of that part.
    """

    features: Float[np.ndarray, "n f"]
    expanded: Float[np.ndarray, "n g"]
    fold: Int[np.ndarray, " n"]
    subject: Int[np.ndarray, " n"]
    most_rows: int
    seed: int

    def predict(
        self, targets: Float[np.ndarray, "n t"], rows: Bool[np.ndarray, " n"], boosted: list[bool]
    ) -> Float[np.ndarray, "n t"]:
        """E[target | features] of each of `rows`, fitted on the rows of other folds; the remaining rows hold 0.

        Args:
            targets: one column for each target.
            rows: rows where the targets are known.
            boosted: for each target, whether trees are tried.
        """
        place = np.flatnonzero(rows)
        ridge = _Ridge(self.expanded[place], targets[place], self.fold[place])
        whole = np.zeros_like(targets)
        whole[place] = ridge.predictions()
        for target in np.flatnonzero(boosted):
            whole[place, target] += self._trees(ridge, targets[place, target], int(target), place)
        return whole

    def _trees(
        self, ridge: "_Ridge", target: Float[np.ndarray, " m"], column: int, place: Int[np.ndarray, " m"]
    ) -> Float[np.ndarray, " m"]:
        """What trees add to the ridge's predictions; zeros where they do not lower the held-out error."""
        fold = self.fold[place]
        added = np.zeros(len(place))
        error_before = 0.0
        error_after = 0.0
        for number in np.unique(fold):
            apart = fold == number
            within = ridge.predict(int(number), column)
            rest = target - within
            added[apart] = self._fit_trees(place, rest, apart)
            error_before += float((rest[apart] ** 2).sum())
            error_after += float(((rest - added)[apart] ** 2).sum())
            if error_after > (WORTH if number == fold.min() else 1.0) * error_before:
                return np.zeros(len(place))
        return added

    def _fit_trees(
        self, place: Int[np.ndarray, " m"], rest: Float[np.ndarray, " m"], apart: Bool[np.ndarray, " m"]
    ) -> np.ndarray:
        from sklearn.ensemble import HistGradientBoostingRegressor

        learned = np.flatnonzero(~apart)
        if len(learned) > self.most_rows:
            learned = learned[some_subjects(self.subject[place[learned]], self.most_rows, self.seed)]
        trees = HistGradientBoostingRegressor(
            max_iter=TREES,
            max_leaf_nodes=LEAVES,
            learning_rate=STEP,
            max_bins=BINS,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=derive(self.seed, "trees") % 2**32,
        )
        trees.fit(self.features[place[learned]], rest[learned])
        return trees.predict(self.features[place[apart]])


class _Ridge:
    """Ridge regressions of many targets, one for each fold, on the rows of the other folds."""

    def __init__(
        self, features: Float[np.ndarray, "m g"], targets: Float[np.ndarray, "m t"], fold: Int[np.ndarray, " m"]
    ) -> None:
        self.x = np.concatenate([np.ones((len(features), 1)), features], 1)
        self.fold, self.targets = fold, targets
        self.numbers = np.unique(fold)
        products = {
            number: (
                self.x[fold == number].T @ self.x[fold == number],
                self.x[fold == number].T @ targets[fold == number],
            )
            for number in self.numbers
        }
        gram = sum(part[0] for part in products.values())
        moment = sum(part[1] for part in products.values())
        self.coefficients = {
            number: _solved(gram - own, moment - own_moment, int((fold != number).sum()))
            for number, (own, own_moment) in products.items()
        }
        self.chosen = self._best()

    def predict(self, number: int, target: int) -> Float[np.ndarray, " m"]:
        """Predictions for every row by the regression that leaves out fold `number`."""
        return self.x @ self.coefficients[number][self.chosen[target], :, target]

    def predictions(self) -> Float[np.ndarray, "m t"]:
        """Every row's prediction by the regression that leaves out its fold."""
        whole = np.empty_like(self.targets)
        each = np.arange(self.targets.shape[1])
        for number, coefficients in self.coefficients.items():
            whole[self.fold == number] = self.x[self.fold == number] @ coefficients[self.chosen, :, each].T
        return whole

    def _best(self) -> Int[np.ndarray, " t"]:
        """Of every target, the penalty with the least held-out error."""
        errors = np.zeros((len(PENALTIES), self.targets.shape[1]))
        for number, coefficients in self.coefficients.items():
            x, y = self.x[self.fold == number], self.targets[self.fold == number]
            errors += [((y - x @ part) ** 2).sum(0) for part in coefficients]
        return errors.argmin(0)


def _solved(
    gram: Float[np.ndarray, "g g"], moment: Float[np.ndarray, "g t"], rows: int
) -> Float[np.ndarray, "penalties g t"]:
    """Ridge coefficients under every penalty; the intercept is not shrunk."""
    mean = gram[0] / gram[0, 0]
    centred = gram[1:, 1:] - gram[0, 0] * np.outer(mean[1:], mean[1:])
    centred_moment = moment[1:] - np.outer(mean[1:], moment[0])
    values, vectors = np.linalg.eigh(centred)
    turned = vectors.T @ centred_moment
    slopes = [vectors @ (turned / (values.clip(min=0) + penalty * rows)[:, None]) for penalty in PENALTIES]
    return np.stack([np.concatenate([(moment[0] / gram[0, 0] - mean[1:] @ slope)[None], slope]) for slope in slopes])


def folds_by_subject(subject: Int[np.ndarray, " n"], folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """A fold for every row, the same for all rows of a subject; folds have about the same number of subjects."""
    names, index = np.unique(subject, return_inverse=True)
    order = np.random.default_rng(derive(seed, "folds")).permutation(len(names))
    return order[index] % min(folds, len(names))


def some_subjects(subject: Int[np.ndarray, " n"], most_rows: int, seed: int) -> Int[np.ndarray, " m"]:
    """Rows of a random part of the subjects, about `most_rows` of them."""
    names, index = np.unique(subject, return_inverse=True)
    order = np.random.default_rng(derive(seed, "some subjects")).permutation(len(names))
    kept = max(round(len(names) * most_rows / len(subject)), 1)
    return np.flatnonzero(order[index] < kept)
