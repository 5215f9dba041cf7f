"""Read a user's table as transitions.

table → checked columns → sorted rows, cut into episodes → states, actions, rewards → `Transitions`
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from counterpoint.core.errors import require
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.lags import with_lags, without_lags
from counterpoint.data.layout import Layout
from counterpoint.data.returns import check_rewards
from counterpoint.data.reward_expression import is_expression, parse_reward
from counterpoint.data.schema import Column, Schema, quoted
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.tables.action_columns import read_actions
from counterpoint.data.tables.columns import CheckedColumns, Table, check_missing, open_table
from counterpoint.data.tables.episodes import EpisodeRows, cut_episodes
from counterpoint.data.tables.made_columns import (
    Rows,
    declared_knowledge,
    made_notes,
    make_columns,
    next_made,
    table_columns,
    without_made,
)
from counterpoint.data.tables.missing import carry, constant_within_subjects, filled, learn_fills
from counterpoint.data.tables.odd_values import odd_rewards, odd_values
from counterpoint.data.tables.record_checks import duplicated_records, leaking_columns, shifted_records
from counterpoint.data.tables.spelling import level_notes, stray_number_note
from counterpoint.data.tables.state_columns import encoded, read_states
from counterpoint.data.transitions import Transitions, held_out_subjects

LEVELS = ("0", "1")


class Loaded(NamedTuple):
    """Transitions, and notes on how the table was read."""

    rows: Transitions
    notes: list[str]


def read_table(
    table: Table, layout: Layout, held_out: float = 0.0, seed: int = 0, like: Schema | None = None
) -> Loaded:
    """Read a log as transitions.

    Args:
        table: A DataFrame or the path of a CSV, TSV or Parquet file.
        layout: Roles of the columns and rules of reading.
        held_out: Share of the subjects that fills, cuts and levels are learned without.
        seed: Seed that chooses these subjects.
        like: Schema of a table read before; its levels, fills, cuts and actions are used again.
    """
    roles = [layout.subject, layout.time, layout.episode, *layout.state, *layout.action]
    names = [*roles, *layout.next_state, *layout.done, layout.truncated]
    columns = open_table(table, names, (layout.subject, layout.episode), layout.encoding)
    layout = _with_reward(layout, columns)
    episodes = cut_episodes(columns, layout)
    loaded = _transitions(columns, layout, episodes, episodes.needed(), (held_out, seed), like)
    declared = loaded.rows.schema.knowledge.reward_range
    if declared is not None:
        check_rewards(loaded.rows.reward, declared, layout.reward)
    return loaded


def _with_reward(layout: Layout, columns: CheckedColumns) -> Layout:
    """Return the layout with the reward as knowledge, where it is an expression and no column of the table."""
    if layout.reward in columns.frame.columns or not is_expression(layout.reward):
        columns.check(layout.reward)
        return layout
    parse_reward(layout.reward)
    return replace(layout, knowledge=replace(layout.knowledge, reward=layout.reward))


def read_record(columns: CheckedColumns, layout: Layout, like: Schema) -> Loaded:
    """Read the records of subjects who are still treated.

    A subject's last row is kept without a next state, and its action may be missing, because it is yet to be chosen.
    Rewards are not read; columns of outcomes may be left away.

    Args:
        columns: The opened table, with the columns of subject, time, episode, state and action.
        layout: Layout of the training table.
        like: Schema of the training table.
    """
    columns = columns.with_zeros(layout.reward)
    present = set(columns.frame.columns)
    done = tuple(name for name in layout.done if name in present)
    open_ended = replace(
        layout,
        done=done,
        outcome=layout.outcome if done else None,
        truncated=layout.truncated if layout.truncated in present else "",
        last="terminal",
        next_state=(),
        gaps=layout.gaps or "cut",
    )
    episodes = cut_episodes(columns, open_ended)
    undecided = episodes.keep & (episodes.outcome == len(done))
    require(
        bool(undecided[episodes.records.subject_last].all()),
        "the last row of a record is marked as its end, so that nothing is left to decide; leave finished ones out",
    )
    needed = episodes.needed()
    needed[episodes.order[undecided]] = False
    rows = _transitions(columns, open_ended, episodes, needed, (0.0, 0), like).rows
    return Loaded(replace(rows, layout=layout), episodes.notes)


def _transitions(
    columns: CheckedColumns,
    layout: Layout,
    episodes: EpisodeRows,
    needed: np.ndarray,
    split: tuple[float, int],
    like: Schema | None,
) -> Loaded:
    """Read the rows of the episodes; those `needed` must have an action and a reward."""
    like = None if like is None else without_lags(like, layout.lags)
    training = _training_rows(episodes, *split)
    values, states, fills_learned = _states(columns, layout, episodes, training, like)
    following = _next_states(columns, layout, episodes, values, states)
    action = read_actions(columns, layout, needed, training, like)
    features = action.features.numpy()
    table_states, table_values = states, values
    made = make_columns(columns, layout, episodes, (states, values), (action.names, features), needed)
    if made.columns:
        after = (
            shifted(made.values, episodes)
            if layout.shifts
            else next_made(made, (states, values), following, (action.names, features[episodes.order]))
        )
        values, following = np.column_stack([values, made.values]), np.column_stack([following, after])
        states = [*states, *made.columns]
    schema = like
    if schema is None:
        learned = fills_learned or any(column.cuts for column in action.columns) or bool(layout.recursion)
        states = _with_static(states, values, following, episodes.keep)
        rows = Rows(
            names=tuple(column.name for column in states),
            actions=action.names,
            state=values[episodes.keep],
            action=features[episodes.rows],
            after=following[episodes.keep],
            training=training[episodes.rows],
        )
        static = [column.name for column in states if column.static]
        schema = Schema(
            states=tuple(states),
            actions=action.space,
            action_names=action.names,
            doses=action.columns,
            action_units=tuple((name, unit) for name, unit in layout.units if name in layout.action),
            learned_with=split if learned else None,
            knowledge=declared_knowledge(layout, made, rows, static),
        )
        layout = replace(layout, step=episodes.step_text, dates=episodes.dates)
    provenance = episodes.provenance()
    state, next_state = _single(values[episodes.keep]), _single(following[episodes.keep])
    taken = action.features[torch.from_numpy(episodes.rows)]
    reward = _rewards(columns, layout, episodes, needed, schema, (state, taken, next_state))
    rows = Transitions.logged(
        state=state,
        action=taken,
        reward=_single(reward[episodes.rows]),
        next_state=next_state,
        schema=schema,
        subject_names=episodes.subjects()[1],
        outcome_names=episodes.outcome_names,
        layout=layout,
        outcome=provenance["outcome"],
        terminated=provenance["terminated"],
        truncated=provenance["truncated"],
        subject=provenance["subject"],
        episode=provenance["episode"],
        step=provenance["step"],
    )
    schema.check_rows(rows.state, rows.action, rows.next_state)
    notes = [
        *episodes.notes,
        *_precision_notes(states, values),
        *_precision_note(layout.reward, reward[needed & ~np.isnan(reward)]),
        *_continuous_note(rows),
        *_held_out_doses_note(rows, torch.from_numpy(~training[episodes.rows])),
    ]
    if like is None:
        notes += _misspelling_notes(table_states, table_values, layout)
        notes += _odd_number_notes(columns, layout, episodes, table_states, table_values, reward)
        notes += [note for column in action.columns for note in column.wide()]
        notes += made_notes(layout, schema)
        learned_rows = _without_computed(rows)
        if learned_rows.state_size:
            notes += [*shifted_records(learned_rows), *leaking_columns(learned_rows).values()]
            notes += duplicated_records(learned_rows)
    return Loaded(with_lags(rows, layout.lags) if layout.lags else rows, notes)


def _without_computed(rows: Transitions) -> Transitions:
    """Return the rows without what is computed from actions and earlier states: it only looks like a slip of a row."""
    known = rows.schema.knowledge
    computed = {*known.recursion_columns, *known.carried_columns}
    kept = [i for i, name in enumerate(rows.state_names) if name not in computed]
    if len(kept) == rows.state_size and not known.reward:
        return rows
    states = tuple(rows.schema.states[i] for i in kept)
    return replace(
        rows,
        state=rows.state[:, kept],
        next_state=rows.next_state[:, kept],
        reward=torch.zeros_like(rows.reward) if known.reward else rows.reward,
        schema=replace(rows.schema, states=states, knowledge=Knowledge()),
    )


def _rewards(
    columns: CheckedColumns,
    layout: Layout,
    episodes: EpisodeRows,
    needed: np.ndarray,
    schema: Schema,
    steps: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> np.ndarray:
    """Return the rewards in the table's own order: those of its column, or computed from the kept rows' steps."""
    if layout.reward in columns.frame.columns:
        reward = columns.numbers(layout.reward, needed)
        _check_lost_rewards(reward[episodes.order], episodes, layout.reward)
        return reward
    state, action, next_state = steps
    expression = parse_reward(layout.reward)
    expression.check_names(schema.state_names, schema.action_names, episodes.outcome_names)
    open_ended = int(next_state.isnan().any(1).sum())
    require(
        not (expression.reads_next and open_ended),
        f"the reward reads next values, and {open_ended} rows that end an episode have none; write it of current"
        " values, or pass last='drop'",
    )
    outcome = torch.from_numpy(episodes.outcome[episodes.keep])
    which = torch.nn.functional.one_hot(outcome + 1, len(episodes.outcome_names) + 1)[:, 1:].to(state)
    names = schema.state_names, schema.action_names, episodes.outcome_names
    computed = expression.evaluate(names, state, action, next_state, which)
    wrong = int((~computed.isfinite()).sum())
    require(
        not wrong,
        f"the reward '{layout.reward}' is not a finite number in {wrong} rows; keep logarithms, roots and divisors"
        " above 0, for instance with max(…)",
    )
    reward = np.full(len(columns), np.nan)
    reward[episodes.rows] = computed.numpy()
    return reward


def _training_rows(episodes: EpisodeRows, held_out: float, seed: int) -> np.ndarray:
    """Return which rows, in the table's own order, are kept and belong to subjects that are not held out."""
    subject = episodes.subjects()[0]
    aside = held_out_subjects(torch.from_numpy(subject), held_out, seed).numpy()
    training = np.zeros(len(episodes.order), dtype=bool)
    training[episodes.rows[~np.isin(subject, aside)]] = True
    return training


