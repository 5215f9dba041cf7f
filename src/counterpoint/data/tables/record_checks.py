"""Checks of a log for actions and rewards recorded in another row, leaking state columns, and duplicated records.

An action depends on the state of its own row, so that state predicts it better than the states of neighbouring rows do.
A reward depends on its own row's state and action and on the next state. Linear fits of ranks compare the rows. A dose
with an effect is predicted by the states before and after it, one without an effect by the state it was chosen in.
No note quotes a value of a subject.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch

from counterpoint.data.transitions import Transitions

ENOUGH = 100
"""Least number of rows; the fits also need ten or twenty rows for each column."""
MARGIN = 0.03
"""Share of the variance that another row must explain in addition."""
SURE = 3.0
"""Number of standard errors (between subjects) by which the difference must exceed 0."""
REST = 0.3
"""Largest additional share explained by the own row, relative to that difference …"""
ADDED = 0.01
"""… and as a share of the variance: an action of the own row depends on its state, whatever else predicts it."""
STRONG = 0.5
"""Least share of a reward's variance explained by the state alone for a note."""
MOST_LEVELS = 10
"""Largest number of levels of a column that are compared."""
SAME, OTHER = 0.999, 0.98
"""Least correlation of two equal columns, and largest correlation of two different ones."""
KNOWS, KNOWS_DOSES = 0.9, 0.7
"""Least rank correlation of a constant column with the end of its record; the second for totals of binned doses."""
CERTAIN, BETTER = 0.95, 0.8
"""Least share of outcomes that a column predicts right, and least relative reduction of errors."""
LONG = 3
"""Least number of rows of a record that counts as a duplicate."""
RECORDS = 20
"""Least number of subjects."""
BEFORE = re.compile("prev|last|lag|before|prior", re.IGNORECASE)
"""Names of columns that hold the value of the row before."""


@dataclass(frozen=True)
class _Sorted:
    """Logged rows sorted by subject, episode and step."""

    rows: Transitions
    subject: np.ndarray
    follows: np.ndarray
    state: np.ndarray
    """Ranks of numbers and indicators of levels."""
    action: np.ndarray
    reward: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, table: Transitions) -> "_Sorted":
        real = table.real
        subject, episode, step = (column.numpy() for column in (real.subject, real.episode, real.step))
        order = np.lexsort((step, episode, subject))
        rows = real[torch.from_numpy(order)]
        subject, episode, step = subject[order], episode[order], step[order]
        follows = np.r_[False, (np.diff(subject) == 0) & (np.diff(episode) == 0) & (np.diff(step) == 1)]
        levels = dict(rows.schema.categories)
        state = [_features(column, i in levels) for i, column in enumerate(rows.state.numpy().astype(float).T)]
        action = np.column_stack([_ranks(column) for column in rows.action.numpy().astype(float).T])
        return cls(
            rows,
            subject,
            follows,
            np.column_stack(state),
            action[:, action.std(0) > 0],
            rows.reward.numpy().astype(float),
            rows.terminated.numpy(),
        )


def shifted_records(table: Transitions, suspected: bool = True) -> list[str]:
    """Return notes on actions and rewards that seem to be recorded a row too early or too late.

    Args:
        suspected: also note rewards that the state of their own row determines alone, which may be intended.
    """
    if len(table.real) < ENOUGH:
        return []
    log = _Sorted.of(table)
    return [*_shifted_actions(log), *_shifted_rewards(log, suspected)]


def _shifted_actions(log: _Sorted) -> list[str]:
    inner = np.flatnonzero(log.follows[:-3] & log.follows[1:-2] & log.follows[2:-1] & log.follows[3:]) + 1
    if len(inner) < max(ENOUGH, 20 * log.state.shape[1]) or not log.action.shape[1]:
        return []
    states = {by: log.state[inner + by] for by in (-1, 0, 1, 2)}
    chosen, subject = log.action[inner], log.subject[inner]
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(_action_column(name) for name in log.rows.action_names))
    alone = {by: _errors(state, chosen) for by, state in states.items()}
    pairs = {by: _errors(np.hstack([states[by], states[by + 1]]), chosen) for by in (-1, 0, 1)}
    gains = [(_difference(pairs[0], pairs[by], subject), by) for by in (1, -1)]
    for by in (1, -1):  # Doses without an effect are predicted by the state they were chosen in.
        gain, both = _difference(alone[0], alone[by], subject), pairs[min(by, 0)]
        added = float((alone[by] - both).mean())
        gains.append((gain if gain is not None and added < min(REST * gain, ADDED) else None, by))
    for gain, by in gains:
        if gain is not None:
            when, where, move = ("after", "early", "down") if by > 0 else ("before", "late", "up")
            return [
                f"the actions in {names} agree with the states of the row {when} theirs better than with their own"
                f" row's, as if recorded one row too {where}; move them {move} one row if so: else the"
                " advice is for another moment"
            ]
    return []


