"""Doses and rewards that stand in another row than their own, and state columns that know what comes later.

The action of a row is chosen by the state of that row, so that state explains it better than its neighbours do; a
reward follows from its own row's state and action and the state after them. Ranks and linear fits say which row does.
A dose that acts is told by the states before and after it, one without an effect by the state that it was chosen by.
No note quotes a value.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch

from counterpoint.data.transitions import Transitions

ENOUGH = 100
"""Rows from which neighbours are compared; fewer say little, and so do fewer than ten for each column."""
MARGIN = 0.03
"""Share of the variance by which another row must explain more."""
SURE = 3.0
"""Standard errors, between subjects, that the difference must be above 0."""
REST = 0.3
"""What the row itself may add, as a share of that difference: actions that move the next state need both."""
STRONG = 0.5
"""Share of a reward's variance from which a state that alone explains it is named."""
MOST_LEVELS = 10
"""Levels of a column that are compared."""
SAME, OTHER = 0.999, 0.98
"""Correlation of two columns that say the same, and of two that do not."""
KNOWS, KNOWS_DOSES = 0.9, 0.7
"""Rank correlation from which a column that never changes in a record knows its end; doses are known as bins only."""
CERTAIN, BETTER = 0.95, 0.8
"""Share of outcomes that a column tells, and share of the errors without it that it spares."""
LONG = 3
"""Rows of a record that no two subjects share by chance."""
RECORDS = 20
"""Records from which that is told."""
BEFORE = re.compile("prev|last|lag|before|prior", re.IGNORECASE)
"""In the name of a column that holds what was."""


@dataclass(frozen=True)
class _Sorted:
    """Real rows by subject, episode and step; `follows` says which is one step after the row before it."""

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
        whose, episode, step = (each.numpy() for each in (real.subject, real.episode, real.step))
        order = np.lexsort((step, episode, whose))
        rows = real[torch.from_numpy(order)]
        whose, episode, step = whose[order], episode[order], step[order]
        follows = np.r_[False, (np.diff(whose) == 0) & (np.diff(episode) == 0) & (np.diff(step) == 1)]
        levels = dict(rows.schema.categories)
        state = [_told(own, place in levels) for place, own in enumerate(rows.state.numpy().astype(float).T)]
        action = np.column_stack([_ranks(own) for own in rows.action.numpy().astype(float).T])
        return cls(
            rows,
            whose,
            follows,
            np.column_stack(state),
            action[:, action.std(0) > 0],
            rows.reward.numpy().astype(float),
            rows.terminated.numpy(),
        )


def misplaced(table: Transitions, suspected: bool = True) -> list[str]:
    """Actions and rewards that seem to stand a row too early or too late.

    Rewards that follow from the state of their own row alone are `suspected` only: they may be meant so.
    """
    if len(table.real) < ENOUGH:
        return []
    log = _Sorted.of(table)
    return [*_misplaced_action(log), *_misplaced_reward(log, suspected)]


def _misplaced_action(log: _Sorted) -> list[str]:
    inner = np.flatnonzero(log.follows[:-3] & log.follows[1:-2] & log.follows[2:-1] & log.follows[3:]) + 1
    if len(inner) < max(ENOUGH, 20 * log.state.shape[1]) or not log.action.shape[1]:
        return []
    states = {by: log.state[inner + by] for by in (-1, 0, 1, 2)}
    chosen, whose = log.action[inner], log.subject[inner]
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(_column(name) for name in log.rows.action_names))
    alone = {by: _errors(state, chosen) for by, state in states.items()}
    pairs = {by: _errors(np.hstack([states[by], states[by + 1]]), chosen) for by in (-1, 0, 1)}
    found = [(_difference(pairs[0], pairs[by], whose), by) for by in (1, -1)]
    for by in (1, -1):  # Doses without an effect are told by what they were chosen by.
        gain, both = _difference(alone[0], alone[by], whose), pairs[min(by, 0)]
        found.append((gain if gain is not None and (alone[by] - both).mean() < REST * gain else None, by))
    for gain, by in found:
        if gain is not None:
            when, where, move = ("after", "early", "down") if by > 0 else ("before", "late", "up")
            return [
                f"the actions in {names} go with the states of the row {when} theirs more than with their own row's, as"
                f" if recorded one row too {where}; move them {move} one row if so: else advice is for another moment"
            ]
    return []


