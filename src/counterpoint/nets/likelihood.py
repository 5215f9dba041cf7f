"""Maximum likelihood for any stack of conditional laws, the best step chosen on subjects kept aside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.data.jobs import Padded, pad
from counterpoint.errors import require
from counterpoint.nets.learner import Learner
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, Schedule, Trained, train
from counterpoint.seeding import derive, generator
from counterpoint.settings import Amount, Positive, Rate, Share, Weight, check_settings

DEPARTURE = 0.1
"""Departures from the linear start much larger than this cost little more."""


@dataclass(frozen=True)
class Likelihood:
    """How a conditional law is fitted."""

    schedule: Schedule = Schedule(steps=1500, check_every=50, rate="one-cycle")
    """Length, validation and learning-rate schedule."""
    batch: Positive = 256
    """Rows a minibatch."""
    learning_rate: Rate = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: Weight = 1e-4
    """Decoupled weight decay."""
    clip: Amount = 5.0
    """Largest norm of a member's gradient."""
    held_out: Share = 0.15
    """Share of the rows, by whole subjects, kept aside to choose the best step."""
    bootstrap: bool = False
    """Every member learns from its own draw, with replacement, of the rows that are not held out."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.held_out < 1, "held_out=1 leaves nothing to learn from; give a number from 0 to below 1")
        require(
            self.held_out > 0 or not self.schedule.check_every,
            "the schedule checks but held_out=0 leaves nothing to check on; hold some out or set check_every=0",
        )


class FittedByLikelihood(Protocol):
    """K members of p(y | context) in training."""

    def standardise_to(self, rows: Padded) -> None: ...
    def log_prob_and_raw(self, context: Tensor, y: Tensor) -> tuple[Tensor, Tensor]: ...


class VariationPenalty:
    """A price on every raw number of a law that varies with the context.

        price = weight/√rows · Σ ε·log(1 + sd/ε),    sd over the minibatch, ε = `DEPARTURE`

    A constant number is free. A small variation costs in proportion, so that noise is not worth fitting; a large one
    costs little more, so that what the data insist on is not shrunk.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, raw: Float[Tensor, "k n d w"], rows: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        departure = DEPARTURE * torch.log1p((raw.var(1) + 1e-6).sqrt() / DEPARTURE)
        return self.weight / rows.sqrt() * departure.sum((-1, -2))


class LikelihoodLearner(Learner):
    """Maximum likelihood with the best step chosen on held-out rows, which nothing else is learned from."""

    context: Tensor
    y: Tensor
    held_out: Tensor
    rows: Tensor

    def __init__(
        self,
        law: nn.Module,
        tables: Sequence[dict[str, Tensor]],
        seeds: Sequence[int],
        how: Likelihood,
        penalty: VariationPenalty | None = None,
    ) -> None:
        super().__init__()
        self.law, self.how, self.penalty, self.seeds = law, how, penalty, seeds
        orders = [held_out_last(t["subject"], how.held_out, seed) for t, seed in zip(tables, seeds, strict=True)]
        self.kept = [kept for _, kept in orders]
        padded = pad([{n: t[n][rows] for n in ("context", "y")} for t, (rows, _) in zip(tables, orders, strict=True)])
        self._law.standardise_to(Padded(padded.columns, torch.tensor(self.kept)))
        numbers = torch.arange(padded.columns["y"].shape[1])
        held_out = (numbers >= torch.tensor(self.kept)[:, None]) & (numbers < padded.count[:, None])
        self.first_held_out = min(self.kept)
        buffers = {**padded.columns, "held_out": held_out[:, self.first_held_out :].float()}
        device = next(law.parameters()).device
        for name, tensor in {**buffers, "rows": torch.tensor(self.kept).float()}.items():
            self.register_buffer(name, tensor.to(device), persistent=False)
        self.optimizer = adam(law.parameters(), how.learning_rate, decay=how.weight_decay)

    @property
    def _law(self) -> FittedByLikelihood:
        return self.law  # pyright: ignore[reportReturnType]

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        kept = self.kept[member]
        rows = torch.randint(kept, (steps, self.how.batch), generator=random)
        if self.how.bootstrap:
            rows = torch.randint(kept, (kept,), generator=generator(self.seeds[member], "bootstrap"))[rows]
        return {"rows": rows}

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
        log_prob, raw = self._law.log_prob_and_raw(context, y)
        loss = -log_prob.sum(-1).mean(-1)
        return loss if self.penalty is None else loss + self.penalty(raw, self.rows)

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.law

    @torch.no_grad()
    def score(self) -> Float[Tensor, " k"]:
        """Minus the mean log density of held-out rows; batch norm uses its running statistics as they are."""
        self.law.eval()
        context, y = self.context[:, self.first_held_out :], self.y[:, self.first_held_out :]
        loss = -self._law.log_prob_and_raw(context, y)[0].sum(-1)
        self.law.train()
        return (loss * self.held_out).sum(1) / self.held_out.sum(1)


def held_out_last(subject: Int[Tensor, " n"], share: float, seed: int) -> tuple[Int[Tensor, " n"], int]:
    """An order of the rows, subject after subject, and how many of them are learned from: never a part of a subject.

    The cut is the first end of a subject that leaves at most `share` of the rows behind it; where subjects are so
    unequal that there is none, the two sides may change places. A table of one subject has its own rows cut.
    """
    _, number = subject.unique(return_inverse=True)
    subjects, wanted = int(number.max()) + 1, int(len(subject) * (1 - share))
    random = generator(seed, "held out")
    if subjects == 1 or not share:
        return torch.randperm(len(subject), generator=random), max(wanted, 1)
    place = torch.empty(subjects, dtype=torch.long)
    place[torch.randperm(subjects, generator=random)] = torch.arange(subjects)
    order = torch.argsort(place[number], stable=True)
    ends = torch.bincount(place[number], minlength=subjects).cumsum(0)
    kept = int(ends[min(int((ends < wanted).sum()), subjects - 2)])
    rest = len(order) - kept
    return (order.roll(-kept), rest) if abs(rest - wanted) < abs(kept - wanted) else (order, kept)


def fit_by_likelihood(
    law: nn.Module,
    tables: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    how: Likelihood,
    identity: str,
    monitor: Monitor,
    penalty: VariationPenalty | None = None,
) -> Trained:
    """Fit member k of `law` on `tables[k]` (columns `context`, `y` and `subject`) from `seeds[k]`."""
    networks = getattr(law, "networks_per_member", 1)
    initialise(law, [derive(seed, i) if networks > 1 else seed for seed in seeds for i in range(networks)])
    trained = train(LikelihoodLearner(law, tables, seeds, how, penalty), how.schedule, seeds, identity, monitor)
    law.eval()
    return trained
