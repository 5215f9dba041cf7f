"""The table of transitions, logged and imagined."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, checked
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Schema, agree, numbered
from counterpoint.data.spaces import ActionSpace

GOES_ON = -1
"""The outcome of a row without one."""
CHECKED_ROWS = 65_536
"""Rows checked at once, to bound memory."""
HASHED_ROWS = 4096
"""Rows hashed at once, to fit a processor's cache."""


@dataclass(frozen=True)
class Windows:
    """Windows of consecutive rows of one episode: row numbers, states and actions."""

    rows: Int[Tensor, "w length"]
    state: Float[Tensor, "w length s"]
    action: Float[Tensor, "w length a"]
    subject: Int[Tensor, " w"]


@dataclass(frozen=True, eq=False)  # Tensors have no truth value; compare `fingerprint`.
class Transitions:
    """Rows (s, a, r, s') of many subjects, with their provenance.

    An episode ends with an outcome (`terminated`) or because the record stops (`truncated`). `outcome` is the index in
    `outcome_names`, −1 for none. A terminated row may have no next state: then `next_state` is NaN, `has_next` is
    false, and no dynamics model is fitted to the row. `source` is the number of the real row that an imagined row was
    made from; `noise` is the exogenous noise that a simulator drew (width zero where it is unknown).
    """

    state: Float[Tensor, "n s"]
    action: Float[Tensor, "n a"]
    action_index: Int[Tensor, " n"]
    reward: Float[Tensor, " n"]
    next_state: Float[Tensor, "n s"]
    outcome: Int[Tensor, " n"]
    truncated: Bool[Tensor, " n"]
    subject: Int[Tensor, " n"]
    episode: Int[Tensor, " n"]
    step: Int[Tensor, " n"]
    imagined: Bool[Tensor, " n"]
    source: Int[Tensor, " n"]
    noise: Float[Tensor, "n u"]
    schema: Schema
    subject_names: tuple[str, ...]
    outcome_names: tuple[str, ...]
    layout: Layout | None = None
    """Layout of the table that the rows were read from; None for rows that were not read from a table."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            _check_field(name, getattr(self, name), len(self.state) if isinstance(self.state, Tensor) else 0)

    @classmethod
    def logged(
        cls,
        *,
        state: Float[Tensor, "n s"],
        action: Float[Tensor, "n a"],
        reward: Float[Tensor, " n"],
        next_state: Float[Tensor, "n s"],
        terminated: Bool[Tensor, " n"],
        truncated: Bool[Tensor, " n"],
        subject: Int[Tensor, " n"],
        step: Int[Tensor, " n"],
        actions: ActionSpace | None = None,
        episode: Int[Tensor, " n"] | None = None,
        outcome: Int[Tensor, " n"] | None = None,
        state_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
        schema: Schema | None = None,
        subject_names: Sequence[str] = (),
        outcome_names: Sequence[str] = ("terminated",),
        layout: Layout | None = None,
    ) -> "Transitions":
        """Return logged rows.

        Args:
            schema: Schema of the columns; without it, `actions` and the names (numbers by default) make one.
            episode: Episode of every row, by default its subject.
            outcome: Outcome of every row, by default the first one for all terminated rows.
        """
        _check_field("state", state, len(state) if isinstance(state, Tensor) and state.ndim else 0)
        _check_field("action", action, len(state))
        _check_field("next_state", next_state, len(state))
        require(next_state.shape == state.shape, "next_state has other columns than state; give the same")
        _check_field("terminated", terminated, len(state))
        _check_field("subject", subject, len(state))
        count = len(state)
        if schema is None:
            require(actions is not None, "rows need an action space; pass actions=Discrete.of([…]) or a Box")
            schema = Schema.of(state_names or numbered("state", state.shape[1]), actions, action_names)  # pyright: ignore[reportArgumentType]
        return cls(
            state=state,
            action=action,
            action_index=_numbers(schema.actions, action),
            reward=reward,
            next_state=next_state,
            outcome=first_outcome(terminated) if outcome is None else outcome,
            truncated=truncated,
            subject=subject,
            episode=subject if episode is None else episode,
            step=step,
            imagined=torch.zeros(count, dtype=torch.bool, device=state.device),
            source=torch.full((count,), -1, device=state.device),
            noise=torch.zeros(count, 0, device=state.device),
            schema=schema,
            subject_names=tuple(subject_names) or tuple(str(i) for i in range(int(subject.max()) + 1 if count else 0)),
            outcome_names=tuple(outcome_names),
            layout=layout,
        )

    def __len__(self) -> int:
        return len(self.state)

    def __getitem__(self, rows: Tensor | slice) -> "Transitions":
        """Return the rows that an index, a mask or a slice selects."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    @property
    def actions(self) -> ActionSpace:
        return self.schema.actions

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.schema.state_names

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.schema.action_names

    @property
    def state_size(self) -> int:
        return self.state.shape[1]

    @cached_property
    def terminated(self) -> Bool[Tensor, " n"]:
        """Whether a row ends its episode with an outcome."""
        return self.outcome >= 0

    @cached_property
    def has_next(self) -> Bool[Tensor, " n"]:
        """Whether a row has a next state."""
        return ~torch.cat([rows.isnan().any(1) for rows in self.next_state.split(CHECKED_ROWS)])

    @property
    def real(self) -> "Transitions":
        return self[~self.imagined]

    def with_next(self) -> "Transitions":
        """Return the rows with a next state, which dynamics models are fitted to."""
        return self if bool(self.has_next.all()) else self[self.has_next]

    def in_order(self) -> Int[Tensor, " r"]:
        """Return the numbers of the real rows, sorted by subject, episode and step."""
        real = (~self.imagined).nonzero()[:, 0]
        return real[lexsort(self.subject[real], self.episode[real], self.step[real])]

    @checked
    def windows(self, length: Positive) -> Windows:
        """Return every run of `length` consecutive real rows of one episode (paper, section 3.2)."""
        order = self.in_order()
        rows = order.unfold(0, length, 1) if len(order) >= length else order.new_zeros(0, length)
        first, last = rows[:, 0], rows[:, -1]
        same_episode = (self.subject[first] == self.subject[last]) & (self.episode[first] == self.episode[last])
        consecutive = self.step[last] - self.step[first] == length - 1
        rows = rows[same_episode & consecutive]
        return Windows(rows, self.state[rows], self.action[rows], self.subject[rows[:, 0]])

    @checked
    def to(self, device: torch.device | str) -> "Transitions":
        """Return the rows on a device."""
        target = device_of(str(device))
        return replace(self, **{name: getattr(self, name).to(target) for name in COLUMNS})

    @checked
    def split(self, held_out: float, seed: int = 0) -> "tuple[Transitions, Transitions]":
        """Split by subject: return the rows of the training subjects (one at least) and of the held-out share."""
        learned = self.schema.learned_with
        if learned is not None and held_out and learned != (held_out, seed):
            raise CounterpointError(
                f"fills or cuts of this table were learned with held_out={learned[0]}, seed={learned[1]}, so another"
                f" split would have seen its own test; load the table with held_out={held_out}, seed={seed}"
            )
        aside = torch.isin(self.subject, held_out_subjects(self.subject, held_out, seed))
        return self[~aside], self[aside]

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of all numbers and of the schema."""
        numbers = tensors_hash({name: getattr(self, name) for name in COLUMNS})
        return recipe_hash(self.schema, self.outcome_names, numbers)

    @cached_property
    def row_hashes(self) -> Int[Tensor, " n"]:
        """Hash of each row's state, action and next state, to find rows that two tables share."""
        total = torch.zeros(len(self), dtype=torch.long, device=self.state.device)
        tables = zip(*(table.split(HASHED_ROWS) for table in (self.state, self.action, self.next_state)), strict=True)
        for part, (state, action, after) in zip(total.split(HASHED_ROWS), tables, strict=True):
            numbers = torch.cat([state, action, after.nan_to_num()], 1).double().T.contiguous()
            for column in numbers.view(torch.int64):
                part.bitwise_xor_(column).mul_(0x5851F42D4C957F2D)
                part.bitwise_xor_(part >> 29)
        return total