def _action_column(feature: str) -> str:
    """Return the action column of a feature such as drug=morphine."""
    return feature.partition("=")[0]


def _shifted_rewards(log: _Sorted, suspected: bool) -> list[str]:
    name = log.rows.layout.reward if log.rows.layout else "reward"
    sparse = _sparse(log, name)
    if sparse:
        return sparse
    inner = log.follows[:-2] & log.follows[1:-1] & log.follows[2:]
    middle = np.flatnonzero(inner)
    middle = middle[~log.ends[middle] & ~log.ends[middle + 1]]
    width = 2 * log.state.shape[1] + log.action.shape[1]
    if len(middle) < max(ENOUGH, 10 * width):
        return []
    earned, subject = _ranks(log.reward[middle])[:, None], log.subject[middle]
    if earned.std() == 0:
        return []

    def by(shift: int) -> np.ndarray:
        at = middle + shift
        return _errors(np.hstack([log.state[at], log.action[at], log.state[at + 1]]), earned)

    own_row = by(0)
    for shift, where, move in ((1, "early", "down"), (-1, "late", "up")):
        if _difference(own_row, by(shift), subject) is not None:
            which = "after" if shift > 0 else "before"
            return [
                f"the rewards in '{name}' follow from the row {which} theirs better than from their own, as if recorded"
                f" one row too {where}; move them {move} one row if so"
            ]
    alone = _errors(log.state[middle], earned)
    explained, rest = 1 - float(alone.mean()), float((alone - own_row).mean())
    after = _errors(log.state[middle + 1], earned)
    if suspected and explained > STRONG and rest < ADDED and _difference(after, alone, subject) is not None:
        return [
            f"the rewards in '{name}' follow from the state of their own row, and neither the action nor what comes"
            " after it adds to them: are they recorded one row too late? Then move them up one row"
        ]
    return []


def _sparse(log: _Sorted, name: str) -> list[str]:
    """Return a note on rewards paid once a record, on the row before the one that ends it."""
    paid = log.reward != np.median(log.reward)
    last = np.flatnonzero(log.ends & log.follows)
    if len(last) < RECORDS or paid.mean() > 0.5:
        return []
    before, at_end, total = paid[last - 1].mean(), paid[last].mean(), paid.sum()
    if before > CERTAIN and at_end < 1 - CERTAIN and paid[last - 1].sum() > CERTAIN * total:
        return [
            f"the rewards in '{name}' stand on the row before the one that ends the record, as if recorded one row too"
            " early; move them down one row if so"
        ]
    return []


def leaking_columns(table: Transitions) -> dict[str, str]:
    """Find state columns that are known only after the action.

    Such a column equals the reward of its own row, holds another column's next value, or never changes within a subject
    and determines how the record ends. Returns a note for each, by the name of the column.
    """
    if len(table.real) < ENOUGH:
        return {}
    log = _Sorted.of(table)
    state, names = log.rows.state.numpy().astype(float), log.rows.state_names
    categorical = {index for index, _ in log.rows.schema.categories}
    amounts = [i for i in range(state.shape[1]) if i not in categorical and np.ptp(state[:, i]) > 0]
    return {
        **_leaks_of_end(log, state, names),
        **_leaks_of_next_state(log, state, names, amounts),
        **_leaks_of_reward(log, state, names, amounts),
    }


def _leaks_of_reward(log: _Sorted, state: np.ndarray, names: tuple[str, ...], amounts: list[int]) -> dict[str, str]:
    reward = log.rows.layout.reward if log.rows.layout else "reward"
    if np.ptp(log.reward) == 0 or len(np.unique(log.reward)) < MOST_LEVELS:
        return {}
    return {
        names[i]: f"state column '{names[i]}' equals the reward '{reward}' of its own row, which is known only after"
        " the action; leave it out of the state unless the reward is computed from it"
        for i in amounts
        if abs(np.corrcoef(state[:, i], log.reward)[0, 1]) > SAME
    }


def _leaks_of_next_state(log: _Sorted, state: np.ndarray, names: tuple[str, ...], amounts: list[int]) -> dict[str, str]:
    later = np.flatnonzero(log.follows)
    if len(later) < ENOUGH:
        return {}
    before, after = state[later - 1][:, amounts], state[later][:, amounts]
    across = _correlations(before, after)
    within = np.abs(_correlations(state[:, amounts], state[:, amounts]))
    notes: dict[str, str] = {}
    for i, j in np.argwhere(np.abs(across) > SAME):
        column, other = names[amounts[i]], names[amounts[j]]
        if i != j and within[i, j] < OTHER and not BEFORE.search(other):
            notes[column] = (
                f"state column '{column}' equals '{other}' of the next row, so it contains the future; leave it out,"
                f" unless '{other}' holds the value of the row before"
            )
    return notes


