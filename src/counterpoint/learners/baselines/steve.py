"""STEVE and MVE: Q-learning on targets that look a few steps ahead in a learned model (Buckman et al. 2018).

    s'_0 = s',   a'_i = argmax_a mean_l Q_l(s'_i, a),   s'_{i+1} = f(s'_i, a'_i),   D_i = Π_{j ≤ i} (1 − end(s'_j))
    T_i = r + Σ_{j=1..i} D_{j−1} γ^j r(s'_{j−1}, a'_{j−1}, s'_j) + D_i γ^{i+1} Q_target(s'_i, a'_i),       i = 0 … H
    y = Σ_i w_i mean(T_i) / Σ_i w_i,   w_i = 1 / variance(T_i)

Mean and variance run over every combination of a transition model f, a reward model r and a Q-function. MVE (Feinberg
et al. 2018) puts all weight on i = H; at H = 0 it is the double-DQN target. Adapted to discrete actions and logged
data: the greedy policy of the mean Q replaces the actor, no data are collected, the models are fitted before the
Q-functions and stay fixed, and the end of an episode is the log's at s' and the task's after it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.data.jobs import Job, context, identity
from counterpoint.learners.base import ModelBased, PolicyCheckpoints, discrete_actions
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    QObjective,
    q_policies,
    selected_checkpoints,
    table,
    voter_seeds,
)
from counterpoint.models.base import Model
from counterpoint.models.dynamics.base import LawNetwork
from counterpoint.models.dynamics.deterministic import Deterministic, PointLaw
from counterpoint.nets.likelihood import fit_by_likelihood
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.q import DuelingQ, QPolicy, saved_q_policy
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout, RolloutStep, on_device
from counterpoint.simulation.selection import CheckpointSelection, check_rollouts
from counterpoint.tasks.base import Task


def inverse_variance(variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
    """STEVE's weights, summing to one over the horizons; equal where no horizon varies."""
    weight = 1 / (variance + 1e-8)
    return weight / weight.sum(0)


