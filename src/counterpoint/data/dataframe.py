"""A user's table as `Transitions`: rows sorted, cut into episodes and shifted, and the actions' space found.

A clinical table has one row per subject and time, so the next state of row t is the state of row t + 1 of the same
episode. A record of T rows has no row after its last action; what that means is the user's choice (`last`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from counterpoint.data.columns import CheckedColumns, check_missing, open_table, quoted
from counterpoint.data.spaces import ActionSpace, Box, Discrete, check_actions
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError

Last = Literal["truncate", "terminal", "drop"]
FEW = 50
"""A numeric action with at most this many distinct values is taken to be discrete."""


def from_dataframe(
    table: Any,
    *,
    subject: str,
    time: str,
    state: str | Sequence[str],
    action: str | Sequence[str],
    reward: str,
    done: str | Sequence[str] | None = None,
    truncated: str | None = None,
    episode: str | None = None,
    next_state: str | Sequence[str] | None = None,
    actions: ActionSpace | None = None,
    labels: Sequence[str] = (),
    last: Last | None = None,
) -> Transitions:
    """Transitions from a pandas or polars DataFrame or the path of a CSV or Parquet file, one row per subject and time.

    Rows are sorted by subject (then `episode`) and time and numbered 0, 1, 2, … within the episode. A row whose `done`
    is true ends its episode with an outcome (terminated; several columns, as `["died", "discharged"]`, tell several
    outcomes apart, each with its own chance and reward); one whose `truncated` is true ends it because the record
    stops; where both are true the outcome counts. Rows that follow start a new episode. The next state is the state of
    the episode's next row, or the columns `next_state` where the table carries them; none is ever invented.

    `last` says what the end of an episode is where neither column marks it:

    - `"terminal"`: an outcome, called "ended" beside those marked. The row is kept as terminated; without a next state
      it serves the ends and value learning only.
    - `"truncate"`: the record stops, life goes on. What the last action led to was never seen, so the last row only
      gives the row before it a next state and is dropped; the row before is marked truncated. (A reward written on the
      dropped row goes with it; if it is the outcome, mark the row `done` instead.) Rows marked in `truncated` are
      treated alike. With `next_state` columns the outcome was seen: the row is kept and marked itself.
    - `"drop"`: the last row is dropped and nothing is marked.

    Where some end is unmarked and `last` is None, an error asks for the choice. The action and the reward of a dropped
    row may be missing; nothing else may, except the next state of a terminated row.

    Without `actions` the space is inferred: at most 50 distinct numeric actions make a `Discrete` of them, more make a
    `Box` from the least to the greatest, and text or categories make a one-hot `Discrete` over the sorted labels (or
    over `labels`, in that order, so that two tables share one space). A single numeric column with a `Discrete` of
    wider features holds the action's index.

    Rows in error messages are counted from 0 in the order of the table as given.
    """
    state, action = _names(state), _names(action)
    following = None if next_state is None else _names(next_state)
    ends = _names(done or [])
    _check_request(state, action, following, last)
    columns = open_table(table, [subject, time, *state, *action, reward, *(following or ()), *ends, truncated, episode])
    layout = _layout(columns, subject, time, ends, truncated, episode, last, shift=following is None)
    needed = layout.needed()
    states = np.column_stack([columns.numbers(name) for name in state])[layout.order]
    next_states = _shift(states, layout.end) if following is None else _next_states(columns, following, layout)
    features, space, action_names = _actions(columns, action, actions, labels, needed)
    return Transitions.logged(
        state=torch.from_numpy(states[layout.keep]),
        action=features[torch.from_numpy(layout.rows)],
        reward=torch.from_numpy(columns.numbers(reward, needed)[layout.rows]),
        next_state=torch.from_numpy(next_states[layout.keep]),
        actions=space,
        state_names=state,
        action_names=action_names,
        **layout.provenance(),
    )


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _check_request(state: list[str], action: list[str], following: list[str] | None, last: str | None) -> None:
    if not state or not action:
        raise CounterpointError("no state or no action column was named; pass state=['…'] and action='…'")
    for names in (state, action, following or []):
        if len(set(names)) < len(names):
            raise CounterpointError(f"{quoted(names)}: one is named twice; name each once")
    if following is not None and len(following) != len(state):
        raise CounterpointError(
            f"next_state names {len(following)} columns but state names {len(state)}; name one for each state column"
        )
    if last is not None and last not in get_args(Last):
        raise CounterpointError(f"last={last!r} is not one of 'terminal', 'truncate', 'drop'; pick one")


@dataclass(frozen=True)
class _Layout:
    """Which row follows which: `order` sorts the table, every other array is in sorted order."""

    order: np.ndarray
    keep: np.ndarray
    end: np.ndarray
    outcome: np.ndarray
    outcome_names: list[str]
    truncated: np.ndarray
    subject: np.ndarray
    subject_names: list[str]
    episode: np.ndarray
    step: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """The kept rows' numbers in the table as given."""
        return self.order[self.keep]

    def needed(self) -> np.ndarray:
        """Whether a row is kept, in the order of the table as given."""
        needed = np.zeros(len(self.order), dtype=bool)
        needed[self.rows] = True
        return needed

    def provenance(self) -> dict[str, Any]:
        """Whose rows are kept, where they stand and how they end; subjects and episodes are numbered without gaps."""
        present, subjects = np.unique(self.subject[self.keep], return_inverse=True)
        columns = {
            "outcome": self.outcome[self.keep],
            "terminated": self.outcome[self.keep] >= 0,
            "truncated": self.truncated[self.keep],
            "subject": subjects,
            "episode": np.unique(self.episode[self.keep], return_inverse=True)[1],
            "step": self.step[self.keep],
        }
        names = {"subject_names": [self.subject_names[code] for code in present], "outcome_names": self.outcome_names}
        return {name: torch.from_numpy(column) for name, column in columns.items()} | names


