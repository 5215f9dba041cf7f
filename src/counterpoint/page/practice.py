"""Practice on the page: how it was estimated, how far a policy goes from it, and typical patients with both actions.

A typical patient is the centre of a cluster of similar logged states: the mean of every number, the commonest level of
every category. It is no patient's row; clusters with fewer than ten subjects are left out.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.data.far_values import near
from counterpoint.data.jobs import spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.practice import baseline_practice
from counterpoint.page.cells import SMALLEST, PageTable, number, share, subjects_in
from counterpoint.page.cohort import rare_levels
from counterpoint.policies.base import Policy
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.practice import PracticePolicy
from counterpoint.policies.recommendation import WITHHELD, practice_of, recommend

TYPICAL = 10
"""Typical patients, at most."""
SAMPLED_ROWS = 20_000
"""Logged states that are grouped, at most."""
SHOWN_COLUMNS = 6
"""State columns of the table of typical patients, at most."""


@dataclass(frozen=True)
class PracticeSection:
    """What the page shows of practice."""

    estimated: tuple[str, ...]
    """How practice was estimated."""
    distance: tuple[str, ...]
    """How far a policy near practice goes from it, and on what evidence; empty for other policies."""
    typical: PageTable | None
    """Typical patients, what the clinicians do, and what the policy recommends; None where all groups are too small."""


@dataclass(frozen=True)
class TypicalStates:
    """Centres of groups of similar logged states."""

    state: Float[Tensor, "k s"]
    share: tuple[float, ...]
    """Share of the logged states in each group."""


def practice_section(rows: Transitions, policy: Policy) -> PracticeSection | None:
    """Compare a policy with practice: its own, or practice as estimated from the rows; None where there is none."""
    practice = practice_of(policy) or baseline_practice(rows)
    if practice is None:
        return None
    distance = policy.notes if isinstance(policy, NearPracticePolicy) else ()
    return PracticeSection(practice.notes, distance, _table(rows, policy, practice))


def typical_states(rows: Transitions, most: int = TYPICAL) -> TypicalStates | None:
    """Centres of k-means clusters of the logged states, the commonest first; None where all are too small."""
    from sklearn.cluster import KMeans

    picked = torch.randperm(len(rows), generator=generator(0, "typical patients"))[:SAMPLED_ROWS].sort().values
    sample = rows[picked]
    columns = near(spread_levels(sample.state, rows.schema.categories))
    scale = columns.std(0)
    z = (columns - columns.mean(0)) / torch.where(scale > 1e-8, scale, 1.0)
    count = min(most, len(z.unique(dim=0)))
    clusters = KMeans(count, n_init=2, random_state=derive(0, "typical patients") % 2**31)  # pyright: ignore[reportArgumentType]
    cell = torch.from_numpy(clusters.fit_predict(z.double().numpy())).long()
    subjects = subjects_in(sample, cell, count)
    sizes = torch.bincount(cell, minlength=count)
    kept = [i for i in sizes.argsort(descending=True).tolist() if subjects[i] >= SMALLEST]
    if not kept:
        return None
    centres = torch.stack([_centre(sample, cell == i) for i in kept])
    centres = rows.schema.knowledge.hold(centres, rows.state_names)
    return TypicalStates(centres, tuple((sizes[kept] / len(sample)).tolist()))


def _centre(rows: Transitions, members: Bool[Tensor, " n"]) -> Float[Tensor, " s"]:
    """Mean of every number, commonest level of every category."""
    states = near(rows.state)[members]
    centre = states.mean(0)
    for i, column in enumerate(rows.schema.states):
        if column.levels:
            centre[i] = float(rows.state[members, i].long().bincount().argmax())
        elif column.mask_of:
            centre[i] = centre[i].round()
    return centre


def _table(rows: Transitions, policy: Policy, practice: PracticePolicy) -> PageTable | None:
    typical = typical_states(rows)
    if typical is None:
        return None
    schema = rows.schema
    # Typical states are numbers in the order of the columns, not a table to be read like the training one.
    advice = recommend(policy, typical.state, replace(rows, layout=None), practice=practice).advice
    shown = _shown_columns(rows, policy, typical.state)
    lines = []
    for i, one in enumerate(advice):
        recommended = _action_text(schema, one.action) if one.action is not None else f"{WITHHELD}: {one.why}"
        usual = "not known" if one.practice is None else _action_text(schema, one.practice)
        values = [_value(rows, column, float(typical.state[i, column])) for column in shown]
        lines.append((f"{i + 1} ({share(typical.share[i])} of decisions)", *values, usual, recommended))
    names = [f"{c.name} ({c.unit})" if c.unit else c.name for c in (schema.states[i] for i in shown)]
    categories = [1 + place for place, i in enumerate(shown) if schema.states[i].levels]
    words = (0, *categories, len(shown) + 1, len(shown) + 2)
    head = ("Typical patient", *names, "Practice", "Recommended")
    measured = sum(not column.mask_of for column in schema.states)
    return PageTable("Typical patients", head, tuple(lines), words, note=_note(policy, len(shown), measured))


def _note(policy: Policy, shown: int, columns: int) -> str:
    note = f"Each is the centre of a group of similar logged states of {SMALLEST} or more subjects: no patient’s row."
    if shown == columns:
        return note
    which = "with the largest weights in the tilt" if isinstance(policy, NearPracticePolicy) else "that differ most"
    return f"{note} Of {columns} columns, the {shown} {which} are shown."


def _shown_columns(rows: Transitions, policy: Policy, typical: Float[Tensor, "k s"]) -> list[int]:
    """State columns with the largest weights in a tilt, or that differ most between typical patients."""
    columns = rows.schema.states
    deviation = near(rows.state).std(0)
    importance = typical.std(0, correction=0) / torch.where(deviation > 1e-8, deviation, 1.0)
    if isinstance(policy, NearPracticePolicy) and bool(policy.share > 0):
        weights = policy.numbers.view(-1, rows.schema.actions.width)[:-1].abs().sum(1)
        importance = _by_column(rows.schema, weights)
    usable = [i for i, column in enumerate(columns) if not column.mask_of]
    return sorted(sorted(usable, key=lambda i: -float(importance[i]))[:SHOWN_COLUMNS])


def _by_column(schema: Schema, weights: Float[Tensor, " i"]) -> Float[Tensor, " s"]:
    """Weights of the inputs of a rule by state column; a category has the largest of its levels'."""
    coded = dict(schema.categories)
    plain = [i for i in range(len(schema.states)) if i not in coded]
    importance = torch.zeros(len(schema.states))
    importance[plain] = weights[: len(plain)]
    first = len(plain)
    for i, count in schema.categories:
        importance[i] = weights[first : first + count].max()
        first += count
    return importance


def _value(rows: Transitions, place: int, value: float) -> str:
    column = rows.schema.states[place]
    if not column.levels:
        return number(value)
    return "not shown" if rare_levels(rows, place)[int(value)] else column.levels[int(value)]


def _action_text(schema: Schema, action: dict[str, Any]) -> str:
    """An action in words, with the units of its doses."""
    if isinstance(schema.actions, Discrete):
        return schema.labels(units=True)[schema.choices().index(action)]
    units = dict(schema.action_units)
    return ", ".join(f"{name} {number(dose)} {units.get(name, '')}".rstrip() for name, dose in action.items())
