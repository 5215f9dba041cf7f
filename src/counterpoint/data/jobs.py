"""A job is a table and a seed; many jobs of one shape are fitted in one loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError

NO_THETA = torch.zeros(1, 0)
"""The subject factor of a model that knows no subjects: zero columns, for any number of rows."""


@dataclass(frozen=True)
class Job:
    """What to fit on, and from which seed; `theta` holds a subject factor for every row (zero-width for CTRL_g)."""

    data: Transitions
    seed: int = 0
    theta: Float[Tensor, "n t"] = field(default=NO_THETA)


@dataclass(frozen=True)
class Origin:
    """Where a fitted thing came from."""

    seed: int
    data: str
    """Fingerprint of the table it was fitted on."""

    @classmethod
    def of(cls, job: Job) -> "Origin":
        return cls(job.seed, job.data.fingerprint)


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
        values, mask, count = self.columns[name], self.mask()[..., None], self.count[:, None, None]
        mean = (values * mask).sum(1, keepdim=True) / count
        scale = (((values - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()
        return mean, torch.where(scale > 1e-8, scale, 1.0)


def pad(tables: Sequence[dict[str, Tensor]]) -> Padded:
    """Stack the columns of several tables along a leading axis, filled with zeros behind the shorter ones."""
    columns = {name: torch.nn.utils.rnn.pad_sequence([t[name] for t in tables], batch_first=True) for name in tables[0]}
    count = torch.tensor([len(next(iter(table.values()))) for table in tables])
    return Padded(columns, count)


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
    check_fittable(job.data.real)
    keep = ~job.data.imagined & job.data.has_next
    rows = job.data[keep]
    theta = job.theta.expand(len(job.data), -1)[keep]
    return {
        "context": torch.cat([rows.state, rows.action, theta], -1),
        "state": rows.state,
        "next_state": rows.next_state,
    }


def _check_columns(kind: str, values: Tensor, names: tuple[str, ...], constant: bool = True) -> None:
    for column, name in enumerate(names):
        bad = (~values[:, column].isfinite()).nonzero()
        if len(bad):
            raise CounterpointError(
                f"{kind} column '{name}' is not finite at row {int(bad[0])}; fill or drop such rows"
            )
        if constant and bool((values[:, column] == values[0, column]).all()):
            raise CounterpointError(f"{kind} column '{name}' is constant; drop it, it carries no information")
