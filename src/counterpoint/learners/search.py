"""Search: optimise a policy's return inside the fitted model, over all its members and many starts at once.

    max_φ  objective over members m of  E_{s₀, u} Σ_t P(not ended before t) · r(s_t, π_φ(s_t), s_{t+1}),
    s_{t+1} = f_m(s_t, π_φ(s_t), θ, u_t)

All candidates of a round meet the same starts and the same noise (common random numbers), fresh ones at every round.
The policy that is kept did best from starts and noise that no candidate was drawn for.
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
from counterpoint.core.settings import Count, Positive, Weight, check_settings
from counterpoint.data.far_values import near
from counterpoint.data.jobs import Categories, Job, Origin, context, identity, spread_levels
from counterpoint.data.returns import return_deviation
from counterpoint.data.shapes import State, Theta
from counterpoint.data.spaces import ActionSpace, Box
from counterpoint.learners.evolution import CrossEntropy, EvolutionStrategy
from counterpoint.models.base import Model, Recipe
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.nets.learner import (
    Replayed,
    StackTraining,
)
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.policies.base import Kept, Learned, ModelBased, saved_verdict
from counterpoint.policies.rule import OrderedDose, Rule, ScoredActions, is_ordered, logged_doses, middle_doses
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.simulation.models import FreshNoise, ModelSimulator, NoisePool
from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare
from counterpoint.simulation.rollout import Noise, Rollout, RolloutStep, on_device
from counterpoint.simulation.selection import start_rows
from counterpoint.tasks.base import Task, check_task


@dataclass(frozen=True)
class Search(ModelBased):
    """A policy searched inside a model. Takes finite and continuous actions."""

    model: Recipe[Model] = DensitySCM()
    """What the policy is tried in."""
    draws: PosteriorDraws | None = PosteriorDraws()
    """Members as draws from the posterior of the model's linear part, where it has one; none keeps the fitted ones."""
    rule: OrderedDose | ScoredActions | None = None
    """The class of policies; none for a linear dose where actions are ordered, else a linear score an action."""
    optimizer: CrossEntropy | EvolutionStrategy = CrossEntropy()
    """How candidates are drawn and learned from."""
    objective: MeanReturn | LowerBound | WorstShare = MeanReturn()
    """What a candidate's returns in the members are worth."""
    noise: FreshNoise | NoisePool = FreshNoise()
    """Where the noise of an episode comes from."""
    schedule: Schedule = Schedule(steps=25, check_every=5, patience=2, log_every=5)
    """Rounds, and how often the means of all restarts are tried on the starts and noise kept for choosing."""
    starts: Positive = 2
    """Episodes of every candidate in every member, from first states of the table."""
    restarts: Positive = 2
    """Searches from different first draws, side by side, of which the best policy is kept."""
    choosing_starts: Positive = 16
    """Episodes in every member by which the policy is chosen."""
    horizon: Count = 0
    """Steps an episode; 0 for the task's own."""
    sees_factor: bool = True
    """Whether the policy is told the subject's factor, where the model has one; without, one policy serves all."""
    support_price: Weight | None = None
    """Price, in units of the reward, of every step whose state and action are unlike all of the log; 0 for none. None
    for one standard deviation of the logged returns where doses are continuous, and for no price where they are a list.
    """
    allow_tf32: bool = False
    """Whether a GPU may round the factors of matrix products to ten bits (TF32) where candidates are tried, not where
    the policy is chosen among them: twice as fast in a model of wide networks."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.schedule.check_every > 0,
            "a search keeps the policy that did best when it was tried; set schedule.check_every to 1 or more",
        )

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        for job in jobs:
            check_task(task, job.data.schema)
        self.rule_for(task.actions).outputs(task.actions)
        require(
            self.horizon > 0 or getattr(task, "horizon", 0) > 0,
            "the task has no horizon and its episodes need not end; set horizon=…",
        )

    def with_models(
        self,
        jobs: Sequence[Job],
        models: Sequence[Model],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> list[Learned]:
        """The policy of every job, searched in its own model, where that is."""
        seeds = [derive(job.seed, "search") for job in jobs]
        if self.draws is not None:
            models = [self.draws(model, job) for model, job in zip(models, jobs, strict=True)]
        learner = SearchLearner(self, ModelSimulator(models), jobs, task, seeds)
        known = identity(self, jobs, task, [model.fingerprint for model in models])
        trained = train(learner, self.schedule, seeds, known, monitor.stage("search"))
        found = learner.policies(trained.selected)
        for k, policy in enumerate(found):
            step, score = int(trained.best_step[k]), -float(trained.best_score[k])
            policy.kept = Kept(step, self.schedule.steps, score, policy.return_in_model, learner.horizon)
        return [Learned(policy, policy) for policy in found]

    def rule_for(self, actions: ActionSpace) -> Rule:
        """The class of policies for a space of actions."""
        return self.rule or (OrderedDose() if is_ordered(actions) else ScoredActions())

    def price(self, job: Job, task: Task) -> float:
        """The price of a step that leaves the log."""
        if self.support_price is not None:
            return self.support_price
        return return_deviation(job.data, self.horizon or task.horizon) if isinstance(task.actions, Box) else 0.0

    def told(self, state: State, theta: Theta, categories: Categories) -> Float[Tensor, "*n i"]:
        """What a rule sees of a state and of its subject's factor."""
        levels = spread_levels(state, categories)
        return context(levels, theta=theta) if self.sees_factor and theta.shape[-1] else levels

    def rebuild(self, saved: Saved) -> SearchedPolicy:
        """The policy back from its artifact."""
        policy = SearchedPolicy(self, saved.weights, saved.schema, saved.origin)
        policy.verdict = saved_verdict(saved)
        return policy


