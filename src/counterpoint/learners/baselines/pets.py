"""PETS: probabilistic ensemble, trajectory sampling, planning by the cross-entropy method (Chua et al. 2018).

    model   p_b(s' | s, a) = N(s + μ_b(s, a), σ_b(s, a)²), member b fitted on its own bootstrap of the rows  (section 4)
    TS∞     every particle keeps one member for the whole plan; TS1 deals the members anew at every step     (section 5)
    CEM     draw action sequences, score each by the mean return of its particles, refit the draws to the elites;
            act with the first action of the mean; plan again at the next step                             (Algorithm 1)

Reward and end come from the task; a particle that has ended earns nothing more. CEM searches a Gaussian over the
actions' features, rounded to the nearest action, which for ordered doses needs fewer candidates than a categorical law
per step. Ties with the last elite count as elites, so that an indifferent plan stays in the middle of the action space.
Unlike in the paper, a plan does not start from the last one, because a policy is a function of the state. The draws of
a plan are read from a fixed table of random numbers at an offset hashed from the state: common draws in all
states would bias every plan in the same direction.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import constant, nearest
from counterpoint.learners.base import ModelBased, PolicyCheckpoints, discrete_actions
from counterpoint.models.base import Model
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.nets.learner import Replayed, Tensors
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Actor, Rollout, StackedNoise, on_device
from counterpoint.simulation.selection import check_rollouts
from counterpoint.tasks.base import KnownSCM, Task

Propagation = Literal["TSinf", "TS1"]

TABLE = 2**16
"""Length of a table of random numbers, which is read cyclically."""
MIN_USED = 0.75
"""Share of the captured batch that must be in use; below it a smaller batch is captured."""


class PlanningSimulator(Protocol):
    """A simulator for plans: `particles` episodes of every plan, with the noise that `prior` draws. `picked` gives a
    simulator whose i-th batch row is the model of policy `policies[i]`."""

    particles: int

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]: ...
    def picked(self, policies: Int[Tensor, " w"]) -> "PlanningSimulator": ...
    def step(self, state: Tensor, action: Tensor, noise: StackedNoise, theta: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Planner:
    """The cross-entropy method over sequences of discrete actions."""

    horizon: Positive = 50
    """Steps that a plan looks ahead; shorter ones see the end of CartPole's track too late to turn round."""
    candidates: Positive = 100
    """Action sequences drawn at every iteration, in mirrored pairs."""
    elites: Positive = 10
    """The best sequences, to which the next draws are fitted."""
    iterations: Positive = 3
    """Rounds of drawing and refitting."""
    seed: int = 0
    """Seed of the planner's random numbers."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.elites <= self.candidates and self.candidates % 2 == 0,
            f"{self.elites} elites of {self.candidates} candidates cannot be; use fewer elites, even candidates",
        )

    def actor(self, simulator: PlanningSimulator, task: Task, device: torch.device = torch.device("cpu")) -> Actor:
        """An actor that plans at every step; policy k of K plans in model k of the simulator."""
        return PlanningActor(self, simulator, on_device(task, device), device)

    @torch.no_grad()
    def plan(
        self,
        rollout: Rollout,
        particles: int,
        state: Float[Tensor, "k n s"],
        theta: Float[Tensor, "k n t"],
        search_table: Float[Tensor, " r"],
        noise_table: Float[Tensor, "r u"],
    ) -> Float[Tensor, "k n a"]:
        """The first action of the best plan for every state."""
        actions = discrete_actions(rollout.task)
        offset = table_offsets(state)
        low, high = (constant(bound, state.device) for bound in (actions.low, actions.high))
        shape = (*state.shape[:2], 1, self.horizon, actions.width)
        mean, deviation = ((low + high) / 2).expand(shape), ((high - low) / 2).expand(shape)
        for i in range(self.iterations):
            draw = read_table(search_table, offset, i, (self.candidates // 2, *shape[3:]))
            sequences = nearest(actions, mean + deviation * torch.cat([draw, -draw], 2))
            noise = read_table(noise_table, offset, i, (self.horizon, particles))
            value = self.value(rollout, state, theta, sequences, noise)
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
        noise: Float[Tensor, "k n h p u"],
    ) -> Float[Tensor, "k n c"]:
        """Mean return of every sequence over its particles up to the horizon, under common random numbers."""
        k, n, c = sequences.shape[:3]
        particles = noise.shape[3]

        def repeated(x: Tensor) -> Tensor:
            return x.expand(k, particles, n, c, -1).reshape(k, particles * n * c, -1)

        total = rollout.returns(
            repeated(state[:, None, :, None]),
            lambda t: (repeated(noise[:, :, t].transpose(1, 2)[:, :, :, None]),),
            self.horizon,
            repeated(theta[:, None, :, None]),
            plan=lambda t: repeated(sequences[:, None, :, :, t]),
        )
        return total.view(k, particles, n, c).mean(1)


@final
class PlanningActor:
    """An actor that plans for every state that differs from the last call's.

    An episode that has ended stays in its state, and a plan is a function of the state: its last action is reused, and
    no time goes into episodes that ended before the longest.
    """

    def __init__(self, planner: Planner, simulator: PlanningSimulator, task: Task, device: torch.device) -> None:
        self.planner, self.simulator, self.task = planner, simulator, task
        self.search_table = torch.randn(TABLE, generator=generator(planner.seed, "search")).to(device)
        self.noise_table = simulator.prior(TABLE, generator(planner.seed, "luck")).to(device)
        self._set_batch(0)
        self.before: tuple[Tensor, Tensor] | None = None

    def __call__(self, state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        inputs = torch.cat([state, theta.expand(*state.shape[:-1], -1)], -1)
        if self.before is None or self.before[0].shape != inputs.shape:
            self._set_batch(inputs.shape[0] * inputs.shape[1])
            no_action = state.new_zeros(*state.shape[:-1], discrete_actions(self.task).width)
            self.before = torch.full_like(inputs, torch.nan), no_action
        action = self._updated(inputs, *self.before, state.shape[-1])
        self.before = inputs, action
        return action

    def _updated(self, inputs: Tensor, last: Tensor, action: Tensor, states: int) -> Float[Tensor, "k n a"]:
        """The last actions, replaced by planned ones where the inputs changed."""
        changed = (inputs != last).any(-1).flatten()
        count = int(changed.sum())
        if count == 0:
            return action
        self._resize(count)
        place = changed.byte().argsort(descending=True, stable=True)[: self.batch]
        moved = inputs.flatten(0, 1)[place]
        planned = self._plan(moved[:, :states], moved[:, states:], place // inputs.shape[1])
        return action.flatten(0, 1).index_copy(0, place, planned).view(action.shape)

    def _resize(self, count: int) -> None:
        """Enlarge the batch at once where it is too small, and shrink it where a quarter of it is unused."""
        if not MIN_USED * self.batch < count <= self.batch:
            self._set_batch(count)

    def _set_batch(self, states: int) -> None:
        """Plan for this many states at a time; a captured graph cannot be replayed with another shape."""
        self.replayed, self.batch = Replayed(self._planned, eager=1), states

    def _plan(self, state: Tensor, theta: Tensor, policy: Tensor) -> Float[Tensor, "w a"]:
        inputs = {"state": state[:, None], "theta": theta[:, None], "policy": policy}
        return self.replayed(inputs)["action"][:, 0].clone()

    def _planned(self, inputs: Tensors) -> Tensors:
        """A whole plan as one graph on a GPU, where launching a step takes longer than running it.

        Every state is a batch row with the model of its policy.
        """
        rollout = Rollout(self.simulator.picked(inputs["policy"]), self.task)
        particles, tables = self.simulator.particles, (self.search_table, self.noise_table)
        return {"action": self.planner.plan(rollout, particles, inputs["state"], inputs["theta"], *tables)}


def table_offsets(state: Float[Tensor, "*n s"]) -> Int[Tensor, "*n"]:
    """Where the random numbers of a state start in a table: a hash of the bits of its columns."""
    place = torch.zeros(state.shape[:-1], dtype=torch.long, device=state.device)
    for column in state.float().contiguous().view(torch.int32).long().unbind(-1):
        place = (place ^ column) * 0x5851F42D4C957F2D
        place = place ^ (place >> 29)
    return place % TABLE


def read_table(table: Tensor, offset: Int[Tensor, "k n"], iteration: int, shape: tuple[int, ...]) -> Tensor:
    """The random numbers of an iteration for every state, as [k, n, *shape] of the table's entries."""
    count = torch.Size(shape).numel()
    entries = torch.arange(iteration * count, (iteration + 1) * count, device=table.device).view(shape)
    return table[(offset.view(*offset.shape, *[1] * len(shape)) + entries) % TABLE]


