"""Guess the role of every column that the user did not name, by its name and content."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from counterpoint.core.errors import require
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.inspection.facts import AMOUNTS, USABLE, Roles
from counterpoint.data.tables.inspection.survey import (
    Survey,
    SurveyedColumn,
    codes_of,
    copies_of,
    free_columns,
    static_columns,
    survey_clock,
    survey_column,
)
from counterpoint.data.tables.state_columns import MOST_LEVELS

PEOPLE = {"id", "identifier", "patient", "pat", "pid", "subject", "person", "participant", "mrn", "individual",
          "animal", "traj", "trajectory"}  # fmt: skip
STAYS = {"stay", "icustay", "encounter", "episode", "hadm"}
NUMBERED = {"case", "unit", "user", "uniquep"}, {"admission", "hospitalization"}
"""Names of people and of stays, where a word such as number or id follows."""
CLOCKS = {"time", "hour", "hours", "step", "bloc", "block", "date", "datetime", "timestamp", "timestep", "day", "days",
          "minute", "minutes", "week", "month", "visit", "period", "window", "cycle", "t"}  # fmt: skip
MOMENTS = ("time", "date", "timestamp")
ENDS = ("died", "death", "dead", "mort", "deceased", "expire", "discharg", "surviv", "alive", "terminal", "terminated",
        "done", "outcome")  # fmt: skip
GENERAL = ("terminal", "terminated", "done", "outcome")
"""Names of ends of any kind; a column that says which end is preferred."""
STOPS = ("truncated", "censored", "timeout")
TREATMENTS = ("dose", "treatment", "drug", "vaso", "iv", "fluid", "medication", "infusion", "therapy", "input",
              "insulin", "heparin", "norepinephrine", "chemo", "radio")  # fmt: skip
SUMS = ("total", "cum", "sum", "balance")
SPARSE = 0.95
"""A column with a larger share of missing values is not suggested as state."""
MOST_ACTION_COLUMNS = 3
"""Every combination of their values is an action, so at most this many are guessed."""

SAME, ID = "says the same as", "an id"
LEAKS = "known only later: "
ENDING, OVERLAP, OTHER = "tells how it ends", "overlaps another outcome", "another treatment"


def tokens_of(name: str) -> list[str]:
    """Split a column name into words: 'maxDose_vaso' into max, dose, vaso."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def says(name: str, words: Sequence[str]) -> bool:
    """Return whether a token of the name is one of the words, or begins with one of three letters or more."""
    tokens = tokens_of(name)
    return any(token == word or (len(word) > 2 and token.startswith(word)) for token in tokens for word in words)


def id_of(name: str) -> Literal["", "person", "stay"]:
    """Return what a column name is an id of."""
    compact = "".join(tokens_of(name))
    bare = re.sub(r"(identifier|id|number|num|nr|no|key)$", "", compact)
    if compact in PEOPLE or (bare != compact and bare in PEOPLE | NUMBERED[0]):
        return "person"
    stay = bare in NUMBERED[1] or bare.endswith(("stay", "encounter"))
    return "stay" if compact in STAYS or (bare != compact and (stay or bare in STAYS)) else ""


def is_clock(name: str) -> bool:
    """Return whether a column name is that of a time."""
    tokens = tokens_of(name)
    return bool(CLOCKS & set(tokens)) or "".join(tokens).endswith(MOMENTS)


def state_before(name: str) -> str:
    """Return the state column that a column holds the next value of; "" for other columns."""
    bare = name.removeprefix("next_").removesuffix("_next")
    return bare if bare != name else ""


def survey_table(columns: CheckedColumns, declared: Roles) -> Survey:
    """Read every column once and give it a role: first subject, episode and time, then the others."""
    surveyed = {name: survey_column(columns, name) for name in columns.frame.columns}
    for name in (*declared["subject"], *declared["episode"]):
        require(surveyed[name].kind != "unreadable", f"column '{name}' {surveyed[name].trouble}")
    roles = dict(declared)
    roles["subject"] = declared["subject"] or _guess_subject(free_columns(surveyed, roles))
    free = free_columns(surveyed, roles)
    roles["episode"] = declared["episode"] or _guess_episode(columns, free, roles["subject"])
    roles["time"] = declared["time"] or _guess_time(columns, free_columns(surveyed, roles), roles)
    clock = survey_clock(columns, roles)
    ids = (*roles["subject"], *roles["episode"])
    usable = [column for column in surveyed.values() if column.kind in USABLE and column.name not in ids]
    static = static_columns(surveyed, clock.records, roles)
    survey = Survey(columns, surveyed, declared, roles, clock, copies_of(usable), static, {})
    roles["reward"] = declared["reward"] or _guess_reward(survey.free())
    roles["truncated"] = _named(survey.free(), STOPS, ("yes/no",))[:1]
    roles["done"] = declared["done"] or _guess_done(survey)
    roles["action"] = declared["action"] or _guess_action(survey)
    roles["state"] = declared["state"] or _guess_state(survey)
    roles["next_state"] = _guess_next(survey)
    return survey


