"""How a user's table is read: what each column is, and what is done where the table leaves a choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from counterpoint.core.errors import require
from counterpoint.core.settings import Count, Weight, check_settings
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.lags import with_lags, without_lags
from counterpoint.data.return_range import check_rewards
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import ActionSpace, Box
from counterpoint.data.tables.action_columns import read_actions
from counterpoint.data.tables.columns import CheckedColumns, Times, check_missing, open_table, quoted
from counterpoint.data.tables.dates import DateOrder
from counterpoint.data.tables.layout import Layout, changes, lay_out
from counterpoint.data.tables.missing import Method, carried, filled, learn_fills, own_value, steady
from counterpoint.data.tables.spelling import level_notes, stray_number_note
from counterpoint.data.tables.state_columns import read_states
from counterpoint.data.tables.training_only import held_out_doses, learned_from
from counterpoint.data.transitions import Transitions, held_out_subjects

Last = Literal["truncate", "terminal", "drop"]
Outcome = Literal["marked row", "last row of the subject"]
Gaps = Literal["cut", "bridge"]
LEVELS = ("0", "1")


class Loaded(NamedTuple):
    """The rows, and what a reader of the table should know was done."""

    rows: Transitions
    notes: list[str]


@dataclass(frozen=True)
class Reader:
    """The names of a table's columns and every choice in reading it; `from_dataframe` says what each means."""

    subject: str
    time: str
    state: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    done: tuple[str, ...] = ()
    truncated: str = ""
    episode: str = ""
    next_state: tuple[str, ...] = ()
    actions: ActionSpace | None = None
    bins: tuple[Bins, ...] = ()
    labels: tuple[str, ...] = ()
    last: Last | None = None
    outcome: Outcome | None = None
    step: str = ""
    gaps: Gaps | None = None
    categorical: tuple[tuple[str, tuple[str, ...]], ...] = ()
    numeric: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    missing: Method = "refuse"
    carry_forward: Weight = 0.0
    masks: tuple[str, ...] = ()
    encoding: str = "utf-8"
    knowledge: Knowledge = Knowledge()
    lags: Count = 0
    dates: DateOrder | None = None
    zone: str = ""

    def __post_init__(self) -> None:
        _check_types(self)
        require(
            bool(self.state and self.action), "no state or no action column was named; pass state=['…'], action='…'"
        )
        for names in (self.state, self.action, self.next_state, self.labels):
            require("" not in names, "a column without a name is asked for; name columns as the table does")
            require(len(set(names)) == len(names), f"{quoted(names)}: one is named twice; name each once")
        require(
            len(self.next_state) in (0, len(self.state)),
            f"next_state names {len(self.next_state)} columns but state names {len(self.state)}; name one for each",
        )
        require(
            not (self.bins and self.labels),
            f"column '{self.action[0]}' cannot have both bins, for amounts, and labels, for words; leave one away",
        )
        require(
            self.outcome is None or bool(self.done),
            f"outcome='{self.outcome}' says how done is read, and no done is named; name it or leave outcome away",
        )
        self._check_declared()

    def _check_declared(self) -> None:
        """What is said of single columns is said of columns that are there."""
        declared = {"categorical": [name for name, _ in self.categorical], "numeric": self.numeric,
                    "units": [name for name, _ in self.units], "masks": self.masks}  # fmt: skip
        for what, names in declared.items():
            known = {*self.state, *(self.action if what in ("units", "categorical") else ())}
            for name in names:
                require(name in known, f"{what} names '{name}', which is not a state column; name one of state=[…]")
        both = set(declared["categorical"]) & set(self.numeric)
        require(not both, f"column '{next(iter(both), '')}' is declared both categorical and numeric; choose one")
        for bins in self.bins:
            require(
                not bins.column or bins.column in self.action,
                f"bins are given for '{bins.column}', which is not an action column; name one of action=[…]",
            )

    def read(self, table: Any, held_out: float = 0.0, seed: int = 0, like: Schema | None = None) -> Loaded:
        """The table as transitions. What is learned from it (fills, cuts) is learned without the held-out subjects.

        `like` is the schema of a table that was read before: levels, fills, cuts and actions are then those.
        """
        columns = self._open(table, [*self.action, self.reward, *self.next_state, *self.done, self.truncated])
        layout = lay_out(columns, self)
        loaded = self._loaded(columns, layout, layout.needed(), (held_out, seed), like)
        declared = loaded.rows.schema.knowledge.reward_range
        if declared is not None:
            check_rewards(loaded.rows.reward, declared, self.reward)
        return loaded

    def read_record(self, table: Any, like: Schema) -> Loaded:
        """The records of subjects who are still treated, read as the table of `like` was, by this reader.

        A subject's last row is kept without a next state, and its action may be missing: it is yet to be chosen.
        Rewards are not looked at; columns of outcomes may be left away.
        """
        columns = self._open(table, self.action).with_zeros(self.reward)
        there = set(columns.frame.columns)
        done = tuple(name for name in self.done if name in there)
        ends = {"done": done, "outcome": self.outcome if done else None, "last": "terminal", "next_state": ()}
        stops = self.truncated if self.truncated in there else ""
        how = replace(self, **ends, truncated=stops, gaps=self.gaps or "cut")
        layout = lay_out(columns, how)
        still = layout.keep & (layout.outcome == len(done))
        require(
            bool(still[np.r_[changes(layout.subject)[1:], True]].all()),
            "the last row of a record is marked as its end, so that nothing is left to decide; leave finished ones out",
        )
        needed = layout.needed()
        needed[layout.order[still]] = False
        loaded = how._loaded(columns, layout, needed, (0.0, 0), like)
        return Loaded(loaded.rows, layout.notes)

    def _loaded(
        self,
        columns: CheckedColumns,
        layout: Layout,
        needed: np.ndarray,
        aside: tuple[float, int],
        like: Schema | None,
    ) -> Loaded:
        """The rows of a layout; those `needed` must have an action and a reward."""
        training, like = self._training(layout, *aside), None if like is None else without_lags(like, self.lags)
        values, states, missing = self._whole(columns, layout, training, like)
        following = self._following(columns, values, states, layout)
        action = read_actions(columns, self, needed, training, like)
        reward = columns.numbers(self.reward, needed)
        slips = self._slips(states, values) if like is None else []
        self._check_rewards(reward[layout.order], layout)
        if like is None:
            learned = missing or any(column.cuts for column in action.columns)
            states = _static(states, values, following, layout.keep)
            reader = replace(self, step=layout.length, dates=layout.dates)
            meaning = (tuple(states), action.space, action.names, action.columns, reader)
            like = Schema(*meaning, aside if learned else None, self.knowledge)
        rows = Transitions.logged(
            state=_single(values[layout.keep]),
            action=action.features[torch.from_numpy(layout.rows)],
            reward=_single(reward[layout.rows]),
            next_state=_single(following[layout.keep]),
            schema=like,
            **layout.provenance(),
        )
        like.check_rows(rows.state, rows.action, rows.next_state)
        notes = [*layout.notes, *_precision(states, values), *_precise(self.reward, reward[needed]), *_continuous(rows)]
        notes += slips
        notes += held_out_doses(rows, torch.from_numpy(~training[layout.rows]))
        return Loaded(with_lags(rows, self.lags) if self.lags else rows, notes)

    def moments(self, columns: CheckedColumns, flags: bool = True) -> Times:
        """The clock of a table, read as this reader's first table was: one rule for fitting and for recommending.

        `flags` says whether the order of dates and the zone can still be chosen, as they cannot for new subjects.
        """
        return columns.times(self.time, self.dates, self.zone, flags)

    def _open(self, table: Any, more: Sequence[str] = ()) -> CheckedColumns:
        names = [self.subject, self.time, self.episode, *self.state, *more]
        return open_table(table, names, (self.subject, self.episode), self.encoding)

    def _training(self, layout: Layout, held_out: float, seed: int) -> np.ndarray:
        """Which rows, in the table's own order, belong to kept subjects that may be learned from."""
        aside = held_out_subjects(layout.provenance()["subject"], held_out, seed).numpy()
        training = np.zeros(len(layout.order), dtype=bool)
        training[layout.rows[~np.isin(layout.provenance()["subject"].numpy(), aside)]] = True
        return training

    def _whole(
        self, columns: CheckedColumns, layout: Layout, training: np.ndarray, like: Schema | None
    ) -> tuple[np.ndarray, list[Column], bool]:
        """The state without missing values, sorted; its columns with what fills them; and whether that was learned."""
        own = learned_from(layout.order, layout.subject, layout.needed(), training)
        values, states = read_states(columns, self, own, like)
        values = values[layout.order]
        missing = np.isnan(values)
        if missing.any():
            learned = values[training[layout.order]], layout.subject[training[layout.order]]
            still = steady(*learned) if like is None else [column.static for column in states]
            values = carry(values, layout.subject, layout.elapsed, self, still)
        if like is None:
            fills = learn_fills(states, values[training[layout.order]], self.missing)
            states = [replace(column, fill=fill) for column, fill in zip(states, fills, strict=True)]
        masks = [self.state.index(name) for name in self.masks]
        values = np.column_stack([filled(states, values, layout.order), *missing[:, masks].T.astype(float)])
        states += [Column(f"{name}_missing", LEVELS, mask_of=name) for name in self.masks]
        return values, states, self.missing != "refuse" and bool(missing.any())

    def _slips(self, states: Sequence[Column], values: np.ndarray) -> list[str]:
        """What is odd about levels that are not declared, and about numbers that are 0 or 1 but for a few."""
        notes, declared = list[str](), {name for name, levels in self.categorical if levels}
        for column, own in zip(states, values.T, strict=True):
            if column.mask_of or column.name in {*declared, *self.numeric}:
                continue
            if column.levels:
                counts = np.bincount(own[~np.isnan(own)].astype(int), minlength=len(column.levels))
                notes += level_notes(column.name, column.levels, counts)
            else:
                notes += stray_number_note(column.name, own)
        return notes

    def _following(
        self, columns: CheckedColumns, values: np.ndarray, states: list[Column], layout: Layout
    ) -> np.ndarray:
        if not self.next_state:
            return _shift(values, layout.end)
        require(not self.masks, "masks need the next row, and next_state names columns; leave one of them away")
        return _next_states(columns, self.next_state, states, layout)

    def _check_rewards(self, reward: np.ndarray, layout: Layout) -> None:
        """Rewards that `last="truncate"` would drop though they look like outcomes."""
        lost, going = reward[layout.left_out], reward[layout.keep & (layout.outcome < 0)]
        if not len(going) or not len(lost):
            return
        low, high = going.min(), going.max()
        unlike = (lost < low - (high - low)) | (lost > high + (high - low))
        require(
            not unlike.any(),
            f"last='truncate' would drop the last row of {len(lost)} episodes; {unlike.sum()} of them carry a reward"
            f" in '{self.reward}' unlike all others, perhaps an outcome; mark those rows in done, or choose"
            " last='terminal' to keep them or 'drop' to lose them",
        )


