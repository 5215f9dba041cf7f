"""`check`: inspect a table before it is read, suggest the flags for `fit`, and try to read the table with them."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.layout import Layout
from counterpoint.data.role_words import bounds_of, cycle_of
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.columns import Table
from counterpoint.data.tables.inspection.facts import NEEDED, ROLES, STEPS, Trial
from counterpoint.data.tables.inspection.findings import (
    categories_of,
    describe,
    open_ends_of,
    repeats,
    suggested_bins,
)
from counterpoint.data.tables.inspection.guesses import ask_roles, guess_roles
from counterpoint.data.tables.inspection.page import Inspection
from counterpoint.data.tables.inspection.problems import encoding_problems, problems_of
from counterpoint.data.tables.inspection.roles import GENERAL, LEAKS, OVERLAP, id_of, says, survey_table
from counterpoint.data.tables.inspection.survey import Survey, column_names, open_columns, peek
from counterpoint.data.tables.reading import read_table
from counterpoint.data.tables.record_checks import leaking_columns

ENOUGH = 0.05
"""Share of missing values that a suggested carrying forward may leave to be filled."""
TRIED = 100_000
"""Of a longer table, reading is tried on as many subjects as have about this many rows."""


def check(
    table: Table,
    *,
    subject: str = "",
    time: str = "",
    state: str | Sequence[str] = (),
    action: str | Sequence[str] = (),
    reward: str = "",
    done: str | Sequence[str] = (),
    episode: str = "",
    encoding: str = "utf-8",
) -> Inspection:
    """Inspect a table before it is read; roles that are not given are guessed.

    Args:
        table: A pandas or polars DataFrame, or the path of a CSV, TSV or Parquet file.
        subject: Column that identifies the subject.
        time: Column that orders a subject's rows.
        state: Columns of the state.
        action: Columns of the action.
        reward: Column of the reward.
        done: Columns that are true where an episode ends with an outcome.
        episode: Column that identifies a subject's episodes.
        encoding: Encoding of a text file.

    Example:
        >>> inspection = counterpoint.check("patients.csv", action=["vasopressor", "fluid"])  # doctest: +SKIP
        >>> print(inspection.page())  # doctest: +SKIP
    """
    named = {"subject": subject, "episode": episode, "time": time, "reward": reward}
    named |= {"done": done, "action": action, "state": state}
    roles = {role: column_names(role, named.get(role, ())) for role in ROLES}
    readable, header = peek(table, encoding)
    survey = survey_table(open_columns(table, roles, readable, filter(id_of, header)), roles)
    bins = suggested_bins(survey)
    path = str(table) if isinstance(table, str | os.PathLike) else ""
    inspection = _suggestion(survey, bins, path, readable)
    trial, leaks = _try_reading(survey, inspection.choices, bins)
    reduced = _without_leaks(survey, leaks)
    if reduced is not survey:
        survey = reduced
        inspection = _suggestion(survey, bins, path, readable)
        trial, _ = _try_reading(survey, inspection.choices, bins)
    if trial.error and inspection.guesses:
        cautious = _without_guesses(inspection)
        again, _ = _try_reading(survey, cautious.choices, bins)
        if not again.error:
            inspection, trial = cautious, again
    problems = (*encoding_problems(encoding, readable), *problems_of(survey, inspection))
    return replace(inspection, problems=problems, trial=trial)


def _suggestion(survey: Survey, bins: Sequence[Bins], path: str, encoding: str) -> Inspection:
    """Describe the table and suggest how to read it."""
    inspection = replace(describe(survey, bins), source=path, encoding=encoding)
    guesses = guess_roles(survey, bins)
    inspection = replace(inspection, guesses=guesses, questions=ask_roles(survey, guesses))
    return replace(inspection, choices=_suggested_choices(survey, inspection, bins))


def _without_guesses(inspection: Inspection) -> Inspection:
    """Return the suggestion without guessed roles of state columns."""
    settings = {guess.setting for guess in inspection.guesses}
    choices = {name: value for name, value in inspection.choices.items() if name not in settings}
    return replace(inspection, guesses=(), choices=choices)


def _without_leaks(survey: Survey, leaks: dict[str, str]) -> Survey:
    """Leave guessed state columns that are known only later out of the state; at least one column stays."""
    states, following = survey.roles["state"], survey.roles["next_state"]
    kept = [i for i, name in enumerate(states) if name not in leaks or name in survey.declared["state"]]
    if not kept or len(kept) == len(states):
        return survey
    roles = {**survey.roles, "state": tuple(states[i] for i in kept)}
    if following and not survey.declared["next_state"]:
        roles["next_state"] = tuple(following[i] for i in kept)
    left_out = {*states} - {*roles["state"]}
    reasons = {name: f"{LEAKS}{_reason(name, leaks[name])}" for name in states if name in left_out}
    return replace(survey, roles=roles, unused=survey.unused | reasons)


def _reason(name: str, note: str) -> str:
    """Return what a note of `leaking_columns` says of a column, without its advice."""
    return note.removeprefix(f"state column '{name}' ").partition(";")[0]


def _suggested_choices(survey: Survey, inspection: Inspection, bins: Sequence[Bins]) -> dict[str, Any]:
    """Suggest fields of `Layout`; those with their default are left out."""
    roles = survey.roles
    missing = inspection.missing
    carry = next((n for n in STEPS if missing.left.get(str(n), 0.0) <= ENOUGH), STEPS[-1])
    carry_helps = missing.cells > 0 and missing.left[str(carry)] < missing.cells
    choices: dict[str, Any] = {role: "".join(roles[role][:1]) for role in ("subject", "time", "episode")}
    choices |= {role: list(roles[role]) for role in ("state", "action")}
    choices |= {"reward": "".join(roles["reward"][:1]), "done": list(roles["done"])}
    clock = inspection.clock
    gaps = clock is not None and clock.gaps > 0
    choices |= {
        "outcome": "last row of the subject" if repeats(inspection.outcomes) else "",
        "truncated": "".join(roles["truncated"]),
        "next_state": list(roles["next_state"]),
        "last": _last(survey, inspection) if inspection.open_ends else "",
        "step": clock.step if clock and gaps else "",
        "gaps": ("cut" if 2 * clock.gaps <= clock.pairs else "bridge") if clock and gaps else "",
        "categorical": categories_of(survey),
        "missing": "median" if missing.cells else "",
        "carry_forward": carry if carry_helps else 0,
        "bins": [f"{column_bins.column}={column_bins.count}" for column_bins in bins],
        "encoding": inspection.encoding if inspection.encoding != "utf-8" else "",
    }
    for setting in ("cyclic", "recursion", "bounds"):
        choices[setting] = [guess.word for guess in inspection.guesses if guess.setting == setting]
    return {name: value for name, value in choices.items() if value}


def _last(survey: Survey, inspection: Inspection) -> str:
    """Suggest "terminal" where the reward or a general flag marks the ends without an outcome, else "truncate"."""
    overlapping = [name for name, reason in survey.unused.items() if reason == OVERLAP and says(name, GENERAL)]
    ends = open_ends_of(survey, inspection.outcomes)
    marked = any(survey.flag(survey.surveyed[name])[ends].all() for name in overlapping)
    return "terminal" if inspection.rewards.unlike or marked or survey.records.opens.all() else "truncate"


def _try_reading(survey: Survey, choices: dict[str, Any], bins: Sequence[Bins]) -> tuple[Trial, dict[str, str]]:
    """Read the table, or some subjects of a long one, with the suggested choices; also return leaking columns."""
    fields: dict[str, Any] = {role: () if role in ("state", "action") else "" for role in NEEDED}
    fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    fields |= {"cyclic": tuple(map(cycle_of, choices.get("cyclic", ())))}
    fields |= {"knowledge": Knowledge(bounds=tuple(map(bounds_of, fields.pop("bounds", ()))))}
    fields |= {"bins": tuple(bins), "categorical": tuple((name, ()) for name in categories_of(survey))}
    sample = _some_subjects(survey)
    frame = survey.columns.frame if sample is None else survey.columns.frame[sample]
    size = 0 if sample is None else len(sample)
    try:
        rows, notes = read_table(frame.to_native(), Layout(**fields))
    except CounterpointError as error:
        # Doses stand in brackets.
        return Trial(sample=size, error=re.sub(r"\[[^\]]*\]|\{[^}]*\}", "[…]", str(error))), {}
    except Exception as error:  # An odd table must not end the inspection, and other messages may quote patients' data.
        return Trial(sample=size, error=f"the loader failed with {type(error).__name__}; please report it"), {}
    trial = Trial(
        rows=len(rows),
        episodes=len(rows.episode.unique()),
        subjects=len(rows.subject.unique()),
        states=len(rows.schema.states),
        actions=rows.actions.count if isinstance(rows.actions, Discrete) else 0,
        ends={name: int((rows.outcome == place).sum()) for place, name in enumerate(rows.outcome_names)},
        stopped=int(rows.truncated.sum()),
        sample=size,
        notes=tuple(notes),
    )
    return trial, leaking_columns(rows)


def _some_subjects(survey: Survey) -> np.ndarray | None:
    """Return the rows of every k-th subject in the table's order; None where the table is short enough."""
    stride = -(-len(survey.columns) // TRIED)
    if stride == 1:
        return None
    number = np.cumsum(changes(survey.records.subject))
    return np.sort(survey.records.order[number % stride == 1][:TRIED])
