"""STEVE and MVE: Q-learning on targets that look a few steps ahead in a learned model (Buckman et al. 2018).

    s'_0 = s',   a'_i = argmax_a mean_l Q_l(s'_i, a),   s'_{i+1} = f(s'_i, a'_i),   D_i = Π_{j ≤ i} (1 − end(s'_j))
    T_i = r + Σ_{j=1..i} D_{j−1} γ^j r(s'_{j−1}, a'_{j−1}, s'_j) + D_i γ^{i+1} Q_target(s'_i, a'_i),       i = 0 … H
    y = Σ_i w_i mean(T_i) / Σ_i w_i,   w_i = 1 / variance(T_i)

Mean and variance run over every combination of a transition model f, a reward model r and a Q-function. MVE (Feinberg
et al. 2018) puts all weight on i = H; at H = 0 it is the double-DQN target. Written for discrete actions and logged
data: the greedy policy of the mean Q takes the place of the actor, nothing is collected, the models are fitted before
the Q-functions and stay, and the end of an episode is the log's at s' and the task's own function after it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved, device_of
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.data.jobs import Job, context, identity
from counterpoint.learners.d3qn import D3QN, QLearner, QLoss, kept_by, table, voter_seeds
from counterpoint.models.dynamics.base import (
    DynamicsModel,
    LawNetwork,
)
from counterpoint.models.dynamics.deterministic import (
    Deterministic,
    PointLaw,
)
from counterpoint.nets.dueling import DuelingQ
from counterpoint.nets.likelihood import fit_by_likelihood
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.base import Learned, PolicyLearner, discrete
from counterpoint.policies.q import QPolicy, q_policies, saved_q_policy
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout, RolloutStep, on_device
from counterpoint.simulation.selection import RolloutSelection, check_rollouts
from counterpoint.tasks.base import Task


def inverse_variance(variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
    """STEVE's weights, summing to one over the horizons; equal where no horizon varies."""
    weight = 1 / (variance + 1e-8)
    return weight / weight.sum(0)


