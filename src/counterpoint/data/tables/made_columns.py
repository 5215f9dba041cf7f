"""State columns that the reader makes: clocks as cosine and sine, doses on board, running sums; and their recursions.

cos' = cos δ·cos − sin δ·sin,  sin' = sin δ·cos + cos δ·sin      a clock that advances by the angle δ every step
b'   = ½^(step / half-life)·(b + dose)                            a dose on board, 0 at the start of a record
s'   = dose + dose 1 ago + … + dose w − 1 ago                     a sum over the last w steps
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.knowledge import NEXT, Knowledge, Recursion
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Column, Schema
from counterpoint.data.tables.columns import CheckedColumns, check_missing
from counterpoint.data.tables.episodes import EpisodeRows

LONGEST_SUM = 24
"""Steps of a running sum, at most: each is a state column."""
SAME_ANGLE = 1e-3
"""Differences of a clock's steps that are rounding, as a share of the period."""
UNEXPLAINED = 0.01
"""Standard deviation of what a recursion leaves, as a share of that of the column's change, above which it is none."""
ROUNDING = 1e-6
"""Relative deviation of changes that are one amount."""
TINY = 1e-3
"""A source that moves the column by less than this share of its change is dropped."""


@dataclass(frozen=True)
class TableColumn:
    """Where the values of a state column are in the table."""

    name: str
    """The state column."""
    source: str
    """The table's column."""
    period: float | None = None
    """Period of a cyclic column; None for others."""
    sine: bool = False

    def read(self, values: np.ndarray) -> np.ndarray:
        """Return the state column's values from those of the table's column."""
        if self.period is None:
            return values
        check_missing(self.source, np.isnan(values))
        outside = int(((values < 0) | (values > self.period)).sum())
        require(
            not outside,
            f"column '{self.source}' is declared cyclic with period {self.period:g} and lies outside 0 to"
            f" {self.period:g} in {outside} rows; correct the rows or the period",
        )
        angle = 2 * np.pi * values / self.period
        return np.sin(angle) if self.sine else np.cos(angle)


def table_columns(layout: Layout, names: Sequence[str] | None = None) -> list[TableColumn]:
    """Return the state columns that are read from the table.

    Args:
        layout: Layout of the table.
        names: The table's columns in the order of `layout.state`; those of the next state, for instance.
    """
    periods = dict(layout.cyclic)
    columns: list[TableColumn] = []
    for name, source in zip(layout.state, names or layout.state, strict=True):
        if name in periods:
            columns.append(TableColumn(f"{name}_cos", source, periods[name]))
            columns.append(TableColumn(f"{name}_sin", source, periods[name], sine=True))
        else:
            columns.append(TableColumn(name, source))
    return columns


def without_made(states: Sequence[Column], layout: Layout) -> tuple[Column, ...]:
    """Return the state columns that are read from the table, and their masks; the others follow them."""
    return tuple(states[: len(table_columns(layout)) + len(layout.masks)])


@dataclass(frozen=True)
class MadeColumns:
    """Columns that are computed from actions and states, with what is known of them; values are in sorted order."""

    columns: tuple[Column, ...]
    values: np.ndarray
    carried: tuple[tuple[str, str], ...] = ()
    recursions: tuple[Recursion, ...] = ()


def step_ratio(what: str, text: str, step: str) -> float:
    """Return a duration in steps: numbers of the clock's unit, or durations such as 6h where the clock holds dates."""
    require(step != "", f"{what} {text} needs the length of a step, which no two rows of a record show; give step")
    try:
        ratio = float(text) / float(step)
    except ValueError:
        ratio = _duration_ratio(text, step)
    require(
        bool(np.isfinite(ratio)) and ratio > 0,
        f"{what} {text} is not a length of time here; give {_form_of(step)} above 0",
    )
    return ratio


def _duration_ratio(text: str, step: str) -> float:
    if _is_number(text) or _is_number(step):
        return float("nan")
    import pandas as pd

    try:
        return pd.Timedelta(text).total_seconds() / pd.Timedelta(step).total_seconds()
    except ValueError:
        return float("nan")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _form_of(step: str) -> str:
    return "a number" if _is_number(step) else "a duration such as 4h or 30min"


