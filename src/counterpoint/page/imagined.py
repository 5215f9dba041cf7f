"""Model section of the page: effects of every action on the median state of each severity group, and their support.

    s' = f(s_g, a, θ = 0, u),    s_g the medians of severity group g, u the same noise draws for every action

No row of a subject is shown: the log enters by medians, and by the share of similar states with an action.

Sentences name the doses whose effect in the model is not monotone, or is contrary to the log:

    association = Σ_g n_g·(mean change | more of the dose − mean change | less of it) / Σ_g n_g

with n_g the rows of group g; more of a dose is more than the group's median.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.checks.support import (
    SimilarRows,
    near_doses,
)
from counterpoint.core.seeding import generator
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.page.cells import SMALLEST, PageTable, between, number, share, subjects_in
from counterpoint.page.choices import Choices, choices_of, with_unit
from counterpoint.page.severity import Severity, medians
from counterpoint.policies.rule import is_ordered

DRAWS = 200
"""Noise draws, the same for every action."""
SIMILAR = 500
"""Similar logged states, at most; enough for shares that do not identify a subject."""
LOGGED = 10_000
"""Logged rows that are searched for similar states."""
MAX_ACTIONS, MAX_COLUMNS = 8, 4
"""Actions and state columns of a table."""
MIDDLE = (0.1, 0.9)


@dataclass(frozen=True)
class EffectSurface:
    """Mean change of one column by severity group and action, and its support in the log."""

    column: str
    unit: str
    groups: tuple[str, ...]
    choices: Choices
    change: Float[Tensor, "g actions"]
    supported: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class ImaginedSection:
    """A table for each severity group, and the effects on one column as a surface."""

    tables: tuple[PageTable, ...]
    surface: EffectSurface
    unsupported: float
    """Share of the effects whose action was never taken in similar logged states."""
    directions: tuple[str, ...]
    """Sentences on effects that are not monotone in a dose or contrary to the log."""


@dataclass(frozen=True)
class ActionEffects:
    """Predicted next states of median states: mean and middle 80% over the noise, and support in the log."""

    state: Float[Tensor, "g s"]
    mean: Float[Tensor, "g actions s"]
    low: Float[Tensor, "g actions s"]
    high: Float[Tensor, "g actions s"]
    taken: Float[Tensor, "g actions"]
    """Number of similar logged rows in which each action was taken."""
    similar: int
    """Number of similar rows that were examined."""
    has_similar: tuple[bool, ...]
    """Whether the log has states similar to the group's median."""

    @property
    def supported(self) -> tuple[tuple[bool, ...], ...]:
        """Whether each action was taken in similar logged states."""
        counts = zip(self.taken.tolist(), self.has_similar, strict=True)
        return tuple(tuple(has_similar and count > 0 for count in line) for line, has_similar in counts)

    def support(self, group: int, action: int) -> str:
        """Share of the similar states in which the action was taken; small counts are not shown exactly."""
        taken = int(self.taken[group, action])
        if not self.has_similar[group]:
            return "state unlike the log"
        if not taken:
            return "never"
        return share(taken / self.similar) if taken >= SMALLEST else f"under {share(SMALLEST / self.similar)}"


def imagined_section(
    rows: Transitions, model: StructuralCausalModel, severity: Severity, in_medians: Sequence[int | None]
) -> ImaginedSection | None:
    """Compute the effects of every action. `in_medians` are the policy's actions in the median states.

    None if the doses cannot be named without showing those of single subjects.
    """
    choices = choices_of(rows)
    if choices is None:
        return None
    effects = action_effects(rows, model, severity, choices)
    columns = _most_affected(rows, effects, severity.place)
    tables = [
        _table(rows, effects, choices, columns, group, in_medians[group], label)
        for group, label in enumerate(severity.labels)
    ]
    first = columns[0]
    surface = EffectSurface(
        rows.state_names[first],
        rows.schema.states[first].unit,
        severity.labels,
        choices,
        effects.mean[..., first] - effects.state[:, None, first],
        effects.supported,
    )
    supported = [flag for line in effects.supported for flag in line]
    notes = direction_notes(rows, severity, choices, effects.mean, columns)
    return ImaginedSection(tuple(tables), surface, 1 - sum(supported) / len(supported), notes)


