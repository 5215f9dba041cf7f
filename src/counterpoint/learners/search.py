"""Policy search: maximise the return of a parametric rule inside the fitted model, over members and starts.

    max_φ  objective over members m of  E_{s₀, u} Σ_t P(not ended before t) · r(s_t, π_φ(s_t), s_{t+1}),
    s_{t+1} = f_m(s_t, π_φ(s_t), θ, u_t)

All candidates of a round have the same starts and noise (common random numbers), drawn anew in every round. The policy
is selected on starts and noise that are not used for the updates.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from counterpoint.checks.support import NearLog
from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Positive, Weight, check_settings
from counterpoint.data.far_values import near
from counterpoint.data.jobs import Categories, Job, Origin, context, identity, spread_levels
from counterpoint.data.returns import return_deviation
from counterpoint.data.shapes import State, Theta
from counterpoint.data.spaces import ActionSpace, Box
from counterpoint.learners.base import ModelBased, PolicyCheckpoints, check_actions_differ
from counterpoint.learners.evolution import CrossEntropy, EvolutionStrategy
from counterpoint.models.base import Model, Recipe
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.nets.learner import (
    Replayed,
    StackTraining,
)
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.policies.base import SelectedCheckpoint
from counterpoint.policies.rule import OrderedDose, Rule, ScoredActions, is_ordered, logged_doses, middle_doses
from counterpoint.policies.searched import SearchedPolicy, saved_search_policy
from counterpoint.simulation.models import FreshNoise, ModelSimulator, NoisePool
from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare
from counterpoint.simulation.rollout import Rollout, RolloutStep, StackedNoise, on_device
from counterpoint.simulation.selection import start_rows
from counterpoint.tasks.base import Task, check_task


@dataclass(frozen=True)
class Search(ModelBased[SearchedPolicy]):
    """Searches a parametric rule inside a model, for discrete and continuous actions."""

    model: Recipe[Model] = DensitySCM()
    """The model in which candidates are evaluated."""
    draws: PosteriorDraws | None = PosteriorDraws()
    """Members as draws from the posterior of the model's linear part, where it has one; None for the fitted members."""
    rule: OrderedDose | ScoredActions | None = None
    """The class of rules; None for a linear dose where actions are ordered, else a linear score per action."""
    optimizer: CrossEntropy | EvolutionStrategy = CrossEntropy()
    """How candidates are drawn and the next distribution is fitted."""
    objective: MeanReturn | LowerBound | WorstShare = MeanReturn()
    """The score of a candidate from its returns in the members."""
    noise: FreshNoise | NoisePool = FreshNoise()
    """The noise of the episodes."""
    schedule: Schedule = Schedule(steps=25, check_every=5, patience=2, log_every=5)
    """Rounds, and how often the mean of every restart is evaluated for selection."""
    starts: Positive = 2
    """Episodes of every candidate in every member, from first states of the table."""
    restarts: Positive = 2
    """Searches from different initial distributions, of which the best policy is kept."""
    choosing_starts: Positive = 16
    """Episodes in every member by which the policy is selected."""
    horizon: Positive | None = None
    """Steps of an episode; None for the task's."""
    sees_factor: bool = True
    """Whether the rule is conditioned on the subject's factor, where the model has one."""
    support_price: Weight | None = None
    """Price, in units of the reward, of every step whose state and action have no support in the log. None for one
    standard deviation of the logged returns where actions are continuous, and for 0 where they are discrete."""
    allow_tf32: bool = False
    """Whether a GPU may use TF32 matrix products in the updates, but not in the selection: twice as fast in a model of
    wide networks."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.schedule.check_every > 0,
            "a search keeps the policy that did best when it was tried; set schedule.check_every to 1 or more",
        )

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        for job in jobs:
            check_task(task, job.data.schema)
        check_actions_differ(jobs)
        self.rule_for(task.actions).outputs(task.actions)
        require(
            (self.horizon or getattr(task, "horizon", 0)) > 0,
            "the task has no horizon and its episodes need not end; set horizon=…",
        )

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[SearchedPolicy]]:
        seeds = [derive(job.seed, "search") for job in jobs]
        if self.draws is not None:
            models = [self.draws(model, job) for model, job in zip(models, jobs, strict=True)]
        learner = SearchLearner(self, ModelSimulator(models), jobs, task, seeds)
        run = identity(self, jobs, task, [model.fingerprint for model in models])
        trained = train(learner, self.schedule, seeds, run, monitor.stage("search"))
        policies = learner.policies(trained.selected)
        for k, policy in enumerate(policies):
            policy.checkpoint = SelectedCheckpoint(
                step=int(trained.best_step[k]),
                steps=self.schedule.steps,
                score=-float(trained.best_score[k]),
                return_in_model=policy.return_in_model,
                horizon=learner.horizon,
            )
        return [PolicyCheckpoints(policy, policy) for policy in policies]

    def rule_for(self, actions: ActionSpace) -> Rule:
        """The class of rules for an action space."""
        return self.rule or (OrderedDose() if is_ordered(actions) else ScoredActions())

    def price(self, job: Job, task: Task) -> float:
        """The price of a step without support in the log."""
        if self.support_price is not None:
            return self.support_price
        return return_deviation(job.data, self.horizon or task.horizon) if isinstance(task.actions, Box) else 0.0

    def inputs(self, state: State, theta: Theta, categories: Categories) -> Float[Tensor, "*n i"]:
        """The inputs of a rule: the state, one-hot coded, and the subject's factor."""
        levels = spread_levels(state, categories)
        return context(levels, theta=theta) if self.sees_factor and theta.shape[-1] else levels

    def rebuild(self, saved: Saved) -> SearchedPolicy:
        """The policy back from its artifact."""
        return saved_search_policy(self, saved)


