"""What the loader should be told, and what it makes of the table when told so."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import Bins
from counterpoint.data.layout import Layout
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.inspection.facts import NEEDED, STEPS, Trial
from counterpoint.data.tables.inspection.findings import categories_of, open_ends_of, repeats
from counterpoint.data.tables.inspection.look import Look
from counterpoint.data.tables.inspection.names import GENERAL, says
from counterpoint.data.tables.inspection.page import Inspection
from counterpoint.data.tables.inspection.roles import OVERLAP
from counterpoint.data.tables.reading import read_table

ENOUGH = 0.05
"""Share of missing values that a suggested carrying forward may leave to be filled."""
TRIED = 100_000
"""A table of more rows is tried on as many of its subjects as have about this many."""


def suggested_choices(look: Look, found: Inspection, bins: Sequence[Bins]) -> dict[str, Any]:
    """What the loader should be told; what is left away is as it would be anyway."""
    roles, clock, gone = look.roles, found.clock, found.missing
    carry = next((n for n in STEPS if gone.left.get(str(n), 0.0) <= ENOUGH), STEPS[-1])
    helps = gone.cells > 0 and gone.left[str(carry)] < gone.cells
    wanted: dict[str, Any] = {role: "".join(roles[role][:1]) for role in ("subject", "time", "episode")}
    wanted |= {role: list(roles[role]) for role in ("state", "action")}
    wanted |= {"reward": "".join(roles["reward"][:1]), "done": list(roles["done"])}
    wanted |= {
        "outcome": "last row of the subject" if repeats(found.outcomes) else "",
        "truncated": "".join(roles["truncated"]),
        "next_state": list(roles["next_state"]),
        "last": _last(look, found) if found.open_ends else "",
        "step": clock.step if clock and clock.gaps else "",
        "gaps": ("cut" if 2 * clock.gaps <= clock.pairs else "bridge") if clock and clock.gaps else "",
        "categorical": categories_of(look),
        "missing": "median" if gone.cells else "",
        "carry_forward": carry if helps else 0,
        "bins": [f"{each.column}={each.count}" for each in bins],
        "encoding": found.encoding if found.encoding != "utf-8" else "",
    }
    return {name: value for name, value in wanted.items() if value}


def _last(look: Look, found: Inspection) -> str:
    """What an end without an outcome is: one of its own where its reward or a general flag says so, else a stop."""
    general = [look.taken[name] for name, why in look.unused.items() if why == OVERLAP and says(name, GENERAL)]
    ends = open_ends_of(look, found.outcomes)
    marked = any(look.flag(column)[ends].all() for column in general)
    return "terminal" if found.rewards.unlike or marked or look.log.opens.all() else "truncate"


def try_loading(look: Look, choices: dict[str, Any], bins: Sequence[Bins]) -> Trial:
    """What the loader makes of the table; a long one is tried on some of its subjects."""
    told: dict[str, Any] = {role: () if role in ("state", "action") else "" for role in NEEDED}
    told |= {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    told |= {"bins": tuple(bins), "categorical": tuple((name, ()) for name in categories_of(look))}
    sample = _some_subjects(look)
    frame = look.columns.frame if sample is None else look.columns.frame[sample]
    tried = 0 if sample is None else len(sample)
    try:
        rows, notes = read_table(frame.to_native(), Layout(**told))
    except CounterpointError as error:
        return Trial(sample=tried, error=re.sub(r"\[[^\]]*\]|\{[^}]*\}", "[…]", str(error)))  # Doses stand in brackets.
    except Exception as error:  # An odd table must not end the inspection, and foreign words may quote patients.
        return Trial(sample=tried, error=f"the loader failed with {type(error).__name__}; please report it")
    return Trial(
        rows=len(rows),
        episodes=len(rows.episode.unique()),
        subjects=len(rows.subject.unique()),
        states=len(rows.schema.states),
        actions=rows.actions.count if isinstance(rows.actions, Discrete) else 0,
        ends={name: int((rows.outcome == place).sum()) for place, name in enumerate(rows.outcome_names)},
        stopped=int(rows.truncated.sum()),
        sample=tried,
        notes=tuple(notes),
    )


def _some_subjects(look: Look) -> np.ndarray | None:
    """The rows of every k-th subject, in the table's order; none where all rows are few enough."""
    every = -(-len(look.columns) // TRIED)
    if every == 1:
        return None
    number = np.cumsum(changes(look.log.subject))
    return np.sort(look.log.order[number % every == 1][:TRIED])
