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

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import constant, nearest
from counterpoint.models.dynamics.base import DynamicsModel
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.nets.learner import Replayed, Tensors
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Learned, Policy, PolicyLearner, discrete, saved_verdict
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Actor, Noise, Rollout, on_device
from counterpoint.simulation.selection import check_rollouts
from counterpoint.tasks.base import KnownSCM, Task

Propagation = Literal["TSinf", "TS1"]


TAPE = 2**16
"""Draws on a tape, which then starts over."""
SPARE = 0.75
"""Share of a planner's places that must be in use before it is made smaller."""


class PlanningSimulator(Protocol):
    """Where plans are tried: `particles` episodes of every plan, under the noise that `prior` draws; `picked` gives
    worlds of these policies' models, one after another."""

    particles: int

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]: ...
    def picked(self, policies: Int[Tensor, " w"]) -> "PlanningSimulator": ...
    def step(self, state: Tensor, action: Tensor, noise: Noise, theta: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Planner:
    """The cross-entropy method over sequences of discrete actions."""

    horizon: Positive = 50
    """Steps that a plan looks ahead; shorter ones see the end of CartPole's track too late to turn round."""
    candidates: Positive = 100
    """Action sequences drawn at every iteration, in mirrored pairs."""
    elites: Positive = 10
    """The best of them, which the next draws are fitted to."""
    iterations: Positive = 3
    """Rounds of drawing and refitting."""
    seed: int = 0
    """Where the planner's chance comes from."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.elites <= self.candidates and self.candidates % 2 == 0,
            f"{self.elites} elites of {self.candidates} candidates cannot be; use fewer elites, even candidates",
        )

    def actor(self, simulator: PlanningSimulator, task: Task, device: torch.device = torch.device("cpu")) -> Actor:
        """Plan at every step; the k-th of K policies plans in the k-th model of the simulator."""
        return Replanning(self, simulator, on_device(task, device), device)

    @torch.no_grad()
    def plan(
        self,
        rollout: Rollout,
        particles: int,
        state: Float[Tensor, "k n s"],
        theta: Float[Tensor, "k n t"],
        search: Float[Tensor, " tape"],
        luck: Float[Tensor, "tape u"],
    ) -> Float[Tensor, "k n a"]:
        """The first action of the plan found for every state."""
        actions, place = discrete(rollout.task), places(state)
        low, high = (constant(bound, state.device) for bound in (actions.low, actions.high))
        shape = (*state.shape[:2], 1, self.horizon, actions.width)
        mean, deviation = ((low + high) / 2).expand(shape), ((high - low) / 2).expand(shape)
        for i in range(self.iterations):
            draw = read(search, place, i, (self.candidates // 2, *shape[3:]))
            sequences = nearest(actions, mean + deviation * torch.cat([draw, -draw], 2))
            drawn = read(luck, place, i, (self.horizon, particles))
            value = self.value(rollout, state, theta, sequences, drawn)
            elite = (value >= value.topk(self.elites, -1).values[..., -1:]).float()
            share = (elite / elite.sum(-1, keepdim=True))[..., None, None]
            mean = (share * sequences).sum(2, keepdim=True)
            deviation = (share * (sequences - mean).square()).sum(2, keepdim=True).sqrt()
        return nearest(actions, mean[:, :, 0, 0])

    def value(
        self,
        rollout: Rollout,
        state: Float[Tensor, "k n s"],
        theta: Float[Tensor, "k n t"],
        sequences: Float[Tensor, "k n c h a"],
        luck: Float[Tensor, "k n h p u"],
    ) -> Float[Tensor, "k n c"]:
        """Mean return of every sequence over its particles, up to the horizon. All sequences meet the same luck."""
        (k, n, c), particles = sequences.shape[:3], luck.shape[3]

        def everywhere(x: Tensor) -> Tensor:
            return x.expand(k, particles, n, c, -1).reshape(k, particles * n * c, -1)

        total = rollout.returns(
            everywhere(state[:, None, :, None]),
            lambda t: (everywhere(luck[:, :, t].transpose(1, 2)[:, :, :, None]),),
            self.horizon,
            everywhere(theta[:, None, :, None]),
            plan=lambda t: everywhere(sequences[:, None, :, :, t]),
        )
        return total.view(k, particles, n, c).mean(1)


@final
class Replanning:
    """A plan for every state that is not the one of the last call: an episode that has ended stays where it is, and as
    a plan is a function of the state, its last one stands. Most of a planner's time would go into episodes that are
    over before the longest is."""

    def __init__(self, planner: Planner, simulator: PlanningSimulator, task: Task, device: torch.device) -> None:
        self.planner, self.simulator, self.task = planner, simulator, task
        self.search = torch.randn(TAPE, generator=generator(planner.seed, "search")).to(device)
        self.luck = simulator.prior(TAPE, generator(planner.seed, "luck")).to(device)
        self._begin(0)
        self.before: tuple[Tensor, Tensor] | None = None

    def __call__(self, state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        asked = torch.cat([state, theta.expand(*state.shape[:-1], -1)], -1)
        if self.before is None or self.before[0].shape != asked.shape:
            self._begin(asked.shape[0] * asked.shape[1])
            nothing = state.new_zeros(*state.shape[:-1], discrete(self.task).width)
            self.before = torch.full_like(asked, torch.nan), nothing
        self.before = asked, self._changed(asked, *self.before, state.shape[-1])
        return self.before[1]

    def _changed(self, asked: Tensor, last: Tensor, action: Tensor, states: int) -> Float[Tensor, "k n a"]:
        """The last actions, with new ones where there is something new, whichever policy's it is."""
        changed = (asked != last).any(-1).flatten()
        count = int(changed.sum())
        if count == 0:
            return action
        self._make_room(count)
        place = changed.byte().argsort(descending=True, stable=True)[: self.width]
        moved = asked.flatten(0, 1)[place]
        planned = self._plan(moved[:, :states], moved[:, states:], place // asked.shape[1])
        return action.flatten(0, 1).index_copy(0, place, planned).view(action.shape)

    def _make_room(self, states: int) -> None:
        """Plans for so many states at a time; a graph that was captured for about as many is kept."""
        if not SPARE * self.width < states <= self.width:
            self._begin(states)

    def _begin(self, states: int) -> None:
        """Plans for exactly so many: a graph of another shape cannot be replayed."""
        self.replayed, self.width = Replayed(self._planned, eager=1), states

    def _plan(self, state: Tensor, theta: Tensor, policy: Tensor) -> Float[Tensor, "w a"]:
        given = {"state": state[:, None], "theta": theta[:, None], "policy": policy}
        return self.replayed(given)["action"][:, 0].clone()

    def _planned(self, given: Tensors) -> Tensors:
        """A whole plan, all of its steps: on a GPU one graph, for a step is over before the next can be started.

        Every state is a world of its own, with its policy's model, so that none is planned for to no use.
        """
        rollout = Rollout(self.simulator.picked(given["policy"]), self.task)
        state, theta, particles = given["state"], given["theta"], self.simulator.particles
        return {"action": self.planner.plan(rollout, particles, state, theta, self.search, self.luck)}


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


@final
class TruePlanning:
    """The task itself as the planner's model: what planning can reach when nothing has to be learned."""

    def __init__(self, task: KnownSCM, particles: int = 1) -> None:
        self.task, self.particles, self.prior = task, particles, task.noise

    def picked(self, policies: Int[Tensor, " w"]) -> "TruePlanning":
        """The same world for all."""
        return self

    def step(self, state: Tensor, action: Tensor, noise: Noise, theta: Tensor) -> Tensor:
        return self.task.transition(state, action, noise[0])


@final
class Particles:
    """The ensembles of K fitted models, each with the same number of particles; neighbouring ones share a member."""

    def __init__(self, models: Sequence[DynamicsModel], particles: int, propagation: Propagation) -> None:
        self.simulator, self.particles, self.propagation = ModelSimulator(models), particles, propagation

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """A draw for every state column, and one more that deals the members."""
        return torch.randn(count, len(self.simulator.models[0].state_names) + 1, generator=random)

    def picked(self, policies: Int[Tensor, " w"]) -> "Particles":
        """The ensemble of policy `policies[i]` in place i."""
        particles = copy.copy(self)
        particles.simulator = self.simulator.picked(policies)
        return particles

    def step(self, state: Tensor, action: Tensor, noise: Noise, theta: Tensor) -> Tensor:
        luck, deal = noise[0][..., :-1], noise[0][..., -1:]
        if self.propagation == "TSinf":
            return self.simulator.step(state, action, (luck,), theta)
        order = deal.unflatten(1, (self.particles, -1)).argsort(1)
        state, action, luck, theta = (_deal(x, order) for x in (state, action, luck, theta))
        return _deal(self.simulator.step(state, action, (luck,), theta), order.argsort(1))


def _deal(rows: Float[Tensor, "k e c"], order: Int[Tensor, "k p n 1"]) -> Float[Tensor, "k e c"]:
    """The particles of every model in another order, hence under other members."""
    by_particle = rows.unflatten(1, order.shape[1:3])
    return by_particle.gather(1, order.expand(by_particle.shape)).flatten(1, 2)


@dataclass(frozen=True)
class PETS(PolicyLearner):
    """A planner in a bootstrapped ensemble of Gaussian networks. Assumes a discrete action space."""

    model: GaussianDynamics = GaussianDynamics(5, (64, 64), batch_norm=False, likelihood=Likelihood(bootstrap=True))
    """The ensemble; the paper's widths are (500, 500, 500), and planning costs grow with their squares."""
    particles: Positive = 5
    """Particles a plan; a multiple of the members."""
    propagation: Propagation = "TSinf"
    """TSinf keeps a particle's member for the whole plan, TS1 deals them anew at every step."""
    planner: Planner = Planner()
    """How it plans."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.particles % self.model.ensemble == 0,
            f"{self.particles} particles do not share out among {self.model.ensemble} members; use a multiple",
        )

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        """Fit the models of every job in one loop, each with the weights that held-out rows like best: its one end."""
        actions = discrete(task, jobs)
        models = self.model.fit_many(jobs, monitor.stage("model"), device)
        check_rollouts(models, jobs, task, actions, self.planner.horizon)
        policies = [PETSPolicy(self, model, task) for model in models]
        return [Learned(policy, policy) for policy in policies]

    def rebuild(self, saved: Saved) -> "PETSPolicy":
        """The policy back from its artifact, with the model and the task it plans in."""
        policy = PETSPolicy(self, saved.parts["model"], saved.parts["task"])
        policy.verdict = saved_verdict(saved)
        return policy


@final
class PETSPolicy(Policy):
    """Plans at every step with its own ensemble, for its own task."""

    def __init__(self, recipe: PETS, model: DynamicsModel, task: Task) -> None:
        super().__init__()
        self.recipe, self.model, self.schema, self.origin = recipe, model, model.schema, model.origin
        self.given = (task,)  # In a tuple a learned task is not a part of this module, to be moved with it.

    @property
    def task(self) -> Task:
        return self.given[0]

    def weights(self) -> dict[str, Tensor]:
        return {}

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "task": self.task}

    def actor(self) -> Actor:
        return self.together([self])

    @classmethod
    def together(cls, policies: Sequence["PETSPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """All models in one simulator, all plans in one batch."""
        first, models = policies[0], [policy.model for policy in policies]
        particles = Particles(models, first.recipe.particles, first.recipe.propagation)
        return first.recipe.planner.actor(particles, first.task, first.model.device)
