"""Which columns of a mixed state are what, moved by chance, computed, coded or static, and what each law reads."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Categories, spread_levels
from counterpoint.data.spaces import places
from counterpoint.models.scm.seen import ContextEncoding

CHANGE, RATIOS, SCORES, CODES = "change", "computed", "scores", "codes"
"""The laws: of columns that chance moves, of computed numbers, of computed whole numbers, and of categories."""
STEPS = 31
"""Steps of every column that a score may be made of, at its quantiles."""
QUANTILE_ROWS = 100_000
"""Rows that the quantiles are of, at most."""


@dataclass(frozen=True)
class ColumnBlocks:
    """Which columns of a state are what, and how the laws see them."""

    seen: ContextEncoding
    static: tuple[int, ...]
    computed: tuple[int, ...]
    scores: tuple[int, ...]
    """Those of the computed ones that are whole numbers."""
    state: int
    """Columns of the state."""
    context: int
    """Columns of state, action and factor."""

    @property
    def moving(self) -> Categories:
        """The categories that change."""
        return tuple((column, count) for column, count in self.seen.categories if column not in self.static)

    @property
    def coded(self) -> list[int]:
        return [column for column, _ in self.moving]

    @property
    def own(self) -> dict[str, list[int]]:
        """The columns of numbers that each law is of; those of the later ones follow from those of the first."""
        other = {*self.static, *self.computed, *(column for column, _ in self.seen.categories)}
        ratios = [column for column in self.computed if column not in self.scores]
        columns = {CHANGE: [c for c in range(self.state) if c not in other], RATIOS: ratios, SCORES: list(self.scores)}
        return {name: part for name, part in columns.items() if part}

    @property
    def stepped(self) -> int:
        """Columns of numbers that a score may be made of."""
        return self.state - len(self.computed) - len(self.seen.categories) if self.scores else 0

    def computed_inputs(self, before: Tensor, after: Tensor) -> Tensor:
        """What computed columns follow from, of linked states: what they were, and all others as they are now.

        Amounts come twice, by their logarithm for ratios and as they are for sums.
        """
        others = [column for column in range(self.state) if column not in self.computed]
        codes = tuple((others.index(column), count) for column, count in self.seen.categories)
        was, now, amounts = (
            table.index_select(-1, places(columns, table.device))
            for table, columns in ((before, self.computed), (after, others), (after, self.summed))
        )
        return torch.cat([was, spread_levels(now, codes), amounts.exp()], -1)

    @property
    def summed(self) -> list[int]:
        """Amounts that are not computed."""
        return [column for column, _ in self.seen.amounts if column not in self.computed]

    def with_steps(self, inputs: Float[Tensor, "*n t"], steps: Float[Tensor, "*k c b"]) -> Float[Tensor, "*n w"]:
        """The same, and whether each number is beyond each of its steps: scores are sums of such steps."""
        numbers = inputs[..., len(self.computed) : len(self.computed) + self.stepped, None]
        return torch.cat([inputs, (numbers > steps.unsqueeze(-3)).to(inputs).flatten(-2)], -1)

    def read_width(self, name: str) -> int:
        """Columns that a law reads."""
        if name == CHANGE:
            return self.seen.width(self.context)
        inputs = self.state + sum(count - 1 for _, count in self.seen.categories) + len(self.summed)
        return inputs + self.stepped * STEPS * (name == SCORES)


def steps_of(numbers: Float[Tensor, "n c"]) -> Float[Tensor, "c b"]:
    """Quantiles of every column."""
    shares = torch.linspace(0, 1, STEPS + 2, dtype=torch.double)[1:-1]
    return torch.quantile(numbers[:QUANTILE_ROWS].double(), shares, 0).T.float()