def _column(feature: str) -> str:
    """The action column of a feature such as drug=morphine."""
    return feature.partition("=")[0]


def _misplaced_reward(log: _Sorted, suspected: bool) -> list[str]:
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
    earned, whose = _ranks(log.reward[middle])[:, None], log.subject[middle]
    if earned.std() == 0:
        return []

    def by(shift: int) -> np.ndarray:
        at = middle + shift
        return _errors(np.hstack([log.state[at], log.action[at], log.state[at + 1]]), earned)

    own = by(0)
    for shift, where, move in ((1, "early", "down"), (-1, "late", "up")):
        if _difference(own, by(shift), whose) is not None:
            which = "after" if shift > 0 else "before"
            return [
                f"the rewards in '{name}' follow from the row {which} theirs more than from their own, as if recorded"
                f" one row too {where}; move them {move} one row if so"
            ]
    alone = _errors(log.state[middle], earned)
    told, left = 1 - float(alone.mean()), float((alone - own).mean())
    after = _errors(log.state[middle + 1], earned)
    if suspected and told > STRONG and left < MARGIN / 3 and _difference(after, alone, whose) is not None:
        return [
            f"the rewards in '{name}' follow from the state of their own row, and neither the action nor what comes"
            " after it adds to them: are they recorded one row too late? Then move them up one row"
        ]
    return []


def _sparse(log: _Sorted, name: str) -> list[str]:
    """Rewards that are paid once a record, on the row before the one that ends it."""
    paid = log.reward != np.median(log.reward)
    last = np.flatnonzero(log.ends & log.follows)
    if len(last) < RECORDS or paid.mean() > 0.5:
        return []
    before, own, all_paid = paid[last - 1].mean(), paid[last].mean(), paid.sum()
    if before > CERTAIN and own < 1 - CERTAIN and paid[last - 1].sum() > CERTAIN * all_paid:
        return [
            f"the rewards in '{name}' stand on the row before the one that ends the record, as if recorded one row too"
            " early; move them down one row if so"
        ]
    return []


def knowing(table: Transitions) -> list[str]:
    """State columns that hold what is known only after the action: the reward, the next row, or how the record ends."""
    if len(table.real) < ENOUGH:
        return []
    log = _Sorted.of(table)
    state, names = log.rows.state.numpy().astype(float), log.rows.state_names
    levels = {place for place, _ in log.rows.schema.categories}
    amounts = [place for place in range(state.shape[1]) if place not in levels and np.ptp(state[:, place]) > 0]
    return [*_of_reward(log, state, names, amounts), *_of_next(log, state, names, amounts), *_of_end(log, state, names)]


def _of_reward(log: _Sorted, state: np.ndarray, names: tuple[str, ...], amounts: list[int]) -> list[str]:
    name = log.rows.layout.reward if log.rows.layout else "reward"
    if np.ptp(log.reward) == 0 or len(np.unique(log.reward)) < MOST_LEVELS:
        return []
    return [
        f"state column '{names[place]}' says the same as the reward '{name}' of its own row, which is known only after"
        " the action; leave it out of the state unless the reward is made of it"
        for place in amounts
        if abs(np.corrcoef(state[:, place], log.reward)[0, 1]) > SAME
    ]


def _of_next(log: _Sorted, state: np.ndarray, names: tuple[str, ...], amounts: list[int]) -> list[str]:
    later = np.flatnonzero(log.follows)
    if len(later) < ENOUGH:
        return []
    notes = []
    now, after = state[later - 1][:, amounts], state[later][:, amounts]
    across, within = _correlations(now, after), np.abs(_correlations(state[:, amounts], state[:, amounts]))
    for i, j in np.argwhere(np.abs(across) > SAME):
        one, other = names[amounts[i]], names[amounts[j]]
        if i != j and within[i, j] < OTHER and not BEFORE.search(other):
            notes.append(
                f"state column '{one}' is what '{other}' is one row later, so it knows what comes next; leave it out,"
                f" unless '{other}' holds the row before"
            )
    return notes


