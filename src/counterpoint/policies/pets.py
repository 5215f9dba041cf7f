"""PETS: probabilistic ensemble, trajectory sampling, planning by the cross-entropy method (Chua et al. 2018).

    model   p_b(s' | s, a) = N(s + μ_b(s, a), σ_b(s, a)²), member b fitted on its own bootstrap of the rows  (section 4)
    TS∞     every particle keeps one member for the whole plan; TS1 deals the members anew at every step     (section 5)
    CEM     draw action sequences, score each by the mean return of its particles, refit the draws to the elites;
            act with the first action of the mean; plan again at the next step                             (Algorithm 1)

Reward and end come from the task; a particle that has ended earns nothing more. The search is a Gaussian over the
actions' features, rounded to the nearest action, which for ordered doses needs fewer candidates than a table of
probabilities a step; ties with the last elite are elites too, so that an indifferent plan stays in the middle of what
it could do. Unlike there, a plan does not start from the last one: a policy is a function of the state. Its chance is
read from a tape where the state's digits say: the same draws for all states would push the system one way, always.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.dynamics.base import HeadNetwork, change_table
from counterpoint.dynamics.gaussian import DiagonalGaussian
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import Likelihood, LikelihoodLearner
from counterpoint.nets.density import bounded_log_scale
from counterpoint.nets.stacked import initialise, members_of
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.base import Actor, Learned, Policy, PolicyLearner, both_ends, discrete
from counterpoint.seeding import derive, generator
from counterpoint.tasks.base import KnownSCM, Task

Propagation = Literal["TSinf", "TS1"]


TAPE = 2**16
"""Draws on a tape, which then starts over."""


class Simulator(Protocol):
    """Worlds side by side: the particles of every planning problem, problem after problem."""

    count: int

    def noise(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """Draws of what `step` takes as noise."""
        ...

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], noise: Float[Tensor, "w n u"]
    ) -> Float[Tensor, "w n s"]:
        """Next states, world by world."""
        ...


@dataclass(frozen=True)
class Planner:
    """The cross-entropy method over sequences of discrete actions."""

    horizon: int = 50
    """Steps that a plan looks ahead; shorter ones see the end of CartPole's track too late to turn round."""
    candidates: int = 100
    """Action sequences drawn at every iteration, in mirrored pairs."""
    elites: int = 10
    """The best of them, which the next draws are fitted to."""
    iterations: int = 3
    """Rounds of drawing and refitting."""
    seed: int = 0
    """Where the planner's chance comes from."""

    def actor(self, simulator: Simulator, task: Task, device: torch.device = torch.device("cpu")) -> Actor:
        """Plan at every step; the k-th of K policies plans in the k-th share of the simulator's worlds."""
        search = torch.randn(TAPE, generator=generator(self.seed, "search")).to(device)
        luck = simulator.noise(TAPE, generator(self.seed, "luck")).to(device)
        return lambda state: self.plan(simulator, state, task, search, luck)

    @torch.no_grad()
    def plan(
        self,
        simulator: Simulator,
        state: Float[Tensor, "k n s"],
        task: Task,
        search: Float[Tensor, " tape"],
        luck: Float[Tensor, "tape u"],
    ) -> Float[Tensor, "k n a"]:
        """The first action of the plan found for every state."""
        actions, particles, place = discrete(task), simulator.count // len(state), places(state)
        low, high = (state.new_tensor(bound) for bound in (actions.low, actions.high))
        shape = (*state.shape[:2], 1, self.horizon, actions.width)
        mean, deviation = ((low + high) / 2).expand(shape), ((high - low) / 2).expand(shape)
        for i in range(self.iterations):
            draw = read(search, place, i, (self.candidates // 2, *shape[3:]))
            sequences = nearest(actions, mean + deviation * torch.cat([draw, -draw], 2))
            worth = self.worth(simulator, state, sequences, task, read(luck, place, i, (self.horizon, particles)))
            elite = (worth >= worth.topk(self.elites, -1).values[..., -1:]).float()
            share = (elite / elite.sum(-1, keepdim=True))[..., None, None]
            mean = (share * sequences).sum(2, keepdim=True)
            deviation = (share * (sequences - mean).square()).sum(2, keepdim=True).sqrt()
        return nearest(actions, mean[:, :, 0, 0])

    def worth(
        self,
        simulator: Simulator,
        state: Float[Tensor, "k n s"],
        sequences: Float[Tensor, "k n c h a"],
        task: Task,
        luck: Float[Tensor, "k n h p u"],
    ) -> Float[Tensor, "k n c"]:
        """Mean return of every sequence over its particles, up to the horizon. All sequences meet the same luck."""
        (k, n, c), particles = sequences.shape[:3], luck.shape[3]

        def by_world(x: Tensor) -> Tensor:
            return x.expand(k, particles, n, c, -1).reshape(k * particles, n * c, -1)

        here = by_world(state[:, None, :, None])
        total, alive = here.new_zeros(here.shape[:2]), here.new_ones(here.shape[:2])
        for t in range(self.horizon):
            action = by_world(sequences[:, None, :, :, t])
            noise = by_world(luck[:, :, t].transpose(1, 2)[:, :, :, None])
            after = torch.where(alive[..., None] > 0, simulator.step(here, action, noise), here)
            total += alive * task.reward(here, action, after)
            alive = alive * (~task.terminated(after)).float()
            here = after
        return total.view(k, particles, n, c).mean(1)


def places(state: Float[Tensor, "*n s"]) -> Int[Tensor, "*n"]:
    """A place on the tape for every state: a hash of its digits."""
    place = torch.zeros(state.shape[:-1], dtype=torch.long, device=state.device)
    for column in state.float().contiguous().view(torch.int32).long().unbind(-1):
        place = (place ^ column) * 0x5851F42D4C957F2D
        place = place ^ (place >> 29)
    return place % TAPE


def read(tape: Tensor, place: Int[Tensor, "k n"], turn: int, shape: tuple[int, ...]) -> Tensor:
    """The stretch of the tape that belongs to each place's turn, as [k, n, *shape] and what the tape holds."""
    count = torch.Size(shape).numel()
    stretch = torch.arange(turn * count, (turn + 1) * count, device=tape.device).view(shape)
    return tape[(place.view(*place.shape, *[1] * len(shape)) + stretch) % TAPE]


def nearest(actions: Discrete, features: Float[Tensor, "*n a"]) -> Float[Tensor, "*n a"]:
    """The action whose features t are nearest to f; for one-hot treatments that of the largest feature.

    ‖f − t‖² is least where f·t − ‖t‖²/2 is largest, which is one matrix product; `cdist` was two thirds of a plan.
    """
    table = actions.table(features).to(features)
    nearness = torch.addmm(-table.square().sum(-1) / 2, features.reshape(-1, actions.width), table.mT)
    return table[nearness.argmax(-1)].view(features.shape)


@final
class TrueWorlds:
    """The task itself as the planner's model: what planning can reach when nothing has to be learned."""

    def __init__(self, task: KnownSCM, count: int = 1) -> None:
        self.task, self.count, self.noise, self.step = task, count, task.noise, task.transition


@final
class Particles:
    """The ensembles of K fitted models, each with the same number of particles."""

    def __init__(self, law: HeadNetwork, models: int, particles: int, propagation: Propagation) -> None:
        self.law, self.models, self.particles, self.propagation = law, models, particles, propagation
        self.count = models * particles

    def noise(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """A normal draw for every state column, and one more that deals the members."""
        return torch.randn(count, self.law.size + 1, generator=random)

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], noise: Float[Tensor, "w n u"]
    ) -> Float[Tensor, "w n s"]:
        context, luck = torch.cat([state, action], -1), noise[..., :-1]
        if self.propagation == "TSinf":
            return state + self._change(context, luck)
        order = noise[..., -1:].unflatten(0, (self.models, -1)).argsort(1)
        return state + _deal(self._change(_deal(context, order), _deal(luck, order)), order.argsort(1))

    def _change(self, context: Float[Tensor, "w n c"], luck: Float[Tensor, "w n s"]) -> Float[Tensor, "w n s"]:
        """s' − s. Neighbouring particles share a member."""
        context, noise = (x.reshape(self.law.members, -1, x.shape[-1]) for x in (context, luck))
        mean, log_scale = self.law.raw(context).chunk(2, -1)
        change = mean + bounded_log_scale(log_scale).exp() * noise
        return (change * self.law.y_scale + self.law.y_mean).view(luck.shape)


def _deal(rows: Float[Tensor, "w n c"], order: Int[Tensor, "k p n 1"]) -> Float[Tensor, "w n c"]:
    """The particles of every model in another order, hence under other members."""
    by_model = rows.unflatten(0, order.shape[:2])
    return by_model.gather(1, order.expand(by_model.shape)).flatten(0, 1)


@dataclass(frozen=True)
class TaskOrigin(Origin):
    """Where a policy came from, and the task it plans for."""

    task: Any


@dataclass(frozen=True)
class PETS(PolicyLearner):
    """A planner in a bootstrapped ensemble of Gaussian networks. Assumes a discrete action space."""

    ensemble: int = 5
    """Members of the model."""
    particles: int = 5
    """Particles a plan; a multiple of the members."""
    propagation: Propagation = "TSinf"
    """TSinf keeps a particle's member for the whole plan, TS1 deals them anew at every step."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of a member; the paper's are (500, 500, 500), and planning costs grow with their squares."""
    likelihood: Likelihood = Likelihood()
    """How the model is fitted."""
    planner: Planner = Planner()
    """How it plans."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        """Fit the models of every job in one loop; held-out rows choose the step of `selected`."""
        discrete(task)
        if self.particles % self.ensemble:
            raise CounterpointError(
                f"{self.particles} particles do not share out among {self.ensemble} members; use a multiple"
            )
        tables = [change_table(job) for job in jobs for _ in range(self.ensemble)]
        seeds = [derive(job.seed, "member", m) for job in jobs for m in range(self.ensemble)]
        law = self.law(jobs[0].data.state_size, tables[0]["context"].shape[1], len(seeds)).to(device_of(device))
        initialise(law, seeds)
        learner = BootstrapLearner(law, tables, seeds, self.likelihood)
        identity = recipe_hash(self, [(job.data.fingerprint, job.seed) for job in jobs])
        trained = train(learner, self.likelihood.schedule, seeds, identity, monitor.stage("model"))
        return both_ends(trained, len(jobs), lambda weights, i: self._policy(weights, i, jobs, task))

    def law(self, state: int, context: int, members: int) -> HeadNetwork:
        """An unfitted model of the right shape."""
        return HeadNetwork(members, context, state, DiagonalGaussian(), self.hidden, batch_norm=False)

    def rebuild(self, header: Any, weights: dict[str, Tensor], actions: Discrete, origin: Any) -> "PETSPolicy":
        """The policy back from its artifact; its task is in its origin."""
        names = tuple(header["state_names"])
        law = self.law(len(names), len(names) + actions.width, self.ensemble)
        law.load_state_dict(weights)
        return PETSPolicy(self, law, names, origin)

    def _policy(self, state: dict[str, Tensor], index: int, jobs: Sequence[Job], task: Task) -> "PETSPolicy":
        data = jobs[index].data
        law = self.law(data.state_size, state["context_mean"].shape[-1], self.ensemble).to(state["context_mean"].device)
        law.load_state_dict(members_of(state, len(jobs), index, 1))
        return PETSPolicy(self, law, data.state_names, TaskOrigin(jobs[index].seed, data.fingerprint, task))


class BootstrapLearner(LikelihoodLearner):
    """Maximum likelihood where each member sees its own draw, with replacement, of the rows that are not held out."""

    def __init__(
        self, law: HeadNetwork, tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], how: Likelihood
    ) -> None:
        super().__init__(law, tables, seeds, how)  # pyright: ignore[reportArgumentType]
        self.bootstrap = [
            torch.randint(kept, (kept,), generator=generator(seed, "bootstrap"))
            for kept, seed in zip(self.kept, seeds, strict=True)
        ]

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        return {"rows": self.bootstrap[member][super().draw(member, random, steps)["rows"]]}


@final
class PETSPolicy(Policy):
    """Plans at every step with its own ensemble."""

    def __init__(self, recipe: PETS, law: HeadNetwork, state_names: tuple[str, ...], origin: TaskOrigin) -> None:
        super().__init__()
        self.recipe, self.law, self.actions = recipe, law.eval(), discrete(origin.task)
        self.state_names, self.origin, self.task = state_names, origin, origin.task

    def act(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return self.together([self])(state[None])[0]

    def weights(self) -> dict[str, Tensor]:
        return self.law.state_dict()

    @classmethod
    def together(cls, policies: Sequence["PETSPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """All models as one stack, all plans in one batch."""
        first: PETSPolicy = policies[0]
        recipe, size, states = first.recipe, first.law.size, [policy.law.state_dict() for policy in policies]
        law = recipe.law(size, size + first.actions.width, recipe.ensemble * len(policies))
        law.load_state_dict({name: torch.cat([s[name] for s in states]) for name in states[0]})
        worlds = Particles(law.to(first.law.y_mean.device).eval(), len(policies), recipe.particles, recipe.propagation)
        return recipe.planner.actor(worlds, first.task, first.law.y_mean.device)