def _states(
    columns: CheckedColumns, layout: Layout, episodes: EpisodeRows, training: np.ndarray, like: Schema | None
) -> tuple[np.ndarray, list[Column], bool]:
    """Return the sorted states without missing values, their columns, and whether fills were learned."""
    order, subject = episodes.order, episodes.subject
    known = None if like is None else without_made(like.states, layout)
    cells, states = read_states(columns, layout, _not_held_out(episodes, training), known)
    values = cells[order]
    missing = np.isnan(values)
    learning = training[order]
    if missing.any():
        if like is None:
            constant = constant_within_subjects(values[learning], subject[learning])
        else:
            constant = np.array([column.static for column in states])
        values = carry(values, subject, episodes.elapsed, layout, constant)
    if like is None:
        fills = learn_fills(states, values[learning], layout.missing)
        states = [replace(column, fill=fill) for column, fill in zip(states, fills, strict=True)]
    masks = [[column.name for column in states].index(name) for name in layout.masks]
    values = np.column_stack([filled(states, values, order), *missing[:, masks].T.astype(float)])
    states += [Column(f"{name}_missing", LEVELS, mask_of=name) for name in layout.masks]
    return values, states, layout.missing != "refuse" and bool(missing.any())


def _not_held_out(episodes: EpisodeRows, training: np.ndarray) -> np.ndarray:
    """Return all rows, in the table's own order, of subjects that are not held out.

    Rows without a transition of their own count too: their states are next states.
    """
    subject = np.empty_like(episodes.subject)
    subject[episodes.order] = episodes.subject
    held_out = subject[episodes.needed() & ~training]
    return ~np.isin(subject, held_out)