@final
class TaskPlanningSimulator:
    """The true structural equation as the planner's model: an upper bound for planning in a fitted model."""

    def __init__(self, task: KnownSCM, particles: int = 1) -> None:
        self.task, self.particles, self.prior = task, particles, task.noise

    def picked(self, policies: Int[Tensor, " w"]) -> "TaskPlanningSimulator":
        """The same simulator: all policies share the true equation."""
        return self

    def step(self, state: Tensor, action: Tensor, noise: StackedNoise, theta: Tensor) -> Tensor:
        return self.task.transition(state, action, noise[0])


@final
class EnsembleParticles:
    """The ensembles of K fitted models with equally many particles; neighbouring particles share a member."""

    def __init__(self, models: Sequence[Model], particles: int, propagation: Propagation) -> None:
        self.simulator, self.particles, self.propagation = ModelSimulator(models), particles, propagation

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """A draw for every state column, and one more that assigns the members."""
        return torch.randn(count, len(self.simulator.models[0].state_names) + 1, generator=random)

    def picked(self, policies: Int[Tensor, " w"]) -> "EnsembleParticles":
        """The ensemble of policy `policies[i]` in batch row i."""
        particles = copy.copy(self)
        particles.simulator = self.simulator.picked(policies)
        return particles

    def step(self, state: Tensor, action: Tensor, noise: StackedNoise, theta: Tensor) -> Tensor:
        state_noise, assignment = noise[0][..., :-1], noise[0][..., -1:]
        if self.propagation == "TSinf":
            return self.simulator.step(state, action, (state_noise,), theta)
        order = assignment.unflatten(1, (self.particles, -1)).argsort(1)
        state, action, state_noise, theta = (_permuted(x, order) for x in (state, action, state_noise, theta))
        return _permuted(self.simulator.step(state, action, (state_noise,), theta), order.argsort(1))


