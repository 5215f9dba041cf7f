"""Effects of doses over several steps, by g-estimation of a structural nested mean model with orthogonal moments.

    H_{k,t} = y_{t+k} − y_t − Σ_{0<j<k} ψ_{k−j}·a_{t+j}                      the later doses' effects taken off
    Σ_t ã_t·( H_{k,t} − E[H_{k,t} | x_t] − ψ_k·ã_t ) = 0,     ã_t = a_t − E[a_t | x_t]

x_t is the history: the state, lags of states and doses, their means so far, and the next values of exogenous columns.
ψ_k is the change of y after k steps for one more unit at t while the later doses stay as they were given (Robins 1994;
Vansteelandt and Joffe 2014). The conditional means of a subject come from regressions on other subjects, and the moment
is orthogonal to their errors (Chernozhukov et al. 2018; Lewis and Syrgkanis 2021): it is right where either the dose or
the outcome is modelled well. Standard errors are the jackknife over subjects of the stacked moments, so that the
uncertainty of ψ_k includes that of the earlier ψ.

What it assumes: the history holds every common cause of dose and outcome; rows whose record ends before t + k are like
the others given their history. Where the effect differs between rows, ψ is its average with the weights ã_t² (rows in
which doses vary most count most), which is not the plain average: compare a model's effects with the same weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Count, Positive, Share, check_settings
from counterpoint.data.schema import listed
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.estimates import EffectEstimate, EffectEstimates
from counterpoint.models.effects.history import History, standardised, with_products
from counterpoint.models.effects.nuisance import CrossFit, folds_by_subject

STEPS = (1, 2, 4, 8)
RELATIVE = 1e-9
"""Share of a dose's squared residuals that keeps the moments of a dose which one subject alone was given solvable."""


