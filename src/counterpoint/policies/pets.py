"""PETS: probabilistic ensemble, trajectory sampling, planning by the cross-entropy method (Chua et al. 2018).

    model   p_b(s' | s, a) = N(s + μ_b(s, a), σ_b(s, a)²), member b fitted on its own bootstrap of the rows  (section 4)
    TS∞     every particle keeps one member for the whole plan; TS1 deals the members anew at every step     (section 5)
    CEM     draw action sequences, score each by the mean return of its particles, refit the draws to the elites;
            act with the first action of the mean; plan again at the next step                             (Algorithm 1)

Reward and end come from the task; a particle that has ended earns nothing more. The search is a Gaussian over the
actions' features, rounded to the nearest action, which for ordered doses needs fewer candidates than a table of
probabilities a step. Unlike there, a plan does not start from the last one: the policy is a function of the state alone,
and its chance comes from the planner's seed, the same for every state, so that neither the batch nor the device changes
what a policy does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Discrete
from counterpoint.dynamics.base import change_table
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import ConditionalLaw, Likelihood, LikelihoodLearner
from counterpoint.nets.density import Gaussian
from counterpoint.nets.stacked import initialise, members_of
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.base import Actor, Learned, Origin, Policy, PolicyLearner, discrete
from counterpoint.seeding import derive, generator
from counterpoint.tasks.base import KnownSCM, Task

Propagation = Literal["TSinf", "TS1"]


class Simulator(Protocol):
    """Worlds side by side: the particles of every planning problem, problem after problem."""

    count: int

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        """Next states, world by world."""
        ...


@dataclass(frozen=True)
class Planner:
    """The cross-entropy method over sequences of discrete actions."""

    horizon: int = 50
    """Steps that a plan looks ahead."""
    candidates: int = 100
    """Action sequences drawn at every iteration."""
    elites: int = 10
    """The best of them, which the next draws are fitted to."""
    iterations: int = 3
    """Rounds of drawing and refitting."""
    seed: int = 0
    """Where the planner's chance comes from."""

    def actor(self, simulator: Simulator, task: Task) -> Actor:
        """Plan at every step; state k is planned for in the k-th share of the simulator's worlds."""
        return lambda state: self.plan(simulator, state, task)

    @torch.no_grad()
    def plan(self, simulator: Simulator, state: Float[Tensor, "k n s"], task: Task) -> Float[Tensor, "k n a"]:
        """The first action of the best plan found for every state."""
        random, actions = generator(self.seed, "plan"), discrete(task)
        low, high = (state.new_tensor(bound) for bound in (actions.low, actions.high))
        shape = (*state.shape[:2], 1, self.horizon, actions.width)
        mean, deviation = ((low + high) / 2).expand(shape), ((high - low) / 2).expand(shape)
        for _ in range(self.iterations):
            draw = torch.randn(self.candidates, *shape[3:], generator=random).to(state)
            sequences = nearest(actions, mean + deviation * draw)
            worth = self.worth(simulator, state, sequences, task, random)
            best = worth.topk(self.elites, -1).indices[..., None, None].expand(-1, -1, -1, *shape[3:])
            elite = sequences.gather(2, best)
            mean, deviation = elite.mean(2, keepdim=True), elite.std(2, keepdim=True)
        return nearest(actions, mean[:, :, 0, 0])

    def worth(
        self,
        simulator: Simulator,
        state: Float[Tensor, "k n s"],
        sequences: Float[Tensor, "k n c h a"],
        task: Task,
        random: torch.Generator,
    ) -> Float[Tensor, "k n c"]:
        """Mean return of every sequence over its particles, up to the horizon."""
        k, n, c = sequences.shape[:3]
        particles = simulator.count // k
        here = state[:, None, :, None].expand(-1, particles, -1, c, -1).reshape(k * particles, n * c, -1)
        total = torch.zeros(here.shape[:2], device=here.device)
        alive = torch.ones_like(total)
        for action in sequences.unbind(3):
            action = action[:, None].expand(-1, particles, -1, -1, -1).reshape(k * particles, n * c, -1)
            after = torch.where(alive[..., None] > 0, simulator.step(here, action, random), here)
            total += alive * task.reward(here, action, after)
            alive = alive * (~task.terminated(after)).float()
            here = after
        return total.view(k, particles, n, c).mean(1)


def nearest(actions: Discrete, features: Float[Tensor, "*n a"]) -> Float[Tensor, "*n a"]:
    """The action whose features are nearest; for one-hot treatments that of the largest feature."""
    table = actions.table(features).to(features)
    distance = torch.cdist(features.reshape(-1, actions.width), table, compute_mode="donot_use_mm_for_euclid_dist")
    return table[distance.argmin(-1)].view(features.shape)


@final
class TrueWorlds:
    """The task itself as the planner's model: what planning can reach when nothing has to be learned."""

    def __init__(self, task: KnownSCM, count: int = 1) -> None:
        self.task, self.count = task, count

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        return self.task.transition(state, action, self.task.noise(self.count, random)[:, None].to(state))