@dataclass(frozen=True)
class _Series:
    """A source of made columns in sorted order, and the clock of its rows."""

    values: np.ndarray
    record: np.ndarray
    """Number of every row's record, which no dose outlasts."""
    moment: np.ndarray
    """Steps since the record's first row."""
    apart: np.ndarray
    """Steps since the row before; infinite for a record's first row."""

    def decayed(self, kept: float) -> np.ndarray:
        """Return the amount on board before every row's own dose."""
        size = len(self.values)
        opens = np.isinf(self.apart)
        first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
        place = np.arange(size) - first
        board = np.zeros(size)
        by_place = np.argsort(place, kind="stable")
        for rows in np.split(by_place, np.cumsum(np.bincount(place))[:-1])[1:]:
            board[rows] = kept ** self.apart[rows] * (board[rows - 1] + self.values[rows - 1])
        return board

    def lag(self, steps: int) -> np.ndarray:
        """Return the value `steps` before every row; 0 where the record has no row then."""
        width = self.moment.max(initial=0) + steps + 1
        keys = self.record * width + self.moment
        wanted = self.record * width + self.moment - steps
        found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        there = (keys[found] == wanted) & (self.moment >= steps)
        return np.where(there, self.values[found], 0.0)


def make_columns(
    table: CheckedColumns,
    layout: Layout,
    episodes: EpisodeRows,
    states: tuple[Sequence[Column], np.ndarray],
    actions: tuple[Sequence[str], np.ndarray],
    needed: np.ndarray,
) -> MadeColumns:
    """Return the doses on board and running sums of a table.

    Args:
        table: The opened table.
        layout: Its layout.
        episodes: Its sorted rows.
        states: State columns and their values in sorted order.
        actions: Names of the features of actions, and their values in the table's own order.
        needed: Which rows, in the table's own order, are sure to have an action.
    """
    if not (layout.on_board or layout.running_sum):
        return MadeColumns((), np.zeros((len(episodes.order), 0)))
    step = layout.step or episodes.step_text
    columns: list[Column] = []
    values: list[np.ndarray] = []
    carried: list[tuple[str, str]] = []
    recursions: list[Recursion] = []
    for source, half_life in layout.on_board:
        series = _series(source, "on_board", table, episodes, states, actions, needed)
        kept = 0.5 ** (1 / step_ratio(f"the half-life of '{source}',", half_life, step))
        name = f"{source}_on_board"
        columns.append(Column(name))
        values.append(series.decayed(kept))
        recursions.append(Recursion(name, ((name, kept), (source, kept))))
    for source, window in layout.running_sum:
        series = _series(source, "running_sum", table, episodes, states, actions, needed)
        steps = _whole_steps(source, window, step)
        lags = [f"{source}_{k}_ago" for k in range(1, steps)]
        amounts = [series.lag(k) for k in range(1, steps + 1)]
        columns += [Column(name) for name in (f"{source}_sum", *lags)]
        values += [np.sum(amounts, 0), *amounts[:-1]]
        carried += [(older, newer) for newer, older in pairwise([source, *lags])]
        recursions.append(Recursion(f"{source}_sum", tuple((name, 1.0) for name in (source, *lags))))
    return MadeColumns(tuple(columns), np.column_stack(values), tuple(carried), tuple(recursions))


def _whole_steps(source: str, window: str, step: str) -> int:
    ratio = step_ratio(f"the window of '{source}',", window, step)
    steps = round(ratio)
    require(
        abs(ratio - steps) < 1e-6 and 1 <= steps <= LONGEST_SUM,
        f"the running sum of '{source}' over {window} is one of {ratio:g} steps, and 1 to {LONGEST_SUM} whole steps can"
        " be exact; change the window, or declare a half-life with on_board",
    )
    return steps


