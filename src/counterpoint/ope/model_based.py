"""What episodes would have earned in every member of a model, and how sure their mean is.

What a policy is worth by a model: simulated from the log's first states, or replayed with subjects' own noise.

Both count as many steps as the longest logged episode has, as estimators from the log alone do, and both are right as
far as the model is: their intervals speak of whom it met and of where members differ, not of what all members miss.


What would have happened to these very subjects under another policy: episodes replayed with their own noise.

    u_t abducted from (s_t, a_t, s_{t+1}) of the record,    s'_{t+1} = f(s'_t, π(s'_t), θ, u_t),    s'_0 = s_0

Buesing et al. 2019 (CF-PE): the mean over subjects estimates what the policy is worth. A record has noise for as many
steps as it has rows, so returns are compared over those steps alone: who died in the record and would have lived under
the policy is credited to the end of the record and not beyond, unless a `horizon` is given to which all go on.


What a fitted model says of a policy, beside what the log does."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import Similar
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive, Share, checked
from counterpoint.core.statistics import Bootstrap, Interval
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.training import Monitor
from counterpoint.ope.problem import Episodes, Stochastic, resampled
from counterpoint.ope.result import Estimate
from counterpoint.policies.base import Policy, Verdict
from counterpoint.simulation.models import ModelSimulator, abducted
from counterpoint.simulation.rollout import Noise, Rollout, RolloutStep, TaskSimulator, on_device
from counterpoint.tasks.base import KnownSCM, Task, check_task


@dataclass(frozen=True, eq=False)
class MemberReturns:
    """Returns of episodes, the same ones in every member."""

    returns: Float[Tensor, "e m"]
    subject: Int[Tensor, " e"]
    """Whose episode it is: 0, 1, … without gaps."""

    @property
    def value(self) -> float:
        """The mean over episodes and members."""
        return float(self.returns.double().mean())

    @property
    def subjects(self) -> int:
        return int(self.subject.max()) + 1

    def resampled(self, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, "b m"]:
        """The mean over episodes in every member, where subject k stands `counts[:, k]` times in the log."""
        both = torch.cat([self.returns, torch.ones_like(self.returns[:, :1])], 1).double()
        sums = both.new_zeros(self.subjects, both.shape[1]).index_add_(0, self.subject, both)
        found = counts.double() @ sums
        return found[:, :-1] / found[:, -1:]

    @checked
    def interval(self, confidence: Share = 0.95, draws: Positive = 1000, seed: int = 0) -> Interval:
        """Where the value lies: subjects drawn again, and with them one member, since nobody knows which is right."""
        means = self.resampled(resampled(self.subjects, draws, derive(seed, "subjects")))
        member = torch.randint(means.shape[1], (draws, 1), generator=generator(seed, "members"))
        return Bootstrap(draws, confidence, seed).around(self.value, means.gather(1, member)[:, 0].numpy())


AT_ONCE = 2**16
"""Episodes simulated side by side."""


@torch.no_grad()
@checked
def value_in_model(
    episodes: Episodes,
    policy: Policy,
    model: Model,
    task: Task,
    discount: Share = 1.0,
    rollouts: Positive = 4,
    seed: int = 0,
) -> MemberReturns:
    """The mean return of `rollouts` simulated episodes from every episode's first state, in every member.

    Subjects have the factors that the model infers from their records. A policy that wants factors is told them; a
    personal one begins with subjects whom it does not know, and learns about them from step to step.
    """
    agree(policy.schema, model.schema, "policy", "model")
    agree(model.schema, episodes.rows.schema, "model", "table")
    check_task(task, policy.schema, "policy")
    require(
        policy.factor_width in (0, model.theta_width),
        f"the policy wants factors of {policy.factor_width} columns and the model finds {model.theta_width}; use the"
        " model it was learned with",
    )
    first = episodes.places[:, 0]
    state, factors = episodes.rows.state[first], model.subjects(episodes.rows)[first]
    each = max(AT_ONCE // (model.mechanism.members * rollouts), 1)
    how, horizon = (discount, rollouts), episodes.places.shape[1]
    parts = [
        _returns(*some, policy, model, task, (horizon, *how, derive(seed, "rollouts", place)))
        for place, some in enumerate(zip(state.split(each), factors.split(each), strict=True))
    ]
    returns = torch.cat(parts)
    require(bool(returns.isfinite().all()), "the model leads to returns that are not finite; check it (check-scm)")
    return MemberReturns(returns, episodes.subject)


def _returns(
    state: Float[Tensor, "e s"],
    factors: Float[Tensor, "e t"],
    policy: Policy,
    model: Model,
    task: Task,
    how: tuple[int, float, int, int],
) -> Float[Tensor, "e m"]:
    """Returns in every member, the mean over rollouts; a member's episodes are neighbours."""
    horizon, discount, rollouts, seed = how
    simulator, shape = ModelSimulator([model]), (model.mechanism.members, len(state), rollouts)
    start, told = (x[None, :, None].expand(*shape, -1).flatten(0, 2)[None].to(model.device) for x in (state, factors))
    own = on_device(policy, model.device)
    rollout = Rollout(simulator, on_device(task, model.device), type(own).together([own]))
    total = rollout.returns(start, simulator.fresh(start.shape[1], seed), horizon, told, discount=discount)
    return total.view(shape).mean(-1).T.cpu()


