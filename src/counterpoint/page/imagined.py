"""Model section of the page: effects of every action on the median state of each severity group, and their support.

    s' = f(s_g, a, θ = 0, u),    s_g the medians of severity group g, u the same noise draws for every action

No row of a subject is shown: the log enters by medians, and by the share of similar states with an action.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.checks.support import (
    SimilarRows,
    near_doses,
)
from counterpoint.core.seeding import generator
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.page.cells import SMALLEST, PageTable, between, number, share
from counterpoint.page.choices import Choices, choices_of
from counterpoint.page.directions import direction_notes
from counterpoint.page.severity import Severity, medians

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
