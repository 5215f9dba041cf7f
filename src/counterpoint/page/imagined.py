"""What the model imagines: from a state that stands for many, every action with the same luck, and its support.

    s' = f(s_g, a, θ = 0, u),    s_g the medians of severity group g, u the same draws of the noise for every action

No patient's row is shown: rows of the log enter by medians and by the share of similar ones that took an action.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.checks.support import Similar, near_doses
from counterpoint.core.seeding import generator
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.page.cells import SMALLEST, PageTable, between, number, share
from counterpoint.page.choices import Choices, choices_of
from counterpoint.page.severity import Severity, medians

DRAWS = 200
"""Draws of the noise, the same for every action."""
SIMILAR = 500
"""Logged states, at most, that are asked which actions were taken there: enough that a share of them can be shown."""
LOGGED = 10_000
"""Logged rows among which they are looked for."""
SHOWN, COLUMNS = 8, 4
"""Actions and state columns of a table."""
MIDDLE = (0.1, 0.9)


@dataclass(frozen=True)
class Surface:
    """Mean change of one column by group and action, and where the log supports the answer."""

    column: str
    unit: str
    groups: tuple[str, ...]
    choices: Choices
    change: Float[Tensor, "g actions"]
    supported: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Imagined:
    """A table for each severity group, and the whole surface of one column."""

    tables: tuple[PageTable, ...]
    surface: Surface
    unsupported: float
    """Share of the answers that no row of the log stands behind."""


@dataclass(frozen=True)
class Asked:
    """Answers of a model about typical states: means and the middle 80% over the noise, and support."""

    state: Float[Tensor, "g s"]
    mean: Float[Tensor, "g actions s"]
    low: Float[Tensor, "g actions s"]
    high: Float[Tensor, "g actions s"]
    taken: Float[Tensor, "g actions"]
    """How many of the similar logged rows took each action."""
    similar: int
    """How many similar rows were looked at."""
    known: tuple[bool, ...]
    """Whether the log has states like the group's at all."""

    @property
    def supported(self) -> tuple[tuple[bool, ...], ...]:
        """Whether anybody alike was given the action."""
        return tuple(
            tuple(known and count > 0 for count in line)
            for line, known in zip(self.taken.tolist(), self.known, strict=True)
        )

    def support(self, group: int, action: int) -> str:
        """A share of similar states, blurred where it is a few rows."""
        taken = int(self.taken[group, action])
        if not self.known[group]:
            return "state unlike the log"
        if not taken:
            return "never"
        return share(taken / self.similar) if taken >= SMALLEST else f"under {share(SMALLEST / self.similar)}"


def imagined(
    rows: Transitions, model: StructuralCausalModel, severity: Severity, wanted: Sequence[int | None]
) -> Imagined | None:
    """What follows each action from the median state of each group; `wanted` is what the policy would do there."""
    choices = choices_of(rows)
    if choices is None:
        return None
    asked = ask(rows, model, severity, choices)
    columns = _moved(rows, asked, severity.place)
    tables = [_table(rows, asked, choices, columns, g, wanted[g], label) for g, label in enumerate(severity.labels)]
    drawn = columns[0]
    surface = Surface(
        rows.state_names[drawn],
        rows.schema.states[drawn].unit,
        severity.labels,
        choices,
        asked.mean[..., drawn] - asked.state[:, None, drawn],
        asked.supported,
    )
    answers = [own for line in asked.supported for own in line]
    return Imagined(tuple(tables), surface, 1 - sum(answers) / len(answers))


def ask(rows: Transitions, model: StructuralCausalModel, severity: Severity, choices: Choices) -> Asked:
    """Ask the model about every group's median state and every action."""
    state = medians(rows, severity)
    noise = model.prior(DRAWS, generator(0, "imagined"))
    after = torch.stack([_after(model, own, choices.features, noise) for own in state])
    low, high = after.quantile(torch.tensor(MIDDLE, dtype=after.dtype), 2)
    similar = Similar(rows, SIMILAR, LOGGED)
    taken, known = _taken(similar, state, choices)
    return Asked(state, after.mean(2), low, high, taken, similar.count, tuple(known.tolist()))


def _after(model: StructuralCausalModel, state: Tensor, actions: Tensor, noise: Tensor) -> Float[Tensor, "actions d s"]:
    """Next states of one state after every action, for every draw of the noise."""
    count, draws = len(actions), len(noise)
    theta = torch.zeros(count * draws, model.theta_width)
    told = (
        state.expand(count * draws, -1),
        actions.repeat_interleave(draws, 0),
        noise.repeat(count, 1),
        theta,
    )
    return model.predict(*told).unflatten(0, (count, draws))


def _taken(
    similar: Similar, state: Float[Tensor, "g s"], choices: Choices
) -> tuple[Float[Tensor, "g actions"], Bool[Tensor, " g"]]:
    """How many of the similar logged rows took each action, or about that dose, and whether there are similar rows."""
    if isinstance(similar.logged.actions, Discrete):
        counts, known = similar.taken(state, len(choices))
        return counts.float(), known
    near = [near_doses(similar, state, own.expand(len(state), -1)) for own in choices.features]
    return (torch.stack([part for part, _ in near], 1) * similar.count).round(), near[0][1]


def _moved(rows: Transitions, asked: Asked, first: int) -> list[int]:
    """The columns to show: the severity's own, then those that actions move most, in units of the column's spread."""
    spread = rows.state.std(0)
    apart = (asked.mean.std(1).mean(0) / spread.clamp(min=1e-8)).nan_to_num()
    apart[[*rows.schema.unpredicted, *(i for i, _ in rows.schema.categories)]] = -1.0
    rest = [i for i in apart.argsort(descending=True).tolist() if i != first and apart[i] > 0]
    own = [] if first in rows.schema.unpredicted else [first]
    return [*own, *rest][:COLUMNS] or [first]


def _table(
    rows: Transitions,
    asked: Asked,
    choices: Choices,
    columns: Sequence[int],
    group: int,
    wanted: int | None,
    label: str,
) -> PageTable:
    lines = [
        (
            choices.labels[a] + (" (the policy’s choice)" if a == wanted else ""),
            asked.support(group, a),
            *(_answer(asked, group, a, column) for column in columns),
        )
        for a in _picked(asked, group, wanted)
    ]
    now = ("now", "–", *(number(float(asked.state[group, column])) for column in columns))
    head = ("Action", "Taken in similar states", *(_named(rows, column) for column in columns))
    return PageTable(f"From the median state with {label}", head, (now, *lines))


def _answer(asked: Asked, group: int, action: int, column: int) -> str:
    return between(*(float(part[group, action, column]) for part in (asked.mean, asked.low, asked.high)))


def _picked(asked: Asked, group: int, wanted: int | None) -> list[int]:
    """All actions where they are few; else the policy's, those taken most often, and one that was never taken."""
    taken = asked.taken[group].tolist()
    if len(taken) <= SHOWN:
        return list(range(len(taken)))
    order = sorted(range(len(taken)), key=lambda a: (a != wanted, -taken[a]))
    never = [a for a in order if not taken[a]]
    return sorted({*order[: SHOWN - 1], *(never[:1] or order[SHOWN - 1 : SHOWN])})


def _named(rows: Transitions, place: int) -> str:
    column = rows.schema.states[place]
    return f"Next {column.name} ({column.unit})" if column.unit else f"Next {column.name}"
