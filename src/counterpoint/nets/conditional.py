"""Conditional laws of a vector: p(y | context), coordinate by coordinate or triangular, fitted by maximum likelihood.

Diagonal: y_i = f_i(context, u_i). Triangular, every coordinate's parents given: y_i = f_i(context, y_parents, u_i).
Both start as linear regression with normal noise, and every departure from it has to pay for itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.data.jobs import Padded, pad
from counterpoint.nets.density import Law, Raw
from counterpoint.nets.learner import Learner
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import StackedLinear, StackedMLP, initialise
from counterpoint.nets.training import Monitor, Schedule, Trained, train
from counterpoint.seeding import derive, generator

Parents = tuple[tuple[int, ...], ...]
RIDGE = 1.0
"""Ridge of the linear start, in rows: what keeps it defined where columns are collinear or rows are few."""
SMALLEST = 1e-6
"""A linear regression that leaves less than this share of y's spread is exact but for rounding."""
DEPARTURE = 0.1
"""Departures from the linear start much larger than this cost little more."""


class ConditionalLaw(nn.Module):
    """K members of p(y | context), each around its own linear regression of y on the context.

    The network sees the standardised context and gives the law of the regression's standardised rest. Parents enter as
    what the regression on the context leaves of them; their linear effect is part of the start.
    """

    context_mean: Tensor
    context_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    slope: Tensor
    parent_slope: Tensor
    rest_scale: Tensor
    parents: Tensor

    def __init__(
        self,
        members: int,
        context: int,
        size: int,
        law: Law,
        hidden: Sequence[int],
        parents: Parents = (),
        simplicity: float = 0.0,
    ) -> None:
        super().__init__()
        self.law, self.size, self.members, self.simplicity = law, size, members, simplicity
        self.triangular = any(parents)
        for name, width in (("context", context), ("y", size)):
            self.register_buffer(f"{name}_mean", torch.zeros(members, 1, width))
            self.register_buffer(f"{name}_scale", torch.ones(members, 1, width))
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
    def standardise_to(self, context: Padded, y: Padded) -> None:
        """Start from the linear regression of the rows that count: its weights go into buffers, the last layer to 0."""
        mask, count = context.mask()[..., None], context.count[:, None, None]
        context_mean, context_scale = context.moments("context")
        y_mean, y_scale = y.moments("y")
        x = (context.columns["context"] - context_mean) / context_scale * mask
        standard = (y.columns["y"] - y_mean) / y_scale * mask
        slope = _regression(x, standard)
        rest = standard - x @ slope
        scale = _spread(rest, count)
        parent_slope, rest_scale = self._parent_regression(rest / scale, count)
        for name, value in (
            ("context_mean", context_mean), ("context_scale", context_scale), ("y_mean", y_mean),
            ("y_scale", y_scale * scale), ("slope", slope * y_scale), ("parent_slope", parent_slope),
            ("rest_scale", rest_scale),
        ):  # fmt: skip
            getattr(self, name).copy_(value)
        last = [layer for layer in self.net.modules() if isinstance(layer, StackedLinear)][-1]
        last.weight.zero_()
        last.bias.zero_()

    def _parent_regression(self, rest: Float[Tensor, "k n d"], count: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of every coordinate on the rests of its parents."""
        parents = self.parents.cpu()
        slopes = [_regression(rest * parents[i], rest[..., i : i + 1]) for i in range(self.size)]
        slope = torch.cat(slopes, -1) * parents.T
        return slope, _spread(rest - rest @ slope, count) if self.triangular else torch.ones_like(rest[:, :1])

    def log_prob(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        """Log density of every coordinate, in the units of y."""
        return self.log_prob_and_raw(context, y)[0]

    def log_prob_and_raw(
        self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]
    ) -> tuple[Float[Tensor, "k n d"], Float[Tensor, "k n d w"]]:
        """Log density, and the context's raw numbers behind it."""
        inputs, rest = self._rest(context, y)
        raw = self._raw(inputs, rest)
        log_prob = self.law.log_prob(raw, self._without_parents(rest))
        return log_prob - (self.y_scale * self.rest_scale).log(), raw.own

    def abduct(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        inputs, rest = self._rest(context, y)
        return self.law.abduct(self._raw(inputs, rest), self._without_parents(rest))

    def predict(
        self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"], held: Mapping[int, float] | None = None
    ) -> Float[Tensor, "k n d"]:
        """What the noise leads to; coordinates in `held` are fixed at their value whatever their noise: do(y_i = v)."""
        inputs = (context - self.context_mean) / self.context_scale
        line = self.y_mean + inputs @ self.slope
        fixed = {i: (value - line[..., i]) / self.y_scale[..., i] for i, value in (held or {}).items()}
        rest = torch.zeros_like(noise)
        if self.triangular:
            for i in self.order:
                column = fixed[i] if i in fixed else self._predict_one(i, inputs, rest, noise[..., i])
                rest = torch.cat([rest[..., :i], column[..., None], rest[..., i + 1 :]], -1)
        else:
            columns = self.law.predict(self._raw(inputs, rest), noise)
            rest = torch.stack([fixed.get(i, columns[..., i]) for i in range(self.size)], -1) if fixed else columns
        return line + rest * self.y_scale

    def _predict_one(self, i: int, inputs: Tensor, rest: Tensor, noise: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """Coordinate i, given the rests of its parents."""
        own, shared = self._raw(inputs, rest)
        drawn = self.law.predict(Raw(own[..., i, :], shared[..., i, :]), noise)
        return (rest @ self.parent_slope[..., i : i + 1])[..., 0] + drawn * self.rest_scale[..., i]

    def _rest(self, context: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The standardised context, and what the line leaves of y in units of its spread."""
        inputs = (context - self.context_mean) / self.context_scale
        return inputs, (y - self.y_mean - inputs @ self.slope) / self.y_scale

    def _without_parents(self, rest: Tensor) -> Tensor:
        return (rest - rest @ self.parent_slope) / self.rest_scale if self.triangular else rest

    def _raw(self, inputs: Float[Tensor, "k n c"], rest: Float[Tensor, "k n d"]) -> Raw:
        """The law's raw numbers for every coordinate; `rest` is read only by a triangular law."""
        k, n, _ = inputs.shape
        shared = self.shared.view(k, 1, self.size, self.law.shared)
        if not self.triangular:
            # One number of all coordinates after another: the laws take the numbers apart, and read them in order.
            return Raw(self.net(inputs).view(k, n, self.law.width, self.size).transpose(2, 3), shared)
        both = torch.cat([inputs[:, None].expand(-1, self.size, -1, -1), rest[:, None] * self.parents[:, None]], -1)
        return Raw(self.net(both.flatten(0, 1)).view(k, self.size, n, self.law.width).transpose(1, 2), shared)


@dataclass(frozen=True)
class Likelihood:
    """How a conditional law is fitted."""

    schedule: Schedule = Schedule(steps=1500, check_every=50, rate="one-cycle")
    """Length, validation and learning-rate schedule."""
    batch: int = 256
    """Rows a minibatch."""
    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    clip: float = 5.0
    """Largest norm of a member's gradient."""
    held_out: float = 0.15
    """Share of the rows kept aside to choose the best step."""


class LikelihoodLearner(Learner):
    """Maximum likelihood with the best step chosen on held-out rows, which nothing else is learned from."""

    context: Tensor
    y: Tensor
    held_out: Tensor

    def __init__(
        self, law: ConditionalLaw, tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], how: Likelihood
    ) -> None:
        super().__init__()
        self.law, self.how = law, how
        padded = pad([_shuffle(table, seed) for table, seed in zip(tables, seeds, strict=True)])
        self.kept = [int(count * (1 - how.held_out)) for count in padded.count.tolist()]
        learned_from = Padded(padded.columns, torch.tensor(self.kept))
        law.standardise_to(learned_from, learned_from)
        device = next(law.parameters()).device
        rows = torch.arange(padded.columns["y"].shape[1])
        held_out = (rows >= torch.tensor(self.kept)[:, None]) & (rows < padded.count[:, None])
        first = min(self.kept)
        for name, tensor in (("context", padded.columns["context"]), ("y", padded.columns["y"])):
            self.register_buffer(name, tensor.to(device), persistent=False)
        self.first_held_out = first
        self.register_buffer("held_out", held_out[:, first:].float().to(device), persistent=False)
        self.optimizer = adam(law.parameters(), how.learning_rate, decay=how.weight_decay)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        return {"rows": torch.randint(self.kept[member], (steps, self.how.batch), generator=random)}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = draw["rows"][..., None]
        context = self.context.gather(1, rows.expand(-1, -1, self.context.shape[-1]))
        y = self.y.gather(1, rows.expand(-1, -1, self.y.shape[-1]))
        loss = self.loss(context, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        clip_members(self.law.parameters(), self.how.clip)
        self.optimizer.step()
        return {"negative_log_likelihood": loss.detach()}

    def loss(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, " k"]:
        """What every member minimises on a minibatch."""
        return -self.law.log_prob(context, y).sum(-1).mean(-1)

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.law

    @torch.no_grad()
    def score(self) -> Float[Tensor, " k"]:
        context, y = self.context[:, self.first_held_out :], self.y[:, self.first_held_out :]
        loss = -self.law.log_prob(context, y).sum(-1)
        return (loss * self.held_out).sum(1) / self.held_out.sum(1)


class SimplicityLearner(LikelihoodLearner):
    """Maximum likelihood less a price on every raw number that varies with the context.

        price = simplicity/√rows · Σ ε·log(1 + sd/ε),    sd over the minibatch, ε = `DEPARTURE`

    A constant number is free. A small variation costs in proportion, so that noise is not worth fitting; a large one
    costs little more, so that what the data insist on is not shrunk.
    """

    weight: Tensor

    def __init__(
        self, law: ConditionalLaw, tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], how: Likelihood
    ) -> None:
        super().__init__(law, tables, seeds, how)
        weight = law.simplicity / torch.tensor(self.kept).float().sqrt()
        self.register_buffer("weight", weight.to(self.y.device), persistent=False)

    def loss(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, " k"]:
        log_prob, raw = self.law.log_prob_and_raw(context, y)
        departure = DEPARTURE * torch.log1p((raw.var(1) + 1e-6).sqrt() / DEPARTURE)
        return -log_prob.sum(-1).mean(-1) + self.weight * departure.sum((-1, -2))


def fit_law(
    law: ConditionalLaw,
    tables: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    how: Likelihood,
    identity: str,
    monitor: Monitor,
) -> Trained:
    """Fit member k of `law` on `tables[k]` (columns `context` and `y`) from `seeds[k]`."""
    networks = range(law.size) if law.triangular else range(1)
    initialise(law, [derive(seed, i) if law.triangular else seed for seed in seeds for i in networks])
    priced = isinstance(law, ConditionalLaw) and law.simplicity > 0
    learner = (SimplicityLearner if priced else LikelihoodLearner)(law, tables, seeds, how)
    return train(learner, how.schedule, seeds, identity, monitor)


def _regression(x: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k c d"]:
    """Ridge regression without intercept, in double precision."""
    x, y = x.double(), y.double()
    gram = x.mT @ x + RIDGE * torch.eye(x.shape[-1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.mT @ y).float()


def _spread(rest: Float[Tensor, "k n d"], count: Int[Tensor, "k 1 1"]) -> Float[Tensor, "k 1 d"]:
    """Root mean square over the rows that count, never quite zero."""
    return (rest.square().sum(1, keepdim=True) / count).sqrt().clamp(min=SMALLEST)


def _shuffle(table: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    order = torch.randperm(len(table["y"]), generator=generator(seed, "held out"))
    return {name: column[order] for name, column in table.items()}


def _topological(parents: Parents) -> tuple[int, ...]:
    """An order in which every coordinate comes after its parents."""
    order: list[int] = []
    while len(order) < len(parents):
        ready = [i for i, p in enumerate(parents) if i not in order and set(p) <= set(order)]
        if not ready:
            raise ValueError("the parents form a cycle")
        order += ready
    return tuple(order)


def _parent_table(parents: Parents, size: int) -> Float[Tensor, "d d"]:
    table = torch.zeros(size, size)
    for child, mothers in enumerate(parents):
        table[child, list(mothers)] = 1.0
    return table
