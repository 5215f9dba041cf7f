"""Conditional laws of a vector: p(y | context), coordinate by coordinate or triangular, fitted by maximum likelihood.

Diagonal: y_i = f_i(context, u_i). Triangular, every coordinate's parents given: y_i = f_i(context, y_parents, u_i).
Both start as linear regression with normal noise, and every departure from it has to pay for itself.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Padded
from counterpoint.nets.laws import Law, LawParameters
from counterpoint.nets.stacked import StackedLinear, StackedMLP, Standardizer, columns

Parents = tuple[tuple[int, ...], ...]
RIDGE = 1.0
"""Ridge of the linear start, in rows: what keeps it defined where columns are collinear or rows are few."""
SMALLEST = 1e-6
"""A linear regression that leaves less than this share of y's spread is exact but for rounding."""


class ConditionalLaw(nn.Module):
    """K members of p(y | context), each around its own linear regression of y on the context.

    The network sees the standardised context and gives the law of the regression's standardised rest. Parents enter as
    what the regression on the context leaves of them; their linear effect is part of the start.
    """

    slope: Tensor
    parent_slope: Tensor
    rest_scale: Tensor
    parents: Tensor

    def __init__(
        self, members: int, context: int, size: int, law: Law, hidden: Sequence[int], parents: Parents = ()
    ) -> None:
        super().__init__()
        self.law, self.size, self.members = law, size, members
        self.triangular = any(parents)
        self.networks_per_member = size if self.triangular else 1
        self.context, self.y = Standardizer(members, context), Standardizer(members, size)
        self.register_buffer("slope", torch.zeros(members, context, size))
        self.register_buffer("parent_slope", torch.zeros(members, size, size))
        self.register_buffer("rest_scale", torch.ones(members, 1, size))
        self.order = _topological(parents) if self.triangular else tuple(range(size))
        self.register_buffer("parents", _parent_table(parents, size), persistent=False)
        networks, inputs = (members * size, context + size) if self.triangular else (members, context)
        outputs = members * size // networks
        self.net = StackedMLP(networks, inputs, hidden, outputs * law.width)
        self.shared = nn.Parameter(torch.zeros(networks, 1, outputs * law.shared))

    @torch.no_grad()
    def standardise_to(self, rows: Padded) -> None:
        """Start from the linear regression of the rows that count: its weights go into buffers, the last layer to 0."""
        mask, count = rows.mask()[..., None], rows.count[:, None, None]
        context_mean, context_scale = rows.moments("context")
        y_mean, y_scale = rows.moments("y")
        x = (rows.columns["context"] - context_mean) / context_scale * mask
        standard = (rows.columns["y"] - y_mean) / y_scale * mask
        slope = _regression(x, standard)
        rest = standard - x @ slope
        scale = _spread(rest, count)
        self.context.take(context_mean, context_scale)
        self.y.take(y_mean, y_scale * scale)
        self.slope.copy_(slope * y_scale)
        if self.triangular:
            self._start_from_parents(rest / scale, count)
        last = [layer for layer in self.net.modules() if isinstance(layer, StackedLinear)][-1]
        last.weight.zero_()
        last.bias.zero_()

    def _start_from_parents(self, rest: Float[Tensor, "k n d"], count: Tensor) -> None:
        """The linear regression of every coordinate's rest on the rests of its parents."""
        parents = self.parents.cpu()
        slopes = [_regression(rest * parents[i], rest[..., i : i + 1]) for i in range(self.size)]
        slope = torch.cat(slopes, -1) * parents.T
        self.parent_slope.copy_(slope)
        self.rest_scale.copy_(_spread(rest - rest @ slope, count))

    def log_prob(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        """Log density of every coordinate, in the units of y."""
        return self.log_prob_and_raw(context, y)[0]

    def log_prob_and_raw(
        self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]
    ) -> tuple[Float[Tensor, "k n d"], Float[Tensor, "k n d w"]]:
        """Log density, and the context's raw numbers behind it."""
        raw, rest = self._explained(context, y)
        # Rows last, as they lie in memory.
        log_prob = self.law.log_prob(LawParameters(*(part.transpose(1, 2) for part in raw)), rest.mT).mT
        return log_prob - (self.y.scale * self.rest_scale).log(), raw.own

    def abduct(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        return self.law.abduct(*self._explained(context, y))

    def predict(
        self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"], held: Mapping[int, float] | None = None
    ) -> Float[Tensor, "k n d"]:
        """What the noise leads to; coordinates in `held` are fixed at their value whatever their noise: do(y_i = v)."""
        if self.triangular:
            return self._predict_in_order(context, noise, held or {})
        raw, line = self._law_of(context)
        y = torch.addcmul(line, self.law.predict(raw, columns(noise).mT), self.y.scale)
        for i, value in (held or {}).items():
            y[..., i] = value
        return y

    def counterfactual(
        self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"], others: Sequence[Float[Tensor, "k n c"]]
    ) -> list[Float[Tensor, "k n d"]]:
        """What y would have been in each of other contexts, by the noise that explains it in its own."""
        raw, rest = self._explained(context, y)
        if self.triangular:
            noise = self.law.abduct(raw, rest)
            return [self.predict(other, noise) for other in others]
        residual = self.law.residual(raw, rest)
        laws = map(self._law_of, others)
        return [torch.addcmul(line, self.law.restore(raw, residual), self.y.scale) for raw, line in laws]

    def _explained(self, context: Tensor, y: Tensor) -> tuple[LawParameters, Float[Tensor, "k n d"]]:
        """The law's raw numbers, and what the lines leave of y in units of its spread."""
        if not self.triangular:
            raw, line = self._law_of(context)
            return raw, (columns(y).mT - line) / self.y.scale
        inputs = self.context(context)
        rest = (y - self.y.mean - inputs @ self.slope) / self.y.scale
        return self._raw_given(inputs, rest), (rest - rest @ self.parent_slope) / self.rest_scale

    def _law_of(self, context: Float[Tensor, "k n c"]) -> tuple[LawParameters, Float[Tensor, "k n d"]]:
        """The raw numbers and the line of a diagonal law, rows side by side in memory: every number is contiguous."""
        inputs = (columns(context) - self.context.mean.mT) / self.context.scale.mT
        k, _, n = inputs.shape
        line = torch.baddbmm(self.y.mean.mT, self.slope.mT, inputs).mT
        own = self.net.columns(inputs).view(k, self.law.width, self.size, n).permute(0, 3, 2, 1)
        return LawParameters(own, self.shared.view(k, 1, self.size, self.law.shared)), line

    def _predict_in_order(self, context: Tensor, noise: Tensor, held: Mapping[int, float]) -> Tensor:
        """Coordinate after coordinate, parents first."""
        inputs = self.context(context)
        line = self.y.mean + inputs @ self.slope
        rest = torch.zeros_like(noise)
        for i in self.order:
            fixed = (held[i] - line[..., i]) / self.y.scale[..., i] if i in held else None
            column = self._predict_one(i, inputs, rest, noise[..., i]) if fixed is None else fixed
            rest = torch.cat([rest[..., :i], column[..., None], rest[..., i + 1 :]], -1)
        return line + rest * self.y.scale

    def _predict_one(self, i: int, inputs: Tensor, rest: Tensor, noise: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """Coordinate i, given the rests of its parents."""
        own, shared = self._raw_given(inputs, rest)
        drawn = self.law.predict(LawParameters(own[..., i, :], shared[..., i, :]), noise)
        return (rest @ self.parent_slope[..., i : i + 1])[..., 0] + drawn * self.rest_scale[..., i]

    def _raw_given(self, inputs: Float[Tensor, "k n c"], rest: Float[Tensor, "k n d"]) -> LawParameters:
        """The raw numbers of a triangular law, coordinate after coordinate, given the rests of its parents."""
        k, n, _ = inputs.shape
        both = torch.cat([inputs[:, None].expand(-1, self.size, -1, -1), rest[:, None] * self.parents[:, None]], -1)
        own = self.net.columns(columns(both.flatten(0, 1))).view(k, self.size, self.law.width, n).permute(0, 3, 1, 2)
        return LawParameters(own, self.shared.view(k, 1, self.size, self.law.shared))


def _regression(x: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k c d"]:
    """Ridge regression without intercept, in double precision: all members at once, which scikit-learn's cannot."""
    x, y = x.double(), y.double()
    gram = x.mT @ x + RIDGE * torch.eye(x.shape[-1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.mT @ y).float()


def _spread(rest: Float[Tensor, "k n d"], count: Int[Tensor, "k 1 1"]) -> Float[Tensor, "k 1 d"]:
    """Root mean square over the rows that count, never quite zero."""
    return (rest.square().sum(1, keepdim=True) / count).sqrt().clamp(min=SMALLEST)


def _topological(parents: Parents) -> tuple[int, ...]:
    """An order in which every coordinate comes after its parents."""
    try:
        return tuple(TopologicalSorter(dict(enumerate(parents))).static_order())
    except CycleError:
        raise CounterpointError("the parents form a cycle; give every coordinate parents that come before it") from None


def _parent_table(parents: Parents, size: int) -> Float[Tensor, "d d"]:
    table = torch.zeros(size, size)
    for child, columns_of_parents in enumerate(parents):
        table[child, list(columns_of_parents)] = 1.0
    return table
