"""D3QN, the dueling double deep Q-network, on logged and imagined rows (paper, section 4).

y = r + γ·(1 − terminated)·Q_target(s', argmax_a Q(s', a)),  loss = Huber(Q(s, a) − y),  target ← (1 − τ)·target + τ·Q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.core.artifacts import Saved, device_of
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Amount, Fraction, Positive, Rate, Share, Widths, check_settings
from counterpoint.data.far_values import near
from counterpoint.data.jobs import Categories, Job, Origin, context, identity, pad, spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner, action_numbers, discrete_actions
from counterpoint.learners.rollout_rows import NAMES, RolloutReplay
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import initialise, unstack
from counterpoint.nets.training import Monitor, Schedule, Trained, train
from counterpoint.policies.base import SelectedCheckpoint
from counterpoint.policies.q import DuelingQ, QPolicy, QRecipe, greedy, q_network, saved_q_policy
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks.base import Task


class Selector(Protocol):
    """Scores the checkpoints of K policies without the environment; lower is better."""

    @property
    def recipe(self) -> object:
        """The settings of the selector: part of the identity of a training run."""
        ...

    @property
    def horizon(self) -> int:
        """Steps of an episode by which a checkpoint is scored."""
        ...

    def __call__(self, actor: Actor) -> Float[Tensor, " k"]: ...


@dataclass(frozen=True)
class D3QN(PolicyLearner[QPolicy]):
    """A dueling double DQN for discrete action spaces."""

    hidden: Widths = (256, 256)
    """Widths of the Q-network; the paper's is (512, 512, 512, 512)."""
    schedule: Schedule = Schedule(steps=3000, rate="linear", log_every=250)
    """Length, validation and learning-rate schedule."""
    batch: Positive = 256
    """Rows a minibatch."""
    learning_rate: Rate = 5e-4
    """Learning rate of Adam."""
    tau: Fraction = 0.005
    """Share of the online weights that the target network takes over at every update."""
    real_share: Share = 0.5
    """Share of real rows in every minibatch, where the table has imagined rows."""
    clip: Amount = 10.0
    """Largest norm of a member's gradient."""
    huber: Amount = 1.0
    """Errors beyond this count linearly, so that rare large rewards count for less; use about 10 for a death of −10."""
    networks: Positive = 1
    """Networks of one policy, each with its own initial weights and minibatches; the policy acts by their mean."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(
        self,
        jobs: Sequence[Job],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        selector: Selector | None = None,
        replay: RolloutReplay | None = None,
    ) -> list[PolicyCheckpoints[QPolicy]]:
        """Learn every job. `selector` scores checkpoints where the schedule checks, `replay` adds rows of rollouts."""
        actions = discrete_actions(task, jobs)
        seeds = voter_seeds(jobs, self.networks)
        tables = [rows for job in jobs for rows in [table(job)] * self.networks]
        objective = replace(double_q_objective(task, jobs[0]), votes=self.networks)
        network = self.build(tables[0]["state"].shape[1], actions.count, len(tables)).to(device_of(device))
        initialise(network, seeds)
        learner = QLearner(network, self.build, tables, self, objective, selector, replay)
        run = identity(self, jobs, task, selector and selector.recipe, replay and replay.recipe)
        trained = train(learner, self.schedule, seeds, run, monitor)
        return q_policies(self, trained, jobs, actions, selected_checkpoints(trained, self.schedule, selector))

    def build(self, state: int, actions: int, members: int) -> DuelingQ:
        """An untrained network of the right shape."""
        return DuelingQ(members, state, self.hidden, actions)

    def rebuild(self, saved: Saved) -> QPolicy:
        """The policy back from its artifact."""
        return saved_q_policy(self, saved)


def voter_seeds(jobs: Sequence[Job], networks: int) -> list[int]:
    """A seed for every network of every job; the first network is the one that would be trained alone."""
    return [seed for job in jobs for seed in (job.seed, *(derive(job.seed, "q", i) for i in range(1, networks)))]


def selected_checkpoints(trained: Trained, schedule: Schedule, selector: Selector | None) -> list[SelectedCheckpoint]:
    """The checkpoint that `selector` chose for every network; empty without a selector."""
    if selector is None or not schedule.check_every:
        return []
    returns = zip(trained.best_step, -trained.best_score, strict=True)
    return [
        SelectedCheckpoint(int(step), schedule.steps, float(score), float(score), selector.horizon)
        for step, score in returns
    ]


def q_policies(
    recipe: QRecipe,
    trained: Trained,
    jobs: Sequence[Job],
    actions: Discrete,
    checkpoints: Sequence[SelectedCheckpoint] = (),
) -> list[PolicyCheckpoints[QPolicy]]:
    """The policies of a trained stack, job by job; one policy for both ends where no checkpoint was selected.

    `checkpoints` are the selected ones, one a network; the networks of a job share theirs.
    """

    def policies(weights: dict[str, Tensor]) -> list[QPolicy]:
        return [
            QPolicy(recipe, q_network(recipe, part, actions), job.data.schema, Origin.of(job))
            for part, job in zip(unstack(weights, len(jobs)), jobs, strict=True)
        ]

    last = policies(trained.last)
    selected = last if trained.selected is trained.last else policies(trained.selected)
    for policy, checkpoint in zip(selected, checkpoints[:: max(len(checkpoints) // len(jobs), 1)], strict=False):
        policy.checkpoint = checkpoint
    return [PolicyCheckpoints(*ends) for ends in zip(selected, last, strict=True)]


class QTarget(Protocol):
    """The regression target of Q-learning; it may look further ahead than one step."""

    def __call__(
        self,
        networks: "QLearner",
        reward: Float[Tensor, "k n"],
        next_state: Float[Tensor, "k n s"],
        not_terminated: Float[Tensor, "k n"],
    ) -> Float[Tensor, "k n"]: ...


class Penalty(Protocol):
    """A loss of the network beside the temporal-difference error."""

    def __call__(
        self, network: DuelingQ, state: Float[Tensor, "k n s"], action: Int[Tensor, "k n"]
    ) -> Float[Tensor, " k"]: ...


@dataclass(frozen=True)
class DoubleQTarget:
    """The double-Q target: the online network picks the action, the target network gives its value."""

    discount: float

    @torch.no_grad()
    def __call__(
        self, networks: "QLearner", reward: Tensor, next_state: Tensor, not_terminated: Tensor
    ) -> Float[Tensor, "k n"]:
        best = networks.online(next_state).argmax(-1, keepdim=True)
        value = networks.target.values(next_state).gather(2, best)[..., 0]
        return reward + self.discount * not_terminated * value


@dataclass(frozen=True)
class QObjective:
    """What Q-networks are trained for: actions, target, an extra penalty and the number of voting networks."""

    actions: Discrete
    target: QTarget
    penalty: Penalty | None = None
    votes: int = 1
    categories: Categories = ()
    allow_tf32: bool = False


def double_q_objective(task: Task, job: Job) -> QObjective:
    """The objective of double Q-learning for the states of a job."""
    return QObjective(discrete_actions(task), DoubleQTarget(task.discount), categories=job.data.schema.categories)


class QLearner(StackTraining):
    """The training of K Q-networks, each on its own table."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor
    not_terminated: Tensor

    unscored = (
        "no policy has a finite return inside the fitted model, so no checkpoint can be kept; check the model"
        " (counterpoint check-scm), fit another one or declare the bounds of the state (fit --bounds)"
    )

    def __init__(
        self,
        online: DuelingQ,
        build: Callable[[int, int, int], DuelingQ],
        tables: Sequence[dict[str, Tensor]],
        recipe: D3QN,
        objective: QObjective,
        selector: Selector | None,
        replay: RolloutReplay | None = None,
    ) -> None:
        super().__init__()
        if recipe.schedule.check_every and selector is None:
            raise CounterpointError("the schedule checks but nothing selects; set schedule.check_every=0 or use CTRLg")
        self.online, self.recipe, self.objective, self.selector = online, recipe, objective, selector
        self.replay = replay
        self.prepare_every = replay.recipe.every if replay is not None else 0
        self.from_rollouts = round(recipe.batch * replay.recipe.share) if replay is not None else 0
        self.allow_tf32 = objective.allow_tf32
        device = next(online.parameters()).device
        padded = pad([{name: column for name, column in t.items() if name != "imagined"} for t in tables])
        self.real = [int((~t["imagined"]).sum()) for t in tables]
        self.imagined = [int(t["imagined"].sum()) for t in tables]
        for name, column in padded.columns.items():
            self.register_buffer(name, column.to(device), persistent=False)
        _standardise(online, [t["state"][:real] for t, real in zip(tables, self.real, strict=True)])
        self.target = build(self.state.shape[-1], objective.actions.count, len(tables)).to(device)
        self.target.load_state_dict(online.state_dict())
        self.target.share(online)
        self.averaged, self.current = ([p.detach() for p in net.net.parameters()] for net in (self.target, online))
        self.optimizer = adam(online.parameters(), recipe.learning_rate)
        self.actor = greedy(self.target, objective.actions, objective.votes, objective.categories)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Row numbers with the fixed share of real rows; a table keeps its real rows first."""
        real, imagined = self.real[member], self.imagined[member]
        logged = self.recipe.batch - self.from_rollouts
        from_real = round(logged * self.recipe.real_share) if imagined else logged
        rows = [torch.randint(real, (steps, from_real), generator=random)]
        if imagined:
            rows.append(real + torch.randint(imagined, (steps, logged - from_real), generator=random))
        draws = {"rows": torch.cat(rows, 1)}
        if self.from_rollouts:
            draws["rollouts"] = torch.rand(steps, self.from_rollouts, generator=random)
        return draws

    def prepare(self, update: int) -> None:
        assert self.replay is not None
        self.replay.refresh(self.actor, update)

    def _batch(self, draw: dict[str, Tensor]) -> list[Tensor]:
        """State, action, reward, next state and not-terminated flag of every network's minibatch."""
        rows = draw["rows"]
        wide = rows[..., None].expand(-1, -1, self.state.shape[-1])
        columns = {"state": self.state.gather(1, wide), "next_state": self.next_state.gather(1, wide)}
        columns |= {name: getattr(self, name).gather(1, rows) for name in ("action", "reward", "not_terminated")}
        batch = [columns[name] for name in NAMES]
        if self.replay is None or not self.from_rollouts:
            return batch
        rollouts = self.replay.sample(draw["rollouts"], self.objective.votes)
        return [torch.cat(parts, 1) for parts in zip(batch, rollouts, strict=True)]

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        state, action, reward, next_state, not_terminated = self._batch(draw)
        target = self.objective.target(self, reward, next_state, not_terminated)
        values = self.online.values(state).gather(2, action[..., None])[..., 0]
        loss = nn.functional.smooth_l1_loss(values, target, reduction="none", beta=self.recipe.huber).mean(1)
        losses = {"loss": loss, "value": values.mean(1)}
        if self.objective.penalty is not None:
            losses["penalty"] = self.objective.penalty(self.online, state, action)
        self._descend(loss + losses["penalty"] if "penalty" in losses else loss)
        return {name: value.detach() for name, value in losses.items()}

    def _descend(self, loss: Float[Tensor, " k"]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        for part in self.online.separate():
            clip_members(part, self.recipe.clip)
        self.optimizer.step()
        torch._foreach_lerp_(self.averaged, self.current, self.recipe.tau)  # pyright: ignore[reportPrivateImportUsage]

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        """The target network: its averaged weights vary less than the online ones."""
        return self.target

    def score(self) -> Float[Tensor, " k"]:
        """The voting policy's score, for each of its voters."""
        assert self.selector is not None
        return self.selector(self.actor).repeat_interleave(self.objective.votes)


def table(job: Job) -> dict[str, Tensor]:
    """The columns of value learning, real rows first.

    A terminated row without a next state has its own state there: the value is multiplied by zero.
    """
    data = job.data
    require(not bool(data.imagined.all()), "the table has no real row to learn from; add the rows the others came from")
    unusable = (~data.has_next & ~data.terminated).nonzero()
    if len(unusable):
        raise CounterpointError(
            f"row {int(unusable[0])} neither ends nor has a next state; drop it or mark it terminated"
        )
    job = _real_first(job)
    data, coded = job.data, job.data.schema.categories
    ended = not bool(data.has_next.all())
    following = torch.where(data.has_next[:, None], data.next_state, data.state) if ended else data.next_state
    return {
        "state": context(spread_levels(data.state, coded), theta=job.theta),
        "action": action_numbers(data),
        "reward": data.reward,
        "next_state": context(spread_levels(following, coded), theta=job.theta),
        "not_terminated": (~data.terminated).float(),
        "imagined": data.imagined,
    }


def _real_first(job: Job) -> Job:
    """The job with its real rows first; not copied where they are."""
    imagined = job.data.imagined
    if not bool((imagined[:-1] & ~imagined[1:]).any()):
        return job
    return job[torch.argsort(imagined.long(), stable=True)]


def _standardise(network: DuelingQ, states: Sequence[Float[Tensor, "_ s"]]) -> None:
    """Each member sees states in units of its own table's standard deviations."""
    states = [near(state) for state in states]
    scales = [state.std(0) for state in states]
    scale = torch.stack([torch.where(deviation > 1e-8, deviation, 1.0) for deviation in scales])
    network.states.take(torch.stack([state.mean(0) for state in states])[:, None], scale[:, None])