NAMES = ("schema", "subject_names", "outcome_names", "layout")
COLUMNS = tuple(f.name for f in fields(Transitions) if f.name not in NAMES)


def _numbers(space: ActionSpace, action: Tensor) -> Tensor:
    require(
        action.shape[1] == space.width,
        f"actions have {action.shape[1]} columns and their space {space.width}; give one value a column",
    )
    return space.index(action)


MATRICES = ("state", "action", "next_state", "noise")
FLAGS = ("terminated", "truncated", "imagined")
WHOLE = ("action_index", "outcome", "subject", "episode", "step", "source")


def _check_field(name: str, field: Tensor, rows: int) -> None:
    """Refuse a field that is not a tensor of its kind with a row for each row of the table."""
    axes = 2 if name in MATRICES else 1
    kind = "true and false" if name in FLAGS else "whole numbers" if name in WHOLE else "numbers"
    if not isinstance(field, Tensor) or field.ndim != axes or len(field) != rows or not _is_kind(name, field):
        raise CounterpointError(
            f"'{name}' of the rows is not a tensor of {kind}, {axes} axes and {rows} rows; give one"
        )


def _is_kind(name: str, field: Tensor) -> bool:
    if name in FLAGS:
        return field.dtype == torch.bool
    return field.is_floating_point() != (name in WHOLE) and field.dtype != torch.bool and not field.is_complex()


