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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.dynamics.base import DynamicsModel, HeadNetwork, fit_network
from counterpoint.dynamics.deterministic import Deterministic, Point
from counterpoint.errors import CounterpointError
from counterpoint.nets.dueling import DuelingQ
from counterpoint.nets.stacked import initialise, members_of
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.base import Learned, PolicyLearner, both_ends, discrete
from counterpoint.policies.d3qn import D3QN, Judge, QLearner, judged_by, table
from counterpoint.policies.qnetwork import QPolicy, greedy
from counterpoint.seeding import derive
from counterpoint.tasks.base import Task

JudgeMaker = Callable[[Sequence[DynamicsModel], Sequence[Job], Task], Judge]
"""Makes a judge out of the fitted transition models."""


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

    horizon: int = 3
    """Steps that the longest target looks ahead."""
    dynamics: int = 4
    """Transition models."""
    rewards: int = 4
    """Reward models; 0 asks the task's own function."""
    q_functions: int = 4
    """Q-functions; the policy acts by their mean."""
    model: Deterministic = Deterministic(hidden=(64, 64), batch_norm=False)
    """The transition models, and how they and the reward models are fitted; `dynamics` overrides its ensemble."""
    learner: D3QN = D3QN()
    """Width, length and rates of the Q-learning."""

    @abstractmethod
    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        """How much each horizon counts, given how much its targets vary."""

    def fit_many(
        self,
        jobs: Sequence[Job],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        judge_in: JudgeMaker | None = None,
    ) -> list[Learned]:
        """Fit every job's models, then its Q-functions; `judge_in` its models chooses where the schedule checks."""
        actions, schedule = discrete(task), self.learner.schedule
        if schedule.check_every and judge_in is None:
            raise CounterpointError("the schedule checks but there is no judge; set schedule.check_every=0")
        real = [replace(job, data=job.data.real) for job in jobs]
        models = self._fit_dynamics(real, monitor.stage("model"), device)
        reward = self._fit_rewards(real, monitor.stage("reward"), device)
        judge = judge_in(models, real, task) if judge_in is not None and schedule.check_every else None
        network = self.network(real[0].data.state_size, actions.count, len(jobs) * self.q_functions)
        initialise(network, [seed for job in jobs for seed in self._member_seeds(job)])
        learner = ExpansionLearner(network.to(device_of(device)), self, real, task, actions, judge)
        learner.expand_with(_stack(self.model, models), reward, task)
        # Members of one job share its stream of minibatches: their targets are made together.
        minibatches = [job.seed for job in jobs for _ in range(self.q_functions)]
        trained = train(learner, schedule, minibatches, self._identity(jobs, task, judge), monitor.stage("policy"))
        return both_ends(trained, len(jobs), lambda weights, i: self._policy(weights, i, jobs, actions))

    def network(self, state: int, actions: int, members: int) -> DuelingQ:
        """Untrained Q-functions of the right shape."""
        return self.learner.network(state, actions, members)

    def rebuild(self, header: dict[str, Any], weights: dict[str, Tensor], actions: Discrete, origin: Origin) -> QPolicy:
        """The policy back from its artifact."""
        names = tuple(header["state_names"])
        network = self.network(len(names), actions.count, self.q_functions)
        network.load_state_dict(weights)
        return QPolicy(self, network, actions, names, origin)

    def _member_seeds(self, job: Job) -> list[int]:
        """The first member starts as D3QN would."""
        return [job.seed, *(derive(job.seed, "q", i) for i in range(1, self.q_functions))]

    def _fit_dynamics(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> list[DynamicsModel]:
        recipe = replace(self.model, ensemble=self.dynamics)
        return recipe.fit_many([replace(job, seed=derive(job.seed, "model")) for job in jobs], monitor, device)

    def _fit_rewards(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> HeadNetwork | None:
        """r(s, a, s') by least squares on the rows that have a next state."""
        if not self.rewards:
            return None
        tables = [_reward_table(job) for job in jobs for _ in range(self.rewards)]
        seeds = [derive(job.seed, "reward", m) for job in jobs for m in range(self.rewards)]
        width = tables[0]["context"].shape[1]
        network = HeadNetwork(len(seeds), width, 1, Point(), self.model.hidden, self.model.batch_norm)
        identity = recipe_hash(self, "reward", [(job.data.fingerprint, job.seed) for job in jobs])
        fit_network(network.to(device_of(device)), tables, seeds, self.model.likelihood, identity, monitor)
        return network.requires_grad_(False)

    def _identity(self, jobs: Sequence[Job], task: Task, judge: Judge | None) -> str:
        return recipe_hash(self, judged_by(judge), task.discount, [(job.data.fingerprint, job.seed) for job in jobs])

    def _policy(self, state: dict[str, Tensor], index: int, jobs: Sequence[Job], actions: Discrete) -> QPolicy:
        data = jobs[index].data
        network = self.network(data.state_size, actions.count, self.q_functions)
        network.load_state_dict(members_of(state, len(jobs), index, 1))
        network.to(next(iter(state.values())).device)
        return QPolicy(self, network, actions, data.state_names, Origin(jobs[index].seed, data.fingerprint))


@dataclass(frozen=True)
class STEVE(ValueExpansion):
    """Stochastic ensemble value expansion: each row trusts the horizons on which the ensembles agree."""

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return inverse_variance(variance)


@dataclass(frozen=True)
class MVE(ValueExpansion):
    """Model-based value expansion of a fixed horizon, without training on imagined states (Feinberg's TD-k trick)."""

    dynamics: int = 1
    rewards: int = 1
    q_functions: int = 1

    def weigh(self, variance: Float[Tensor, "h k n"]) -> Float[Tensor, "h k n"]:
        return last_horizon(variance)


class ExpansionLearner(QLearner):
    """K jobs × L Q-functions in training; the L functions of a job see the same rows and share one target."""

    rough = True  # The models that targets look ahead in are wrong by more than the rounding.
    features: Tensor

    def __init__(
        self,
        online: DuelingQ,
        recipe: ValueExpansion,
        jobs: Sequence[Job],
        task: Task,
        actions: Discrete,
        judge: Judge | None,
    ) -> None:
        tables = [rows for job in jobs for rows in [table(job.data)] * recipe.q_functions]
        super().__init__(online, recipe.network, tables, recipe.learner, task.discount, actions, judge)
        self.recipe, self.jobs = recipe, len(jobs)
        self.register_buffer("features", actions.table(self.state), persistent=False)

    def expand_with(self, dynamics: HeadNetwork, reward: HeadNetwork | None, task: Task) -> None:
        """The fitted models that targets look ahead in; not trained any more, hence kept out of the checkpoints."""
        self.models = (dynamics, reward, task)

    @torch.no_grad()
    def bootstrap(
        self, reward: Float[Tensor, "kl n"], next_state: Float[Tensor, "kl n s"], goes_on: Float[Tensor, "kl n"]
    ) -> Float[Tensor, "kl n"]:
        first = [x.view(self.jobs, -1, *x.shape[1:])[:, 0] for x in (reward, next_state, goes_on)]
        candidates = self.candidates(*first)
        variance, mean = torch.var_mean(candidates, dim=(2, 3, 4), correction=0)
        target = (self.recipe.weigh(variance) * mean).sum(0)
        return target[:, None].expand(-1, self.recipe.q_functions, -1).flatten(0, 1)

    def candidates(
        self, reward: Float[Tensor, "k n"], next_state: Float[Tensor, "k n s"], goes_on: Float[Tensor, "k n"]
    ) -> Float[Tensor, "h k r d l n"]:
        """T_0 … T_H for every reward model, transition model and Q-function."""
        how, (k, n, _) = self.recipe, next_state.shape
        # Axis d is 1 at first: where the log ends, the transition models still agree.
        state, factor, total = next_state[:, None], (self.discount * goes_on)[:, None], reward[:, None, None]
        targets = []
        for i in range(how.horizon + 1):
            action = self.policy(state)
            worth = factor[:, None] * self.worth(state, action)
            targets.append(total[:, :, :, None] + worth.transpose(1, 2)[:, None])
            if i < how.horizon:
                everywhere = (x.expand(-1, how.dynamics, -1, -1) for x in (state, self.features[action]))
                after, earned = self.step(*everywhere)
                total = total + factor[:, None] * earned
                factor = factor * self.discount * (~self.models[2].terminated(after)).float()
                state = after
        return torch.stack([t.expand(k, max(how.rewards, 1), how.dynamics, how.q_functions, n) for t in targets])

    def policy(self, state: Float[Tensor, "k d n s"]) -> Tensor:
        """argmax_a of the mean online Q, [k, d, n]."""
        return self._values(self.online, state).mean(1).argmax(-1)

    def worth(self, state: Float[Tensor, "k d n s"], action: Tensor) -> Float[Tensor, "k l d n"]:
        """Q_target(s, a) of every Q-function."""
        values = self._values(self.target, state)
        return values.gather(-1, action[:, None, ..., None].expand(*values.shape[:-1], 1))[..., 0]

    def step(
        self, state: Float[Tensor, "k d n s"], action: Float[Tensor, "k d n a"]
    ) -> tuple[Float[Tensor, "k d n s"], Float[Tensor, "k r d n"]]:
        """One step ahead in every transition model, and what every reward model says it earned."""
        dynamics, reward, task = self.models
        k, d, n, _ = state.shape
        after = state + _point(dynamics, torch.cat([state, action], -1).flatten(0, 1)).view(state.shape)
        if reward is None:
            return after, task.reward(state, action, after)[:, None]
        context = torch.cat([state, action, after], -1).view(k, 1, d * n, -1).expand(-1, self.recipe.rewards, -1, -1)
        return after, _point(reward, context.flatten(0, 1)).view(k, -1, d, n)

    def _values(self, network: DuelingQ, state: Float[Tensor, "k d n s"]) -> Float[Tensor, "k l d n actions"]:
        k, d, n, s = state.shape
        each = state.reshape(k, 1, d * n, s).expand(-1, self.recipe.q_functions, -1, -1).reshape(-1, d * n, s)
        return network(each).view(k, self.recipe.q_functions, d, n, -1)

    def score(self) -> Float[Tensor, " kl"]:
        """The voting policy's score, for each of its voters."""
        assert self.judge is not None
        votes = self.recipe.q_functions
        return self.judge(greedy(self.target, self.actions, votes)).repeat_interleave(votes)


def _point(network: HeadNetwork, context: Float[Tensor, "m n c"]) -> Float[Tensor, "m n d"]:
    """What least squares says, in the units of the data."""
    return network.raw(context) * network.y_scale + network.y_mean


def _stack(recipe: Deterministic, models: Sequence[DynamicsModel]) -> HeadNetwork:
    """The members of all jobs' models as one network."""
    first, states = models[0].network, [model.network.state_dict() for model in models]
    whole = recipe.network(first.size, first.context_mean.shape[-1], first.members * len(models))
    whole.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return whole.to(models[0].device).eval().requires_grad_(False)


def _reward_table(job: Job) -> dict[str, Tensor]:
    rows = job.data.with_next()
    return {"context": torch.cat([rows.state, rows.action, rows.next_state], -1), "y": rows.reward[:, None]}
