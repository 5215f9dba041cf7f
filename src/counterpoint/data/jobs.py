"""A job is a table and a seed; many jobs of one shape are fitted in one loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import recipe_hash, tensors_hash
from counterpoint.core.errors import CounterpointError
from counterpoint.data.knowledge import mirrored_actions
from counterpoint.data.spaces import constant, places
from counterpoint.data.transitions import Transitions

Categories = tuple[tuple[int, int], ...]
"""(column, count) of every categorical state column; its codes are 0 … count − 1."""
NO_THETA = torch.zeros(1, 0)
"""The subject factor of a model that knows no subjects: zero columns, for any number of rows."""


def context(*columns: Float[Tensor, "*n _"], theta: Float[Tensor, "*m t"] = NO_THETA) -> Float[Tensor, "*n c"]:
    """What a model is told, side by side: state and action (or more), and the subject factor of every row."""
    first = columns[0]
    told = [*columns, theta.to(first).expand(*first.shape[:-1], -1)]
    wide = [table for table in told if table.shape[-1]]
    return wide[0] if len(wide) == 1 else torch.cat(told, -1)


def check_factors(theta: Any, rows: int) -> Float[Tensor, "_ t"]:
    """Subject factors as they should be: one finite row for each row, or one for all."""
    if theta is NO_THETA:
        return theta
    right = isinstance(theta, Tensor) and theta.ndim == 2 and len(theta) in (1, rows) and bool(theta.isfinite().all())
    if not right:
        raise CounterpointError(f"theta is not a tensor of finite factors for {rows} rows; pass model.subjects(rows)")
    return theta


def spread_levels(values: Float[Tensor, "*n s"], categories: Categories) -> Float[Tensor, "*n w"]:
    """The other columns as they are, then every categorical one spread into one column a level."""
    if not categories:
        return values
    coded = {column for column, _ in categories}
    plain = [column for column in range(values.shape[-1]) if column not in coded]
    levels = [constant(tuple(range(count)), values.device) for _, count in categories]
    spread = [
        (values[..., column, None] == codes).to(values) for (column, _), codes in zip(categories, levels, strict=True)
    ]
    return torch.cat([values[..., places(plain, values.device)], *spread], -1)


@dataclass(frozen=True)
class Job:
    """What to fit on, and from which seed; `theta` holds a subject factor for every row (zero-width for CTRL_g)."""

    data: Transitions
    seed: int = 0
    theta: Float[Tensor, "_ t"] = field(default=NO_THETA)

    @property
    def identity(self) -> tuple[str, int, str]:
        """What tells this job from others: its rows, its seed and its subject factors."""
        return self.data.fingerprint, self.seed, tensors_hash({"theta": self.theta})

    @property
    def rows_theta(self) -> Float[Tensor, "n t"]:
        """The subject factor of every row."""
        return self.theta.expand(len(self.data), -1)

    def __getitem__(self, rows: Tensor) -> "Job":
        """The same job on some of its rows."""
        return replace(self, data=self.data[rows], theta=self.rows_theta[rows])


def identity(recipe: Any, jobs: Sequence[Job], *more: Any) -> str:
    """What a training run is known by: a checkpoint of another recipe, table, seed or factor is not taken up."""
    return recipe_hash(recipe, [job.identity for job in jobs], *more)


@dataclass(frozen=True)
class Origin:
    """Where a fitted thing came from."""

    seed: int
    data: str
    """Fingerprint of the table it was fitted on."""
    theta: str
    """Hash of the subject factors it was fitted with."""

    @classmethod
    def of(cls, job: Job) -> "Origin":
        data, seed, theta = job.identity
        return cls(seed, data, theta)


@dataclass(frozen=True)
class Padded:
    """Tables of different lengths side by side: row r of member k counts where r < count[k]."""

    columns: dict[str, Tensor]
    count: Int[Tensor, " k"]

    def mask(self) -> Float[Tensor, "k n"]:
        """1 for a row that counts, 0 for padding."""
        longest = next(iter(self.columns.values())).shape[1]
        return (torch.arange(longest) < self.count[:, None]).float()

    def moments(self, name: str) -> tuple[Float[Tensor, "k 1 w"], Float[Tensor, "k 1 w"]]:
        """Mean and standard deviation of a column over the rows that count; 1 for a column that does not vary."""
        mean, spread = self.mean_and_spread(name)
        return mean, torch.where(spread > 1e-8, spread, 1.0)

    def mean_and_spread(self, name: str) -> tuple[Float[Tensor, "k 1 w"], Float[Tensor, "k 1 w"]]:
        """The same, 0 for a column that does not vary."""
        values, mask, count = self.columns[name], self.mask()[..., None], self.count[:, None, None]
        mean = (values * mask).sum(1, keepdim=True) / count
        return mean, (((values - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()


def pad(tables: Sequence[dict[str, Tensor]]) -> Padded:
    """Stack the columns of several tables along a leading axis, filled with zeros behind the shorter ones."""
    columns = {name: _padded([table[name] for table in tables]) for name in tables[0]}
    count = torch.tensor([len(next(iter(table.values()))) for table in tables])
    return Padded(columns, count)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """One part alone is not copied: it may be a file too large for memory."""
    return parts[0][None] if len(parts) == 1 else torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def check_fittable(data: Transitions) -> None:
    """Raise one line where no model of the dynamics can be fitted: too few rows, NaN, a constant column."""
    rows = data.with_next()
    needed = 2 * (data.state_size + data.action.shape[1] + 2)
    if len(rows) < needed:
        raise CounterpointError(
            f"{len(rows)} rows with a next state are fewer than the {needed} that {data.state_size} state and"
            f" {data.action.shape[1]} action columns need; add rows or drop columns"
        )
    for name, values in (("state", rows.state), ("next state", rows.next_state)):
        _check_columns(name, values, data.state_names)
    _check_columns("action", rows.action, data.action_names, constant=False)


def fitting_table(job: Job) -> dict[str, Tensor]:
    """What a model of the dynamics is fitted on: real rows with a next state; refuses what cannot be fitted."""
    usable = ~job.data.imagined & job.data.has_next
    job = job if bool(usable.all()) else job[usable]
    rows = job.data
    check_fittable(rows)
    table = {
        "context": context(rows.state, rows.action, theta=job.theta),
        "state": rows.state,
        "next_state": rows.next_state,
        "subject": rows.subject,
    }
    return with_mirrored(job, table) if rows.schema.knowledge.mirror else table


def with_mirrored(job: Job, table: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows, and behind them each as a declared mirror shows it: rows of the same subject."""
    rows, schema = job.data, job.data.schema
    state, action = schema.knowledge.signs(schema.state_names, schema.action_names)
    told = context(state * rows.state, mirrored_actions(rows.action, schema.actions, action), theta=job.theta)
    shown = {"context": told, "state": state * rows.state, "next_state": state * rows.next_state}
    return {name: torch.cat([column, shown.get(name, column)]) for name, column in table.items()}


def check_numeric(data: Transitions) -> None:
    """Raise one line where a column is a category, which a model of numbers would take for an amount."""
    coded = [data.state_names[column] for column, _ in data.schema.categories]
    if coded:
        raise CounterpointError(
            f"state column '{coded[0]}' is a category, which this model would take for a number; use DensitySCM, or"
            f" load the table with numeric=['{coded[0]}']"
        )


def change_table(job: Job) -> dict[str, Tensor]:
    """The same with the change y = s' − s, which most models learn."""
    check_numeric(job.data)
    table = fitting_table(job)
    return {"context": table["context"], "y": table["next_state"] - table["state"], "subject": table["subject"]}


def _check_columns(kind: str, values: Tensor, names: tuple[str, ...], constant: bool = True) -> None:
    lowest, highest = values.amin(0), values.amax(0)
    for column, name in enumerate(names):
        if not bool(lowest[column].isfinite() & highest[column].isfinite()):
            bad = int((~values[:, column].isfinite()).nonzero()[0])
            raise CounterpointError(f"{kind} column '{name}' is not finite at row {bad}; fill or drop such rows")
        if constant and bool(lowest[column] == highest[column]):
            raise CounterpointError(f"{kind} column '{name}' is constant; drop it, it carries no information")