def _layout(
    columns: CheckedColumns,
    subject: str,
    time: str,
    done: list[str],
    truncated: str | None,
    episode: str | None,
    last: Last | None,
    shift: bool,
) -> _Layout:
    """Sort the rows and cut them into episodes."""
    codes, names = columns.codes(subject)
    order, opens = _sorted(columns, codes, subject, time, episode)
    outcome, stopped = _marks(columns, order, done, truncated)
    start = opens | np.r_[True, ((outcome >= 0) | stopped)[:-1]]
    end = np.r_[start[1:], True]
    unmarked = end & (outcome < 0) & ~stopped
    _check_choice(unmarked, order, done, last)
    ended = unmarked & (last == "terminal")
    outcome = np.where(ended, len(done), outcome)
    outcomes = [*done, *(["ended"] if done and ended.any() else [])] or ["terminated"]
    stopped = stopped | (unmarked & (last == "truncate"))
    keep = ~((unmarked & (last == "drop")) | (stopped & shift))
    _check_kept(keep)
    # Shifting, the last row of a record that stops is only a next state, so the mark moves to the row that leads there.
    marked = np.r_[stopped[1:] & ~start[1:], False] if shift else stopped
    number = np.cumsum(start) - 1
    step = np.arange(len(order)) - np.flatnonzero(start)[number]
    return _Layout(order, keep, end, outcome, outcomes, marked, codes[order], names, number, step)


