"""Which column is what: as the user says, else by name and content."""

from collections.abc import Sequence

import numpy as np

from counterpoint.core.errors import require
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.inspection.columns import TakenColumn, codes_of, take
from counterpoint.data.tables.inspection.facts import AMOUNTS, USABLE, Roles
from counterpoint.data.tables.inspection.look import Look, alike_columns, free_columns, sorted_log, static_columns
from counterpoint.data.tables.inspection.names import (
    ENDS,
    GENERAL,
    MOMENTS,
    STOPS,
    SUMS,
    TREATMENTS,
    id_of,
    is_clock,
    says,
    state_before,
    tokens_of,
)
from counterpoint.data.tables.state_columns import MOST_LEVELS

SPARSE = 0.95
"""A column with a larger share of missing values is not suggested as state."""
MOST_ACTION_COLUMNS = 3
"""Every combination of their doses is an action, so more are not guessed."""

SAME, ID = "says the same as", "an id"
ENDING, OVERLAP, OTHER = "tells how it ends", "overlaps another outcome", "another treatment"


def look_at(columns: CheckedColumns, given: Roles) -> Look:
    """Take every column once, and find out what each is: first whose and when, then the rest."""
    taken = {name: take(columns, name) for name in columns.frame.columns}
    for name in (*given["subject"], *given["episode"]):
        require(taken[name].kind != "unreadable", f"column '{name}' {taken[name].trouble}")
    roles = dict(given)  # Filled as one role after the other is found.
    roles["subject"] = given["subject"] or _guess_subject(free_columns(taken, roles))
    roles["episode"] = given["episode"] or _guess_episode(columns, free_columns(taken, roles), roles["subject"])
    roles["time"] = given["time"] or _guess_time(columns, free_columns(taken, roles), roles)
    log = sorted_log(columns, roles)
    ids = (*roles["subject"], *roles["episode"])
    alike = alike_columns([column for column in taken.values() if column.kind in USABLE and column.name not in ids])
    look = Look(columns, taken, given, roles, log, alike, static_columns(taken, log, roles), {})
    roles["reward"] = given["reward"] or _guess_reward(look.free())
    roles["truncated"] = _named(look.free(), STOPS, ("yes/no",))[:1]
    roles["done"] = given["done"] or _guess_done(look)
    roles["action"] = given["action"] or _guess_action(look)
    roles["state"] = given["state"] or _guess_state(look)
    roles["next_state"] = _guess_next(look)
    return look


