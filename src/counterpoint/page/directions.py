"""Sentences on doses whose effect in the model is not monotone, or is contrary to the log.

    association = Σ_g n_g·(mean change | more of the dose − mean change | less of it) / Σ_g n_g

g are the severity groups, n_g their rows; more of a dose is more than the group's median.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions
from counterpoint.page.cells import SMALLEST, subjects_in
from counterpoint.page.choices import Choices, with_unit
from counterpoint.page.severity import Severity
from counterpoint.policies.rule import is_ordered

LEAST = 0.05
"""Effects and associations up to this many standard deviations of the logged changes are ignored."""
REVERSAL = 0.1
"""Share of an effect's range by which it must turn back to count as not monotone."""
SURE = 2.0
"""Standard errors by which an association must differ from 0."""
EXPLAIN = "This needs an explanation by somebody who knows the subject before the model is used."


def direction_notes(
    rows: Transitions,
    severity: Severity,
    choices: Choices,
    predicted: Float[Tensor, "g actions s"],
    columns: Sequence[int],
) -> tuple[str, ...]:
    """Compare the model's mean next states with the log, for every dose and each of `columns`."""
    notes = []
    change = rows.next_state - rows.state
    for feature in _amounts(rows.schema):
        dose = with_unit(rows.schema, rows.schema.action_names[feature])
        for column in columns:
            effect = effect_curve(predicted[..., column], choices.features[:, feature])
            observed = change[:, column]
            least = LEAST * float(observed[observed.isfinite()].std())
            signs = directions(effect, least)
            logged = association(rows, observed, rows.action[:, feature], severity.group)
            name = rows.state_names[column]
            if len(signs) > 1:
                first, then = ("rises" if sign > 0 else "falls" for sign in signs[:2])
                notes.append(
                    f"In the model, the effect of {dose} on {name} is not monotone: with more of it, {name} first"
                    f" {first}, then {then}. {EXPLAIN}"
                )
            elif signs and abs(logged) > least and logged * signs[0] < 0:
                verb, contrary = ("raises", "less") if signs[0] > 0 else ("lowers", "more")
                notes.append(
                    f"In the model, more {dose} {verb} {name}; in the log, at similar severity, {name} rises {contrary}"
                    f" after more of it than after less. {EXPLAIN}"
                )
    return tuple(notes)


def _amounts(schema: Schema) -> list[int]:
    """Return the features of an action that are amounts, or levels in order."""
    if not schema.doses:
        return list(range(schema.actions.width)) if is_ordered(schema.actions) else []
    names = {dose.name for dose in schema.doses if dose.ordered or not dose.labels}
    return [i for i, name in enumerate(schema.action_names) if name in names]


def effect_curve(predicted: Float[Tensor, "g actions"], dose: Float[Tensor, " actions"]) -> list[float]:
    """Average the predictions over groups and other doses, for every level of a dose in rising order."""
    return [float(predicted[:, dose == level].mean()) for level in dose.unique()]


def directions(curve: Sequence[float], least: float) -> list[int]:
    """Return the directions of a curve in turn: 1 where it rises, −1 where it falls; small moves are ignored."""
    tolerance = max(least, REVERSAL * (max(curve) - min(curve)))
    low = high = curve[0]
    signs: list[int] = []
    for value in curve[1:]:
        low, high = min(low, value), max(high, value)
        if value - low > tolerance and signs[-1:] != [1]:
            signs.append(1)
            high = value
        elif high - value > tolerance and signs[-1:] != [-1]:
            signs.append(-1)
            low = value
    return signs


def association(
    rows: Transitions, change: Float[Tensor, " n"], dose: Float[Tensor, " n"], group: Int[Tensor, " n"]
) -> float:
    """Difference of mean changes between rows with more and less of a dose, within severity groups.

    Groups with fewer than ten subjects on either side are left out; 0 where the difference is uncertain.
    """
    total, variance, count = 0.0, 0.0, 0
    for number in range(int(group.max()) + 1):
        members = (group == number) & change.isfinite()
        if not bool(members.any()):
            continue
        middle = dose[members].median()
        above = dose > middle if bool((dose[members] > middle).any()) else dose >= middle
        cell = torch.where(members, above.long(), -1)
        if min(subjects_in(rows, cell, 2)) < SMALLEST:
            continue
        less, more = change[cell == 0].double(), change[cell == 1].double()
        size = len(less) + len(more)
        total += size * float(more.mean() - less.mean())
        variance += size**2 * float(more.var() / len(more) + less.var() / len(less))
        count += size
    return total / count if count and abs(total) > SURE * variance**0.5 else 0.0
