"""Fitting jobs: a table, a seed and subject factors. Jobs of one shape are fitted together in one training loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import recipe_hash, tensors_hash
from counterpoint.core.errors import CounterpointError
from counterpoint.data.far_values import near
from counterpoint.data.knowledge import mirrored_actions
from counterpoint.data.spaces import constant, places
from counterpoint.data.transitions import Transitions

Categories = tuple[tuple[int, int], ...]
"""(column, count) of every categorical state column; its codes are 0 … count − 1."""
NO_THETA = torch.zeros(1, 0)
"""The subject factor of a model without subject factors: width zero, for any number of rows."""


def context(*columns: Float[Tensor, "*n _"], theta: Float[Tensor, "*m t"] = NO_THETA) -> Float[Tensor, "*n c"]:
    """Concatenate the inputs of a model: state, action (or more) and the subject factor of every row."""
    first = columns[0]
    parts = [*columns, theta.to(first).expand(*first.shape[:-1], -1)]
    wide = [part for part in parts if part.shape[-1]]
    return wide[0] if len(wide) == 1 else torch.cat(parts, -1)


def check_factors(theta: Tensor, rows: int) -> Float[Tensor, "_ t"]:
    """Refuse subject factors that are not finite or not one row for each row (or one for all rows)."""
    right = isinstance(theta, Tensor) and theta.ndim == 2 and len(theta) in (1, rows) and bool(theta.isfinite().all())
    if not right:
        raise CounterpointError(f"theta is not a tensor of finite factors for {rows} rows; pass model.subjects(rows)")
    return theta


def spread_levels(values: Float[Tensor, "*n s"], categories: Categories) -> Float[Tensor, "*n w"]:
    """Return the numeric columns, followed by the categorical ones as one-hot columns."""
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
    """What to fit on, and with which seed; `theta` holds a subject factor for every row (width zero for CTRL_g)."""

    data: Transitions
    seed: int = 0
    theta: Float[Tensor, "_ t"] = field(default=NO_THETA)

    @property
    def identity(self) -> tuple[str, int, str]:
        """Hash of the rows, seed, and hash of the subject factors."""
        return self.data.fingerprint, self.seed, tensors_hash({"theta": self.theta})

    @property
    def rows_theta(self) -> Float[Tensor, "n t"]:
        """Subject factor of every row."""
        return self.theta.expand(len(self.data), -1)

    def __getitem__(self, rows: Tensor) -> "Job":
        """Return the job with some of its rows."""
        return replace(self, data=self.data[rows], theta=self.rows_theta[rows])


def identity(recipe: object, jobs: Sequence[Job], *more: object) -> str:
    """Return a hash that identifies a training run; checkpoints of other recipes, tables or seeds are not continued."""
    return recipe_hash(recipe, [job.identity for job in jobs], *more)


@dataclass(frozen=True)
class Origin:
    """Seed and data that something was fitted with."""

    seed: int
    data: str
    """Fingerprint of the table it was fitted on."""
    theta: str
    """Hash of the subject factors it was fitted with."""

    @classmethod
    def of(cls, job: Job) -> "Origin":
        """Return the origin of what is fitted to a job."""
        data, seed, theta = job.identity
        return cls(seed, data, theta)


@dataclass(frozen=True)
class Padded:
    """Tables of different lengths, padded and stacked: row r of member k is valid where r < count[k]."""

    columns: dict[str, Tensor]
    count: Int[Tensor, " k"]

    def mask(self) -> Float[Tensor, "k n"]:
        """Return 1 for valid rows, 0 for padding."""
        longest = next(iter(self.columns.values())).shape[1]
        return (torch.arange(longest) < self.count[:, None]).float()

    def moments(self, name: str) -> tuple[Float[Tensor, "k 1 w"], Float[Tensor, "k 1 w"]]:
        """Return mean and standard deviation of a column over valid rows; 1 instead of a deviation of 0."""
        mean, spread = self.mean_and_spread(name)
        return mean, torch.where(spread > 1e-8, spread, 1.0)

    def mean_and_spread(self, name: str) -> tuple[Float[Tensor, "k 1 w"], Float[Tensor, "k 1 w"]]:
        """Return mean and deviation of a column over valid rows, robust to a few values far from all others."""
        rows = zip(self.columns[name], self.count.tolist(), strict=True)
        values = torch.stack([torch.cat([near(table[:count]), table[count:]]) for table, count in rows])
        mask = self.mask()[..., None]
        count = self.count[:, None, None]
        mean = (values * mask).sum(1, keepdim=True) / count
        return mean, (((values - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()


def pad(tables: Sequence[dict[str, Tensor]]) -> Padded:
    """Stack the columns of several tables along a leading axis; shorter ones are padded with zeros."""
    columns = {name: _padded([table[name] for table in tables]) for name in tables[0]}
    count = torch.tensor([len(next(iter(table.values()))) for table in tables])
    return Padded(columns, count)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Stack tensors; one alone is not copied, because it may be a mapped file larger than memory."""
    return parts[0][None] if len(parts) == 1 else torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def check_fittable(data: Transitions) -> None:
    """Refuse rows that no dynamics model can be fitted to: too few, not finite, or with a constant column."""
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


def scaled_doses(inputs: Float[Tensor, "*n c"], scales: Sequence[tuple[int, int]]) -> Float[Tensor, "*n c"]:
    """Divide doses by the columns that they act per.

    Args:
        inputs: State and action side by side, as a model reads them.
        scales: (column of the dose, column of its scale), both in `inputs`.
    """
    if not scales:
        return inputs
    doses, divisors = zip(*scales, strict=True)
    where, by = (constant(columns, inputs.device) for columns in (doses, divisors))
    return inputs.contiguous().index_copy(-1, where, inputs.index_select(-1, where) / inputs.index_select(-1, by))


def fitting_table(job: Job) -> dict[str, Tensor]:
    """Return the training table of a dynamics model: real rows with a next state."""
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
    """Append the mirror image of every row, as a row of the same subject."""
    rows, schema = job.data, job.data.schema
    state, action = schema.knowledge.mirror_signs(schema.state_names, schema.action_names)
    inputs = context(state * rows.state, mirrored_actions(rows.action, schema.actions, action), theta=job.theta)
    mirrored = {"context": inputs, "state": state * rows.state, "next_state": state * rows.next_state}
    return {name: torch.cat([column, mirrored.get(name, column)]) for name, column in table.items()}


def check_numeric(data: Transitions) -> None:
    """Refuse categorical columns, which a model of numbers would use as amounts, and exogenous ones, which it would
    let actions move."""
    coded = [data.state_names[column] for column, _ in data.schema.categories]
    if coded:
        raise CounterpointError(
            f"state column '{coded[0]}' is a category, which this model would take for a number; use DensitySCM, or"
            f" load the table with numeric=['{coded[0]}']"
        )
    exogenous = [data.state_names[column] for column in data.schema.exogenous]
    if exogenous:
        raise CounterpointError(
            f"state column '{exogenous[0]}' is declared exogenous, and this model would let actions change it; use"
            " DensitySCM or RandomEffects"
        )


def change_table(job: Job) -> dict[str, Tensor]:
    """Return the training table with the change y = s' − s as target."""
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