def carry(
    values: np.ndarray, subject: np.ndarray, elapsed: np.ndarray, how: Reader, still: Sequence[bool] | np.ndarray
) -> np.ndarray:
    """The last value seen, if it is fresh enough; a column that never changes takes the subject's own value."""
    values = carried(values, subject, elapsed, how.carry_forward).copy()
    for place in np.flatnonzero(np.isnan(values).any(0) & np.array(still)) if how.missing != "refuse" else ():
        values[:, place] = own_value(values[:, place], subject)
    return values


def _check_types(reader: Reader) -> None:
    """Every name is text and every list a list of text; a wrong type is one line, not a traceback from inside."""
    check_settings(reader)
    for name in ("subject", "time", "reward"):
        require(getattr(reader, name) != "", f"no {name} column was named; pass {name}='…'")


def _single(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _shift(states: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The state one row later; NaN where the episode ends."""
    shifted = np.full_like(states, np.nan)
    shifted[:-1] = states[1:]
    shifted[end] = np.nan
    return shifted


def _next_states(columns: CheckedColumns, names: Sequence[str], states: list[Column], layout: Layout) -> np.ndarray:
    """The table's own next states, sorted; only a terminated row may lack its own, and then all of it."""
    values = np.column_stack([_as(columns, name, column) for name, column in zip(names, states, strict=True)])
    absent = np.zeros(len(columns), dtype=bool)
    absent[layout.order[layout.outcome >= 0]] = True
    absent &= np.isnan(values).all(1)
    for column, name in zip(values.T, names, strict=True):
        check_missing(name, np.isnan(column) & ~absent)
    return values[layout.order]


def _as(columns: CheckedColumns, name: str, column: Column) -> np.ndarray:
    """A column of next states, coded as its state column is."""
    return columns.coded(name, list(column.levels)) if column.levels else columns.measured(name)


def _static(states: list[Column], values: np.ndarray, following: np.ndarray, keep: np.ndarray) -> list[Column]:
    """The columns with those marked that never change from a row to its next, though they differ between rows."""
    known = keep & ~np.isnan(following).any(1)
    still = (values[known] == following[known]).all(0) & (values[known] != values[known][:1]).any(0)
    return [replace(column, static=bool(s)) for column, s in zip(states, still, strict=True)]


def _precision(states: Sequence[Column], values: np.ndarray) -> list[str]:
    return [note for column, own in zip(states, values.T, strict=True) for note in _precise(column.name, own)]


def _precise(name: str, values: np.ndarray) -> list[str]:
    """What single precision loses of a column; nothing of one without values."""
    if not len(values):
        return []
    single = values.astype(np.float32).astype(float)
    vanish = int(((single == 0) & (values != 0)).sum())
    if vanish:
        return [f"column '{name}' has {vanish} values so small that single precision makes them 0; change its unit"]
    whole = (np.abs(values) > 2**24) & (values == np.round(values)) & (single != values)
    if whole.any() or np.abs(single - values).max() > 1e-3 * values.std() > 0:
        return [f"column '{name}' loses digits in single precision; subtract an offset or change its unit"]
    return []


def _continuous(rows: Transitions) -> list[str]:
    if not isinstance(rows.actions, Box):
        return []
    return [
        f"the doses in {quoted(rows.action_names)} are continuous: a model can be fitted, but D3QN and its kin choose"
        " from a list; cut the doses into bins"
    ]