def _permuted(rows: Float[Tensor, "k e c"], order: Int[Tensor, "k p n 1"]) -> Float[Tensor, "k e c"]:
    """The particles of every model in another order, hence under other members."""
    by_particle = rows.unflatten(1, order.shape[1:3])
    return by_particle.gather(1, order.expand(by_particle.shape)).flatten(1, 2)


@dataclass(frozen=True)
class PETS(ModelBased["PETSPolicy"]):
    """Planning in a bootstrapped ensemble of Gaussian networks, for discrete action spaces."""

    command: ClassVar = ("pets", "planning in an ensemble")
    model: GaussianDynamics = GaussianDynamics(5, (64, 64), batch_norm=False, likelihood=Likelihood(bootstrap=True))
    """The ensemble; the paper's widths are (500, 500, 500), and planning costs grow with their squares."""
    particles: Positive = 5
    """EnsembleParticles a plan; a multiple of the members."""
    propagation: Propagation = "TSinf"
    """TSinf keeps a particle's member for the whole plan, TS1 permutes the members at every step."""
    planner: Planner = Planner()
    """The planner."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.particles % self.model.ensemble == 0,
            f"{self.particles} particles do not share out among {self.model.ensemble} members; use a multiple",
        )

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        discrete_actions(task, jobs)

    def model_job(self, job: Job) -> Job:
        """The job itself: the model is all that PETS fits."""
        return job

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints["PETSPolicy"]]:
        """The planner of every job in its model; the model's own selection on held-out rows is the only one."""
        check_rollouts(models, jobs, task, discrete_actions(task), self.planner.horizon)
        policies = [PETSPolicy(self, model, task) for model in models]
        return [PolicyCheckpoints(policy, policy) for policy in policies]

    def rebuild(self, saved: Saved) -> "PETSPolicy":
        """The policy back from its artifact, with the model and the task it plans in."""
        policy = PETSPolicy(self, saved.parts["model"], saved.parts["task"])
        policy.verdict = saved_verdict(saved)
        return policy


@final
class PETSPolicy(Policy):
    """Plans at every step in the ensemble of one model, for one task."""

    def __init__(self, recipe: PETS, model: Model, task: Task) -> None:
        super().__init__()
        self.recipe, self.model, self.schema, self.origin = recipe, model, model.schema, model.origin
        self._task = (task,)  # In a tuple a learned task is no submodule, so it is not moved with the policy.

    @property
    def task(self) -> Task:
        """The task whose reward and ends the plans use."""
        return self._task[0]

    def weights(self) -> dict[str, Tensor]:
        return {}

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "task": self.task}

    def actor(self) -> Actor:
        return self.rollout_actor()

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        """All models in one simulator, all plans in one batch."""
        models = [policy.model for policy in (self, *others)]
        particles = EnsembleParticles(models, self.recipe.particles, self.recipe.propagation)
        return self.recipe.planner.actor(particles, self.task, self.device)