def _named(free: Sequence[SurveyedColumn], words: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(c.name for c in free if says(c.name, words) and c.kind in kinds and c.distinct > 1)


def _is_id(column: SurveyedColumn) -> bool:
    return column.kind in ("whole number", "text or id", "category", "yes/no")


def _numbers_rows(column: SurveyedColumn) -> bool:
    """Return whether a column numbers the rows of the whole table."""
    return column.kind == "whole number" and MOST_LEVELS < column.distinct == len(column.values)


def _guess_subject(free: list[SurveyedColumn]) -> tuple[str, ...]:
    """Prefer a person's id, then a stay's, then a text that recurs; one that never recurs comes last."""
    ids = [column for column in free if id_of(column.name) and _is_id(column)]
    ids.sort(key=lambda column: (id_of(column.name), column.distinct if id_of(column.name) == "stay" else 0))
    whole = [column for column in free if column.kind == "text or id" and not np.isnan(column.values).any()]
    texts = [column for column in whole if 2 * column.distinct <= len(column.values)]
    candidates = sorted([*ids, *texts], key=lambda column: column.distinct == len(column.values))
    return tuple(column.name for column in candidates[:1])


def _guess_episode(columns: CheckedColumns, free: list[SurveyedColumn], subject: tuple[str, ...]) -> tuple[str, ...]:
    """Return a stay's id that divides the rows of subjects, the finest where there are several."""
    stays = [c for c in free if subject and id_of(c.name) == "stay" and _is_id(c) and c.distinct < len(c.values)]
    for column in sorted(stays, key=lambda stay: -stay.distinct):
        subjects = codes_of(columns, subject[0])
        codes = codes_of(columns, column.name)
        pairs = len(np.unique(subjects * (codes.max() + 2) + codes))
        if pairs == len(np.unique(codes)) > len(np.unique(subjects)):
            return (column.name,)
    return ()


def _guess_time(columns: CheckedColumns, free: list[SurveyedColumn], roles: Roles) -> tuple[str, ...]:
    """Prefer the column named like a time that has the fewest ties, then one that always rises within subjects."""
    group = np.zeros(len(columns), dtype=np.int64)
    for role in ("subject", "episode"):
        codes = codes_of(columns, roles[role][0]) + 1 if roles[role] else np.zeros_like(group)
        group = group * (codes.max() + 1) + codes
    likely = [column for column in free if column.kind in (*AMOUNTS, "date") and column.distinct > 1]
    clocks = [column for column in likely if is_clock(column.name)]
    ties = [_ties(column.values, group) for column in clocks]
    if ties and min(ties) < len(columns) - len(np.unique(group)):
        return (clocks[int(np.argmin(ties))].name,)
    dates = [column for column in likely if column.kind in ("date", "whole number") and not _numbers_rows(column)]
    return tuple(column.name for column in dates if _rises(column.values, group))[:1]


def _ties(values: np.ndarray, group: np.ndarray) -> int:
    """Count the rows that repeat the value of another of their group, or have none."""
    order = np.lexsort((values, group))
    return int((~changes(values[order]) & ~changes(group[order])).sum() + np.isnan(values).sum())


def _rises(values: np.ndarray, group: np.ndarray) -> bool:
    inside = ~changes(group)
    return bool(inside.any() and (np.diff(values, prepend=np.nan)[inside] > 0).all())


def _guess_reward(free: list[SurveyedColumn]) -> tuple[str, ...]:
    names = [column.name for column in free if column.kind in AMOUNTS]
    return tuple(name for name in names if says(name, ("reward",)) or tokens_of(name) == ["r"])[:1]


def _guess_done(survey: Survey) -> tuple[str, ...]:
    """Return outcomes that never meet on a row; those that say what happened come first."""
    ends = [column for column in survey.free() if says(column.name, ENDS)]
    flags = [column for column in ends if column.kind == "yes/no"]
    fit = [c for c in flags if c.name in survey.static or np.nanmean(c.values) <= 0.5]
    survey.unused.update({column.name: ENDING for column in ends} | {column.name: OVERLAP for column in fit})
    marked = np.zeros(len(survey.columns), dtype=bool)
    for column in sorted(fit, key=lambda flag: says(flag.name, GENERAL)):
        if not (marked & (column.values == 1)).any():
            del survey.unused[column.name]
            marked |= column.values == 1
    return tuple(column.name for column in fit if column.name not in survey.unused)


def _guess_action(survey: Survey) -> tuple[str, ...]:
    """Return columns named action, else those named after a treatment, without copies and sums over the stay."""
    usable = [c for c in survey.free() if not c.trouble and not says(c.name, SUMS) and c.name not in survey.unused]
    named = _named(usable, ("action",), USABLE) or tuple(c.name for c in usable if tokens_of(c.name) == ["a"])
    treatments = _named(usable, TREATMENTS, USABLE)
    chosen: list[str] = []
    for name in named or treatments:
        if len(chosen) < MOST_ACTION_COLUMNS and not set(survey.copies.get(name, [])) & set(chosen):
            chosen.append(name)
    survey.unused.update({name: OTHER for name in (*named, *treatments) if name not in chosen})
    return tuple(chosen)


def _guess_state(survey: Survey) -> tuple[str, ...]:
    """Return every other column that a model can use and that is no copy of another."""
    used = {name for names in survey.roles.values() for name in names}
    chosen: list[str] = []
    for column in survey.free():
        copies = [name for name in survey.copies.get(column.name, []) if name in used or name in chosen]
        same = f"{SAME} '{copies[0]}'" if copies else ""
        reason = survey.unused.get(column.name) or _unfit(column, survey.surveyed) or same
        if reason:
            survey.unused[column.name] = reason
        else:
            chosen.append(column.name)
    return tuple(chosen)


def _unfit(column: SurveyedColumn, surveyed: dict[str, SurveyedColumn]) -> str:
    """Return why a column is no state; "" where it may be one."""
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
        "a next state": state_before(column.name) in surveyed,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _guess_next(survey: Survey) -> tuple[str, ...]:
    """Return the columns of the next state, where there is one for every state column."""
    following = {state_before(name): name for name in survey.surveyed if state_before(name)}
    states = survey.roles["state"]
    return tuple(following[name] for name in states) if set(states) <= set(following) else ()