@checked
def counterfactual_value(
    episodes: Episodes,
    policy: Policy,
    model: Model | KnownSCM,
    task: Task,
    discount: Share = 1.0,
    seed: int = 0,
) -> MemberReturns:
    """CF-PE (Buesing et al. 2019): every subject's record replayed with its own noise, and on behind its end.

    Noise that no record shows, behind an end or in a step without a next state, is drawn anew: without it, who died
    early would be judged by a few steps, and the policy that saves them would not be credited.
    """
    found = replay(episodes.rows, policy, model, task, discount=discount, horizon=episodes.places.shape[1], seed=seed)
    return found.members


@dataclass(frozen=True)
class Replay:
    """Episodes as they would have gone, in every member of a model (one, where the truth is known)."""

    state: Float[Tensor, "e t m s"]
    action: Float[Tensor, "e t m a"]
    reward: Float[Tensor, "e t m"]
    alive: Float[Tensor, "e t m"]
    """Probability that the episode still goes on; 0 behind the end of the record."""
    next_state: Float[Tensor, "e t m s"]
    support: Float[Tensor, "e t m"]
    """Share of the similar logged states in which the imagined action was taken; NaN where no log was given."""
    factual: Float[Tensor, " e"]
    """The return of the record, over its own steps."""
    subject: Int[Tensor, " e"]
    """Whose episode it is: a place among the subjects that the table has rows of."""
    discount: float = 1.0

    @property
    def returns(self) -> Float[Tensor, "e m"]:
        """The return of every episode in every member."""
        discount = self.discount ** torch.arange(self.reward.shape[1])
        return (discount[:, None] * self.alive * self.reward).sum(1)

    @property
    def members(self) -> MemberReturns:
        """CF-PE: their mean is the value, with an interval over subjects and members."""
        return MemberReturns(self.returns, self.subject)


@torch.no_grad()
@checked
def replay(
    rows: Transitions,
    policy: Policy,
    model: Model | KnownSCM,
    task: Task,
    theta: Theta = NO_THETA,
    logged: Transitions | None = None,
    discount: Share = 1.0,
    horizon: Count = 0,
    seed: int = 0,
) -> Replay:
    """Every episode of `rows` under the policy, with the noise of its own record.

    In a fitted model the noise is abducted; a known SCM takes what its simulator recorded. With `logged` rows every
    imagined action is looked for in similar logged states. With a `horizon` all episodes have that many steps, and
    where the record shows no noise it is drawn from `seed`. A personal policy does not know whom it begins to treat.
    """
    check_task(task, policy.schema, "policy")
    agree(policy.schema, rows.schema, "policy", "table")
    job = Job(rows, theta=theta)
    job = job if horizon else job[rows.has_next]
    episodes = Episodes.of(job.data)
    factors = job.rows_theta if job.theta.shape[1] or not isinstance(model, Model) else model.subjects(job.data)
    simulator, noise = _worlds(model, job, factors)
    own = _laid_out(noise, episodes, horizon or episodes.places.shape[1], _prior(model), seed)
    first, device = episodes.places[:, 0], model.device if isinstance(model, Model) else job.data.state.device
    start, told = (x[first].repeat(len(noise), 1)[None].to(device) for x in (job.data.state, factors))
    acting = on_device(policy, device)
    rollout = Rollout(simulator, on_device(task, device), type(acting).together([acting]))
    steps = list(rollout(start, lambda t: _step(own[:, t].to(device)), own.shape[1], told))
    state, action, reward, alive, after = _tables(steps, own.shape, job.data.state.device)
    counted = alive if horizon else alive * episodes.present[..., None]
    support, factual = _support(state, action, logged), episodes.returns(discount)
    return Replay(state, action, reward, counted, after, support, factual, episodes.subject, discount)


