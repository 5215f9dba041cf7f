"""Discrete BCQ: Q-learning that never bootstraps on actions the log does not support (Fujimoto et al. 2019b).

    A(s) = {a : G(a | s) / max_â G(â | s) > threshold}                     the actions the behaviour model allows
    π(s) = argmax_{a ∈ A(s)} Q(s, a)
    y = r + γ·(1 − terminated)·Q_target(s', argmax_{a ∈ A(s')} Q(s', a))
    loss = Huber(Q(s, a) − y) − log G(a | s) + penalty·mean(logits²)

"Benchmarking Batch Deep Reinforcement Learning Algorithms", arXiv 1910.01708, section "Discrete BCQ"; the penalty on
the logits of G is in the authors' program. Unlike there, Q is dueling and its target follows softly, as in this
package's D3QN, so that the two differ in the constraint alone; and G has a network of its own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Saved, device_of
from counterpoint.core.errors import require
from counterpoint.core.settings import Share, Weight, check_settings
from counterpoint.data.jobs import Job, identity
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner, discrete_actions
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    Selector,
    double_q_objective,
    q_policies,
    selected_checkpoints,
    table,
)
from counterpoint.nets.stacked import StackedMLP, initialise
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.q import DuelingQ, QPolicy, saved_q_policy
from counterpoint.tasks.base import Task


class ConstrainedQ(DuelingQ):
    """K Q-networks and K behaviour models G; a call gives Q where G allows the action and −∞ elsewhere."""

    def __init__(self, members: int, state: int, hidden: Sequence[int], actions: int, threshold: float) -> None:
        super().__init__(members, state, hidden, actions)
        self.behaviour = StackedMLP(members, state, hidden, actions, nn.ReLU)
        self.threshold = threshold

    def forward(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        return self.values(state).masked_fill(~allowed(self.logits(state), self.threshold), -math.inf)

    def logits(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """G(a | s) before its softmax."""
        return self.behaviour(self.states(state))

    def separate(self) -> list[Iterable[nn.Parameter]]:
        return [self.net.parameters(), self.behaviour.parameters()]

    def share(self, online: DuelingQ) -> None:
        """G has no averaged copy, because nothing is bootstrapped on it."""
        assert isinstance(online, ConstrainedQ)
        self.behaviour = online.behaviour


def allowed(logits: Float[Tensor, "*n actions"], threshold: float) -> Bool[Tensor, "*n actions"]:
    """G(a | s) / max_â G(â | s) > threshold: the softmax's denominator cancels."""
    return (logits - logits.amax(-1, keepdim=True)).exp() > threshold


@dataclass(frozen=True)
class BCQ(PolicyLearner[QPolicy]):
    """Batch-constrained Q-learning on the real rows, for discrete action spaces."""

    command: ClassVar = ("bcq", "batch-constrained Q-learning")
    threshold: Share = 0.3
    """Smallest probability of an allowed action, relative to the likeliest one; 0 allows all: double DQN."""
    logit_penalty: Weight = 0.01
    """Weight of the mean squared logit of the behaviour model."""
    learner: D3QN = D3QN()
    """Width of both networks, length and rates of the Q-learning under the constraint."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.threshold < 1, f"threshold {self.threshold} allows no action; set it from 0 to below 1")

    def fit_many(
        self,
        jobs: Sequence[Job],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        selector: Selector | None = None,
    ) -> list[PolicyCheckpoints[QPolicy]]:
        """Learn every job; BCQ has no model of its own, so `selector` is optional and comes from outside."""
        actions = discrete_actions(task, jobs)
        seeds = [job.seed for job in jobs]
        tables = [table(job[~job.data.imagined]) for job in jobs]
        network = self.build(tables[0]["state"].shape[1], actions.count, len(jobs)).to(device_of(device))
        initialise(network, seeds)
        objective = replace(double_q_objective(task, jobs[0]), penalty=BehaviourCloningLoss(self.logit_penalty))
        learner = QLearner(network, self.build, tables, self.learner, objective, selector)
        run = identity(self, jobs, task, selector and selector.recipe)
        trained = train(learner, self.learner.schedule, seeds, run, monitor)
        checkpoints = selected_checkpoints(trained, self.learner.schedule, selector)
        return q_policies(self, trained, jobs, actions, checkpoints)

    def build(self, state: int, actions: int, members: int) -> ConstrainedQ:
        """An untrained network of the right shape."""
        return ConstrainedQ(members, state, self.learner.hidden, actions, self.threshold)

    def rebuild(self, saved: Saved) -> QPolicy:
        """The policy back from its artifact."""
        return saved_q_policy(self, saved)


@dataclass(frozen=True)
class BehaviourCloningLoss:
    """Cross entropy of the behaviour model and the penalty on its squared logits."""

    logit_penalty: float

    def __call__(
        self, network: DuelingQ, state: Float[Tensor, "k n s"], action: Int[Tensor, "k n"]
    ) -> Float[Tensor, " k"]:
        assert isinstance(network, ConstrainedQ)
        logits = network.logits(state)
        taken = logits.log_softmax(-1).gather(2, action[..., None])[..., 0]
        return self.logit_penalty * logits.square().mean((1, 2)) - taken.mean(1)
