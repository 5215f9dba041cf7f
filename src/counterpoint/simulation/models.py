"""Fitted models as one vectorised simulator: every ensemble member of every model is a world of its own."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import checked
from counterpoint.data.jobs import Job, context
from counterpoint.models.base import Mechanism, MechanismRecipe, Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.stacked import Weights, with_weights
from counterpoint.simulation.rollout import Noise, Stream


class Predicting(nn.Module):
    """A mechanism's `predict` as torch's `functional_call` asks for it: as the call of a module."""

    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, told: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self.mechanism.predict(told, state, noise)


@dataclass(frozen=True)
class Stack:
    """The models of one structure as one mechanism; `models` are their places in the simulator."""

    mechanism: Mechanism
    models: Int[Tensor, " models"]
    weights: Weights = field(default_factory=dict)
    """Weights in place of the mechanism's own, by their names in `Predicting`."""

    @property
    def members(self) -> int:
        """Members of one model."""
        return self.mechanism.members // len(self.models)

    def step(self, told: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        """A model's episodes are dealt to its members in equal, neighbouring shares."""
        worlds, noise = state.shape[0] * self.members, noise.expand(*state.shape[:2], -1)
        each = state.shape[1] // self.members
        by_member = (x.reshape(worlds, each, x.shape[-1]) for x in (told, state, noise))
        return self._predict(*by_member).reshape(state.shape)

    def _predict(self, *given: Tensor) -> Tensor:
        if not self.weights:
            return self.mechanism.predict(*given)
        return functional_call(Predicting(self.mechanism), self.weights, given)

    def picked(self, models: Int[Tensor, " w"]) -> "Stack":
        """Model `models[i]` in place i, again and again if asked for."""
        own = Predicting(self.mechanism).state_dict()
        each = {name: tensor.unflatten(0, (len(self.models), -1)) for name, tensor in own.items()}
        return replace(self, weights={name: tensor[models].flatten(0, 1) for name, tensor in each.items()})


class ModelSimulator:
    """K fitted models side by side: state [k] belongs to model k, its episodes to the model's members in order.

    Noise is the same for every model, so that no model's episodes depend on the models beside it.
    """

    @checked
    def __init__(self, models: Sequence[Model]) -> None:
        require(len(models) > 0, "there are no models to simulate; give at least one")
        self.models, self.device = list(models), models[0].device
        self.members, self.schema = models[0].mechanism.members, models[0].schema
        places: dict[MechanismRecipe[Model], list[int]] = {}
        for place, model in enumerate(models):
            places.setdefault(model.structure, []).append(place)
        if any(model.mechanism.members != self.members for model in models):
            raise CounterpointError(
                "models of different ensemble sizes cannot be simulated together; simulate each alone"
            )
        self.stacks = [
            Stack(_stacked([models[i] for i in found]), torch.tensor(found, device=self.device))
            for found in places.values()
        ]

    @property
    def capturable(self) -> bool:
        """Whether a step can be captured as a graph on a GPU."""
        return all(part.mechanism.capturable for part in self.stacks)

    def picked(self, models: Int[Tensor, " w"]) -> "ModelSimulator":
        """The same with model `models[i]` in place i; of networks all of whose weights begin with the members' axis."""
        require(len(self.stacks) == 1, "models of different structures cannot be picked from; simulate each kind alone")
        simulator = copy.copy(self)
        simulator.stacks = [self.stacks[0].picked(models)]
        return simulator

    @torch.no_grad()
    def step(
        self, state: Float[Tensor, "k e s"], action: Float[Tensor, "k e a"], noise: Noise, theta: Float[Tensor, "k e t"]
    ) -> Float[Tensor, "k e s"]:
        told = context(state, action, theta=theta)
        if len(self.stacks) == 1:
            after = self.stacks[0].step(told, state, noise[0])
        else:
            after = torch.empty_like(state)
            for part, drawn in zip(self.stacks, noise, strict=True):
                after[part.models] = part.step(told[part.models], state[part.models], drawn)
        return self.schema.held(after, state, action)

    def shared_out(self, episodes: int) -> int:
        """How many of a model's episodes each of its members has."""
        if episodes % self.members:
            raise CounterpointError(f"{episodes} episodes cannot be dealt to {self.members} members; use a multiple")
        return episodes // self.members

    def fresh(self, episodes: int, seed: int) -> Stream:
        """New noise at every step, drawn where the models are."""
        self.shared_out(episodes)
        randoms = [torch.Generator(self.device).manual_seed(seed) for _ in self.stacks]
        pairs = list(zip(self.stacks, randoms, strict=True))
        return lambda t: tuple(part.mechanism.prior(episodes, random)[None].to(self.device) for part, random in pairs)


def _stacked(models: Sequence[Model]) -> Mechanism:
    first = models[0]
    weights = first.structure.joined([model.mechanism.state_dict() for model in models])
    members = sum(model.mechanism.members for model in models)
    whole = first.structure.build(len(first.state_names), first.mechanism.context_width, members)
    return with_weights(whole, weights).for_rollouts()


Source = Callable[[int, int, int, torch.Generator], Float[Tensor, "t m n u"]]
"""Noise of one model: for so many steps, members and episodes in each, drawn on the CPU."""


@dataclass(frozen=True)
class FreshNoise:
    """Draws of the model's own noise."""

    def source(self, model: Model, job: Job) -> Source:
        """Draws of one model's noise."""
        prior = model.mechanism.prior
        return lambda steps, members, each, random: prior(steps * members * each, random).view(steps, members, each, -1)

    def stream(self, simulator: ModelSimulator, jobs: Sequence[Job], episodes: int, seed: int) -> Stream:
        """The noise of `episodes` episodes of every model; `jobs` are what the models were fitted on."""
        return simulator.fresh(episodes, seed)


@dataclass(frozen=True)
class NoisePool:
    """Noises that were abducted from the log, each row's as likely as another's: what really happened, reshuffled."""

    def source(self, model: Model, job: Job) -> Source:
        """Draws from one model's abducted noises."""
        pool = abducted(model, job).cpu()

        def draw(steps: int, members: int, each: int, random: torch.Generator) -> Tensor:
            rows = torch.randint(pool.shape[1], (steps, members, each), generator=random)
            return pool[torch.arange(members)[:, None], rows]

        return draw

    def stream(self, simulator: ModelSimulator, jobs: Sequence[Job], episodes: int, seed: int) -> Stream:
        """The noise of `episodes` episodes of every model; `jobs` are what the models were fitted on."""
        pools = [abducted(model, job) for model, job in zip(simulator.models, jobs, strict=True)]
        random, each = torch.Generator().manual_seed(seed), simulator.shared_out(episodes)

        def noise(t: int) -> Noise:
            share = torch.rand(simulator.members, each, generator=random).to(simulator.device)
            drawn = [_taken(pool, share) for pool in pools]
            return tuple(torch.stack([drawn[i] for i in part.models]) for part in simulator.stacks)

        return noise


@dataclass(frozen=True)
class SubjectNoise:
    """One episode's own abducted noise, step by step: what would have happened to this subject."""

    def stream(self, simulator: ModelSimulator, jobs: Sequence[Job], episodes: int, seed: int) -> Stream:
        """The noise of the episode that each model's job holds; it ends where the shortest of them does."""
        steps = [abducted(model, _one_episode(job)) for model, job in zip(simulator.models, jobs, strict=True)]
        each, length = simulator.shared_out(episodes), min(noise.shape[1] for noise in steps)

        def noise(t: int) -> Noise:
            if t >= length:
                raise CounterpointError(f"the record has noise for {length} steps, not {t + 1}; shorten the horizon")
            drawn = [own[:, t : t + 1].expand(-1, each, -1).flatten(0, 1) for own in steps]
            return tuple(torch.stack([drawn[i] for i in part.models]) for part in simulator.stacks)

        return noise


def _one_episode(job: Job) -> Job:
    """The rows in their order, without an end that has no next state; anything but one whole episode is refused."""
    job = job[job.data.step.argsort()]
    rows, known = job.data, job.data.has_next
    whole = len(rows.episode.unique()) == len(rows.subject.unique()) == 1 and bool((rows.step.diff() == 1).all())
    if not whole or bool(rows.imagined.any()) or not bool(known[:-1].all()):
        raise CounterpointError("own noise is that of one logged episode, step after step; pass the rows of one alone")
    return job[known]


def abducted(model: Model, job: Job) -> Float[Tensor, "m n u"]:
    """Every member's noise of every real row with a next state."""
    if not isinstance(model, StructuralCausalModel):
        raise CounterpointError(f"a {model.kind} model cannot abduct noise from the log; use fresh noise")
    usable = job[~job.data.imagined & job.data.has_next]
    noise = model.abduct(usable.data.to(model.device), usable.theta.to(model.device))
    return noise.unflatten(1, (model.mechanism.members, -1)).transpose(0, 1)


def _taken(pool: Float[Tensor, "m n u"], share: Float[Tensor, "m each"]) -> Float[Tensor, "e u"]:
    rows = (share * pool.shape[1]).long().clamp(max=pool.shape[1] - 1)
    return pool.gather(1, rows[..., None].expand(-1, -1, pool.shape[-1])).flatten(0, 1)