def _series(
    source: str,
    setting: str,
    table: CheckedColumns,
    episodes: EpisodeRows,
    states: tuple[Sequence[Column], np.ndarray],
    actions: tuple[Sequence[str], np.ndarray],
    needed: np.ndarray,
) -> _Series:
    """Return a source's values; a dose in a row that is no transition is that of the table, 0 where it is missing."""
    names = [column.name for column in states[0]]
    features = list(actions[0])
    if source in features:
        values = actions[1][:, features.index(source)].astype(float)
        raw = table.measured(source) if source in table.frame.columns else np.zeros(len(values))
        values = np.where(needed, values, np.nan_to_num(raw))[episodes.order]
    else:
        require(
            source in names and not states[0][names.index(source)].levels,
            f"{setting} names '{source}', which is neither a dose nor a number of the state; name one",
        )
        values = states[1][:, names.index(source)]
    starts = episodes.step == 0
    apart = np.where(starts, episodes.elapsed, 1.0)
    record = np.cumsum(np.isinf(apart))
    whole = np.where(np.isinf(apart), 0.0, apart).round().astype(np.int64)
    total = np.cumsum(whole)
    first = np.flatnonzero(np.isinf(apart))
    return _Series(values, record, total - total[first][record - 1], apart)


def next_made(
    made: MadeColumns,
    states: tuple[Sequence[Column], np.ndarray],
    following: np.ndarray,
    actions: tuple[Sequence[str], np.ndarray],
) -> np.ndarray:
    """Return the next values of made columns where the table carries its own next states.

    Args:
        made: The columns.
        states: The columns that were read, and their values in sorted order.
        following: The next values of these columns.
        actions: Names of the features of actions, and their values in sorted order.
    """
    import torch

    names = tuple(column.name for column in (*states[0], *made.columns))
    state = torch.from_numpy(np.column_stack([states[1], made.values]))
    after = torch.from_numpy(np.column_stack([following, np.zeros_like(made.values)]))
    known = Knowledge(carried=made.carried, recursions=made.recursions)
    action = torch.from_numpy(actions[1].astype(float))
    computed = known.carry(after, state, action, names, tuple(actions[0])).numpy()[:, len(states[0]) :]
    absent = np.isnan(following).all(axis=1)
    computed[absent] = np.nan
    return computed


@dataclass(frozen=True)
class Rows:
    """Transitions that recursions are learned from."""

    names: tuple[str, ...]
    actions: tuple[str, ...]
    state: np.ndarray
    action: np.ndarray
    after: np.ndarray
    training: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which of them belong to subjects that are not held out."""


def declared_knowledge(layout: Layout, made: MadeColumns, rows: Rows, static: Sequence[str]) -> Knowledge:
    """Return the layout's knowledge with the roles of columns that the reader made or whose recursions it learns."""
    known = layout.knowledge
    recursions = [*known.recursions, *made.recursions]
    circles = list(known.circles)
    exogenous = list(known.exogenous)
    for name, _ in layout.cyclic:
        pair = f"{name}_cos", f"{name}_sin"
        circles.append(pair)
        rotation = [] if pair[0] in static else _rotation(rows, *pair)
        recursions += rotation
        if name in exogenous:
            exogenous.remove(name)
            exogenous += [] if rotation else pair
    known = replace(
        known,
        circles=tuple(circles),
        exogenous=tuple(exogenous),
        carried=(*known.carried, *made.carried),
        recursions=tuple(recursions),
    )
    fitted = tuple(fit_recursion(name, rows, known.exogenous) for name in layout.recursion)
    return replace(known, recursions=(*known.recursions, *fitted))


def recursion_text(recursion: Recursion) -> str:
    """Return a recursion as a formula.

    Example:
        >>> recursion_text(Recursion("iob", (("iob", 0.8), ("dose", 1.0))))
        "next iob = 0.8·iob + 1·dose"
    """
    terms = [f"{weight:.4g}·{source}" for source, weight in recursion.weights]
    terms += [f"{recursion.constant:.4g}"] if recursion.constant else []
    return f"next {recursion.column} = {' + '.join(terms)}".replace("+ -", "- ")


