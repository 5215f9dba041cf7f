"""Fitted models as one batched simulator: every ensemble member of every model is a separate environment."""

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
from counterpoint.nets.placement import common_device
from counterpoint.nets.stacked import Weights, with_weights
from counterpoint.simulation.rollout import NoiseStream, StackedNoise


class PredictModule(nn.Module):
    """A mechanism's `predict` as the forward call of a module, for torch's `functional_call`."""

    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self.mechanism.predict(context, state, noise)


@dataclass(frozen=True)
class ModelStack:
    """The models of one structure as one mechanism; `models` are their indices in the simulator."""

    mechanism: Mechanism
    models: Int[Tensor, " models"]
    weights: Weights = field(default_factory=dict)
    """Weights in place of those of the mechanism, by their names in `PredictModule`."""

    @property
    def members(self) -> int:
        """Members of one model."""
        return self.mechanism.members // len(self.models)

    def step(self, inputs: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        """The next states; the members of a model have equal, neighbouring shares of its episodes."""
        noise = noise.expand(*state.shape[:2], -1)
        members = state.shape[0] * self.members
        episodes = state.shape[1] // self.members
        by_member = (x.reshape(members, episodes, x.shape[-1]) for x in (inputs, state, noise))
        return self._predict(*by_member).reshape(state.shape)

    def _predict(self, *inputs: Tensor) -> Tensor:
        if not self.weights:
            return self.mechanism.predict(*inputs)
        return functional_call(PredictModule(self.mechanism), self.weights, inputs)

    def picked(self, models: Int[Tensor, " w"]) -> "ModelStack":
        """A stack whose model i is model `models[i]` of this one; a model may be repeated."""
        weights = PredictModule(self.mechanism).state_dict()
        by_model = {name: tensor.unflatten(0, (len(self.models), -1)) for name, tensor in weights.items()}
        return replace(self, weights={name: tensor[models].flatten(0, 1) for name, tensor in by_model.items()})


class ModelSimulator:
    """A simulator of K fitted models: state [k] belongs to model k, its episodes to the model's members in order.

    All models have the same noise, so that the episodes of one do not depend on the others.
    """

    @checked
    def __init__(self, models: Sequence[Model]) -> None:
        require(len(models) > 0, "there are no models to simulate; give at least one")
        self.models, self.device = list(models), common_device(models, "the models")
        self.members, self.schema = models[0].mechanism.members, models[0].schema
        places: dict[MechanismRecipe[Model], list[int]] = {}
        for place, model in enumerate(models):
            places.setdefault(model.structure, []).append(place)
        if any(model.mechanism.members != self.members for model in models):
            raise CounterpointError(
                "models of different ensemble sizes cannot be simulated together; simulate each alone"
            )
        self.stacks = [
            ModelStack(_stacked([models[i] for i in indices]), torch.tensor(indices, device=self.device))
            for indices in places.values()
        ]

    @property
    def capturable(self) -> bool:
        """Whether a step can be captured as a CUDA graph."""
        return all(part.mechanism.capturable for part in self.stacks)

    def picked(self, models: Int[Tensor, " w"]) -> "ModelSimulator":
        """A simulator whose model i is model `models[i]` of this one.

        All weights of the models must have the members as first axis.
        """
        require(len(self.stacks) == 1, "models of different structures cannot be picked from; simulate each kind alone")
        simulator = copy.copy(self)
        simulator.stacks = [self.stacks[0].picked(models)]
        return simulator

    @torch.no_grad()
    def step(
        self,
        state: Float[Tensor, "k e s"],
        action: Float[Tensor, "k e a"],
        noise: StackedNoise,
        theta: Float[Tensor, "k e t"],
    ) -> Float[Tensor, "k e s"]:
        inputs = context(state, action, theta=theta)
        if len(self.stacks) == 1:
            after = self.stacks[0].step(inputs, state, noise[0])
        else:
            after = torch.empty_like(state)
            for part, part_noise in zip(self.stacks, noise, strict=True):
                after[part.models] = part.step(inputs[part.models], state[part.models], part_noise)
        return self.schema.held(after, state, action)

    def episodes_per_member(self, episodes: int) -> int:
        """The number of a model's episodes that each of its members has."""
        if episodes % self.members:
            raise CounterpointError(f"{episodes} episodes cannot be dealt to {self.members} members; use a multiple")
        return episodes // self.members

    def fresh(self, episodes: int, seed: int) -> NoiseStream:
        """Fresh noise at every step, drawn on the device of the models."""
        self.episodes_per_member(episodes)
        randoms = [torch.Generator(self.device).manual_seed(seed) for _ in self.stacks]
        pairs = list(zip(self.stacks, randoms, strict=True))
        return lambda t: tuple(part.mechanism.prior(episodes, random)[None].to(self.device) for part, random in pairs)


def _stacked(models: Sequence[Model]) -> Mechanism:
    first = models[0]
    weights = first.structure.joined([model.mechanism.state_dict() for model in models])
    members = sum(model.mechanism.members for model in models)
    whole = first.structure.build(len(first.state_names), first.mechanism.context_width, members)
    return with_weights(whole, weights).for_rollouts()


NoiseSampler = Callable[[int, int, int, torch.Generator], Float[Tensor, "t m n u"]]
"""Draws the noise of one model on the CPU, from numbers of steps, members and episodes per member."""


@dataclass(frozen=True)
class FreshNoise:
    """Draws from the noise law of the model."""

    def sampler(self, model: Model, job: Job) -> NoiseSampler:
        """A sampler of the model's noise."""
        prior = model.mechanism.prior
        return lambda steps, members, episodes, random: prior(steps * members * episodes, random).view(
            steps, members, episodes, -1
        )

    def stream(self, simulator: ModelSimulator, jobs: Sequence[Job], episodes: int, seed: int) -> NoiseStream:
        """The noise of `episodes` episodes of every model; `jobs` are those the models were fitted on."""
        return simulator.fresh(episodes, seed)


@dataclass(frozen=True)
class NoisePool:
    """Draws with replacement from the noise abducted in the rows of the log."""

    def sampler(self, model: Model, job: Job) -> NoiseSampler:
        """A sampler of the noise that the model abducts from its job."""
        pool = abducted(model, job).cpu()

        def draw(steps: int, members: int, episodes: int, random: torch.Generator) -> Tensor:
            rows = torch.randint(pool.shape[1], (steps, members, episodes), generator=random)
            return pool[torch.arange(members)[:, None], rows]

        return draw

    def stream(self, simulator: ModelSimulator, jobs: Sequence[Job], episodes: int, seed: int) -> NoiseStream:
        """The noise of `episodes` episodes of every model; `jobs` are those the models were fitted on."""
        pools = [abducted(model, job) for model, job in zip(simulator.models, jobs, strict=True)]
        random = torch.Generator().manual_seed(seed)
        per_member = simulator.episodes_per_member(episodes)

        def noise(t: int) -> StackedNoise:
            uniform = torch.rand(simulator.members, per_member, generator=random).to(simulator.device)
            draws = [_sampled(pool, uniform) for pool in pools]
            return tuple(torch.stack([draws[i] for i in part.models]) for part in simulator.stacks)

        return noise


def abducted(model: Model, job: Job) -> Float[Tensor, "m n u"]:
    """The noise of every real row with a next state, abducted by every member."""
    if not isinstance(model, StructuralCausalModel):
        raise CounterpointError(f"a {model.kind} model cannot abduct noise from the log; use fresh noise")
    usable = job[~job.data.imagined & job.data.has_next]
    noise = model.abduct(usable.data.to(model.device), usable.theta.to(model.device))
    return noise.unflatten(1, (model.mechanism.members, -1)).transpose(0, 1)


def _sampled(pool: Float[Tensor, "m n u"], uniform: Float[Tensor, "m episodes"]) -> Float[Tensor, "e u"]:
    """The rows of each member's pool that draws in [0, 1) choose."""
    rows = (uniform * pool.shape[1]).long().clamp(max=pool.shape[1] - 1)
    return pool.gather(1, rows[..., None].expand(-1, -1, pool.shape[-1])).flatten(0, 1)
