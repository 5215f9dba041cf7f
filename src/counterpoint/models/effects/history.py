"""A log as arrays for regressions on the history: rows in order, features of the past, doses, and outcomes ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from jaxtyping import Bool, Float, Int

from counterpoint.data.jobs import spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions

WINSORISED = 5.0
"""Standard deviations beyond which a feature is cut off, so that no square of an outlier decides a regression."""


@dataclass(frozen=True)
class Treatment:
    """One column of the treatment matrix: a dose, or one treatment against another."""

    name: str
    """The action column, or `column=label` of a treatment."""
    reference: str = ""
    """The treatment that it is compared with; "" for a dose."""
    per: str = ""
    """The state column that the dose is divided by; "" for none."""


@dataclass(frozen=True)
class History:
    """Rows sorted by subject, episode and step. A run is a stretch of consecutive rows of one episode."""

    subject: Int[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    """Place of each row in its run, from 0."""
    ahead: Int[np.ndarray, " n"]
    """Rows of the run from this one on: how many steps ahead an outcome is known."""
    state: Float[np.ndarray, "n s"]
    after: Float[np.ndarray, "n s"]
    treatments: tuple[Treatment, ...]
    dose: Float[np.ndarray, "n p"]
    inputs: Float[np.ndarray, "n w"]
    """State with one-hot categories."""

    @classmethod
    def of(cls, rows: Transitions) -> "History":
        """Sort the real rows that have a next state; doses declared `per` a column are divided by it."""
        rows = rows.with_next()
        rows = rows[rows.in_order()]
        schema = rows.schema
        state = rows.state.double().cpu()
        place, ahead = _runs(rows)
        treatments, dose = _treatments(schema, rows.action.double().cpu().numpy())
        scaled, dose = _scaled(schema, treatments, dose, state.numpy())
        return cls(
            subject=rows.subject.cpu().numpy(),
            place=place,
            ahead=ahead,
            state=state.numpy(),
            after=rows.next_state.double().cpu().numpy(),
            treatments=scaled,
            dose=dose,
            inputs=spread_levels(state, schema.categories).numpy(),
        )

    def __len__(self) -> int:
        return len(self.subject)

    def doses_ahead(self, steps: int) -> Float[np.ndarray, "n p"]:
        """Doses `steps` later; only rows with `ahead` above `steps` have them, the others hold 0."""
        return _shifted(self.dose, self.ahead > steps, steps)

    def outcome(self, column: int, steps: int) -> Float[np.ndarray, " n"]:
        """y_{t+steps} − y_t; only rows with `ahead` of `steps` or more have it, the others hold 0."""
        known = self.ahead >= steps
        later = _shifted(self.after[:, column], known, steps - 1)
        return np.where(known, later - self.state[:, column], 0.0)

    def features(self, lags: int, announced: Sequence[int] = ()) -> Float[np.ndarray, "n f"]:
        """State, its lags and those of the doses, and their means over the run so far: what a dose may depend on.

        A lag before the run's start holds the first state and no dose, and an indicator column says so. First rows have
        columns of their own for the state, because their doses cannot be explained by lags.

        Args:
            announced: exogenous state columns, whose next values are features too: no dose changes them.
        """
        columns = [self.inputs]
        deepest = int(self.place.max(initial=0))
        for lag in range(1, min(lags, deepest) + 1):
            known = self.place >= lag
            back = np.arange(len(self)) - np.minimum(lag, self.place)
            columns += [self.inputs[back], np.where(known[:, None], self.dose[back], 0.0), known[:, None].astype(float)]
        if lags and deepest:
            columns += [self._means_before(), np.where(self.place[:, None] == 0, self.inputs, 0.0)]
        columns.append(self.after[:, list(announced)])
        features = np.concatenate(columns, 1)
        return features[:, _distinct(features)]

    def _means_before(self) -> Float[np.ndarray, "n m"]:
        """Means of state and doses over the earlier rows of the run; the state itself, and no dose, in its first."""
        values = np.concatenate([self.inputs, self.dose], 1)
        totals = np.cumsum(values, 0) - values
        first = np.arange(len(self)) - self.place
        before = totals - totals[first]
        means = before / np.maximum(self.place, 1)[:, None]
        alone = np.concatenate([self.inputs, np.zeros_like(self.dose)], 1)
        return np.where(self.place[:, None] > 0, means, alone)


def standardised(features: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n f"]:
    """Features with mean 0 and spread 1, outliers cut off."""
    spread = features.std(0)
    scaled = (features - features.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.clip(scaled, -WINSORISED, WINSORISED)


def with_products(
    features: Float[np.ndarray, "n f"], columns: list[int], most_rows: int = 4096
) -> Float[np.ndarray, "n g"]:
    """Append squares and products of some standardised columns; those of no variation of their own are left out."""
    pairs = list(combinations_with_replacement(columns, 2))
    if not pairs:
        return features
    left, right = np.array(pairs).T
    few = features[:: max(len(features) // most_rows, 1)]
    kept = (few[:, left] * few[:, right]).std(0) > 1e-6
    products = features[:, left[kept]] * features[:, right[kept]]
    return np.concatenate([features, standardised(products)], 1)


def _runs(rows: Transitions) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    subject, episode, step = (column.cpu().numpy() for column in (rows.subject, rows.episode, rows.step))
    opens = np.ones(len(rows), dtype=bool)
    opens[1:] = (np.diff(subject) != 0) | (np.diff(episode) != 0) | (np.diff(step) != 1)
    start = np.flatnonzero(opens)
    run = np.cumsum(opens) - 1
    length = np.diff(np.append(start, len(rows)))
    place = np.arange(len(rows)) - start[run]
    return place, length[run] - place


def _shifted(values: np.ndarray, known: Bool[np.ndarray, " n"], steps: int) -> np.ndarray:
    later = np.zeros_like(values)
    place = np.flatnonzero(known)
    later[place] = values[place + steps]
    return later


def _treatments(
    schema: Schema, action: Float[np.ndarray, "n a"]
) -> tuple[tuple[Treatment, ...], Float[np.ndarray, "n p"]]:
    """The columns of the action, one-hot treatments without the commonest, which the others are compared with."""
    treatments: list[Treatment] = []
    columns: list[np.ndarray] = []
    for group in _groups(schema):
        names = [schema.action_names[i] for i in group]
        commonest = group[int(action[:, group].sum(0).argmax())] if len(group) > 1 else None
        for i, name in zip(group, names, strict=True):
            if i != commonest:
                reference = "" if commonest is None else schema.action_names[commonest].rpartition("=")[2]
                treatments.append(Treatment(name, reference))
                columns.append(action[:, i])
    return tuple(treatments), np.stack(columns, 1)


def _groups(schema: Schema) -> list[list[int]]:
    """Indices of the action columns, those of one one-hot choice together."""
    if schema.doses and isinstance(schema.actions, Discrete):
        widths = [len(column.feature_names()) for column in schema.doses]
        ends = np.cumsum(widths)
        return [list(range(end - width, end)) for width, end in zip(widths, ends, strict=True)]
    columns = list(range(schema.actions.width))
    one_hot = isinstance(schema.actions, Discrete) and schema.actions == Discrete.one_hot(schema.actions.width)
    return [columns] if one_hot and len(columns) > 1 else [[column] for column in columns]


def _scaled(
    schema: Schema,
    treatments: tuple[Treatment, ...],
    dose: Float[np.ndarray, "n p"],
    state: Float[np.ndarray, "n s"],
) -> tuple[tuple[Treatment, ...], Float[np.ndarray, "n p"]]:
    divisors = dict(schema.knowledge.per)
    scaled = tuple(Treatment(one.name, one.reference, divisors.get(one.name, "")) for one in treatments)
    columns = [
        dose[:, i] / state[:, schema.state_names.index(one.per)] if one.per else dose[:, i]
        for i, one in enumerate(scaled)
    ]
    return scaled, np.stack(columns, 1)


def _distinct(features: Float[np.ndarray, "n f"]) -> Bool[np.ndarray, " f"]:
    """Columns that vary, without exact copies of an earlier one."""
    varies = features.std(0) > 1e-9
    centred = standardised(features)
    seen: set[bytes] = set()
    for i in np.flatnonzero(varies):
        key = centred[:, i].round(9).tobytes()
        varies[i] = key not in seen
        seen.add(key)
    return varies