def _worlds(
    model: Model | KnownSCM, job: Job, factors: Tensor
) -> tuple[TaskSimulator | ModelSimulator, Float[Tensor, "m n u"]]:
    """Where episodes are replayed, and every row's noise in each member; NaN where no next state tells it."""
    if isinstance(model, Model):
        known = abducted(model, Job(job.data, job.seed, factors))
        noise = known.new_full((len(known), len(job.data), known.shape[-1]), torch.nan)
        noise[:, job.data.has_next] = known
        return ModelSimulator([model]), noise
    require(job.data.noise.shape[1] > 0, "the rows carry no recorded noise; pass rows that the simulator logged")
    return TaskSimulator(model), job.data.noise[None]


def _prior(model: Model | KnownSCM) -> Callable[[int, torch.Generator], Float[Tensor, "n u"]]:
    return model.mechanism.prior if isinstance(model, Model) else model.noise


def _laid_out(
    noise: Float[Tensor, "m n u"],
    episodes: Episodes,
    steps: int,
    prior: Callable[[int, torch.Generator], Float[Tensor, "n u"]],
    seed: int,
) -> Float[Tensor, "m t e u"]:
    """The noise of every step of every episode; new where the record has none."""
    places = torch.nn.functional.pad(episodes.places, (0, max(steps - episodes.places.shape[1], 0)), value=-1)
    places = places[:, :steps].T
    found = noise.cpu()[:, places.clamp(min=0)]
    found[:, places < 0] = torch.nan
    unknown = found.isnan().any(-1)
    found[unknown] = prior(int(unknown.sum()), generator(seed, "behind the record"))
    return found


def _step(noise: Float[Tensor, "m e u"]) -> Noise:
    return (noise.flatten(0, 1)[None],)


def _tables(steps: list[RolloutStep], shape: torch.Size, device: torch.device) -> list[Tensor]:
    """States, actions, rewards, going on and next states by episode, step and member; 0 behind the last."""
    members, length = shape[0], shape[1]

    def table(name: str) -> Float[Tensor, "e t m *w"]:
        column = torch.stack([getattr(step, name)[0] for step in steps], 1).to(device)
        column = torch.nn.functional.pad(column.movedim(1, -1), (0, length - len(steps))).movedim(-1, 1)
        return column.unflatten(0, (members, -1)).movedim(0, 2)

    return [table(name) for name in ("state", "action", "reward", "alive", "next_state")]


def _support(
    state: Float[Tensor, "e t m s"], action: Float[Tensor, "e t m a"], logged: Transitions | None
) -> Float[Tensor, "e t m"]:
    shape = state.shape[:3]
    if logged is None or not isinstance(logged.actions, Discrete):
        return torch.full(shape, torch.nan)
    similar = Similar(logged)
    taken = similar.counted(similar.nearest(state.flatten(0, 2))[0], logged.actions.count)
    share = taken.float() / taken.sum(1, keepdim=True).clamp(min=1)
    return share.gather(1, logged.actions.index(action.flatten(0, 2))[:, None])[:, 0].view(shape)


@dataclass(frozen=True)
class Inside:
    """Estimates inside a model, and why one is missing."""

    estimates: tuple[Estimate, ...] = ()
    notes: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    """Those that rest on a model which its checks distrust."""


def inside_model(
    policy: Policy | Stochastic,
    episodes: Episodes,
    model: Model | None,
    task: Task | None,
    discount: float,
    confidence: float,
    draws: int,
    seed: int,
    monitor: Monitor,
    check: Verdict = Verdict(),
) -> Inside:
    """The policy simulated from the log's first states, and every record replayed with its own noise.

    A model that cannot say is no reason to hear nothing of the log: what is missing is noted.
    """
    if model is None or task is None or not isinstance(policy, Policy):
        return Inside()
    ways: dict[str, Callable[..., MemberReturns]] = {"SCM rollouts": value_in_model}
    if isinstance(model, StructuralCausalModel):
        ways["CF-PE"] = counterfactual_value
    estimates, notes = [], []
    for done, (name, way) in enumerate(ways.items()):
        monitor.report("inside the model", done, len(ways))
        try:
            found = way(episodes, policy, model, task, discount, seed=derive(seed, name))
            estimates.append(Estimate.of(name, found.interval(confidence, draws, derive(seed, name))))
        except CounterpointError as error:
            notes.append(f"{name}: {error}")
    monitor.report("inside the model", len(ways), len(ways))
    distrusted = tuple(each.name for each in estimates) if check.trust == "no" else ()
    return Inside(tuple(estimates), tuple(notes), distrusted)