def first_outcome(terminated: Bool[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Return outcome 0 for terminated rows, −1 for others."""
    return torch.where(terminated, 0, GOES_ON)


def held_out_subjects(subject: Int[Tensor, " n"], held_out: float, seed: int) -> Int[Tensor, " k"]:
    """Draw a share of the subjects; at least one subject is left for training."""
    if not 0 <= held_out < 1:
        raise CounterpointError(f"held_out={held_out} is not a share; give a number from 0 to below 1")
    present = subject.unique()
    order = present[torch.randperm(len(present), generator=generator(seed, "held out subjects"))]
    return order[: min(round(len(order) * held_out), len(order) - 1)]


def subject_folds(subjects: int, folds: int, seed: int) -> Int[Tensor, " subjects"]:
    """Assign every subject to one of `folds` random folds of (almost) equal size."""
    order = torch.randperm(subjects, generator=generator(seed, "folds of subjects"))
    return torch.empty_like(order).index_copy_(0, order, torch.arange(subjects) % folds)


@checked
def concatenate(tables: Sequence[Transitions]) -> Transitions:
    """Concatenate tables with the same columns, action space and subject numbers.

    A table may have fewer subjects than another. Noise is padded with zeros to the largest width.
    """
    require(len(tables) > 0, "there is no table to put together; give at least one")
    subject_names = max((table.subject_names for table in tables), key=len)
    for number, table in enumerate(tables):
        _check_alike(tables[0], table, number)
        _check_subjects(subject_names, table, number)
    width = max(table.noise.shape[1] for table in tables)
    padded = [replace(t, noise=torch.nn.functional.pad(t.noise, (0, width - t.noise.shape[1]))) for t in tables]
    columns = {name: torch.cat([getattr(t, name) for t in padded]) for name in COLUMNS}
    return replace(tables[0], **columns, subject_names=subject_names)


def new_room(like: Tensor, rows: int) -> Tensor:
    """Allocate memory for `rows` rows of a column."""
    return like.new_empty(rows, *like.shape[1:])


def gather(pieces: Iterable[Transitions], rows: int, room: Callable[[Tensor, int], Tensor] = new_room) -> Transitions:
    """Concatenate pieces of one table, `rows` in all, in memory that is allocated once by `room`."""
    whole: dict[str, Tensor] = {}
    done = 0
    for piece in pieces:
        whole = whole or {name: room(getattr(piece, name), rows) for name in COLUMNS}
        for name, column in whole.items():
            column[done : done + len(piece)] = getattr(piece, name)
        done += len(piece)
    require(done == rows, f"{done} rows came and {rows} were to come; make the table again")
    return replace(piece, **whole)  # pyright: ignore[reportPossiblyUnboundVariable]


def _check_alike(first: Transitions, table: Transitions, number: int) -> None:
    agree(first.schema, table.schema, "table 0", f"table {number}")
    require(
        table.outcome_names == first.outcome_names,
        f"tables 0 and {number} differ in outcome_names; load them with the same columns",
    )


def _check_subjects(names: tuple[str, ...], table: Transitions, number: int) -> None:
    """Refuse different subjects. The message does not show their names, which may identify patients."""
    if table.subject_names != names[: len(table.subject_names)]:
        raise CounterpointError(
            f"table {number} numbers other subjects than the longest table does, so that two subjects would become one;"
            " load their records as one table"
        )


def lexsort(*keys: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the order of rows by the first key, then the second, …"""
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[torch.argsort(key[order], stable=True)]
    return order