def last_horizon(variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
    """MVE's weights: all on the longest horizon."""
    return torch.cat([torch.zeros_like(variance[:-1]), torch.ones_like(variance[-1:])])


@dataclass(frozen=True)
class ValueExpansion(ModelBased[QPolicy]):
    """Base class of STEVE and MVE: Q-learning on the real rows, for discrete action spaces."""

    horizon: Count = 3
    """Steps that the longest target looks ahead."""
    rewards: Positive | None = 4
    """Reward models; None for the task's reward function."""
    q_functions: Positive = 4
    """Q-functions; the policy acts by their mean."""
    model: Deterministic = Deterministic(ensemble=4, hidden=(64, 64), batch_norm=False)
    """The ensemble of transition models; the reward models have the same networks and likelihood."""
    learner: D3QN = D3QN()
    """Widths, schedule and rates of the Q-learning."""
    selection: CheckpointSelection = CheckpointSelection()
    """How a checkpoint is selected inside the transition models, where the learner's schedule checks."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        """The weight of every horizon, from the variance of its targets."""

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        discrete_actions(task, jobs)

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[QPolicy]]:
        """Fit the reward models, then the Q-functions of every job."""
        actions, schedule = discrete_actions(task), self.learner.schedule
        device = models[0].device
        real = [job[~job.data.imagined] for job in jobs]
        if self.horizon:
            check_rollouts(models, real, task, actions, self.horizon)
        reward = self._fit_rewards(real, monitor.stage("reward"), device)
        selector = self.selection.selector(models, real, task) if schedule.check_every else None
        tables = [rows for job in real for rows in [table(job)] * self.q_functions]
        network = self.build(tables[0]["state"].shape[1], actions.count, len(tables)).to(device)
        initialise(network, voter_seeds(jobs, self.q_functions))
        target = ExpansionTarget(self, models, reward, task)
        # TF32 suffices: the error of the models in the targets is larger than its rounding.
        objective = QObjective(actions, target, votes=self.q_functions, allow_tf32=True)
        learner = QLearner(network, self.build, tables, self.learner, objective, selector)
        # The Q-functions of a job share one stream of minibatches, because their targets are computed together.
        minibatches = [job.seed for job in jobs for _ in range(self.q_functions)]
        trained = train(learner, schedule, minibatches, identity(self, jobs, task), monitor.stage("policy"))
        return q_policies(self, trained, jobs, actions, selected_checkpoints(trained, schedule, selector))

    def build(self, state: int, actions: int, members: int) -> DuelingQ:
        """Untrained Q-functions of the right shape."""
        return self.learner.build(state, actions, members)

    def rebuild(self, saved: Saved) -> QPolicy:
        """The policy back from its artifact."""
        return saved_q_policy(self, saved)

    def _fit_rewards(self, jobs: Sequence[Job], monitor: Monitor, device: torch.device) -> LawNetwork | None:
        """Fit r(s, a, s') by least squares on the rows that have a next state."""
        if self.rewards is None:
            return None
        tables = [_reward_table(job) for job in jobs for _ in range(self.rewards)]
        seeds = [derive(job.seed, "reward", m) for job in jobs for m in range(self.rewards)]
        width = tables[0]["context"].shape[1]
        network = LawNetwork(len(seeds), width, 1, PointLaw(), self.model.hidden, self.model.batch_norm)
        run = identity(self, jobs, "reward")
        fit_by_likelihood(network.to(device), tables, seeds, self.model.likelihood, run, monitor)
        return network.requires_grad_(False)


@dataclass(frozen=True)
class STEVE(ValueExpansion):
    """Stochastic ensemble value expansion: horizons are weighted by the inverse variance of their targets."""

    command: ClassVar = ("steve", "stochastic ensemble value expansion")

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return inverse_variance(variance)


@dataclass(frozen=True)
class MVE(ValueExpansion):
    """Model-based value expansion of a fixed horizon, without training on imagined states (Feinberg's TD-k trick)."""

    command: ClassVar = ("mve", "model-based value expansion")
    rewards: Positive | None = 1
    q_functions: Positive = 1
    model: Deterministic = Deterministic(ensemble=1, hidden=(64, 64), batch_norm=False)

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return last_horizon(variance)


class ExpansionTarget:
    """The target of K jobs × L Q-functions; the L functions of a job have the same rows and share one target."""

    def __init__(
        self,
        recipe: ValueExpansion,
        models: Sequence[Model],
        reward: LawNetwork | None,
        task: Task,
    ) -> None:
        self.recipe, self.jobs, self.reward, self.simulator = recipe, len(models), reward, ModelSimulator(models)
        self.task = on_device(task, self.simulator.device)
        self.features = discrete_actions(task).table().to(self.simulator.device)
        for part in self.simulator.stacks:
            part.mechanism.requires_grad_(False)

    @torch.no_grad()
    def __call__(
        self, networks: QLearner, reward: Tensor, next_state: Tensor, not_terminated: Tensor
    ) -> Float[Tensor, "kl n"]:
        first = [x.view(self.jobs, -1, *x.shape[1:])[:, 0] for x in (reward, next_state, not_terminated)]
        variance, mean = torch.var_mean(self.candidates(networks, *first), dim=(2, 3, 4), correction=0)
        target = (self.recipe.weigh(variance) * mean).sum(0)
        return target[:, None].expand(-1, self.recipe.q_functions, -1).flatten(0, 1)

    def candidates(
        self,
        networks: QLearner,
        reward: Float[Tensor, "k n"],
        next_state: Float[Tensor, "k n s"],
        not_terminated: Float[Tensor, "k n"],
    ) -> Float[Tensor, "h k r d l n"]:
        """T_0 … T_H for every reward model, transition model and Q-function."""
        recipe, (k, n, _) = self.recipe, next_state.shape
        members = recipe.model.ensemble
        factor = (self.task.discount * not_terminated)[:, None]
        total = reward[:, None, None]
        # Axis d is 1 at first: all transition models start from the logged next state.
        actions = [self.policy(networks, next_state[:, None])]
        value = factor[:, None] * self.value(networks, next_state[:, None], actions[0])
        targets = [total[:, :, :, None] + value.transpose(1, 2)[:, None]]
        for step, inputs in self._ahead(next_state, actions):
            total = total + factor[:, None] * self._reward(step, (k, -1, members, n))
            factor = factor * self.task.discount * step.survival.view(k, members, n)
            actions.append(self.policy(networks, inputs))
            value = factor[:, None] * self.value(networks, inputs, actions[-1])
            targets.append(total[:, :, :, None] + value.transpose(1, 2)[:, None])
        shape = k, recipe.rewards or 1, members, recipe.q_functions, n
        return torch.stack([target.expand(shape) for target in targets])

    def _ahead(self, inputs: Float[Tensor, "k n c"], actions: list[Tensor]) -> Iterator[tuple[RolloutStep, Tensor]]:
        """Steps in every transition model under the latest of `actions`, and the inputs of the Q-functions after each.

        The caller appends the actions of the next step.
        """
        k, n, _ = inputs.shape
        members = self.recipe.model.ensemble
        repeated = inputs[:, None].expand(-1, members, -1, -1).flatten(1, 2)
        size = len(self.simulator.models[0].state_names)
        state, theta, noise = repeated[..., :size], repeated[..., size:], (repeated[..., :0],)
        latest = lambda t: self.features[actions[-1].expand(-1, members, -1)].flatten(1, 2)
        for step in Rollout(self.simulator, self.task)(state, lambda t: noise, self.recipe.horizon, theta, latest):
            yield step, context(step.next_state, theta=theta).view(k, members, n, -1)

    def _reward(self, step: RolloutStep, shape: tuple[int, ...]) -> Float[Tensor, "k r d n"]:
        """The reward of a step by every reward model, or by the task."""
        if self.reward is None:
            return step.reward.view(shape)
        inputs = context(step.state, step.action, step.next_state)[:, None].expand(-1, self.recipe.rewards or 1, -1, -1)
        return self.reward.point(inputs.flatten(0, 1)).view(shape)

    def policy(self, networks: QLearner, inputs: Float[Tensor, "k d n c"]) -> Int[Tensor, "k d n"]:
        """argmax_a of the mean online Q."""
        return self._values(networks.online, inputs).mean(1).argmax(-1)

    def value(
        self, networks: QLearner, inputs: Float[Tensor, "k d n c"], action: Int[Tensor, "k d n"]
    ) -> Float[Tensor, "k l d n"]:
        """Q_target(s, a) of every Q-function."""
        values = self._values(networks.target, inputs)
        return values.gather(-1, action[:, None, ..., None].expand(*values.shape[:-1], 1))[..., 0]

    def _values(self, network: DuelingQ, inputs: Float[Tensor, "k d n c"]) -> Float[Tensor, "k l d n actions"]:
        k, d, n, c = inputs.shape
        stacked = inputs.reshape(k, 1, d * n, c).expand(-1, self.recipe.q_functions, -1, -1).reshape(-1, d * n, c)
        return network(stacked).view(k, self.recipe.q_functions, d, n, -1)


def _reward_table(job: Job) -> dict[str, Tensor]:
    rows = job.data.with_next()
    inputs = context(rows.state, rows.action, rows.next_state)
    return {"context": inputs, "y": rows.reward[:, None], "subject": rows.subject}