def made_notes(layout: Layout, schema: Schema) -> list[str]:
    """Return notes on the recursions that were learned, and on cyclic columns without one."""
    known = schema.knowledge
    notes: list[str] = []
    for recursion in known.recursions:
        if recursion.column in layout.recursion:
            notes.append(f"column '{recursion.column}' is computed: {recursion_text(recursion)}")
    for name, _ in layout.cyclic:
        pair = f"{name}_cos", f"{name}_sin"
        static = all(column.static for column in schema.states if column.name in pair)
        if pair[0] not in known.recursion_columns and not static:
            notes.append(
                f"column '{name}' does not advance by the same amount in every row, so its next value is learned"
            )
    return notes


def _rotation(rows: Rows, cosine: str, sine: str) -> list[Recursion]:
    """Return the recursions of a clock that advances by one angle every step; none for another angle."""
    c, s = rows.names.index(cosine), rows.names.index(sine)
    seen = ~np.isnan(rows.after[:, c])
    if not seen.any():
        return []
    now = np.arctan2(rows.state[seen, s], rows.state[seen, c])
    later = np.arctan2(rows.after[seen, s], rows.after[seen, c])
    turns = np.exp(1j * (later - now))
    step = float(np.angle(turns.mean()))
    if np.abs(np.angle(turns * np.exp(-1j * step))).max() > 2 * np.pi * SAME_ANGLE:
        return []
    turn_cos, turn_sin = float(np.cos(step)), float(np.sin(step))
    return [
        Recursion(cosine, ((cosine, turn_cos), (sine, -turn_sin))),
        Recursion(sine, ((sine, turn_cos), (cosine, turn_sin))),
    ]


def fit_recursion(name: str, rows: Rows, exogenous: Sequence[str]) -> Recursion:
    """Learn a linear recursion by least squares; refuse a column that follows none."""
    require(name in rows.names, f"recursion names '{name}', which is not a state column; name one of the state")
    sources, x, y, change = _regression_rows(name, rows, exogenous)
    size = float(np.sqrt(np.mean(change**2)))
    spread = float(change.std())
    spread = spread if spread > ROUNDING * size else size  # An age, or a count, advances by one amount.
    require(spread > 0, f"column '{name}' never changes, so it follows no recursion; leave recursion out")
    kept = np.ones(len(sources), dtype=bool)
    weights, constant = _least_squares(x, y)
    moved = np.abs(weights) * x.std(0)
    kept = moved > TINY * spread
    weights, constant = _least_squares(x[:, kept], y)
    share = float(np.sqrt(np.mean((y - x[:, kept] @ weights - constant) ** 2))) / spread
    if share > UNEXPLAINED:
        raise CounterpointError(
            f"column '{name}' is no linear recursion of its own value, the actions and the exogenous columns: they"
            f" leave {share:.0%} of its change unexplained; leave recursion '{name}' out, or declare the exogenous"
            " columns that it depends on"
        )
    constant = 0.0 if abs(constant) <= TINY * spread else constant
    names = [source for source, keep in zip(sources, kept, strict=True) if keep]
    return Recursion(name, tuple(zip(names, map(float, weights), strict=True)), float(constant))


def _regression_rows(
    name: str, rows: Rows, exogenous: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Return the sources, their values, the column's next values and its changes, in training rows."""
    place = rows.names.index(name)
    seen = rows.training & ~np.isnan(rows.after).any(1)
    require(int(seen.sum()) > 2, f"column '{name}' has too few rows to learn a recursion; leave recursion out")
    others = [rows.names.index(column) for column in exogenous if column in rows.names]
    sources = [name, *rows.actions, *exogenous, *(f"{NEXT}{column}" for column in exogenous)]
    x = np.column_stack([rows.state[:, place], rows.action, rows.state[:, others], rows.after[:, others]])[seen]
    y = rows.after[seen, place]
    return sources, x, y, y - rows.state[seen, place]


def _least_squares(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights and constant; collinear columns share their weight."""
    centre, spread = x.mean(0), x.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    weights = np.linalg.lstsq((x - centre) / scale, y - y.mean(), rcond=1e-10)[0] / scale
    return weights, float(y.mean() - centre @ weights)