class Incumbents(nn.Module):
    """The best parameters of every job so far, and their mean return in every member of the job's model."""

    returns: Tensor

    def __init__(self, jobs: int, width: int, members: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(jobs, width), requires_grad=False)
        self.register_buffer("returns", torch.zeros(jobs, members))


class SearchLearner(StackTraining):
    """K searches, each in its own model with R restarts; an update is a round."""

    state: Tensor
    theta: Tensor
    mean: Tensor
    spread: Tensor
    doses: Tensor
    price: Tensor
    rounds: Tensor

    def __init__(
        self, recipe: Search, simulator: ModelSimulator, jobs: Sequence[Job], task: Task, seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.recipe, self.simulator, self.jobs = recipe, simulator, jobs
        self.allow_tf32 = recipe.allow_tf32
        self.eager_updates = 1 if simulator.capturable else sys.maxsize
        self.task = on_device(task, simulator.device)
        self.horizon = recipe.horizon or task.horizon
        self.categories = jobs[0].data.schema.categories
        self.rule = recipe.rule_for(task.actions)
        starts = [start_rows(job, model) for job, model in zip(jobs, simulator.models, strict=True)]
        self.counts = [len(state) for state, _ in starts]
        self.samplers = [recipe.noise.sampler(model, job) for model, job in zip(simulator.models, jobs, strict=True)]
        self.noise_widths = [part.mechanism.prior(1, torch.Generator()).shape[-1] for part in simulator.stacks]
        mean, spread = _moments(recipe, jobs, simulator.models)
        buffers = {
            "state": pad_sequence([state for state, _ in starts], batch_first=True),
            "theta": pad_sequence([theta for _, theta in starts], batch_first=True),
            "mean": mean,
            "spread": spread,
            "doses": torch.stack([_doses(job, task.actions) for job in jobs]),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor.to(simulator.device), persistent=False)
        self.register_buffer("rounds", torch.zeros((), device=simulator.device))
        prices = [recipe.price(job, task) for job in jobs]
        self.near = NearLog([job.data for job in jobs], seeds).to(simulator.device) if any(prices) else None
        self.register_buffer("price", torch.tensor(prices, device=simulator.device)[:, None], persistent=False)
        self.width = self.rule.width(mean.shape[-1], task.actions)
        first = [torch.randn(recipe.restarts, self.width, generator=generator(seed, "restarts")) for seed in seeds]
        scale = self.rule.scale(mean.shape[-1], task.actions)
        self.distribution = recipe.optimizer.start(torch.stack(first), scale).to(simulator.device)
        self.incumbents = Incumbents(len(jobs), self.width, simulator.members).to(simulator.device)
        draws = [
            self._episodes(k, generator(seed, "choosing"), 1, recipe.choosing_starts) for k, seed in enumerate(seeds)
        ]
        self.choosing = {name: torch.cat([draw[name] for draw in draws]).to(simulator.device) for name in draws[0]}
        self.choosing_returns = Replayed(
            lambda inputs: {"returns": self.returns(inputs["numbers"], inputs["start"], inputs["noise"])},
            self.eager_updates,
        )

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Candidates in mirrored pairs, and the starts and noise that all of them have."""
        recipe = self.recipe
        half = torch.randn(steps, recipe.restarts, recipe.optimizer.candidates // 2, self.width, generator=random)
        return {"draw": torch.cat([half, -half], 2), **self._episodes(member, random, steps, recipe.starts)}

    def _episodes(self, job: int, random: torch.Generator, rounds: int, starts: int) -> dict[str, Tensor]:
        """First states and noise of `starts` episodes in every member, for some rounds."""
        members, steps = self.simulator.members, rounds * self.horizon
        noise = self.samplers[job](steps, members, starts, random)
        noise = nn.functional.pad(noise, (0, max(self.noise_widths) - noise.shape[-1]))
        start = torch.randint(self.counts[job], (rounds, members, starts), generator=random)
        return {"start": start, "noise": noise.unflatten(0, (rounds, self.horizon))}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        candidates = self.distribution.candidates(draw["draw"])
        returns = self.returns(candidates.flatten(1, 2), draw["start"], draw["noise"])
        score = _finite(self.recipe.objective(returns)).unflatten(1, candidates.shape[1:3])
        self.recipe.optimizer.learn(self.distribution, draw["draw"], score, self.rounds / self.recipe.schedule.steps)
        self.rounds += 1
        return {"best": score.amax((1, 2)), "deviation": self.distribution.deviation.mean((1, 2))}

    @torch.no_grad()
    def returns(
        self,
        numbers: Float[Tensor, "k c p"],
        start: Int[Tensor, "k m n"],
        noise: Float[Tensor, "k h m n u"],
        priced: bool = True,
    ) -> Float[Tensor, "k m c n"]:
        """The return of every candidate in every member, from the same starts and under the same noise.

        With `priced` a step without support in the log costs the support price.
        """
        k, members, episodes = start.shape
        candidates = numbers.shape[1]
        shape = k, members, candidates, episodes

        def repeated(x: Float[Tensor, "k m n w"]) -> Float[Tensor, "k e w"]:
            return x[:, :, None].expand(*shape, -1).reshape(k, members * candidates * episodes, -1)

        def step_noise(t: int) -> StackedNoise:
            return self._by_stack(repeated(noise[:, t]))

        def act(state: Float[Tensor, "k e s"], theta: Float[Tensor, "k e t"]) -> Float[Tensor, "k e a"]:
            inputs = self._inputs(state, theta).view(*shape, -1).transpose(1, 2)
            inputs = inputs.reshape(k * candidates, members * episodes, -1)
            scores = self.rule.scores(numbers.flatten(0, 1), inputs, self.task.actions)
            action = self.rule.choose(scores, self.task.actions, self.doses.repeat_interleave(candidates, 0))
            return action.view(k, candidates, members, episodes, -1).transpose(1, 2).reshape(*state.shape[:2], -1)

        place = start.flatten(1)[..., None]
        first, theta = (
            table.gather(1, place.expand(-1, -1, table.shape[-1])).view(*start.shape, -1)
            for table in (self.state, self.theta)
        )
        rollout = Rollout(self.simulator, self.task, act)
        steps = rollout(repeated(first), step_noise, self.horizon, repeated(theta))
        return sum((step.alive * self._priced_reward(step, priced) for step in steps), torch.zeros(())).view(shape)

    def _priced_reward(self, step: RolloutStep, priced: bool) -> Float[Tensor, "k e"]:
        """The reward of a step, less the price of a step without support."""
        if self.near is None or not priced:
            return step.reward
        return step.reward - self.price * self.near.outside(step.state, step.action)

    def _inputs(self, state: Float[Tensor, "k e s"], theta: Float[Tensor, "k e t"]) -> Float[Tensor, "k e i"]:
        return (self.recipe.inputs(state, theta, self.categories) - self.mean) / self.spread

    def _by_stack(self, noise: Float[Tensor, "k e u"]) -> StackedNoise:
        """The noise of every stack: its models, and as many columns as its noise has."""
        if len(self.noise_widths) == 1:
            return (noise,)
        parts = zip(self.simulator.stacks, self.noise_widths, strict=True)
        return tuple(noise[part.models][..., :width] for part, width in parts)

    def optimizers(self) -> Sequence[Optimizer]:
        return ()

    def network(self) -> nn.Module:
        return self.incumbents

    def score(self) -> Float[Tensor, " k"]:
        """Minus the objective of every job's best restart, which becomes the incumbent; starts and noise are fixed."""
        means = self.distribution.mean
        returns = self.choosing_returns({"numbers": means, **self.choosing})["returns"]
        score, best = _finite(self.recipe.objective(returns)).max(1)
        if bool((score <= WORST).any()):
            job = int((score <= WORST).nonzero()[0])
            of = f" of job {job}" if len(score) > 1 else ""
            raise CounterpointError(
                f"no policy has a finite return inside the fitted model{of}; check the model"
                " (counterpoint check-scm), shorten the horizon or declare the bounds of the state"
            )
        rows = torch.arange(len(means), device=means.device)
        self.incumbents.numbers.copy_(means[rows, best])
        if self.near is not None:
            returns = self.returns(means, **self.choosing, priced=False)
        self.incumbents.returns.copy_(returns.mean(-1)[rows, :, best])
        return -score

    def policies(self, weights: dict[str, Tensor]) -> list[SearchedPolicy]:
        """The policy of every job."""
        shared = {"mean": self.mean, "spread": self.spread, "doses": self.doses}
        policies = []
        for k, job in enumerate(self.jobs):
            numbers = {name: tensor[k].clone() for name, tensor in (weights | shared).items()}
            policies.append(SearchedPolicy(self.recipe, numbers, job.data.schema, Origin.of(job)))
        return policies


def _doses(job: Job, actions: ActionSpace) -> Float[Tensor, "3 a"]:
    """Where the doses of a rule start and how far they reach: from the log where they are continuous."""
    return logged_doses(job.data) if isinstance(actions, Box) else middle_doses(actions)


WORST = -1e30


def _finite(score: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Scores with what is not finite replaced by the worst score."""
    return score.nan_to_num(WORST, WORST, WORST).clamp(min=WORST)


def _moments(
    recipe: Search, jobs: Sequence[Job], models: Sequence[Model]
) -> tuple[Float[Tensor, "k 1 i"], Float[Tensor, "k 1 i"]]:
    """Mean and standard deviation of the inputs over each job's real rows; 1 for a constant input."""
    means, spreads = [], []
    for job, model in zip(jobs, models, strict=True):
        rows = job.data[~job.data.imagined]
        theta = job.rows_theta[~job.data.imagined] if job.theta.shape[1] else model.subjects(rows)
        inputs = recipe.inputs(rows.state, theta, rows.schema.categories)
        inputs = near(inputs)
        spread = inputs.std(0, correction=0)
        means.append(inputs.mean(0, keepdim=True))
        spreads.append(torch.where(spread > 1e-8, spread, 1.0)[None])
    return torch.stack(means), torch.stack(spreads)