def _named(free: Sequence[TakenColumn], words: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(c.name for c in free if says(c.name, words) and c.kind in kinds and c.distinct > 1)


def _is_id(column: TakenColumn) -> bool:
    return column.kind in ("whole number", "text or id", "category", "yes/no")


def _numbers_rows(column: TakenColumn) -> bool:
    """Whether it numbers the rows of the whole table."""
    return column.kind == "whole number" and MOST_LEVELS < column.distinct == len(column.values)


def _guess_subject(free: list[TakenColumn]) -> tuple[str, ...]:
    """A person's id, else a stay's, else a text that recurs; one that never recurs is the last choice."""
    ids = [column for column in free if id_of(column.name) and _is_id(column)]
    ids.sort(key=lambda column: (id_of(column.name), column.distinct if id_of(column.name) == "stay" else 0))
    whole = [column for column in free if column.kind == "text or id" and not np.isnan(column.values).any()]
    texts = [column for column in whole if 2 * column.distinct <= len(column.values)]
    found = sorted([*ids, *texts], key=lambda column: column.distinct == len(column.values))
    return tuple(column.name for column in found[:1])


def _guess_episode(columns: CheckedColumns, free: list[TakenColumn], subject: tuple[str, ...]) -> tuple[str, ...]:
    """A stay's id that divides the rows of subjects; the finest where there are several."""
    stays = [c for c in free if subject and id_of(c.name) == "stay" and _is_id(c) and c.distinct < len(c.values)]
    for column in sorted(stays, key=lambda each: -each.distinct):
        whose, stay = codes_of(columns, subject[0]), codes_of(columns, column.name)
        pairs = len(np.unique(whose * (stay.max() + 2) + stay))
        if pairs == len(np.unique(stay)) > len(np.unique(whose)):
            return (column.name,)
    return ()


def _guess_time(columns: CheckedColumns, free: list[TakenColumn], roles: Roles) -> tuple[str, ...]:
    """What is called a time and tells a subject's rows apart best, else what always rises within subjects."""
    group = np.zeros(len(columns), dtype=np.int64)
    for role in ("subject", "episode"):
        own = codes_of(columns, roles[role][0]) + 1 if roles[role] else np.zeros_like(group)
        group = group * (own.max() + 1) + own
    likely = [column for column in free if column.kind in (*AMOUNTS, "date") and column.distinct > 1]
    named = [column for column in likely if is_clock(column.name)]
    clashes = [_clashes(column.values, group) for column in named]
    if clashes and min(clashes) < len(columns) - len(np.unique(group)):
        return (named[int(np.argmin(clashes))].name,)
    dates = [column for column in likely if column.kind in ("date", "whole number") and not _numbers_rows(column)]
    return tuple(column.name for column in dates if _rises(column.values, group))[:1]


def _clashes(values: np.ndarray, group: np.ndarray) -> int:
    """Rows that repeat the value of another of their group, or have none."""
    order = np.lexsort((values, group))
    return int((~changes(values[order]) & ~changes(group[order])).sum() + np.isnan(values).sum())


def _rises(values: np.ndarray, group: np.ndarray) -> bool:
    inside = ~changes(group)
    return bool(inside.any() and (np.diff(values, prepend=np.nan)[inside] > 0).all())


def _guess_reward(free: list[TakenColumn]) -> tuple[str, ...]:
    found = [column.name for column in free if column.kind in AMOUNTS]
    return tuple(name for name in found if says(name, ("reward",)) or tokens_of(name) == ["r"])[:1]


def _guess_done(look: Look) -> tuple[str, ...]:
    """Outcomes that never meet on a row; those that say what happened come first."""
    named = [column for column in look.free() if says(column.name, ENDS)]
    fit = [c for c in named if c.kind == "yes/no" and (c.name in look.static or np.nanmean(c.values) <= 0.5)]
    look.unused.update({column.name: ENDING for column in named} | {column.name: OVERLAP for column in fit})
    marked = np.zeros(len(look.columns), dtype=bool)
    for column in sorted(fit, key=lambda each: says(each.name, GENERAL)):
        if not (marked & (column.values == 1)).any():
            del look.unused[column.name]
            marked |= column.values == 1
    return tuple(column.name for column in fit if column.name not in look.unused)


def _guess_action(look: Look) -> tuple[str, ...]:
    """Columns called action, else those named after a treatment, but no copies and no sums over the stay."""
    free = [c for c in look.free() if not c.trouble and not says(c.name, SUMS) and c.name not in look.unused]
    called = _named(free, ("action",), USABLE) or tuple(c.name for c in free if tokens_of(c.name) == ["a"])
    treatments, chosen = _named(free, TREATMENTS, USABLE), list[str]()
    for name in called or treatments:
        if len(chosen) < MOST_ACTION_COLUMNS and not set(look.alike.get(name, [])) & set(chosen):
            chosen.append(name)
    look.unused.update({name: OTHER for name in (*called, *treatments) if name not in chosen})
    return tuple(chosen)


def _guess_state(look: Look) -> tuple[str, ...]:
    """Every other column that a model can take and that says something of its own."""
    chosen, used = list[str](), {name for names in look.roles.values() for name in names}
    for column in look.free():
        copies = [other for other in look.alike.get(column.name, []) if other in used or other in chosen]
        same = f"{SAME} '{copies[0]}'" if copies else ""
        reason = look.unused.get(column.name) or _unfit(column, look.taken) or same
        look.unused.update({column.name: reason} if reason else {})
        chosen += [] if reason else [column.name]
    return tuple(chosen)


def _unfit(column: TakenColumn, taken: dict[str, TakenColumn]) -> str:
    """Why a column is no state; empty where it may be one."""
    reasons = {
        column.trouble.partition(";")[0]: column.kind == "unreadable",
        ID: bool(id_of(column.name)) and _is_id(column),
        "empty": column.kind == "empty",
        "a date": column.kind == "date" or "".join(tokens_of(column.name)).endswith(MOMENTS),
        "numbers the rows": _numbers_rows(column),
        "numbers as text": bool(column.trouble),
        "an id or free text": column.kind == "text or id",
        "always the same": column.distinct < 2,
        "nearly always missing": float(np.isnan(column.values).mean()) > SPARSE,
        "a next state": state_before(column.name) in taken,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _guess_next(look: Look) -> tuple[str, ...]:
    """The columns of the next state, where there is one for every column of the state."""
    after = {state_before(name): name for name in look.taken if state_before(name)}
    states = look.roles["state"]
    return tuple(after[name] for name in states) if set(states) <= set(after) else ()