@dataclass(frozen=True)
class EffectSettings:
    """How effects are estimated."""

    lags: Count = 2
    """Earlier rows whose states and doses are part of the history; 0 for the state alone."""
    folds: Positive = 5
    """Parts of the subjects; each is predicted by regressions on the others."""
    boosted: bool = True
    """Whether gradient-boosted trees are tried beside ridge regression."""
    products: Count = 12
    """State columns whose squares and products enter the ridge, those that go most with doses and outcomes."""
    most_rows: Positive = 10_000
    """Rows that trees are fitted on, at most; ridges are fitted on all."""
    least_overlap: Share = 0.02
    """Share of a dose's variance that the history must leave; below, its effects are not estimated."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.folds > 1, "folds=1 would fit and predict the same subjects; give 2 or more")


def estimate_effects(
    rows: Transitions,
    outcomes: Sequence[str] = (),
    steps: Sequence[int] = STEPS,
    seed: int = 0,
    settings: EffectSettings = EffectSettings(),
) -> EffectEstimates:
    """Estimate the effects of all doses of a log.

    Args:
        rows: the log; imagined rows and rows without a next state are left out. A dose declared `per` a column is
            estimated in units of dose / column.
        outcomes: state columns; by default all that change and are not categories.
        steps: how many steps after the dose; those longer than every episode are left out.
        seed: seed of the folds.
    """
    return EffectMoments(rows, tuple(outcomes), seed, settings).estimates(steps)


class EffectMoments:
    """The moments of one log, whose nuisances are fitted once."""

    def __init__(
        self,
        rows: Transitions,
        outcomes: tuple[str, ...] = (),
        seed: int = 0,
        settings: EffectSettings = EffectSettings(),
    ) -> None:
        self.history = History.of(rows)
        self.settings, self.names = settings, rows.state_names
        self.outcomes = tuple(outcomes) or _moving(rows, self.history)
        unknown = [name for name in self.outcomes if name not in self.names]
        require(
            not unknown,
            f"'{(unknown or [''])[0]}' is no state column; the log has {listed(self.names)}",
        )
        subjects, self.subject_index = np.unique(self.history.subject, return_inverse=True)
        self.subjects = len(subjects)
        require(
            self.subjects > 1,
            "effects are estimated on some subjects and tested on others, and the log has one; give more subjects",
        )
        announced = [i for i in rows.schema.exogenous if self.names[i] not in self.outcomes]
        features = self.history.features(settings.lags, announced)
        expanded = with_products(standardised(features), self._product_columns(features))
        fold = folds_by_subject(self.history.subject, settings.folds, seed)
        self.crossfit = CrossFit(features, expanded, fold, self.history.subject, settings.most_rows, seed)

    @cached_property
    def dose_residual(self) -> Float[np.ndarray, "n p"]:
        """ã: what the history leaves of every dose."""
        dose = self.history.dose
        everywhere = np.ones(len(dose), dtype=bool)
        return dose - self.crossfit.predict(dose, everywhere, [self.settings.boosted] * dose.shape[1])

    @cached_property
    def overlap(self) -> Float[np.ndarray, " p"]:
        """Share of every dose's variance that the history leaves."""
        total = self.history.dose.var(0)
        return np.where(total > 0, (self.dose_residual**2).mean(0) / np.where(total > 0, total, 1.0), 0.0)

    @cached_property
    def told_apart(self) -> Int[np.ndarray, " q"]:
        """The doses whose effects can be estimated."""
        return np.flatnonzero(self.overlap >= self.settings.least_overlap)

    @cached_property
    def contrasts(self) -> Float[np.ndarray, " p"]:
        """A typical difference between two doses."""
        return np.array(
            [
                1.0 if treatment.reference else _typical(dose)
                for treatment, dose in zip(self.history.treatments, self.history.dose.T, strict=True)
            ]
        )

    def estimates(self, steps: Sequence[int]) -> EffectEstimates:
        """Effects after each of `steps`."""
        known = [step for step in sorted({*steps}) if self._subjects_with(step) > 1]
        if not known or min(known) < 1:
            raise CounterpointError(
                f"no two subjects have {min(steps, default=1)} steps in a row; give steps from 1 to the longest episode"
            )
        solved = _Solved(self, known)
        estimates = [
            self._estimate(solved, treatment, outcome, step)
            for treatment in range(len(self.history.treatments))
            for outcome in range(len(self.outcomes))
            for step in known
        ]
        return EffectEstimates(tuple(estimates))

    def placebo(self) -> EffectEstimates:
        """The 'effects' of doses on outcomes before the history's lags, which can be none.

        An estimate of step −m is the change of y_{t−m} for one more unit at t, given the history at t. Where its
        interval excludes 0, doses depend on a past that the lags do not hold.
        """
        back = self.settings.lags + 2
        place = self.history.place >= back
        columns = [self.names.index(name) for name in self.outcomes]
        if len(np.unique(self.history.subject[place])) < 2:
            return EffectEstimates(())
        earlier = np.zeros((len(place), len(columns)))
        earlier[place] = self.history.state[np.flatnonzero(place) - back][:, columns]
        rest = earlier - self.crossfit.predict(earlier, place, [False] * len(columns))
        solved = _Solved(self, [], (-back, place, rest))
        estimates = [
            self._estimate(solved, treatment, outcome, -back)
            for treatment in range(len(self.history.treatments))
            for outcome in range(len(columns))
        ]
        return EffectEstimates(tuple(estimates))

    def _estimate(self, solved: "_Solved", treatment: int, outcome: int, step: int) -> EffectEstimate:
        one = self.history.treatments[treatment]
        supported = treatment in self.told_apart
        place = int(np.searchsorted(self.told_apart, treatment))
        error = float(solved.error[step][place, outcome]) if supported else float("inf")
        return EffectEstimate(
            dose=one.name,
            outcome=self.outcomes[outcome],
            step=step,
            value=float(solved.effect[step][place, outcome]) if error < float("inf") else 0.0,
            standard_error=error,
            freedom=float(solved.freedom[step][place]) if supported else 1.0,
            contrast=float(self.contrasts[treatment]),
            noise=float(solved.noise[step][outcome]),
            overlap=float(self.overlap[treatment]),
            rows=solved.rows[step],
            reference=one.reference,
            per=one.per,
        )

    def _subjects_with(self, step: int) -> int:
        return len(np.unique(self.history.subject[self.history.ahead >= step])) if step > 0 else 0

    def _product_columns(self, features: Float[np.ndarray, "n f"]) -> list[int]:
        """Columns of the current state that go most with the doses and with the outcomes' changes."""
        current = self.history.features(0).shape[1]
        scaled = standardised(features[:, :current])
        changes = [self.history.after[:, i] - self.history.state[:, i] for i in map(self.names.index, self.outcomes)]
        targets = standardised(np.column_stack([self.history.dose, *changes]))
        correlation = np.abs(scaled.T @ targets / len(scaled))
        rank = np.maximum(correlation, np.abs((scaled**2 - 1).T @ targets / len(scaled))).max(1)
        return sorted(np.argsort(-rank)[: self.settings.products].tolist())