@final
class Particles:
    """The ensembles of K fitted models, each carrying the same number of particles."""

    def __init__(self, law: ConditionalLaw, models: int, particles: int, propagation: Propagation) -> None:
        self.law, self.models, self.particles, self.propagation = law, models, particles, propagation
        self.count = models * particles

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        """One draw a particle, shared by all states and candidates: candidates differ in their actions, not in luck."""
        luck = torch.randn(self.particles, 1, state.shape[-1], generator=random)
        if self.propagation == "TSinf":
            return state + self._change(torch.cat([state, action], -1), luck)
        order = torch.randperm(self.particles, generator=random)
        context = self._deal(torch.cat([state, action], -1), order)
        return state + self._deal(self._change(context, luck), order.argsort())

    def _change(self, context: Float[Tensor, "w n c"], luck: Float[Tensor, "p 1 s"]) -> Float[Tensor, "w n s"]:
        """s' − s. Neighbouring particles share a member."""
        worlds, rows, _ = context.shape
        members = self.law.members
        noise = luck.to(context).repeat(self.models, 1, 1).expand(-1, rows, -1).reshape(members, -1, luck.shape[-1])
        return self.law.predict(context.reshape(members, -1, context.shape[-1]), noise).view(worlds, rows, -1)

    def _deal(self, rows: Float[Tensor, "w n c"], order: Tensor) -> Float[Tensor, "w n c"]:
        """The particles of every model in another order, hence under other members."""
        return rows.view(self.models, self.particles, *rows.shape[1:])[:, order.to(rows.device)].view(rows.shape)


@dataclass(frozen=True)
class TaskOrigin(Origin):
    """Where a policy came from, and the task whose reward and end it plans with."""

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
    """Widths of a member; the paper's are (500, 500, 500), and planning costs in proportion to their squares."""
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
        selected = law.state_dict()
        return [
            Learned(self._policy(selected, i, jobs, task), self._policy(trained.last, i, jobs, task))
            for i in range(len(jobs))
        ]

    def law(self, state: int, context: int, members: int) -> ConditionalLaw:
        """An unfitted model of the right shape."""
        return ConditionalLaw(members, context, state, Gaussian(), self.hidden)

    def rebuild(
        self, header: dict[str, Any], weights: dict[str, Tensor], actions: Discrete, origin: Any
    ) -> "PETSPolicy":
        """The policy back from its artifact; its task is in its origin."""
        names = tuple(header["state_names"])
        law = self.law(len(names), len(names) + actions.width, self.ensemble)
        law.load_state_dict(weights)
        return PETSPolicy(self, law, names, origin)

    def _policy(self, state: dict[str, Tensor], index: int, jobs: Sequence[Job], task: Task) -> "PETSPolicy":
        data = jobs[index].data
        law = self.law(data.state_size, data.state_size + data.action.shape[1], self.ensemble)
        law.load_state_dict(members_of(state, len(jobs), index, 1))
        law.to(next(iter(state.values())).device)
        return PETSPolicy(self, law, data.state_names, TaskOrigin(jobs[index].seed, data.fingerprint, task))


class BootstrapLearner(LikelihoodLearner):
    """Maximum likelihood where each member sees its own draw, with replacement, of the rows that are not held out."""

    def __init__(
        self, law: ConditionalLaw, tables: Sequence[dict[str, Tensor]], seeds: Sequence[int], how: Likelihood
    ) -> None:
        super().__init__(law, tables, seeds, how)
        self.bootstrap = [
            torch.randint(kept, (kept,), generator=generator(seed, "bootstrap"))
            for kept, seed in zip(self.kept, seeds, strict=True)
        ]

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        return {"rows": self.bootstrap[member][super().draw(member, random, steps)["rows"]]}


@final
class PETSPolicy(Policy):
    """Plans at every step with its own ensemble."""

    def __init__(self, recipe: PETS, law: ConditionalLaw, state_names: tuple[str, ...], origin: TaskOrigin) -> None:
        super().__init__()
        self.recipe, self.law, self.actions = recipe, law.eval(), discrete(origin.task)
        self.state_names, self.origin, self.task = state_names, origin, origin.task

    def act(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return self.together([self])(state[None])[0]

    def weights(self) -> dict[str, Tensor]:
        return self.law.state_dict()

    @classmethod
    def together(cls, policies: Sequence["PETSPolicy"]) -> Actor:
        """All models as one stack, all plans in one batch."""
        first: PETSPolicy = policies[0]
        recipe, states = first.recipe, [policy.law.state_dict() for policy in policies]
        size = len(first.state_names)
        law = recipe.law(size, size + first.actions.width, recipe.ensemble * len(policies))
        law.load_state_dict({name: torch.cat([s[name] for s in states]) for name in states[0]})
        law = law.to(next(first.parameters()).device).eval()
        worlds = Particles(law, len(policies), recipe.particles, recipe.propagation)
        return recipe.planner.actor(worlds, first.task)
