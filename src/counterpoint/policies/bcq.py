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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.errors import CounterpointError
from counterpoint.nets.dueling import DuelingQ
from counterpoint.nets.optimizers import clip_members
from counterpoint.nets.stacked import StackedMLP, initialise, members_of
from counterpoint.nets.training import Monitor, train
from counterpoint.policies.base import Learned, PolicyLearner, both_ends, discrete
from counterpoint.policies.d3qn import D3QN, Judge, QLearner, judged_by, table
from counterpoint.policies.qnetwork import QPolicy
from counterpoint.tasks.base import Task


class ConstrainedQ(DuelingQ):
    """K Q-networks beside K behaviour models G; called, they give Q where G allows the action and −∞ elsewhere."""

    def __init__(self, members: int, state: int, hidden: Sequence[int], actions: int, threshold: float) -> None:
        super().__init__(members, state, hidden, actions)
        self.behaviour = StackedMLP(members, state, hidden, actions, nn.ReLU)
        self.threshold = threshold

    def forward(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        return self.values(state).masked_fill(~allowed(self.logits(state), self.threshold), -math.inf)

    def values(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """Q(s, a) of every action, allowed or not."""
        return super().forward(state)

    def logits(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """G(a | s) before its softmax."""
        return self.behaviour((state - self.state_mean) / self.state_scale)


def allowed(logits: Float[Tensor, "*n actions"], threshold: float) -> Bool[Tensor, "*n actions"]:
    """G(a | s) / max_â G(â | s) > threshold: the softmax's denominator cancels."""
    return (logits - logits.amax(-1, keepdim=True)).exp() > threshold


@dataclass(frozen=True)
class BCQ(PolicyLearner):
    """Batch-constrained Q-learning on the real rows. Assumes a discrete action space."""

    threshold: float = 0.3
    """Smallest probability of an allowed action, relative to the likeliest one; 0 allows all: double DQN."""
    logit_penalty: float = 0.01
    """Weight of the mean squared logit of the behaviour model."""
    learner: D3QN = D3QN()
    """Width of both networks, length and rates of the Q-learning under the constraint."""

    def fit_many(
        self,
        jobs: Sequence[Job],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        judge: Judge | None = None,
    ) -> list[Learned]:
        """Learn every job. BCQ has no model to choose a checkpoint in, so a `judge` must come from outside."""
        actions, schedule, seeds = discrete(task), self.learner.schedule, [job.seed for job in jobs]
        if not 0 <= self.threshold < 1:
            raise CounterpointError(f"threshold {self.threshold} allows no action; set it at 0 or above and below 1")
        if schedule.check_every and judge is None:
            raise CounterpointError("the schedule checks but there is no judge; set schedule.check_every=0")
        network = self.network(jobs[0].data.state_size, actions.count, len(jobs)).to(device_of(device))
        initialise(network, seeds)
        tables = [table(job.data.real) for job in jobs]
        learner = BCQLearner(network, self, tables, task.discount, actions, judge)
        trained = train(learner, schedule, seeds, self._identity(jobs, task, judge), monitor)
        return both_ends(trained, len(jobs), lambda weights, i: self._policy(weights, i, jobs, actions))

    def network(self, state: int, actions: int, members: int) -> ConstrainedQ:
        """An untrained network of the right shape."""
        return ConstrainedQ(members, state, self.learner.hidden, actions, self.threshold)

    def rebuild(self, header: dict[str, Any], weights: dict[str, Tensor], actions: Discrete, origin: Origin) -> QPolicy:
        """The policy back from its artifact."""
        names = tuple(header["state_names"])
        network = self.network(len(names), actions.count, 1)
        network.load_state_dict(weights)
        return QPolicy(self, network, actions, names, origin)

    def _identity(self, jobs: Sequence[Job], task: Task, judge: Judge | None) -> str:
        return recipe_hash(self, judged_by(judge), task.discount, [(job.data.fingerprint, job.seed) for job in jobs])

    def _policy(self, state: dict[str, Tensor], index: int, jobs: Sequence[Job], actions: Discrete) -> QPolicy:
        data = jobs[index].data
        network = self.network(data.state_size, actions.count, 1)
        network.load_state_dict(members_of(state, len(jobs), index, 1))
        network.to(next(iter(state.values())).device)
        return QPolicy(self, network, actions, data.state_names, Origin(jobs[index].seed, data.fingerprint))


class BCQLearner(QLearner):
    """K Q-networks and behaviour models in training; as in D3QN the averaged Q acts, but under G as it is."""

    online: ConstrainedQ
    target: ConstrainedQ

    def __init__(
        self,
        online: ConstrainedQ,
        recipe: BCQ,
        tables: Sequence[dict[str, Tensor]],
        discount: float,
        actions: Discrete,
        judge: Judge | None,
    ) -> None:
        super().__init__(online, recipe.network, tables, recipe.learner, discount, actions, judge)
        self.logit_penalty = recipe.logit_penalty
        # Nothing is bootstrapped on G, so it has no slow copy.
        self.target.behaviour = self.online.behaviour
        self.pairs = tuple([p.detach() for p in net.net.parameters()] for net in (self.target, self.online))

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = draw["rows"]
        wide = rows[..., None].expand(-1, -1, self.state.shape[-1])
        state, action = self.state.gather(1, wide), self.action.gather(1, rows)
        next_state, goes_on = self.next_state.gather(1, wide), self.goes_on.gather(1, rows)
        target = self.bootstrap(self.reward.gather(1, rows), next_state, goes_on)
        value = value_loss(self.online.values(state), action, target)
        imitation = imitation_loss(self.online.logits(state), action, self.logit_penalty)
        self.optimizer.zero_grad(set_to_none=True)
        (value + imitation).sum().backward()
        # Two networks that share no weight: a limit on the one must not slow the other.
        clip_members(self.online.net.parameters(), self.how.clip)
        clip_members(self.online.behaviour.parameters(), self.how.clip)
        self.optimizer.step()
        torch._foreach_lerp_(*self.pairs, self.how.tau)  # pyright: ignore
        return {"loss": value.detach(), "imitation": imitation.detach()}

    @torch.no_grad()
    def bootstrap(
        self, reward: Float[Tensor, "k n"], next_state: Float[Tensor, "k n s"], goes_on: Float[Tensor, "k n"]
    ) -> Float[Tensor, "k n"]:
        """The double-Q target under the constraint: online Q and G pick, the target network says what it is worth."""
        best = self.online(next_state).argmax(-1, keepdim=True)
        worth = self.target.values(next_state).gather(2, best)[..., 0]
        return reward + self.discount * goes_on * worth


def value_loss(
    values: Float[Tensor, "k n actions"], action: Int[Tensor, "k n"], target: Float[Tensor, "k n"]
) -> Float[Tensor, " k"]:
    """Huber loss of the taken actions' values, with κ = 1."""
    taken = values.gather(2, action[..., None])[..., 0]
    return nn.functional.smooth_l1_loss(taken, target, reduction="none").mean(1)


def imitation_loss(
    logits: Float[Tensor, "k n actions"], action: Int[Tensor, "k n"], penalty: float
) -> Float[Tensor, " k"]:
    """Cross entropy of the behaviour model, and the penalty that keeps its logits small."""
    taken = logits.log_softmax(-1).gather(2, action[..., None])[..., 0]
    return penalty * logits.square().mean((1, 2)) - taken.mean(1)
