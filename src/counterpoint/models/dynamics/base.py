"""Models p(s' | s, a, θ) that cannot abduct: they draw a next state, but not the one that would have followed in a row.

The paper's three baselines (section 5.1 and appendix "Three Baselines") share this file and differ in their head alone.
Like the SCMs they model the change s' − s, on standardised inputs and outputs, by maximum likelihood; unlike the
default SCM they are one network each, of the paper's widths and with its batch norm.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.artifacts import device_of
from counterpoint.core.settings import Positive, Widths, check_settings, checked
from counterpoint.data.jobs import NO_THETA, Job, Padded, change_table, context, identity
from counterpoint.data.shapes import Action, Reward, State, Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Mechanism, MechanismRecipe, Model, Values, member_seeds, repeated
from counterpoint.nets.likelihood import Likelihood, fit_by_likelihood
from counterpoint.nets.stacked import StackedMLP, Standardizer
from counterpoint.nets.training import Monitor


class OutputLaw(ABC):
    """What the raw outputs of a network mean: a law of a whole vector y, in standardised units."""

    @abstractmethod
    def width(self, size: int) -> int:
        """Raw numbers that describe a law of `size` columns."""

    @abstractmethod
    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Reward:
        """Log density of the vector."""

    @abstractmethod
    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        """The chance of one draw for every row of a table of this shape."""

    @abstractmethod
    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        """What that chance makes of the law."""

    def unit(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and unit of y inside the network; its mean and standard deviation unless the head has its own."""
        return mean, scale


class LawNetwork(nn.Module):
    """K members of p(y | context); the members' own means and standard deviations standardise inputs and outputs."""

    def __init__(
        self, members: int, context: int, size: int, head: OutputLaw, hidden: Sequence[int], batch_norm: bool
    ) -> None:
        super().__init__()
        self.members, self.size, self.head = members, size, head
        self.context, self.y = Standardizer(members, context), Standardizer(members, size)
        self.net = StackedMLP(members, context, hidden, head.width(size), nn.ReLU, batch_norm)

    def standardise_to(self, rows: Padded) -> None:
        """Take mean and standard deviation of the rows that count."""
        self.context.take(*rows.moments("context"))
        mean, spread = rows.mean_and_spread("y")
        # A constant is its mean: a tiny unit leaves the network nothing to add to it.
        self.y.take(*self.head.unit(mean, spread.maximum(1e-6 * mean.abs().clamp(min=1.0))))

    def raw(self, context: Float[Tensor, "k n c"]) -> Float[Tensor, "k n w"]:
        return self.net(self.context(context))

    def log_prob_and_raw(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> tuple[Tensor, Tensor]:
        """Log density of the whole vector, in the units of y, and the numbers behind it."""
        raw = self.raw(context)
        standard = self.head.log_prob(raw, self.y(y))
        return (standard - self.y.scale.log().sum(-1))[..., None], raw

    def point(self, context: Float[Tensor, "k n c"]) -> Float[Tensor, "k n d"]:
        """What a head of one value says, in the units of y."""
        return self.y.inverse(self.raw(context))

    def chance(self, shape: Sequence[int], random: torch.Generator) -> Float[Tensor, "*n u"]:
        """The chance of one draw a row, drawn where the generator lives."""
        return self.head.chance(shape, self.size, random)

    def sample(self, context: Float[Tensor, "k n c"], chance: Float[Tensor, "k n u"]) -> Float[Tensor, "k n d"]:
        return self.y.inverse(self.head.sample(self.raw(context), chance.to(context), self.size))


class LawNetworkMechanism(Mechanism):
    """s' = s + a draw of the head; the chance of a draw is the noise."""

    def __init__(self, network: LawNetwork) -> None:
        super().__init__()
        self.network, self.members, self.context_width = network, network.members, network.context.mean.shape[-1]

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return state + self.network.sample(context, noise)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        return self.network.chance((count,), random)


@final
class DynamicsModel(Model):
    """A fitted model of the dynamics: M members that stand for one law in equal parts."""

    kind: ClassVar[str] = "dynamics"
    mechanism: Mechanism

    @checked
    def sample(self, state: Values, action: object, random: torch.Generator, theta: Theta = NO_THETA) -> Values:
        """Draw a next state for each row from one member, which is picked at random for the row.

        Picking keeps the spread that a member has learned, and adds the members' disagreement; a mean of draws would
        shrink the first and hide the second. `state` has any input type, and the result has the same.
        """
        query, actions = self._query(state, action)
        factors = self._factors(theta, len(actions))
        return query.restore(self._next_state(query.values, actions, factors, random), self.schema.states)

    @torch.no_grad()
    def _next_state(self, state: State, action: Action, theta: Theta, random: torch.Generator) -> State:
        after = self._by_chunks(lambda s, a, t: self._draw(s, a, t, random), state, action, theta)
        return self.schema.held(after, state, action)

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Theta = NO_THETA
    ) -> Float[Tensor, "n m s"]:
        """Draw next states of each row under m alternative actions, with fresh noise: no counterfactuals."""
        factors = self._factors(theta, len(rows), rows)
        state, factors = (x.repeat_interleave(action.shape[1], 0) for x in (rows.state, factors))
        return self._next_state(state, action.flatten(0, 1), factors, random).view(*action.shape[:2], -1)

    def _draw(self, state: Tensor, action: Tensor, theta: Tensor, random: torch.Generator) -> Tensor:
        members = self.mechanism.members
        inputs = context(state, action, theta=theta).expand(members, -1, -1)
        noise = self.mechanism.prior(members * len(state), random).unflatten(0, (members, -1))
        drawn = self.mechanism.predict(inputs, state.expand(members, -1, -1), noise)
        picked = torch.randint(members, (len(state),), generator=random, device=random.device).to(state.device)
        return drawn[picked, torch.arange(len(state), device=state.device)]


@dataclass(frozen=True)
class DynamicsRecipe(MechanismRecipe[DynamicsModel]):
    """Base class of the baselines' recipes; the paper's networks are 2 × 300, linear + batch norm + ReLU (appendix)."""

    ensemble: Positive = 1
    """Members; planners use several, the paper's baselines one."""
    hidden: Widths = (300, 300)
    """Widths of the network from (s, a, θ) to the head."""
    batch_norm: bool = True
    """Batch normalisation after every hidden layer, as in the paper."""
    likelihood: Likelihood = Likelihood()
    """How it is fitted."""

    fitted: ClassVar[type] = DynamicsModel

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def head(self) -> OutputLaw:
        """The law of the change s' − s."""

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[DynamicsModel]:
        tables, seeds = [change_table(job) for job in jobs], member_seeds(jobs, self.ensemble)
        state, context = tables[0]["y"].shape[1], tables[0]["context"].shape[1]
        mechanism = self.build(state, context, len(seeds)).to(device_of(device))
        stacked = repeated(tables, self.ensemble)
        fit_by_likelihood(mechanism.network, stacked, seeds, self.likelihood, identity(self, jobs), monitor)
        return self.cut(mechanism, jobs)

    def build(self, state: int, context: int, members: int) -> LawNetworkMechanism:
        return LawNetworkMechanism(LawNetwork(members, context, state, self.head(), self.hidden, self.batch_norm))


def normal(shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n d"]:
    """Standard normal draws where the generator lives."""
    return torch.randn(*shape, size, generator=random, device=random.device)