class _Solved:
    """The solution of the moments, horizon by horizon."""

    def __init__(
        self,
        moments: EffectMoments,
        steps: Sequence[int],
        earlier: tuple[int, np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.moments = moments
        self.residual = moments.dose_residual[:, moments.told_apart]
        self.later: list[np.ndarray] = []
        """What a ridge on the history at t leaves of the doses at t, t + 1, …"""
        self.effect: dict[int, np.ndarray] = {}
        self.influence: dict[int, np.ndarray] = {}
        self.error: dict[int, np.ndarray] = {}
        self.freedom: dict[int, np.ndarray] = {}
        self.noise: dict[int, np.ndarray] = {}
        self.rows: dict[int, int] = {}
        for step in range(1, max(steps, default=0) + 1):
            self._solve_step(step, step in steps)
        if earlier is not None:
            step, known, rest = earlier
            self._solve(step, known, rest[known], self.later[0][known] if self.later else self.residual[known])

    def _solve_step(self, step: int, asked: bool) -> None:
        """Solve first with the outcome and the doses regressed apart, then with H regressed as it is.

        H is often simpler than the outcome, which holds what the doses follow beside what follows from them.
        """
        moments, history = self.moments, self.moments.history
        known = history.ahead >= step
        columns = [moments.names.index(name) for name in moments.outcomes]
        outcome = np.stack([history.outcome(column, step) for column in columns], 1)
        doses = [history.doses_ahead(j)[:, moments.told_apart] for j in range(step)]
        targets = np.concatenate([outcome, doses[-1]], 1)
        rest = targets - moments.crossfit.predict(targets, known, [False] * targets.shape[1])
        self.later.append(rest[:, len(columns) :])
        left = rest[known, : len(columns)]
        for j in range(1, step):
            left = left - self.later[j][known] @ self.effect[step - j]
        now = self.later[0][known]
        self._solve(step, known, left, now)
        if asked:
            first = self.effect[step]
            nested = outcome - doses[0] @ first
            for j in range(1, step):
                nested -= doses[j] @ self.effect[step - j]
            nested[~known] = 0.0
            baseline = moments.crossfit.predict(nested, known, [moments.settings.boosted] * len(columns))
            self._solve(step, known, (nested - baseline)[known] + now @ first, now)

    def _solve(
        self, step: int, known: np.ndarray, left: Float[np.ndarray, "m d"], now: Float[np.ndarray, "m q"]
    ) -> None:
        """Solve Σ ã·(left − ψ·now) = 0, and keep every subject's influence on the solution."""
        residual, subject = self.residual[known], self.moments.subject_index[known]
        products = _by_subject(residual[:, :, None] * now[:, None, :], subject, self.moments.subjects)
        size = products.sum(0)
        size = size + RELATIVE * np.diag(np.diag(size))
        inverse = np.linalg.pinv(size)
        effect = inverse @ (residual.T @ left)
        scores = residual[:, :, None] * (left - now @ effect)[:, None, :]
        influence = np.linalg.pinv(size - products) @ _by_subject(scores, subject, self.moments.subjects)
        for j in range(1, step):
            influence -= inverse @ (residual.T @ self.later[j][known]) @ self.influence[step - j]
        present = len(np.unique(subject))
        self.effect[step], self.influence[step] = effect, influence
        self.error[step] = np.sqrt((present - 1) / present * (influence**2).sum(0))
        shares = np.diagonal(products, axis1=1, axis2=2)
        self.freedom[step] = np.maximum(shares.sum(0) ** 2 / (shares**2).sum(0) - 1, 1.0)
        self.noise[step] = (left - now @ effect).std(0)
        self.rows[step] = len(left)


def _by_subject(values: np.ndarray, subject: Int[np.ndarray, " m"], subjects: int) -> np.ndarray:
    """Sums over the rows of each subject."""
    order = np.argsort(subject, kind="stable")
    starts = np.flatnonzero(np.diff(subject[order], prepend=-1))
    totals = np.zeros((subjects, *values.shape[1:]))
    totals[subject[order][starts]] = np.add.reduceat(values[order], starts, axis=0)
    return totals


def _typical(dose: Float[np.ndarray, " n"]) -> float:
    low, high = np.quantile(dose, [0.25, 0.75])
    given = np.abs(dose[dose != 0])
    return float(high - low) or (float(np.median(given)) if len(given) else 0.0)


def _moving(rows: Transitions, history: History) -> tuple[str, ...]:
    """Numeric state columns that change and that are not declared to be copies of others."""
    schema = rows.schema
    left_out = {*schema.unpredicted, *(i for i, _ in schema.categories)}
    changes = history.after - history.state
    moving = [name for i, name in enumerate(schema.state_names) if i not in left_out and changes[:, i].std() > 0]
    if not moving:
        raise CounterpointError(
            "no numeric state column of the log changes, so there is no outcome; name other columns"
        )
    return tuple(moving)