def _of_end(log: _Sorted, state: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Columns that never change within a subject and tell its length, its doses or its outcome."""
    first = np.flatnonzero(np.r_[True, np.diff(log.subject) != 0])
    count = np.diff(np.r_[first, len(state)])
    if len(first) < RECORDS or (count == 1).all():
        return []
    last = first + count - 1
    known = {"the length of the record": count.astype(float), "its total reward": np.add.reduceat(log.reward, first)}
    action = log.rows.action.numpy().astype(float)
    for name, own in zip(log.rows.action_names, action.T, strict=True):
        known[f"the total of '{name}'"] = np.add.reduceat(own, first)
    ended = log.rows.outcome.numpy()[last]
    notes = []
    for place, name in enumerate(names):
        own = state[first, place]
        if (state[:, place] != np.repeat(own, count)).any() or np.ptp(own) == 0:
            continue
        told = [
            what
            for what, value in known.items()
            if _rank_correlation(own, value) > (KNOWS_DOSES if "total of" in what else KNOWS)
        ]
        told += ["the outcome"] if _tells(own, ended) else []
        notes += [
            f"state column '{name}' never changes within a subject and tells {what}, which is known at the end only;"
            " leave it out of the state"
            for what in told[:1]
        ]
    return notes


def _tells(value: np.ndarray, outcome: np.ndarray) -> bool:
    """Whether an outcome is all but certain once the value is known, and is not without it."""
    levels, code = np.unique(value, return_inverse=True)
    kinds, end = np.unique(outcome, return_inverse=True)
    if len(levels) > MOST_LEVELS or len(kinds) < 2:
        return False
    table = np.zeros((len(levels), len(kinds)))
    np.add.at(table, (code, end), 1)
    right, without = table.max(1).sum() / len(value), table.sum(0).max() / len(value)
    return bool(right >= CERTAIN and right - without >= BETTER * (1 - without))


# Fits


def _told(values: np.ndarray, levels: bool) -> np.ndarray:
    if not levels:
        return _ranks(values)[:, None]
    common = np.unique(values, return_counts=True)
    kept = common[0][np.argsort(-common[1])][1:MOST_LEVELS]
    return (values[:, None] == kept).astype(float)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, those of ties their mean."""
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[code] / max(len(values) - 1, 1)


def _errors(told: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Squared errors of a linear fit of each row, as shares of the variance, corrected for the number of columns."""
    design = np.column_stack([np.ones(len(told)), told])
    found, _, rank, _ = np.linalg.lstsq(design, wanted, rcond=1e-8)
    spread = wanted.var(0)
    error = (wanted - design @ found) ** 2 / np.where(spread > 0, spread, np.inf)
    return error.mean(1) * len(told) / max(len(told) - rank, 1)


def _difference(own: np.ndarray, other: np.ndarray, whose: np.ndarray) -> float | None:
    """By how much the other fit is better, where that is clear; else none."""
    codes = np.unique(whose, return_inverse=True)[1]
    each = np.bincount(codes, own - other)
    gain, error = float((own - other).mean()), float(each.std() * np.sqrt(len(each)) / len(own))
    return gain if len(each) >= RECORDS and gain > MARGIN and gain > SURE * error else None


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    a, b = ((each - each.mean(0)) / np.maximum(each.std(0), 1e-12) for each in (one, other))
    return a.T @ b / len(one)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    a, b = _ranks(one), _ranks(other)
    return abs(float(np.corrcoef(a, b)[0, 1])) if a.std() > 0 and b.std() > 0 else 0.0


def copied(table: Transitions) -> list[str]:
    """Subjects whose records are another's, state for state: one patient under two ids."""
    rows = table.real
    order = np.lexsort((rows.step.numpy(), rows.episode.numpy(), rows.subject.numpy()))
    whose = rows.subject.numpy()[order]
    cells = np.column_stack([rows.state.numpy(), rows.action.numpy(), rows.reward.numpy()])[order].astype(np.float32)
    first = np.flatnonzero(np.r_[True, np.diff(whose) != 0])
    records = [part.tobytes() for part in np.split(cells, first[1:]) if len(part) >= LONG]
    twice = len(records) - len(set(records))
    if not twice or len(first) < RECORDS:
        return []
    return [
        f"the records of {twice} subject{'' if twice == 1 else 's'} are another's row for row, as if one had two ids:"
        " they would count twice, and be held out and learned from alike; leave the copies out"
    ]