def _sorted(
    columns: CheckedColumns, codes: np.ndarray, subject: str, time: str, episode: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """The order by subject, episode and time, and where in it a new subject or episode opens."""
    group = np.zeros(len(columns), dtype=bool) if episode is None else columns.codes(episode)[0]
    moment = columns.times(time)
    order = np.lexsort((moment, group, codes))
    opens = _changes(codes[order]) | _changes(group[order])
    _check_unique(order, opens | _changes(moment[order]), (subject, episode, time))
    return order, opens


def _marks(
    columns: CheckedColumns, order: np.ndarray, done: list[str], truncated: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which outcome the table itself marks, and where it says that the record stops; an outcome counts first."""
    outcome = np.full(len(columns), -1)
    for place, name in enumerate(done):
        marked = columns.flags(name)
        _check_one_outcome(marked & (outcome >= 0), done)
        outcome = np.where(marked, place, outcome)
    stopped = np.zeros(len(columns), dtype=bool) if truncated is None else columns.flags(truncated)
    return outcome[order], stopped[order] & (outcome[order] < 0)


def _check_one_outcome(twice: np.ndarray, done: list[str]) -> None:
    if twice.any():
        raise CounterpointError(
            f"row {twice.argmax()} has two outcomes marked among {quoted(done)} ({twice.sum()} such rows); keep one"
        )


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it; the first always does."""
    return np.r_[True, values[1:] != values[:-1]]


def _check_unique(order: np.ndarray, differs: np.ndarray, names: Sequence[str | None]) -> None:
    places = np.flatnonzero(~differs)
    if len(places):
        place = places[np.argmin(order[places])]
        shared = " and ".join(f"'{name}'" for name in names if name is not None)
        raise CounterpointError(
            f"rows {order[place - 1]} and {order[place]} have the same {shared} ({len(places)} such rows);"
            " keep one row for each"
        )


def _check_choice(unmarked: np.ndarray, order: np.ndarray, done: list[str], last: Last | None) -> None:
    if last is None and unmarked.any():
        why = f"{quoted(done)} does not mark them" if done else "no done column is given"
        raise CounterpointError(
            f"{unmarked.sum()} episodes end without an outcome (first at row {order[unmarked].min()}): {why}; choose"
            " last='terminal' (it was the outcome), 'truncate' (the record stops) or 'drop'"
        )


def _check_kept(keep: np.ndarray) -> None:
    if not keep.any():
        raise CounterpointError(
            "no episode has two rows, so no row has a next state; pass last='terminal' to keep them"
        )


def _shift(states: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The state one row later; NaN where the episode ends."""
    shifted = np.full_like(states, np.nan)
    shifted[:-1] = states[1:]
    shifted[end] = np.nan
    return shifted


def _next_states(columns: CheckedColumns, names: list[str], layout: _Layout) -> np.ndarray:
    """The table's own next states, sorted; only a terminated row may lack its own, and then all of it."""
    nothing = np.zeros(len(columns), dtype=bool)
    values = np.column_stack([columns.numbers(name, nothing) for name in names])
    absent = np.zeros(len(columns), dtype=bool)
    absent[layout.order[layout.outcome >= 0]] = True
    absent &= np.isnan(values).all(1)
    for column, name in zip(values.T, names, strict=True):
        check_missing(name, np.isnan(column) & ~absent)
    return values[layout.order]


def _actions(
    columns: CheckedColumns, names: list[str], space: ActionSpace | None, labels: Sequence[str], needed: np.ndarray
) -> tuple[torch.Tensor, ActionSpace, list[str]]:
    """The actions' features in the table's row order, their space, and a name for each feature."""
    if labels or (len(names) == 1 and columns.holds_labels(names[0])):
        return _labelled(columns, names, space, list(labels), needed)
    values = np.column_stack([columns.numbers(name, needed) for name in names])
    values[~needed] = values[needed][0]  # Dropped rows may lack an action: any valid one keeps the row numbers right.
    space = _infer(values) if space is None else space
    features = torch.from_numpy(values)
    if isinstance(space, Discrete) and len(names) == 1 < space.width:
        check_actions(Discrete.of(list(range(space.count))), features, f"action index in column '{names[0]}'")
        names = [f"{names[0]}_{i}" for i in range(space.width)]
        return space.features(features[:, 0].round().long()), space, names
    check_actions(space, features, f"action in {quoted(names)}")
    return features, space, names


def _labelled(
    columns: CheckedColumns, names: list[str], space: ActionSpace | None, labels: list[str], needed: np.ndarray
) -> tuple[torch.Tensor, ActionSpace, list[str]]:
    """Treatments by name: the features of action i stand for label i."""
    if len(names) > 1:
        raise CounterpointError(f"labels name the actions of one column, not of {quoted(names)}; pass one column")
    name = names[0]
    if space is not None and not (isinstance(space, Discrete) and space.count == len(labels)):
        raise CounterpointError(
            f"column '{name}' holds labels; pass labels=[…], one for each action of a Discrete space, or no actions"
        )
    codes, labels = columns.places(name, labels, needed) if labels else columns.codes(name, needed)
    space = Discrete.one_hot(len(labels)) if space is None else space
    if space == Discrete.one_hot(space.count):
        names = [f"{name}={label}" for label in labels]
    elif space.width > 1:
        names = [f"{name}_{i}" for i in range(space.width)]
    return space.features(torch.from_numpy(codes)), space, names


def _infer(values: np.ndarray) -> ActionSpace:
    distinct = _distinct(values)
    if len(distinct) <= FEW:
        return Discrete(tuple(tuple(map(float, row)) for row in distinct))
    return Box(tuple(map(float, values.min(0))), tuple(map(float, values.max(0))))


def _distinct(values: np.ndarray) -> np.ndarray:
    """The distinct rows in lexicographic order; column by column, as sorting whole rows is ten times slower."""
    rows = np.zeros(len(values), dtype=np.int64)
    for column in values.T:
        codes = np.unique(column, return_inverse=True)[1]
        rows = np.unique(rows * (codes.max() + 1) + codes, return_inverse=True)[1]
    return values[np.unique(rows, return_index=True)[1]]
