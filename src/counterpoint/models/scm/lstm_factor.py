"""The paper's subject factor: an LSTM over windows of (s, a), one θ for each subject (section 3.2).

    θ_C = mean over the windows w of subject C of θ(w),    θ(w) = norm(V·LSTM((s, a)_{t−τ+1}, …, (s, a)_t))

`norm` is batch norm without weights: over all windows every factor has mean 0 and variance 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, Range, Weight, check_settings
from counterpoint.data.jobs import pad
from counterpoint.data.transitions import Transitions, Windows
from counterpoint.nets.stacked import StackedBatchNorm, StackedLinear


class StackedLSTM(nn.Module):
    """K one-layer LSTMs (Hochreiter and Schmidhuber, 1997); torch's own has no leading axis of members.

    i, f, o = σ(x W + h V + b),    g = tanh(x W + h V + b),    c' = f·c + i·g,    h' = o·tanh(c')

    The gates are side by side in torch's order i, f, g, o.
    """

    def __init__(self, members: int, inputs: int, width: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.zeros(members, inputs, 4 * width))
        self.hidden = nn.Parameter(torch.zeros(members, width, 4 * width))
        self.bias = nn.Parameter(torch.zeros(members, 1, 4 * width))

    def forward(self, x: Float[Tensor, "k n length i"]) -> Float[Tensor, "k n w"]:
        """What the last step of every sequence leaves behind; each starts from zeros."""
        members, count, length, inputs = x.shape
        driven = torch.baddbmm(self.bias, x.transpose(1, 2).reshape(members, -1, inputs), self.input)
        hidden = cell = x.new_zeros(members, count, self.hidden.shape[1])
        for gates in driven.unflatten(1, (length, count)).unbind(1):
            let_in, keep, new, let_out = torch.baddbmm(gates, hidden, self.hidden).chunk(4, -1)
            cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
            hidden = let_out.sigmoid() * cell.tanh()
        return hidden

    @torch.no_grad()
    def initialise(self, member: int, random: torch.Generator) -> None:
        """Uniform in ±1/√width, as torch's own."""
        bound = self.hidden.shape[1] ** -0.5
        for parameter in (self.input, self.hidden, self.bias):
            parameter[member] = (2 * torch.rand(parameter.shape[1:], generator=random) - 1) * bound


AT_ONCE = 4096
"""Windows handled at once, and drawn with return for the final statistics of `norm`."""


@dataclass(frozen=True)
class LSTMFactor:
    """A subject factor that is learned from windows of the subject's own history, together with the SCM.

    In an update a row's θ is the mean of a few random windows of its subject, and `agreement` draws these together; as
    `norm` fixes the variance over all windows, they cannot agree by all being alike. θ is an input of G (figure 1b) and
    learns through G alone: E and D take it as given, for what fools D most easily is a θ that says nothing.
    """

    window: Positive = 5
    """τ, consecutive steps of one episode in a window."""
    width: Positive = 200
    """Units of the LSTM's one layer (appendix E)."""
    factors: Positive = 2
    """Columns of θ, read linearly from the LSTM's last output; the paper does not say how many."""
    agreement: Weight = 1.0
    """Weight of the variance of θ(w) within subjects, where its variance over all windows is 1, and of the squared
    correlations between its columns, which otherwise would all be the one on which windows agree most."""
    draws: Annotated[int, Range(2, 1000)] = 2
    """Windows of each row's subject in an update."""

    def __post_init__(self) -> None:
        check_settings(self)


class WindowFactors(nn.Module):
    """θ(w) of K members, and the factor of a subject that has no window."""

    population: Tensor

    def __init__(self, members: int, inputs: int, how: LSTMFactor) -> None:
        super().__init__()
        self.window, self.inputs = how.window, inputs
        self.lstm = StackedLSTM(members, inputs, how.width)
        self.read = StackedLinear(members, how.width, how.factors)
        self.read.bias.requires_grad_(False)  # `norm` takes it out again
        self.norm = StackedBatchNorm(members, how.factors).requires_grad_(False)
        self.register_buffer("population", torch.zeros(members, 1, how.factors))

    def forward(self, windows: Float[Tensor, "k n length i"]) -> Float[Tensor, "k n t"]:
        return self.norm(self.read(self.lstm(windows)))

    def in_pieces(self, windows: Float[Tensor, "k n length i"]) -> Float[Tensor, "k n t"]:
        """The same of windows that are too many for memory at once."""
        return torch.cat([self(piece) for piece in windows.split(AT_ONCE, 1)], 1)


def inputs_of(windows: Windows) -> Float[Tensor, "w length i"]:
    """What the LSTM is shown of each window."""
    return torch.cat([windows.state, windows.action], -1)


def subject_means(
    window_factors: Float[Tensor, "w t"],
    owner: Int[Tensor, " w"],
    subject: Int[Tensor, " n"],
    otherwise: Float[Tensor, "1 t"],
) -> Float[Tensor, "n t"]:
    """The mean over the windows of every row's subject; `otherwise` where it has none."""
    subjects, number = torch.cat([owner, subject]).unique(return_inverse=True)
    owner, subject = number.split([len(owner), len(subject)])
    count = owner.bincount(minlength=len(subjects))[:, None]
    total = window_factors.new_zeros(len(subjects), window_factors.shape[1]).index_add(0, owner, window_factors)
    return torch.where(count > 0, total / count.clamp(min=1), otherwise)[subject]


def earlier_means(
    window_factors: Float[Tensor, "w t"], windows: Windows, rows: Transitions, otherwise: Float[Tensor, "1 t"]
) -> Float[Tensor, "n t"]:
    """For every row, the mean over its subject's windows that ended before it; `otherwise` where none has."""
    place = _places_in_order(rows)
    first = torch.searchsorted(windows.subject, rows.subject)
    last = torch.searchsorted(place[windows.rows[:, -1]], place).maximum(first)
    total = torch.cat(
        [window_factors.new_zeros(1, window_factors.shape[1]).double(), window_factors.double().cumsum(0)]
    )
    count = (last - first)[:, None]
    return torch.where(count > 0, (total[last] - total[first]).to(window_factors) / count.clamp(min=1), otherwise)


@dataclass(frozen=True)
class Histories:
    """The windows of a table, subject after subject, and for rows to learn from those that may tell their factor.

    Row r may use `free[r]` windows of its subject: those from `first[r]` on, less `barred[r]` of them from `gap[r]` on,
    which hold the row's own next state: a factor that has seen it would reveal the noise.
    """

    windows: Float[Tensor, "w length i"]
    owner: Int[Tensor, " w"]
    """The subject of each window."""
    subject: Int[Tensor, " n"]
    """The subject of each row with a next state."""
    rows: Int[Tensor, " r"]
    """The rows to learn from: they have a window that is free."""
    first: Int[Tensor, " r"]
    free: Int[Tensor, " r"]
    gap: Int[Tensor, " r"]
    barred: Int[Tensor, " r"]

    @classmethod
    def of(cls, data: Transitions, length: int) -> "Histories":
        """The windows of the real rows, and those of them that have a next state."""
        windows, usable = data.windows(length), ~data.imagined & data.has_next
        first, end, gap, after = _places(data, windows)
        free = end - first - (after - gap)
        rows = (usable & (free > 0)).nonzero()[:, 0]
        require(
            len(rows) > 0,
            f"no subject has {length} consecutive steps and a next state behind them; lower `window` of LSTMFactor",
        )
        ranges = (column[rows] for column in (first, free, gap, after - gap))
        return cls(inputs_of(windows), windows.subject, data.subject[usable], _numbers(usable)[rows], *ranges)

    def draw(self, random: torch.Generator, *shape: int, windows: int) -> tuple[Tensor, Tensor]:
        """Rows to learn from, and some windows for each."""
        picked = torch.randint(len(self.rows), shape, generator=random)
        first, free, gap, barred = (
            column[picked][..., None] for column in (self.first, self.free, self.gap, self.barred)
        )
        place = (torch.rand(*shape, windows, generator=random) * free).long().clamp(max=free - 1) + first
        return self.rows[picked], torch.where(place < gap, place, place + barred)


def _places(data: Transitions, windows: Windows) -> tuple[Tensor, ...]:
    """For every row: the first window of its subject and the end of them, and of those with its next state."""
    place, length = _places_in_order(data), windows.rows.shape[1]
    starts = place[windows.rows[:, 0]]
    first, end = (torch.searchsorted(windows.subject, data.subject, right=right) for right in (False, True))
    gap, after = (torch.searchsorted(starts, place + shift).clamp(first, end) for shift in (2 - length, 2))
    return first, end, gap, after


def _places_in_order(data: Transitions) -> Int[Tensor, " n"]:
    """Of every row, how many come before it, subject after subject."""
    order = data.in_order()
    return torch.zeros(len(data), dtype=torch.long).index_put((order,), torch.arange(len(order)))


def _numbers(usable: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The place of every usable row among the usable ones."""
    return usable.cumsum(0) - 1


class FactorTraining(nn.Module):
    """What K members learn their factors from: windows in standard units, and which row may use which of them."""

    windows: Tensor

    def __init__(self, how: LSTMFactor, histories: Sequence[Histories], windows: Float[Tensor, "k w length i"]) -> None:
        super().__init__()
        self.how, self.histories = how, histories
        self.register_buffer("windows", windows, persistent=False)

    def draw(self, member: int, random: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
        """Rows of a member to learn from, and windows for each."""
        return self.histories[member].draw(random, *shape, windows=self.how.draws)

    def forward(self, factor: WindowFactors, numbers: Int[Tensor, "k b m"]) -> tuple[Tensor, Float[Tensor, " k"]]:
        """θ of every row of a minibatch, the mean of its windows; and what `agreement` weighs, weighted."""
        window_factors = factor(self._windows(numbers.flatten(1)))
        correlation = window_factors.mT @ window_factors / window_factors.shape[1]
        windows = window_factors.unflatten(1, numbers.shape[1:])
        disagreement = windows.var(2).mean(1).sum(-1) + correlation.triu(1).square().sum((1, 2))
        return windows.mean(2), self.how.agreement * disagreement

    def _windows(self, numbers: Int[Tensor, "k n"]) -> Float[Tensor, "k n length i"]:
        members = torch.arange(len(numbers), device=numbers.device)[:, None]
        return self.windows[members, numbers]

    @torch.no_grad()
    def settle(self, factor: WindowFactors, seeds: Sequence[int]) -> Float[Tensor, "k n t"]:
        """Take final statistics and the population's factor, and give θ of every row with a next state."""
        device = self.windows.device
        drawn = [_some(len(h.owner), generator(s, "windows")) for h, s in zip(self.histories, seeds, strict=True)]
        usual, factor.norm.momentum = factor.norm.momentum, 1.0
        factor.train()(self._windows(torch.stack(drawn).to(device)))
        factor.norm.momentum = usual
        window_factors = factor.eval().in_pieces(self.windows).cpu()
        tables = []
        for member, history in enumerate(self.histories):
            theta, owner = window_factors[member, : len(history.owner)], history.owner
            present = subject_means(theta, owner, owner.unique(), theta[:1])
            factor.population[member] = present.mean(0).to(device)
            tables.append({"theta": subject_means(theta, owner, history.subject, present.mean(0, keepdim=True))})
        return pad(tables).columns["theta"].to(device)


def _some(count: int, random: torch.Generator) -> Int[Tensor, " n"]:
    return torch.randint(count, (AT_ONCE,), generator=random)