def _next_states(
    columns: CheckedColumns, layout: Layout, episodes: EpisodeRows, values: np.ndarray, states: list[Column]
) -> np.ndarray:
    """Return the sorted next states: those of the row after, or the table's own; NaN where there is none."""
    if layout.shifts:
        return shifted(values, episodes)
    require(not layout.masks, "masks need the next row, and next_state names columns; leave one of them away")
    pairs = zip(states, table_columns(layout, layout.next_state), strict=True)
    following = np.column_stack([encoded(columns, column, place) for column, place in pairs])
    # Only a terminated row may lack its next state, and then all of it.
    absent = np.zeros(len(columns), dtype=bool)
    absent[episodes.order[episodes.outcome >= 0]] = True
    absent &= np.isnan(following).all(1)
    for place, cells in zip(table_columns(layout, layout.next_state), following.T, strict=True):
        check_missing(place.source, np.isnan(cells) & ~absent)
    return following[episodes.order]


def shifted(values: np.ndarray, episodes: EpisodeRows) -> np.ndarray:
    """Return the values of the row after; NaN at the end of an episode."""
    after = np.full_like(values, np.nan)
    after[:-1] = values[1:]
    after[episodes.end] = np.nan
    return after


def _with_static(states: list[Column], values: np.ndarray, following: np.ndarray, keep: np.ndarray) -> list[Column]:
    """Mark the columns that never change from a row to the next, though they differ between rows."""
    rows = keep & ~np.isnan(following).any(1)
    static = (values[rows] == following[rows]).all(0) & (values[rows] != values[rows][:1]).any(0)
    return [replace(column, static=bool(flag)) for column, flag in zip(states, static, strict=True)]