def _leaks_of_end(log: _Sorted, state: np.ndarray, names: tuple[str, ...]) -> dict[str, str]:
    """Find columns that never change within a subject and determine its length, its doses or its outcome."""
    first = np.flatnonzero(np.r_[True, np.diff(log.subject) != 0])
    lengths = np.diff(np.r_[first, len(state)])
    if len(first) < RECORDS or (lengths == 1).all():
        return {}
    last = first + lengths - 1
    outcomes = {
        "the length of the record": (lengths.astype(float), KNOWS),
        "its total reward": (np.add.reduceat(log.reward, first), KNOWS),
    }
    for name, doses in zip(log.rows.action_names, log.rows.action.numpy().astype(float).T, strict=True):
        outcomes[f"the total of '{name}'"] = (np.add.reduceat(doses, first), KNOWS_DOSES)
    outcome = log.rows.outcome.numpy()[last]
    notes: dict[str, str] = {}
    for i, name in enumerate(names):
        value = state[first, i]
        if (state[:, i] != np.repeat(value, lengths)).any() or np.ptp(value) == 0:
            continue
        determined = [what for what, (total, limit) in outcomes.items() if _rank_correlation(value, total) > limit]
        determined += ["the outcome"] if _determines(value, outcome) else []
        if determined:
            notes[name] = (
                f"state column '{name}' never changes within a subject and determines {determined[0]}, which is known"
                " only at the end; leave it out of the state"
            )
    return notes


def _determines(value: np.ndarray, outcome: np.ndarray) -> bool:
    """Return whether the value determines the outcome, which is uncertain without it."""
    levels, code = np.unique(value, return_inverse=True)
    kinds, end = np.unique(outcome, return_inverse=True)
    if len(levels) > MOST_LEVELS or len(kinds) < 2:
        return False
    table = np.zeros((len(levels), len(kinds)))
    np.add.at(table, (code, end), 1)
    right, without = table.max(1).sum() / len(value), table.sum(0).max() / len(value)
    return bool(right >= CERTAIN and right - without >= BETTER * (1 - without))


def _features(values: np.ndarray, levels: bool) -> np.ndarray:
    if not levels:
        return _ranks(values)[:, None]
    common = np.unique(values, return_counts=True)
    kept = common[0][np.argsort(-common[1])][1:MOST_LEVELS]
    return (values[:, None] == kept).astype(float)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0 to 1; ties get their mean rank."""
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[code] / max(len(values) - 1, 1)


def _errors(predictors: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return squared errors of a linear fit as shares of the variance, corrected for the number of columns."""
    design = np.column_stack([np.ones(len(predictors)), predictors])
    coefficients, _, rank, _ = np.linalg.lstsq(design, target, rcond=1e-8)
    spread = target.var(0)
    error = (target - design @ coefficients) ** 2 / np.where(spread > 0, spread, np.inf)
    return error.mean(1) * len(predictors) / max(len(predictors) - rank, 1)


def _difference(errors: np.ndarray, other_errors: np.ndarray, subject: np.ndarray) -> float | None:
    """Return by how much the other fit is better where that is significant, else None."""
    difference = errors - other_errors
    subject_sums = np.bincount(np.unique(subject, return_inverse=True)[1], difference)
    gain = float(difference.mean())
    standard_error = float(subject_sums.std() * np.sqrt(len(subject_sums)) / len(difference))
    enough = len(subject_sums) >= RECORDS
    return gain if enough and gain > MARGIN and gain > SURE * standard_error else None


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    a, b = ((values - values.mean(0)) / np.maximum(values.std(0), 1e-12) for values in (one, other))
    return a.T @ b / len(one)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    a, b = _ranks(one), _ranks(other)
    return abs(float(np.corrcoef(a, b)[0, 1])) if a.std() > 0 and b.std() > 0 else 0.0


def duplicated_records(table: Transitions) -> list[str]:
    """Subjects subject records are another's, state for state: one patient under two ids."""
    rows = table.real
    order = np.lexsort((rows.step.numpy(), rows.episode.numpy(), rows.subject.numpy()))
    subject = rows.subject.numpy()[order]
    cells = np.column_stack([rows.state.numpy(), rows.action.numpy(), rows.reward.numpy()])[order].astype(np.float32)
    first = np.flatnonzero(np.r_[True, np.diff(subject) != 0])
    records = [part.tobytes() for part in np.split(cells, first[1:]) if len(part) >= LONG]
    twice = len(records) - len(set(records))
    if not twice or len(first) < RECORDS:
        return []
    return [
        f"the records of {twice} subject{'' if twice == 1 else 's'} are another's row for row, as if one had two ids:"
        " they would count twice, and be held out and learned from alike; leave the copies out"
    ]
