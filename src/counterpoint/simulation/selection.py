"""Selection of checkpoints without the environment, by rollouts inside the fitted models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Discrete
from counterpoint.models.base import Model
from counterpoint.simulation.models import FreshNoise, ModelSimulator, NoisePool
from counterpoint.simulation.rollout import Actor, Rollout, on_device
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class CheckpointSelection:
    """Settings of the rollouts that score a checkpoint in every ensemble member of its own model."""

    starts: Positive = 32
    """Episodes in every ensemble member, from first states of the table."""
    horizon: Positive | None = None
    """Steps of an episode; None for the task's `selection_horizon`."""
    noise: FreshNoise | NoisePool = FreshNoise()
    """The noise of the episodes."""

    def __post_init__(self) -> None:
        check_settings(self)

    def selector(self, models: Sequence[Model], jobs: Sequence[Job], task: Task) -> "CheckpointSelector":
        """A selector for one policy per job, each scored in the model of its job."""
        return CheckpointSelector(self, ModelSimulator(models), jobs, task)


def start_rows(job: Job, model: Model) -> tuple[Float[Tensor, "f s"], Float[Tensor, "f t"]]:
    """The first states of a job's real rows, and a posterior draw of their subjects' factors."""
    table = job.data
    theta = job.rows_theta if job.theta.shape[1] else drawn_factors(job, model)
    first = ~table.imagined & (table.step == table.step.min())
    return table.state[first], theta[first]


def drawn_factors(job: Job, model: Model) -> Float[Tensor, "n t"]:
    """One factor per subject, drawn from its posterior."""
    factors = model.subject_factors(job.data).draw(generator(job.seed, "factors"))
    return factors[job.data.subject.cpu()].to(job.data.state)


def of_job(job: int, jobs: int) -> str:
    """Which of several jobs is meant; nothing where there is one."""
    return f"of job {job} " if jobs > 1 else ""


def check_rollouts(models: Sequence[Model], jobs: Sequence[Job], task: Task, actions: Discrete, horizon: int) -> None:
    """Refuse a model in which no episode is finite under any constant action."""
    selector = CheckpointSelection(horizon=horizon).selector(models, jobs, task)
    diverging = torch.ones(len(jobs), dtype=torch.bool, device=selector.state.device)
    for action in actions.table().to(selector.state):
        constant = lambda state, theta, action=action: action.expand(*state.shape[:-1], -1)
        diverging &= ~selector.returns(constant).isfinite().any(1)
        if not bool(diverging.any()):
            return
    which = of_job(int(diverging.nonzero()[0]), len(jobs))
    raise CounterpointError(
        f"no episode inside the fitted model {which}is finite, so nothing can be learned"
        " in it; check the data for outliers (counterpoint check) or declare the bounds of the state (fit --bounds)"
    )


class CheckpointSelector:
    """Scores K policies by minus their mean return in their own model, with fixed starts and noise."""

    def __init__(self, recipe: CheckpointSelection, simulator: ModelSimulator, jobs: Sequence[Job], task: Task) -> None:
        self.recipe, self.simulator, self.jobs = recipe, simulator, jobs
        self.task = on_device(task, simulator.device)
        self.episodes = simulator.members * recipe.starts
        starts = [self._starts(job, model) for job, model in zip(jobs, simulator.models, strict=True)]
        self.state, self.theta = (torch.stack(column).to(simulator.device) for column in zip(*starts, strict=True))
        self.rollouts: dict[Actor, Rollout] = {}

    def _starts(self, job: Job, model: Model) -> tuple[Float[Tensor, "e s"], Float[Tensor, "e t"]]:
        state, theta = start_rows(job, model)
        rows = torch.randint(len(state), (self.episodes,), generator=generator(job.seed, "starts"))
        return state[rows], theta[rows]

    @torch.no_grad()
    def __call__(self, actor: Actor) -> Float[Tensor, " k"]:
        return -self.returns(actor).mean(1)

    @torch.no_grad()
    def returns(self, actor: Actor) -> Float[Tensor, "k e"]:
        """Undiscounted return of every episode of every policy."""
        if actor not in self.rollouts:
            self.rollouts[actor] = Rollout(self.simulator, self.task, actor, replay=True)
        noise = self.recipe.noise.stream(self.simulator, self.jobs, self.episodes, seed=0)
        return self.rollouts[actor].returns(self.state, noise, self.horizon, self.theta)

    @property
    def horizon(self) -> int:
        """Steps of an episode."""
        return self.recipe.horizon or self.task.selection_horizon or self.task.horizon