def _check_lost_rewards(reward: np.ndarray, episodes: EpisodeRows, name: str) -> None:
    """Refuse to drop last rows whose rewards look like outcomes."""
    lost = reward[episodes.left_out]
    usual = reward[episodes.keep & (episodes.outcome < 0)]
    if not len(usual) or not len(lost):
        return
    unlike = unusual_rewards(lost, usual)
    require(
        not unlike.any(),
        f"last='truncate' would drop the last row of {len(lost)} episodes; {unlike.sum()} of them carry a reward"
        f" in '{name}' unlike all others, perhaps an outcome; mark those rows in done, or choose"
        " last='terminal' to keep them or 'drop' to lose them",
    )


def unusual_rewards(rewards: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return which rewards lie farther outside the range of the usual ones than that range is wide."""
    low, high = usual.min(), usual.max()
    width = high - low
    return (rewards < low - width) | (rewards > high + width)


def _single(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _misspelling_notes(states: Sequence[Column], values: np.ndarray, layout: Layout) -> list[str]:
    """Return notes on levels that are not declared, and on columns of 0 and 1 with a few other numbers."""
    declared = {name for name, levels in layout.categorical if levels} | {*layout.numeric}
    notes: list[str] = []
    for column, cells in zip(states, values.T, strict=True):
        if column.mask_of or column.name in declared:
            continue
        if column.levels:
            counts = np.bincount(cells[~np.isnan(cells)].astype(int), minlength=len(column.levels))
            notes += level_notes(column.name, column.levels, counts)
        else:
            notes += stray_number_note(column.name, cells)
    return notes


def _odd_number_notes(
    columns: CheckedColumns,
    layout: Layout,
    episodes: EpisodeRows,
    states: Sequence[Column],
    values: np.ndarray,
    reward: np.ndarray,
) -> list[str]:
    """Return notes on units, codes for missing values and isolated values of states, doses and rewards."""
    subject, keep = episodes.subject, episodes.keep
    notes: list[str] = []
    for column, cells in zip(states, values.T, strict=True):
        if not column.levels and not column.mask_of:
            notes += odd_values(column.name, cells, subject)
    for name in layout.action:
        if not layout.labels and not columns.holds_labels(name):
            notes += odd_values(name, columns.measured(name)[episodes.order][keep], subject[keep], dose=True)
    ends = (episodes.end | (episodes.outcome >= 0))[keep]
    return [*notes, *odd_rewards(layout.reward, reward[episodes.rows], ends, subject[keep])]


def _precision_notes(states: Sequence[Column], values: np.ndarray) -> list[str]:
    return [
        note for column, cells in zip(states, values.T, strict=True) for note in _precision_note(column.name, cells)
    ]


def _precision_note(name: str, values: np.ndarray) -> list[str]:
    """Return a note on what single precision loses of a column."""
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


def _continuous_note(rows: Transitions) -> list[str]:
    if not isinstance(rows.actions, Box):
        return []
    return [
        f"the doses in {quoted(rows.action_names)} are continuous: a model can be fitted, but D3QN and its kin choose"
        " from a list; cut the doses into bins"
    ]


def _held_out_doses_note(rows: Transitions, aside: torch.Tensor) -> list[str]:
    """Return a note where held-out subjects (their rows `aside`) were given doses that no training subject was."""
    if not bool(aside.any()) or bool(aside.all()):
        return []
    if isinstance(rows.actions, Discrete):
        beyond = ~torch.isin(rows.action_index[aside], rows.action_index[~aside])
    else:
        training, held_out = rows.action[~aside], rows.action[aside]
        beyond = ((held_out < training.amin(0)) | (held_out > training.amax(0))).any(1)
    if not bool(beyond.any()):
        return []
    return [
        f"{int(beyond.sum())} rows of held-out subjects have doses that no training subject was given; nothing is"
        " learned of such doses and recommend withholds them"
    ]