def action_effects(
    rows: Transitions, model: StructuralCausalModel, severity: Severity, choices: Choices
) -> ActionEffects:
    """Predict the next state of every group's median state after every action."""
    state = medians(rows, severity)
    noise = model.prior(DRAWS, generator(0, "imagined"))
    after = torch.stack([_next_states(model, median, choices.features, noise) for median in state])
    low, high = after.quantile(torch.tensor(MIDDLE, dtype=after.dtype), 2)
    similar = SimilarRows(rows, SIMILAR, LOGGED)
    taken, has_similar = _taken(similar, state, choices)
    return ActionEffects(state, after.mean(2), low, high, taken, similar.count, tuple(has_similar.tolist()))


def _next_states(
    model: StructuralCausalModel, state: Tensor, actions: Tensor, noise: Tensor
) -> Float[Tensor, "actions d s"]:
    """Next states of one state after every action, for every noise draw."""
    count, draws = len(actions), len(noise)
    theta = torch.zeros(count * draws, model.theta_width)
    states = state.expand(count * draws, -1)
    predicted = model.predict(states, actions.repeat_interleave(draws, 0), noise.repeat(count, 1), theta)
    return predicted.unflatten(0, (count, draws))


def _taken(
    similar: SimilarRows, state: Float[Tensor, "g s"], choices: Choices
) -> tuple[Float[Tensor, "g actions"], Bool[Tensor, " g"]]:
    """Number of similar rows with each action, or about its dose; and whether there are similar rows."""
    if isinstance(similar.logged.actions, Discrete):
        counts, has_similar = similar.taken(state, len(choices))
        return counts.float(), has_similar
    near = [near_doses(similar, state, dose.expand(len(state), -1)) for dose in choices.features]
    return (torch.stack([part for part, _ in near], 1) * similar.count).round(), near[0][1]


def _most_affected(rows: Transitions, effects: ActionEffects, severity_column: int) -> list[int]:
    """Columns to show: the severity column, then those that actions change most in units of their spread."""
    spread = rows.state.std(0)
    change = (effects.mean.std(1).mean(0) / spread.clamp(min=1e-8)).nan_to_num()
    change[[*rows.schema.unpredicted, *(i for i, _ in rows.schema.categories)]] = -1.0
    others = [i for i in change.argsort(descending=True).tolist() if i != severity_column and change[i] > 0]
    first = [] if severity_column in rows.schema.unpredicted else [severity_column]
    return [*first, *others][:MAX_COLUMNS] or [severity_column]


def _table(
    rows: Transitions,
    effects: ActionEffects,
    choices: Choices,
    columns: Sequence[int],
    group: int,
    chosen: int | None,
    label: str,
) -> PageTable:
    lines = [("now", "–", *(number(float(effects.state[group, column])) for column in columns))]
    for action in _shown_actions(effects, group, chosen):
        name = choices.labels[action] + (" (the policy’s choice)" if action == chosen else "")
        values = (_interval_text(effects, group, action, column) for column in columns)
        lines.append((name, effects.support(group, action), *values))
    head = ("Action", "Taken in similar states", *(_column_name(rows, column) for column in columns))
    return PageTable(f"From the median state with {label}", head, tuple(lines))


def _interval_text(effects: ActionEffects, group: int, action: int, column: int) -> str:
    numbers = (effects.mean, effects.low, effects.high)
    return between(*(float(part[group, action, column]) for part in numbers))


def _shown_actions(effects: ActionEffects, group: int, chosen: int | None) -> list[int]:
    """All actions if they are few; else the policy's, the most frequent ones, and one that was never taken."""
    taken = effects.taken[group].tolist()
    if len(taken) <= MAX_ACTIONS:
        return list(range(len(taken)))
    order = sorted(range(len(taken)), key=lambda action: (action != chosen, -taken[action]))
    never = [action for action in order if not taken[action]]
    return sorted({*order[: MAX_ACTIONS - 1], *(never[:1] or order[MAX_ACTIONS - 1 : MAX_ACTIONS])})


def _column_name(rows: Transitions, place: int) -> str:
    column = rows.schema.states[place]
    return f"Next {column.name} ({column.unit})" if column.unit else f"Next {column.name}"


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
    for severity in range(int(group.max()) + 1):
        members = (group == severity) & change.isfinite()
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
