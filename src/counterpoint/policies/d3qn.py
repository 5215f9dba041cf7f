"""D3QN, the dueling double deep Q-network, on logged and imagined rows (paper, section 4).

y = r + γ·(1 − terminated)·Q_target(s', argmax_a Q(s', a)),  loss = Huber(Q(s, a) − y),  target ← (1 − τ)·target + τ·Q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin, pad
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError
from counterpoint.nets.dueling import DuelingQ
from counterpoint.nets.learner import Learner
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import initialise, members_of
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.policies.base import Actor, Learned, PolicyLearner, action_numbers, both_ends, discrete
from counterpoint.policies.qnetwork import QPolicy, greedy
from counterpoint.tasks.base import Task

Judge = Callable[[Actor], Float[Tensor, " k"]]
"""Scores K policies without the environment, lower is better; its recipe, where it has one, is its `how`."""


def judged_by(judge: Judge | None) -> Any:
    """The judge's recipe: checkpoints chosen by another do not belong to the same run."""
    return getattr(judge, "how", None)


@dataclass(frozen=True)
class D3QN(PolicyLearner):
    """A dueling double DQN. Assumes a discrete action space."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the Q-network; the paper's is (512, 512, 512, 512)."""
    schedule: Schedule = Schedule(steps=3000, rate="linear", log_every=250)
    """Length, validation and learning-rate schedule."""
    batch: int = 256
    """Rows a minibatch."""
    learning_rate: float = 5e-4
    """Learning rate of Adam."""
    tau: float = 0.005
    """How far the target network follows at every update."""
    real_share: float = 0.5
    """Share of real rows in every minibatch, where the table has imagined rows."""
    clip: float = 10.0
    """Largest norm of a member's gradient."""

    def fit_many(
        self,
        jobs: Sequence[Job],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        judge: Judge | None = None,
    ) -> list[Learned]:
        """Learn every job; `judge` chooses the checkpoint wherever the schedule checks."""
        actions = discrete(task)
        if self.schedule.check_every and judge is None:
            raise CounterpointError(
                "the schedule checks but there is no judge; set schedule.check_every=0 or use General"
            )
        network = self.network(jobs[0].data.state_size, actions.count, len(jobs)).to(device_of(device))
        seeds = [job.seed for job in jobs]
        initialise(network, seeds)
        learner = QLearner(
            network, self.network, [table(job.data) for job in jobs], self, task.discount, actions, judge
        )
        trained = train(learner, self.schedule, seeds, self._identity(jobs, task, judge), monitor)
        return both_ends(trained, len(jobs), lambda weights, i: self._policy(weights, i, jobs, actions))

    def network(self, state: int, actions: int, members: int) -> DuelingQ:
        """An untrained network of the right shape."""
        return DuelingQ(members, state, self.hidden, actions)

    def _identity(self, jobs: Sequence[Job], task: Task, judge: Judge | None) -> str:
        return recipe_hash(self, judged_by(judge), task.discount, [(job.data.fingerprint, job.seed) for job in jobs])

    def _policy(self, state: dict[str, Tensor], index: int, jobs: Sequence[Job], actions: Discrete) -> QPolicy:
        data = jobs[index].data
        network = self.network(data.state_size, actions.count, 1)
        network.load_state_dict(members_of(state, len(jobs), index, 1))
        network.to(next(iter(state.values())).device)
        return QPolicy(self, network, actions, data.state_names, Origin.of(jobs[index]))

    def rebuild(self, header: dict[str, Any], weights: dict[str, Tensor], actions: Discrete, origin: Origin) -> QPolicy:
        """The policy back from its artifact."""
        names = tuple(header["state_names"])
        network = self.network(len(names), actions.count, weights["state_mean"].shape[0])
        network.load_state_dict(weights)
        return QPolicy(self, network, actions, names, origin)


