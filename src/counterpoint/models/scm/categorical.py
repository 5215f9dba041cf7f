"""Categorical state columns by the Gumbel-max mechanism (Oberst & Sontag 2019).

    s'_j = argmax_c log p(c | s, a, θ) + g_c,    g_c ~ Gumbel(0) independent

Categories cannot be strictly monotone in one noise, so Theorem 1 does not cover them: the data fix p, and this map
is one choice among those that share it. It is counterfactually stable: an outcome that was seen stays unless the other
action raises the odds of some other outcome against it.

With E_c = exp(−g_c) ~ Exp(1) the mechanism is a race won by the smallest E_c / p_c. Exponentials forget, so after w won
the posterior is, with fresh X ~ Exp(1): the winner's time is X_w, hence E_w = p_w X_w, and every loser still has its
whole wait before it, E_c = p_c X_w + X_c. This is the top-down draw: the maximum, then the truncated Gumbels.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Categories, Padded
from counterpoint.nets.stacked import StackedMLP, Standardizer

MARGIN = 1e-4
"""A loser stays this far below the winner, so that rounding cannot change what was seen."""


def draw_exponentials(count: int, width: int, random: torch.Generator) -> Float[Tensor, "n c"]:
    """The randomness behind Gumbel noise: g = −log X."""
    drawn = torch.empty(count, width, device=random.device).exponential_(generator=random)
    return drawn.clamp(min=1e-30)


def posterior_gumbels(
    log_p: Float[Tensor, "*n c"], seen: Int[Tensor, "*n"], exponentials: Float[Tensor, "*n c"]
) -> Float[Tensor, "*n c"]:
    """Gumbels given that `seen` won, from fresh exponentials X; `log_p` is normalised."""
    log_x = exponentials.log()
    winner = seen[..., None]
    arrival = log_x.gather(-1, winner)
    losers = torch.minimum(-torch.logaddexp(log_x, log_p + arrival), -arrival - log_p - MARGIN)
    return losers.scatter(-1, winner, -arrival - log_p.gather(-1, winner))


class CategoricalLaw(nn.Module):
    """K members of p(codes | context), one categorical law a column; the noise is one Gumbel a category."""

    def __init__(self, members: int, context: int, counts: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.members, self.counts, self.size = members, tuple(counts), len(counts)
        self.context = Standardizer(members, context)
        self.net = StackedMLP(members, context, hidden, sum(counts))

    def standardise_to(self, rows: Padded) -> None:
        """Take mean and standard deviation of the contexts that count; codes have no units."""
        self.context.take(*rows.moments("context"))

    def log_probabilities(self, context: Float[Tensor, "k n c"]) -> tuple[Float[Tensor, "k n _"], ...]:
        """Log probability of every category, one table a column."""
        raw = self.net(self.context(context))
        return tuple(part.log_softmax(-1) for part in raw.split(self.counts, -1))

    def log_prob_and_raw(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> tuple[Tensor, Tensor]:
        """Log probability of the codes `y`, column by column, and of every category."""
        tables = self.log_probabilities(context)
        columns = zip(tables, y.long().split(1, -1), strict=True)
        return torch.cat([log_p.gather(-1, code) for log_p, code in columns], -1), torch.cat(tables, -1)

    def abduct(
        self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"], exponentials: Float[Tensor, "n g"]
    ) -> Float[Tensor, "k n g"]:
        """Gumbels that explain the codes; every member is given the same exponentials, so that members vote alike."""
        columns = zip(
            self.log_probabilities(context), y.long().unbind(-1), exponentials.split(self.counts, -1), strict=True
        )
        gumbels = [posterior_gumbels(p, seen, x.expand_as(p)) for p, seen, x in columns]
        return torch.cat([context[..., :0], *gumbels], -1)  # There may be no column: a category may never change.

    def predict(self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n g"]) -> Float[Tensor, "k n d"]:
        """The code that wins in every column."""
        columns = zip(self.log_probabilities(context), noise.split(self.counts, -1), strict=True)
        winners = [(log_p + gumbel).argmax(-1, keepdim=True).to(noise) for log_p, gumbel in columns]
        return torch.cat([noise[..., :0], *winners], -1)


def vote(predictions: Float[Tensor, "m n"], count: int) -> Float[Tensor, " n"]:
    """The code most members name; the lowest of those that tie."""
    votes = torch.nn.functional.one_hot(predictions.long(), count).sum(0)
    return votes.argmax(-1).to(predictions)


def wrong_codes(values: Float[Tensor, " n"], count: int) -> Int[Tensor, " b"]:
    """The rows whose value is not one of the codes 0 … count − 1."""
    valid = (values >= 0) & (values < count) & (values == values.round())
    return (~valid).nonzero()[:, 0]


def check_codes(kind: str, values: Float[Tensor, "n s"], categories: Categories, names: Sequence[str]) -> None:
    """Raise one line that names the first column and row whose value is not a code."""
    for column, count in categories:
        wrong = wrong_codes(values[:, column], count)
        if len(wrong):
            row = int(wrong[0])
            raise CounterpointError(
                f"{kind} column '{names[column]}' holds {float(values[row, column]):g} at row {row}, which is not"
                f" a code 0 to {count - 1}; recode the column or correct its number of categories"
            )