def last_horizon(variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
    """MVE's weights: all on the longest horizon."""
    return torch.cat([torch.zeros_like(variance[:-1]), torch.ones_like(variance[-1:])])


@dataclass(frozen=True)
class ValueExpansion(PolicyLearner):
    """What STEVE and MVE share. Assumes a discrete action space; learns on the real rows."""

    horizon: Count = 3
    """Steps that the longest target looks ahead."""
    dynamics: Positive = 4
    """Transition models."""
    rewards: Count = 4
    """Reward models; 0 asks the task's own function."""
    q_functions: Positive = 4
    """Q-functions; the policy acts by their mean."""
    model: Deterministic = Deterministic(hidden=(64, 64), batch_norm=False)
    """The transition models, and how they and the reward models are fitted; `dynamics` overrides its ensemble."""
    learner: D3QN = D3QN()
    """Width, length and rates of the Q-learning."""
    selection: RolloutSelection = RolloutSelection()
    """How the checkpoint is chosen inside the transition models, where the learner's schedule checks."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        """How much each horizon counts, given how much its targets vary."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        """Fit every job's models, then its Q-functions; its own models choose where the schedule checks."""
        actions, schedule = discrete(task, jobs), self.learner.schedule
        real = [job[~job.data.imagined] for job in jobs]
        models = self._fit_dynamics(real, monitor.stage("model"), device)
        if self.horizon:
            check_rollouts(models, real, task, actions, self.horizon)
        reward = self._fit_rewards(real, monitor.stage("reward"), device)
        selector = self.selection.selector(models, real, task) if schedule.check_every else None
        tables = [rows for job in real for rows in [table(job)] * self.q_functions]
        network = self.build(tables[0]["state"].shape[1], actions.count, len(tables)).to(device_of(device))
        initialise(network, voter_seeds(jobs, self.q_functions))
        expansion = Expansion(self, models, reward, task)
        # TF32 is near enough: the models that targets look ahead in are wrong by more than its rounding.
        objective = QLoss(actions, expansion, votes=self.q_functions, allow_tf32=True)
        learner = QLearner(network, self.build, tables, self.learner, objective, selector)
        # Members of one job share its stream of minibatches: their targets are made together.
        minibatches = [job.seed for job in jobs for _ in range(self.q_functions)]
        trained = train(learner, schedule, minibatches, identity(self, jobs, task), monitor.stage("policy"))
        return q_policies(self, trained, jobs, actions, kept_by(trained, schedule, selector))

    def build(self, state: int, actions: int, members: int) -> DuelingQ:
        """Untrained Q-functions of the right shape."""
        return self.learner.build(state, actions, members)

    def rebuild(self, saved: Saved) -> QPolicy:
        """The policy back from its artifact."""
        return saved_q_policy(self, saved)

    def _fit_dynamics(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> list[DynamicsModel]:
        recipe = replace(self.model, ensemble=self.dynamics)
        return recipe.fit_many([replace(job, seed=derive(job.seed, "model")) for job in jobs], monitor, device)

    def _fit_rewards(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> LawNetwork | None:
        """r(s, a, s') by least squares on the rows that have a next state."""
        if not self.rewards:
            return None
        tables = [_reward_table(job) for job in jobs for _ in range(self.rewards)]
        seeds = [derive(job.seed, "reward", m) for job in jobs for m in range(self.rewards)]
        width = tables[0]["context"].shape[1]
        network = LawNetwork(len(seeds), width, 1, PointLaw(), self.model.hidden, self.model.batch_norm)
        known = identity(self, jobs, "reward")
        fit_by_likelihood(network.to(device_of(device)), tables, seeds, self.model.likelihood, known, monitor)
        return network.requires_grad_(False)


@dataclass(frozen=True)
class STEVE(ValueExpansion):
    """Stochastic ensemble value expansion: each row trusts the horizons on which the ensembles agree."""

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return inverse_variance(variance)


@dataclass(frozen=True)
class MVE(ValueExpansion):
    """Model-based value expansion of a fixed horizon, without training on imagined states (Feinberg's TD-k trick)."""

    dynamics: Positive = 1
    rewards: Count = 1
    q_functions: Positive = 1

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return last_horizon(variance)


class Expansion:
    """The target of K jobs × L Q-functions; the L functions of a job see the same rows and share one target."""

    def __init__(
        self,
        recipe: ValueExpansion,
        models: Sequence[DynamicsModel],
        reward: LawNetwork | None,
        task: Task,
    ) -> None:
        self.recipe, self.jobs, self.reward, self.simulator = recipe, len(models), reward, ModelSimulator(models)
        self.task = on_device(task, self.simulator.device)
        self.features = discrete(task).table().to(self.simulator.device)
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
        how, (k, n, _) = self.recipe, next_state.shape
        factor, total = (self.task.discount * not_terminated)[:, None], reward[:, None, None]
        # Axis d is 1 at first: where the log ends, the transition models still agree.
        actions = [self.policy(networks, next_state[:, None])]
        value = factor[:, None] * self.value(networks, next_state[:, None], actions[0])
        targets = [total[:, :, :, None] + value.transpose(1, 2)[:, None]]
        for step, told in self._ahead(next_state, actions):
            total = total + factor[:, None] * self._earned(step, (k, -1, how.dynamics, n))
            factor = factor * self.task.discount * step.survival.view(k, how.dynamics, n)
            actions.append(self.policy(networks, told))
            value = factor[:, None] * self.value(networks, told, actions[-1])
            targets.append(total[:, :, :, None] + value.transpose(1, 2)[:, None])
        return torch.stack([t.expand(k, max(how.rewards, 1), how.dynamics, how.q_functions, n) for t in targets])

    def _ahead(self, told: Float[Tensor, "k n c"], actions: list[Tensor]) -> Iterator[tuple[RolloutStep, Tensor]]:
        """Steps in every transition model under the actions last chosen, and what the Q-functions see after each."""
        k, n, _ = told.shape
        everywhere = told[:, None].expand(-1, self.recipe.dynamics, -1, -1).flatten(1, 2)
        size = len(self.simulator.models[0].state_names)
        state, theta, noise = everywhere[..., :size], everywhere[..., size:], (everywhere[..., :0],)
        chosen = lambda t: self.features[actions[-1].expand(-1, self.recipe.dynamics, -1)].flatten(1, 2)
        for step in Rollout(self.simulator, self.task)(state, lambda t: noise, self.recipe.horizon, theta, chosen):
            yield step, context(step.next_state, theta=theta).view(k, self.recipe.dynamics, n, -1)

    def _earned(self, step: RolloutStep, shape: tuple[int, ...]) -> Float[Tensor, "k r d n"]:
        """What every reward model says a step earned; the task's own word where there is none."""
        if self.reward is None:
            return step.reward.view(shape)
        seen = context(step.state, step.action, step.next_state)[:, None].expand(-1, self.recipe.rewards, -1, -1)
        return self.reward.point(seen.flatten(0, 1)).view(shape)

    def policy(self, networks: QLearner, told: Float[Tensor, "k d n c"]) -> Int[Tensor, "k d n"]:
        """argmax_a of the mean online Q."""
        return self._values(networks.online, told).mean(1).argmax(-1)

    def value(
        self, networks: QLearner, told: Float[Tensor, "k d n c"], action: Int[Tensor, "k d n"]
    ) -> Float[Tensor, "k l d n"]:
        """Q_target(s, a) of every Q-function."""
        values = self._values(networks.target, told)
        return values.gather(-1, action[:, None, ..., None].expand(*values.shape[:-1], 1))[..., 0]

    def _values(self, network: DuelingQ, told: Float[Tensor, "k d n c"]) -> Float[Tensor, "k l d n actions"]:
        k, d, n, c = told.shape
        each = told.reshape(k, 1, d * n, c).expand(-1, self.recipe.q_functions, -1, -1).reshape(-1, d * n, c)
        return network(each).view(k, self.recipe.q_functions, d, n, -1)


def _reward_table(job: Job) -> dict[str, Tensor]:
    rows = job.data.with_next()
    told = context(rows.state, rows.action, rows.next_state)
    return {"context": told, "y": rows.reward[:, None], "subject": rows.subject}