class QLearner(Learner):
    """K Q-networks in training, each on its own table."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor
    goes_on: Tensor

    def __init__(
        self,
        online: DuelingQ,
        make: Callable[[int, int, int], DuelingQ],
        tables: Sequence[dict[str, Tensor]],
        how: D3QN,
        discount: float,
        actions: Discrete,
        judge: Judge | None,
    ) -> None:
        super().__init__()
        self.online, self.how, self.discount, self.actions, self.judge = online, how, discount, actions, judge
        device = next(online.parameters()).device
        padded = pad([{name: column for name, column in t.items() if name != "imagined"} for t in tables])
        self.real = [int((~t["imagined"]).sum()) for t in tables]
        self.imagined = [int(t["imagined"].sum()) for t in tables]
        for name, column in padded.columns.items():
            self.register_buffer(name, column.to(device), persistent=False)
        _standardise(online, [t["state"][~t["imagined"]] for t in tables])
        self.target = make(self.state.shape[-1], actions.count, len(tables)).to(device)
        self.target.load_state_dict(online.state_dict())
        self.averaged = [parameter.detach() for parameter in self.target.parameters()]
        self.current = [parameter.detach() for parameter in self.online.parameters()]
        self.optimizer = adam(online.parameters(), how.learning_rate)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Row numbers with the fixed share of real rows; a table keeps its real rows first."""
        real, imagined = self.real[member], self.imagined[member]
        from_real = round(self.how.batch * self.how.real_share) if imagined else self.how.batch
        rows = [torch.randint(real, (steps, from_real), generator=random)]
        if imagined:
            rows.append(real + torch.randint(imagined, (steps, self.how.batch - from_real), generator=random))
        return {"rows": torch.cat(rows, 1)}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = draw["rows"]
        wide = rows[..., None].expand(-1, -1, self.state.shape[-1])
        next_state = self.next_state.gather(1, wide)
        target = self.bootstrap(self.reward.gather(1, rows), next_state, self.goes_on.gather(1, rows))
        values = self.online(self.state.gather(1, wide)).gather(2, self.action.gather(1, rows)[..., None])[..., 0]
        loss = nn.functional.smooth_l1_loss(values, target, reduction="none").mean(1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        clip_members(self.online.parameters(), self.how.clip)
        self.optimizer.step()
        torch._foreach_lerp_(self.averaged, self.current, self.how.tau)  # pyright: ignore[reportPrivateImportUsage]
        return {"loss": loss.detach(), "value": values.detach().mean(1)}

    @torch.no_grad()
    def bootstrap(
        self, reward: Float[Tensor, "k n"], next_state: Float[Tensor, "k n s"], goes_on: Float[Tensor, "k n"]
    ) -> Float[Tensor, "k n"]:
        """The double-Q target: the online network picks the action, the target network says what it is worth."""
        best = self.online(next_state).argmax(-1, keepdim=True)
        worth = self.target(next_state).gather(2, best)[..., 0]
        return reward + self.discount * goes_on * worth

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        """The averaged network acts: it is steadier than the online one."""
        return self.target

    def score(self) -> Float[Tensor, " k"]:
        assert self.judge is not None
        return self.judge(greedy(self.target, self.actions))


def table(data: Transitions) -> dict[str, Tensor]:
    """The columns of value learning, real rows first. A row that ends without a next state keeps its own state there:
    its value is multiplied by zero, so no next state is invented."""
    actions = action_numbers(data)
    unusable = (~data.has_next & ~data.terminated).nonzero()
    if len(unusable):
        raise CounterpointError(
            f"row {int(unusable[0])} neither ends nor has a next state; drop it or mark it terminated"
        )
    order = torch.argsort(data.imagined.long(), stable=True)
    data = data[order]
    return {
        "state": data.state,
        "action": actions[order],
        "reward": data.reward,
        "next_state": torch.where(data.has_next[:, None], data.next_state, data.state),
        "goes_on": (~data.terminated).float(),
        "imagined": data.imagined,
    }


def _standardise(network: DuelingQ, states: Sequence[Float[Tensor, "_ s"]]) -> None:
    """Each member sees states in units of its own table's standard deviations."""
    for k, state in enumerate(states):
        scale = state.std(0)
        network.state_mean[k] = state.mean(0)
        network.state_scale[k] = torch.where(scale > 1e-8, scale, 1.0)