class Incumbents(nn.Module):
    """The best policy of every job so far, and its mean return in every member of the job's model."""

    returns: Tensor

    def __init__(self, jobs: int, width: int, members: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(jobs, width), requires_grad=False)
        self.register_buffer("returns", torch.zeros(jobs, members))


class SearchLearner(StackTraining):
    """K searches, each in its own model and from R first draws; an update is a round."""

    state: Tensor
    theta: Tensor
    mean: Tensor
    spread: Tensor
    doses: Tensor
    price: Tensor
    rounds: Tensor

    def __init__(
        self, how: Search, simulator: ModelSimulator, jobs: Sequence[Job], task: Task, seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.how, self.simulator, self.jobs, self.allow_tf32 = how, simulator, jobs, how.allow_tf32
        self.eager_updates = 1 if simulator.capturable else sys.maxsize
        self.task, self.horizon = on_device(task, simulator.device), how.horizon or task.horizon
        self.categories, self.rule = jobs[0].data.schema.categories, how.rule_for(task.actions)
        starts = [start_rows(job, model) for job, model in zip(jobs, simulator.models, strict=True)]
        self.counts = [len(state) for state, _ in starts]
        self.sources = [how.noise.source(m, job) for m, job in zip(simulator.models, jobs, strict=True)]
        self.noise_widths = [part.mechanism.prior(1, torch.Generator()).shape[-1] for part in simulator.stacks]
        mean, spread = _moments(how, jobs, simulator.models)
        kept = {"state": pad_sequence([state for state, _ in starts], batch_first=True), "mean": mean, "spread": spread}
        kept |= {"theta": pad_sequence([theta for _, theta in starts], batch_first=True)}
        kept |= {"doses": torch.stack([_doses(job, task.actions) for job in jobs])}
        for name, tensor in kept.items():
            self.register_buffer(name, tensor.to(simulator.device), persistent=False)
        self.register_buffer("rounds", torch.zeros((), device=simulator.device))
        logs, prices = [job.data for job in jobs], [how.price(job, task) for job in jobs]
        self.near = NearLog(logs, seeds).to(simulator.device) if any(prices) else None
        self.register_buffer("price", torch.tensor(prices, device=simulator.device)[:, None], persistent=False)
        self.width = self.rule.width(mean.shape[-1], task.actions)
        first = [torch.randn(how.restarts, self.width, generator=generator(seed, "restarts")) for seed in seeds]
        scale = self.rule.scale(mean.shape[-1], task.actions)
        self.distribution = how.optimizer.start(torch.stack(first), scale).to(simulator.device)
        self.incumbents = Incumbents(len(jobs), self.width, simulator.members).to(simulator.device)
        chances = [self._chance(k, generator(seed, "choosing"), 1, how.choosing_starts) for k, seed in enumerate(seeds)]
        self.tried = Replayed(
            lambda given: {"returns": self.returns(given["numbers"], given["start"], given["noise"])},
            self.eager_updates,
        )
        self.choosing = {name: torch.cat([each[name] for each in chances]).to(simulator.device) for name in chances[0]}

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Candidates in mirrored pairs, and the starts and noise that all of them meet."""
        how = self.how
        half = torch.randn(steps, how.restarts, how.optimizer.candidates // 2, self.width, generator=random)
        return {"draw": torch.cat([half, -half], 2), **self._chance(member, random, steps, how.starts)}

    def _chance(self, job: int, random: torch.Generator, rounds: int, starts: int) -> dict[str, Tensor]:
        """First states and noise of `starts` episodes in every member, for some rounds."""
        members, steps = self.simulator.members, rounds * self.horizon
        noise = self.sources[job](steps, members, starts, random)
        noise = nn.functional.pad(noise, (0, max(self.noise_widths) - noise.shape[-1]))
        start = torch.randint(self.counts[job], (rounds, members, starts), generator=random)
        return {"start": start, "noise": noise.unflatten(0, (rounds, self.horizon))}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        tried = self.distribution.candidates(draw["draw"])
        returns = self.returns(tried.flatten(1, 2), draw["start"], draw["noise"])
        score = _finite(self.how.objective(returns)).unflatten(1, tried.shape[1:3])
        self.how.optimizer.learn(self.distribution, draw["draw"], score, self.rounds / self.how.schedule.steps)
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

        Steps that leave the log are `priced`, or only the rewards count.
        """
        shape = k, members, candidates, each = (*start.shape[:2], numbers.shape[1], start.shape[2])

        def everywhere(x: Float[Tensor, "k m n w"]) -> Float[Tensor, "k e w"]:
            return x[:, :, None].expand(*shape, -1).reshape(k, members * candidates * each, -1)

        def luck(t: int) -> Noise:
            return self._by_stack(everywhere(noise[:, t]))

        def act(state: Float[Tensor, "k e s"], theta: Float[Tensor, "k e t"]) -> Float[Tensor, "k e a"]:
            told = self._told(state, theta).view(*shape, -1).transpose(1, 2).reshape(k * candidates, members * each, -1)
            scores = self.rule.scores(numbers.flatten(0, 1), told, self.task.actions)
            chosen = self.rule.choose(scores, self.task.actions, self.doses.repeat_interleave(candidates, 0))
            return chosen.view(k, candidates, members, each, -1).transpose(1, 2).reshape(*state.shape[:2], -1)

        place = start.flatten(1)[..., None]
        first, theta = (
            table.gather(1, place.expand(-1, -1, table.shape[-1])).view(*start.shape, -1)
            for table in (self.state, self.theta)
        )
        rollout = Rollout(self.simulator, self.task, act)
        steps = rollout(everywhere(first), luck, self.horizon, everywhere(theta))
        return sum((step.alive * self._worth(step, priced) for step in steps), torch.zeros(())).view(shape)

    def _worth(self, step: RolloutStep, priced: bool) -> Float[Tensor, "k e"]:
        """The reward of a step, less the price of leaving the log."""
        if self.near is None or not priced:
            return step.reward
        return step.reward - self.price * self.near.outside(step.state, step.action)

    def _told(self, state: Float[Tensor, "k e s"], theta: Float[Tensor, "k e t"]) -> Float[Tensor, "k e i"]:
        return (self.how.told(state, theta, self.categories) - self.mean) / self.spread

    def _by_stack(self, noise: Float[Tensor, "k e u"]) -> Noise:
        """Each stack's own models and as many columns as its noise has."""
        if len(self.noise_widths) == 1:
            return (noise,)
        parts = zip(self.simulator.stacks, self.noise_widths, strict=True)
        return tuple(noise[part.models][..., :width] for part, width in parts)

    def optimizers(self) -> Sequence[Optimizer]:
        return ()

    def network(self) -> nn.Module:
        return self.incumbents

    def score(self) -> Float[Tensor, " k"]:
        """Minus the objective of every job's best restart, which becomes the incumbent; the same chance every time."""
        means = self.distribution.mean
        returns = self.tried({"numbers": means, **self.choosing})["returns"]
        score, best = _finite(self.how.objective(returns)).max(1)
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

    def policies(self, found: dict[str, Tensor]) -> list[SearchedPolicy]:
        """The policy of every job."""
        shared = {"mean": self.mean, "spread": self.spread, "doses": self.doses}
        each = [{name: tensor[k].clone() for name, tensor in (found | shared).items()} for k in range(len(self.jobs))]
        return [
            SearchedPolicy(self.how, weights, job.data.schema, Origin.of(job))
            for weights, job in zip(each, self.jobs, strict=True)
        ]


def _doses(job: Job, actions: ActionSpace) -> Float[Tensor, "3 a"]:
    """Where the doses of a rule start and how far they reach: the log says so where they are continuous."""
    return logged_doses(job.data) if isinstance(actions, Box) else middle_doses(actions)


WORST = -1e30


def _finite(score: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Scores with what is not finite behind everything that is."""
    return score.nan_to_num(WORST, WORST, WORST).clamp(min=WORST)


def _moments(
    how: Search, jobs: Sequence[Job], models: Sequence[Model]
) -> tuple[Float[Tensor, "k 1 i"], Float[Tensor, "k 1 i"]]:
    """Mean and standard deviation of what a rule sees, over each job's real rows; 1 where nothing varies."""
    means, spreads = [], []
    for job, model in zip(jobs, models, strict=True):
        rows = job.data[~job.data.imagined]
        theta = job.rows_theta[~job.data.imagined] if job.theta.shape[1] else model.subjects(rows)
        told = how.told(rows.state, theta, rows.schema.categories)
        told = near(told)
        spread = told.std(0, correction=0)
        means.append(told.mean(0, keepdim=True))
        spreads.append(torch.where(spread > 1e-8, spread, 1.0)[None])
    return torch.stack(means), torch.stack(spreads)
