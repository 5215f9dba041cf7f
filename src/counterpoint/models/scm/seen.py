"""How the law of a mixed state sees what it depends on: amounts by their logarithm, categories and doses by level.

A column that is positive in every row may be an amount, which treatment and chance change by a share of it. Whether it
is, the rows say: a linear regression of its log ratios or of its differences, whichever makes them likelier.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Categories, spread_levels
from counterpoint.data.spaces import constant, places

ROWS = 32_768
"""Rows that the choice of amounts is made on, the first of the table."""
RIDGE = 1e-3
"""Ridge of its regressions, for standardised columns and a row: columns may be collinear."""
Amounts = tuple[tuple[int, float], ...]
Doses = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True)
class ContextEncoding:
    """From a context, whose first columns are the state, to what a law reads."""

    categories: Categories
    amounts: Amounts = ()
    """(column, lowest): state columns read by their logarithm, and the value below which they are taken for it."""
    doses: Doses = ()
    """(column, levels): columns of the context that hold one of these numbers, in rising order."""

    def link(self, values: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        """States, or contexts, with the logarithm of every amount."""
        if not self.amounts:
            return values
        columns, lowest = zip(*self.amounts, strict=True)
        where = places(columns, values.device)
        amounts = values.index_select(-1, where).clamp(min=constant(lowest, values.device)).log()
        return values.contiguous().index_copy(-1, where, amounts)

    def unlink(self, linked: Float[Tensor, "*n s"]) -> Float[Tensor, "*n s"]:
        """States back from `link`."""
        if not self.amounts:
            return linked
        where = places([column for column, _ in self.amounts], linked.device)
        return linked.contiguous().index_copy(-1, where, linked.index_select(-1, where).exp())

    def __call__(self, context: Float[Tensor, "*n c"]) -> Float[Tensor, "*n w"]:
        """What a law reads: every dose as it is, and a column for each of its levels but the first and the last."""
        inputs = [spread_levels(self.link(context), self.categories)]
        for column, levels in self.doses:
            inner = constant(levels[1:-1], context.device)
            inputs.append(torch.isclose(context[..., column, None], inner).to(context))
        return torch.cat(inputs, -1) if self.doses else inputs[0]

    def width(self, context: int) -> int:
        """Columns that a law reads of a context of so many."""
        spread = sum(count - 1 for _, count in self.categories)
        return context + spread + sum(len(levels) - 2 for _, levels in self.doses)


def amounts_in(tables: Sequence[dict[str, Tensor]], columns: Sequence[int]) -> Amounts:
    """The columns that are amounts by the rows of all tables; half the lowest value that was seen goes with each."""
    state, after, context = (
        torch.cat([table[name][:ROWS] for table in tables]).double() for name in ("state", "next_state", "context")
    )
    lowest = torch.minimum(state, after).amin(0)
    positive = [column for column in columns if float(lowest[column]) > 0]
    if not positive:
        return ()
    logs = context.clone()
    logs[:, positive] = context[:, positive].log()
    ratio, difference = after[:, positive].log() - state[:, positive].log(), (after - state)[:, positive]
    gain = _rest(context, difference).log() - _rest(logs, ratio).log() - after[:, positive].log().mean(0)
    return tuple(
        (column, float(lowest[column]) / 2) for column, more in zip(positive, gain.tolist(), strict=True) if more > 0
    )


def _rest(x: Float[Tensor, "n c"], y: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviation of what a linear regression leaves of every y."""
    spread = x.std(0, correction=0)
    x, y = (x - x.mean(0)) / torch.where(spread > 0, spread, 1.0), y - y.mean(0)
    gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    rest = y - x @ torch.linalg.solve(gram, x.T @ y)
    return rest.square().mean(0).sqrt().clamp(min=1e-12)
