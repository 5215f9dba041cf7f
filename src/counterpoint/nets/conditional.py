"""Conditional laws of a vector: p(y | context), coordinate by coordinate or triangular, fitted by maximum likelihood.

Diagonal: y_i = f_i(context, u_i). Triangular, with the parents of every coordinate given: y_i = f_i(context, y_parents, u_i).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.data.jobs import Padded, pad
from counterpoint.nets.density import Law
from counterpoint.nets.stacked import StackedMLP, initialise
from counterpoint.nets.training import Learner, Monitor, Schedule, Trained, adam, clip_members, train
from counterpoint.seeding import generator

Parents = tuple[tuple[int, ...], ...]


class ConditionalLaw(nn.Module):
    """K members of p(y | context); inputs and outputs are standardised inside with each member's own statistics."""

    context_mean: Tensor
    context_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    parents: Tensor

    def __init__(
        self, members: int, context: int, size: int, law: Law, hidden: Sequence[int], parents: Parents = ()
    ) -> None:
        super().__init__()
        self.law, self.size, self.members = law, size, members
        self.triangular = any(parents)
        for name, width in (("context", context), ("y", size)):
            self.register_buffer(f"{name}_mean", torch.zeros(members, 1, width))
            self.register_buffer(f"{name}_scale", torch.ones(members, 1, width))
        self.order = _topological(parents) if self.triangular else tuple(range(size))
        self.register_buffer("parents", _parent_table(parents, size), persistent=False)
        if self.triangular:
            self.net = StackedMLP(members * size, context + size, hidden, law.width)
        else:
            self.net = StackedMLP(members, context, hidden, size * law.width)

    @torch.no_grad()
    def standardise_to(self, context: Padded, y: Padded) -> None:
        """Take mean and standard deviation of the rows that count."""
        for name, padded in (("context", context), ("y", y)):
            values, mask = padded.columns[name], padded.mask()[..., None]
            count = padded.count[:, None, None]
            mean = (values * mask).sum(1, keepdim=True) / count
            scale = (((values - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_scale").copy_(torch.where(scale > 1e-8, scale, 1.0))

    def parameters_at(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d w"]:
        """The law's raw parameters for every coordinate; `y` is standardised and read only by a triangular law."""
        inputs = (context - self.context_mean) / self.context_scale
        k, n, _ = inputs.shape
        if not self.triangular:
            return self.net(inputs).view(k, n, self.size, self.law.width)
        both = torch.cat([inputs[:, None].expand(-1, self.size, -1, -1), y[:, None] * self.parents[:, None]], -1)
        return self.net(both.flatten(0, 1)).view(k, self.size, n, self.law.width).transpose(1, 2)

    def log_prob(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        """Log density of every coordinate, in the units of y."""
        standard = (y - self.y_mean) / self.y_scale
        return self.law.log_prob(self.parameters_at(context, standard), standard) - self.y_scale.log()

    def abduct(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        standard = (y - self.y_mean) / self.y_scale
        return self.law.abduct(self.parameters_at(context, standard), standard)

    def predict(self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        standard = torch.zeros_like(noise)
        if not self.triangular:
            standard = self.law.predict(self.parameters_at(context, standard), noise)
        else:
            for i in self.order:
                drawn = self.law.predict(self.parameters_at(context, standard)[..., i, :], noise[..., i])
                standard = torch.cat([standard[..., :i], drawn[..., None], standard[..., i + 1 :]], -1)
        return standard * self.y_scale + self.y_mean


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
    """Maximum likelihood with the best step chosen on held-out rows."""

    context: Tensor
    y: Tensor
    held_out: Tensor

    def __init__(
        self, law: ConditionalLaw, tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], how: Likelihood
    ) -> None:
        super().__init__()
        self.law, self.how = law, how
        shuffled = [_shuffle(table, seed) for table, seed in zip(tables, seeds, strict=True)]
        padded = pad(shuffled)
        law.standardise_to(padded, padded)
        self.kept = [int(count * (1 - how.held_out)) for count in padded.count.tolist()]
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
        loss = -self.law.log_prob(context, y).sum(-1).mean(-1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        clip_members(self.law.parameters(), self.how.clip)
        self.optimizer.step()
        return {"negative_log_likelihood": loss.detach()}

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.law

    @torch.no_grad()
    def score(self) -> Float[Tensor, " k"]:
        context, y = self.context[:, self.first_held_out :], self.y[:, self.first_held_out :]
        loss = -self.law.log_prob(context, y).sum(-1)
        return (loss * self.held_out).sum(1) / self.held_out.sum(1)


def fit_law(
    law: ConditionalLaw,
    tables: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    how: Likelihood,
    identity: str,
    monitor: Monitor,
) -> Trained:
    """Fit member k of `law` on `tables[k]` (columns `context` and `y`) from `seeds[k]`."""
    per_member = law.size if law.triangular else 1
    initialise(law, [seed * 1000 + i if per_member > 1 else seed for seed in seeds for i in range(per_member)])
    learner = LikelihoodLearner(law, tables, seeds, how)
    return train(learner, how.schedule, seeds, identity, monitor)


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
