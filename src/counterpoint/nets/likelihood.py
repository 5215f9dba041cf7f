"""Maximum likelihood for any stack of conditional laws, the best step chosen on subjects kept aside."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Positive, Rate, Share, Weight, check_settings
from counterpoint.data.jobs import Padded, pad
from counterpoint.nets.derivatives import departure
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, Schedule, Trained, train

DEPARTURE = 0.1
"""Departures from the linear start much larger than this cost little more."""
START_ROWS = 32_768
"""Rows, the first of a member's order, whose means, spreads and linear regression a member starts from."""
CHECKED_ROWS = 10_000
"""Held-out rows, the first of a member's order up to the end of a subject, that a check scores."""
AT_ONCE = 1024
"""Held-out rows scored at once, for what a row needs to stay in a processor's cache."""


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

    A constant number is free. A small variation costs in proportion, so that fitting noise does not pay; a large one
    costs little more, so that what the data insist on is not shrunk.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, raw: Float[Tensor, "k n d w"], rows: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        return self.weight / rows.sqrt() * departure(raw, DEPARTURE, 1e-6)


class LikelihoodTraining(StackTraining):
    """Maximum likelihood with the best step chosen on held-out rows, which nothing else is learned from."""

    context: Tensor
    y: Tensor
    checked: Tensor
    counts: Tensor
    rows: Tensor

    def __init__(
        self,
        law: nn.Module,
        tables: Sequence[dict[str, Tensor]],
        seeds: Sequence[int],
        how: Likelihood,
        penalty: VariationPenalty | None = None,
    ) -> None:
        """Members whose tables are one object share it in memory: all look rows up by number in one long table."""
        super().__init__()
        self.law, self.how, self.penalty = law, how, penalty
        columns, orders, self.kept = _together(tables, seeds, how.held_out)
        self._law.standardise_to(_start(columns, orders, self.kept))
        self.learned = [self._learned(*part) for part in zip(orders, self.kept, seeds, strict=True)]
        checked = [_checked(columns["subject"], order[kept:]) for order, kept in zip(orders, self.kept, strict=True)]
        buffers = {
            **{name: columns[name] for name in ("context", "y")},
            "checked": pad_sequence(checked, batch_first=True),
            "counts": pad_sequence([torch.ones(len(rows)) for rows in checked], batch_first=True),
            "rows": torch.tensor(self.kept).float(),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor.to(next(law.parameters()).device), persistent=False)
        self.optimizer = adam(law.parameters(), how.learning_rate, decay=how.weight_decay)

    @property
    def _law(self) -> FittedByLikelihood:
        return self.law  # pyright: ignore[reportReturnType]

    def _learned(self, order: Int[Tensor, " n"], kept: int, seed: int) -> Int[Tensor, " m"]:
        """The rows that a member learns from."""
        if not self.how.bootstrap:
            return order[:kept]
        return order[torch.randint(kept, (kept,), generator=generator(seed, "bootstrap"))]

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        picks = torch.randint(self.kept[member], (steps, self.how.batch), generator=random)
        return {"rows": self.learned[member][picks]}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        context, y = self.context[draw["rows"]], self.y[draw["rows"]]
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
        pieces = self.checked.split(AT_ONCE, 1)
        log_prob = torch.cat([self._law.log_prob_and_raw(self.context[rows], self.y[rows])[0] for rows in pieces], 1)
        self.law.train()
        return -(log_prob.sum(-1) * self.counts).sum(1) / self.counts.sum(1)


def _together(
    tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], share: float
) -> tuple[dict[str, Tensor], list[Tensor], list[int]]:
    """The different tables as one, and for every member an order of its rows in it and how many it learns from."""
    different = {id(table): table for table in tables}
    first = dict(zip(different, accumulate((len(t["y"]) for t in different.values()), initial=0), strict=False))
    orders = [held_out_last(table["subject"], share, seed) for table, seed in zip(tables, seeds, strict=True)]
    numbers = [order + first[id(table)] for table, (order, _) in zip(tables, orders, strict=True)]
    columns = {name: _joined([t[name] for t in different.values()]) for name in ("context", "y", "subject")}
    return columns, numbers, [kept for _, kept in orders]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _start(columns: dict[str, Tensor], orders: Sequence[Tensor], kept: Sequence[int]) -> Padded:
    """What every member starts from: the first rows of its order."""
    firsts = [order[:START_ROWS] for order in orders]
    padded = pad([{name: columns[name][rows] for name in ("context", "y")} for rows in firsts])
    return Padded(padded.columns, torch.tensor(kept).clamp(max=START_ROWS))


def _checked(subject: Int[Tensor, " n"], held_out: Int[Tensor, " m"]) -> Int[Tensor, " c"]:
    """The first of the held-out rows, up to the last end of a subject among them if there is one."""
    subjects = subject[held_out[: CHECKED_ROWS + 1]]
    ends = (subjects[1:] != subjects[:-1]).nonzero()
    whole = int(ends[-1]) + 1 if len(ends) else CHECKED_ROWS
    return held_out[: whole if len(held_out) > CHECKED_ROWS else None]


def held_out_last(subject: Int[Tensor, " n"], share: float, seed: int) -> tuple[Int[Tensor, " n"], int]:
    """An order of the rows, subject after subject, and how many of them are learned from: never a part of a subject.

    The cut is the first end of a subject that leaves at most `share` of the rows behind it; where subjects are so
    unequal that there is none, the two sides may change places. A table of one subject has its own rows cut.
    """
    number = (subject.bincount() > 0).cumsum(0)[subject] - 1
    subjects, target = int(number.max()) + 1, int(len(subject) * (1 - share))
    random = generator(seed, "held out")
    if subjects == 1 or not share:
        return torch.randperm(len(subject), generator=random), max(target, 1)
    place = torch.empty(subjects, dtype=torch.long)
    place[torch.randperm(subjects, generator=random)] = torch.arange(subjects)
    order = torch.argsort(place[number], stable=True)
    ends = torch.bincount(place[number], minlength=subjects).cumsum(0)
    kept = int(ends[min(int((ends < target).sum()), subjects - 2)])
    rest = len(order) - kept
    return (order.roll(-kept), rest) if abs(rest - target) < abs(kept - target) else (order, kept)


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
    monitor.report(monitor.name, 0, how.schedule.steps)
    networks = getattr(law, "networks_per_member", 1)
    initialise(law, [derive(seed, i) if networks > 1 else seed for seed in seeds for i in range(networks)])
    trained = train(LikelihoodTraining(law, tables, seeds, how, penalty), how.schedule, seeds, identity, monitor)
    law.eval()
    return trained
