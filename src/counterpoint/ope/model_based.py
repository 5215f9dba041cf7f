"""Returns of a policy by simulation: in a task whose SCM is known, and in a fitted model, which gives estimates.

    true return      s_0 from the task,   s_{t+1} = f(s_t, π(s_t), θ, u_t),    f and the law of u_t those of the task
    simulated        s_0 from the log,    s_{t+1} = f(s_t, π(s_t), θ, u_t),    u_t drawn from the prior
    counterfactual   the same with u_t abducted from (s_t, a_t, s_{t+1}) of the record (CF-PE; Buesing et al., 2019)

The last two run as many steps as the longest logged episode. Their intervals include the variation between subjects and
between the members of the model, not errors that all members share.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import SimilarRows
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
from counterpoint.ope.problem import Episodes, resampled
from counterpoint.ope.result import Estimate
from counterpoint.policies.base import Policy, Verdict, joint_actor
from counterpoint.simulation.models import ModelSimulator, abducted
from counterpoint.simulation.rollout import Actor, Rollout, RolloutStep, StackedNoise, TaskSimulator, on_device
from counterpoint.tasks.base import KnownSCM, Task, check_task

AT_ONCE = 2**16
"""Episodes simulated in parallel."""


@dataclass(frozen=True, eq=False)
class MemberReturns:
    """Returns of the same episodes in every member of a model."""

    returns: Float[Tensor, "e m"]
    subject: Int[Tensor, " e"]
    """Index of each episode's subject."""

    @property
    def value(self) -> float:
        """Mean over episodes and members."""
        return float(self.returns.double().mean())

    @property
    def subjects(self) -> int:
        return int(self.subject.max()) + 1

    def resampled(self, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, "b m"]:
        """Mean over episodes in every member, weighted by counts of the subjects."""
        columns = torch.cat([self.returns, torch.ones_like(self.returns[:, :1])], 1).double()
        sums = columns.new_zeros(self.subjects, columns.shape[1]).index_add_(0, self.subject, columns)
        totals = counts.double() @ sums
        return totals[:, :-1] / totals[:, -1:]

    @checked
    def interval(self, confidence: Share = 0.95, draws: Positive = 1000, seed: int = 0) -> Interval:
        """Bootstrap interval of the mean: every resample draws the subjects, and one member of the model."""
        means = self.resampled(resampled(self.subjects, draws, derive(seed, "subjects")))
        member = torch.randint(means.shape[1], (draws, 1), generator=generator(seed, "members"))
        return Bootstrap(draws, confidence, seed).around(self.value, means.gather(1, member)[:, 0].numpy())


@dataclass(frozen=True)
class ModelEstimates:
    """Model-based estimates for an evaluation."""

    estimates: tuple[Estimate, ...] = ()
    notes: tuple[str, ...] = ()
    """Estimates that are missing, and why."""
    distrusted: tuple[str, ...] = ()
    """Names of the estimates whose model failed its checks."""


def estimate_in_model(
    policy: object,
    episodes: Episodes,
    model: Model | None,
    task: Task | None,
    discount: float,
    confidence: float,
    draws: int,
    seed: int,
    monitor: Monitor,
    check: Verdict = Verdict(),
) -> ModelEstimates:
    """Estimate the return by simulation and, in an SCM, by counterfactuals. Failures become notes."""
    if model is None or task is None or not isinstance(policy, Policy):
        return ModelEstimates()
    methods: dict[str, Callable[..., MemberReturns]] = {"SCM rollouts": value_in_model}
    if isinstance(model, StructuralCausalModel):
        methods["CF-PE"] = counterfactual_value
    estimates, notes = [], []
    for done, (name, method) in enumerate(methods.items()):
        monitor.report("inside the model", done, len(methods))
        try:
            returns = method(episodes, policy, model, task, discount, seed=derive(seed, name))
            estimates.append(Estimate.of(name, returns.interval(confidence, draws, derive(seed, name))))
        except CounterpointError as error:
            notes.append(f"{name}: {error}")
    monitor.report("inside the model", len(methods), len(methods))
    distrusted = tuple(estimate.name for estimate in estimates) if check.trust == "no" else ()
    return ModelEstimates(tuple(estimates), tuple(notes), distrusted)


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
    """Mean return of `rollouts` simulated episodes from every episode's first state, in every member.

    Subjects have the factors that the model infers from their complete records, and a policy that is conditioned on
    factors is given these. A personal policy starts from the prior and learns about the subject during the episode.
    """
    agree(policy.schema, model.schema, "policy", "model")
    agree(model.schema, episodes.rows.schema, "model", "table")
    check_task(task, policy.schema, "policy")
    require(
        policy.factor_width in (0, model.theta_width),
        f"the policy wants factors of {policy.factor_width} columns and the model infers {model.theta_width}; use the"
        " model it was learned with",
    )
    first = episodes.places[:, 0]
    state, factors = episodes.rows.state[first], model.subjects(episodes.rows)[first]
    chunk = max(AT_ONCE // (model.mechanism.members * rollouts), 1)
    horizon = episodes.places.shape[1]
    parts = []
    for number, (states, thetas) in enumerate(zip(state.split(chunk), factors.split(chunk), strict=True)):
        chunk_seed = derive(seed, "rollouts", number)
        parts.append(_simulated_returns(states, thetas, policy, model, task, horizon, discount, rollouts, chunk_seed))
    returns = torch.cat(parts)
    require(bool(returns.isfinite().all()), "the model leads to returns that are not finite; check it (check-scm)")
    return MemberReturns(returns, episodes.subject)


def _simulated_returns(
    state: Float[Tensor, "e s"],
    factors: Float[Tensor, "e t"],
    policy: Policy,
    model: Model,
    task: Task,
    horizon: int,
    discount: float,
    rollouts: int,
    seed: int,
) -> Float[Tensor, "e m"]:
    """Mean return over rollouts in every member; the episodes of a member are contiguous."""
    simulator = ModelSimulator([model])
    shape = (model.mechanism.members, len(state), rollouts)

    def repeated(rows: Float[Tensor, "e w"]) -> Float[Tensor, "1 r w"]:
        return rows[None, :, None].expand(*shape, -1).flatten(0, 2)[None].to(model.device)

    acting = on_device(policy, model.device)
    rollout = Rollout(simulator, on_device(task, model.device), acting.rollout_actor())
    start = repeated(state)
    noise = simulator.fresh(start.shape[1], seed)
    total = rollout.returns(start, noise, horizon, repeated(factors), discount=discount)
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
    """CF-PE: returns of the counterfactual episodes, all continued to the length of the longest record.

    Noise is drawn from the prior where no record shows it: after the end of a record, and in steps without a next
    state. Otherwise subjects who died early would have few steps, and a policy that saves them would get no credit.
    """
    horizon = episodes.places.shape[1]
    return counterfactual_episodes(
        episodes.rows, policy, model, task, discount=discount, horizon=horizon, seed=seed
    ).members


@dataclass(frozen=True)
class CounterfactualEpisodes:
    """Counterfactual episodes under a policy, in every member of a model (one member for a known SCM)."""

    state: Float[Tensor, "e t m s"]
    action: Float[Tensor, "e t m a"]
    reward: Float[Tensor, "e t m"]
    alive: Float[Tensor, "e t m"]
    """Probability that the episode has not ended; 0 after the last step that is compared."""
    next_state: Float[Tensor, "e t m s"]
    support: Float[Tensor, "e t m"]
    """Share of similar logged states in which the action was taken; NaN if no log was given."""
    factual: Float[Tensor, " e"]
    """Logged return of every episode."""
    subject: Int[Tensor, " e"]
    """Index of each episode's subject among the subjects with rows in the table."""
    discount: float = 1.0

    @property
    def returns(self) -> Float[Tensor, "e m"]:
        """Return of every episode in every member."""
        discount = self.discount ** torch.arange(self.reward.shape[1])
        return (discount[:, None] * self.alive * self.reward).sum(1)

    @property
    def members(self) -> MemberReturns:
        """The returns, for estimates and intervals."""
        return MemberReturns(self.returns, self.subject)


@torch.no_grad()
@checked
def counterfactual_episodes(
    rows: Transitions,
    policy: Policy,
    model: Model | KnownSCM,
    task: Task,
    theta: Theta = NO_THETA,
    logged: Transitions | None = None,
    discount: Share = 1.0,
    horizon: Count = 0,
    seed: int = 0,
) -> CounterfactualEpisodes:
    """Replay every episode of `rows` under the policy, with the noise of its record.

    In a fitted model the noise is abducted; for a known SCM it is what the simulator recorded. A record has noise for
    its own steps only, so returns are compared over these: a subject who died in the record but survives under the
    policy is followed to the end of the record.

    Arguments:
        theta: subject factors; by default those that the model infers.
        logged: rows among which the support of every counterfactual action is computed.
        horizon: number of steps to which all episodes are continued, with noise drawn from `seed`; 0 for none.
    """
    check_task(task, policy.schema, "policy")
    agree(policy.schema, rows.schema, "policy", "table")
    job = Job(rows, theta=theta)
    job = job if horizon else job[rows.has_next]
    episodes = Episodes.of(job.data)
    factors = job.rows_theta if job.theta.shape[1] or not isinstance(model, Model) else model.subjects(job.data)
    simulator, row_noise = _simulator_and_noise(model, job, factors)
    prior = model.mechanism.prior if isinstance(model, Model) else model.noise
    noise = _noise_by_step(row_noise, episodes, horizon or episodes.places.shape[1], prior, seed)
    first = episodes.places[:, 0]
    home = job.data.state.device
    device = model.device if isinstance(model, Model) else home
    start, theta_of_start = (
        column[first].repeat(len(row_noise), 1)[None].to(device) for column in (job.data.state, factors)
    )
    acting = on_device(policy, device)
    rollout = Rollout(simulator, on_device(task, device), acting.rollout_actor())

    def noise_at(step: int) -> StackedNoise:
        return (noise[:, step].to(device).flatten(0, 1)[None],)

    steps = list(rollout(start, noise_at, noise.shape[1], theta_of_start))
    state, action, reward, alive, after = _tables(steps, noise.shape, home)
    compared = alive if horizon else alive * episodes.present[..., None]
    support = _support(state, action, logged)
    factual = episodes.returns(discount)
    return CounterfactualEpisodes(state, action, reward, compared, after, support, factual, episodes.subject, discount)


def _simulator_and_noise(
    model: Model | KnownSCM, job: Job, factors: Tensor
) -> tuple[TaskSimulator | ModelSimulator, Float[Tensor, "m n u"]]:
    """The simulator, and every row's noise in each member; NaN for rows without a next state."""
    if isinstance(model, Model):
        abducted_noise = abducted(model, Job(job.data, job.seed, factors))
        shape = (len(abducted_noise), len(job.data), abducted_noise.shape[-1])
        noise = abducted_noise.new_full(shape, torch.nan)
        noise[:, job.data.has_next] = abducted_noise
        return ModelSimulator([model]), noise
    require(job.data.noise.shape[1] > 0, "the rows carry no recorded noise; pass rows that the simulator logged")
    return TaskSimulator(model), job.data.noise[None]


def _noise_by_step(
    noise: Float[Tensor, "m n u"],
    episodes: Episodes,
    steps: int,
    prior: Callable[[int, torch.Generator], Float[Tensor, "n u"]],
    seed: int,
) -> Float[Tensor, "m t e u"]:
    """StackedNoise of every step of every episode, drawn from the prior where the record has none."""
    places = torch.nn.functional.pad(episodes.places, (0, max(steps - episodes.places.shape[1], 0)), value=-1)
    places = places[:, :steps].T
    arranged = noise.cpu()[:, places.clamp(min=0)]
    arranged[:, places < 0] = torch.nan
    missing = arranged.isnan().any(-1)
    arranged[missing] = prior(int(missing.sum()), generator(seed, "behind the record"))
    return arranged


def _tables(steps: list[RolloutStep], shape: torch.Size, device: torch.device) -> list[Tensor]:
    """States, actions, rewards, alive and next states by episode, step and member; 0 after the last step."""
    members, length = shape[0], shape[1]

    def table(name: str) -> Float[Tensor, "e t m *w"]:
        column = torch.stack([getattr(step, name)[0] for step in steps], 1).to(device)
        column = torch.nn.functional.pad(column.movedim(1, -1), (0, length - len(steps))).movedim(-1, 1)
        return column.unflatten(0, (members, -1)).movedim(0, 2)

    return [table(name) for name in ("state", "action", "reward", "alive", "next_state")]


def _support(
    state: Float[Tensor, "e t m s"], action: Float[Tensor, "e t m a"], logged: Transitions | None
) -> Float[Tensor, "e t m"]:
    """Share of similar logged states in which each action was taken."""
    shape = state.shape[:3]
    if logged is None or not isinstance(logged.actions, Discrete):
        return torch.full(shape, torch.nan)
    similar = SimilarRows(logged)
    counts = similar.counted(similar.nearest(state.flatten(0, 2))[0], logged.actions.count)
    share = counts.float() / counts.sum(1, keepdim=True).clamp(min=1)
    return share.gather(1, logged.actions.index(action.flatten(0, 2))[:, None])[:, 0].view(shape)


@checked
def true_return(
    policy: Policy,
    task: KnownSCM,
    trials: int = 10,
    seed: int = 0,
    horizon: Count = 0,
    theta: Theta = NO_THETA,
) -> Float[Tensor, " n"]:
    """Run one policy and return the reward total of every trial.

    Arguments:
        trials: number of episodes.
        horizon: steps after which an episode is cut; 0 for the task's own.
        theta: each subject's factor, for a policy that is conditioned on it.
    """
    require(
        theta.shape[1] == policy.factor_width or not policy.factor_width,
        "the policy is conditioned on every subject's factor, and a new subject's is not known; learn one that infers"
        " it (ctrl-p), or pass theta",
    )
    return true_returns([policy], task, trials, seed, horizon, theta)[0]


@checked
def true_returns(
    policies: Sequence[Policy],
    task: KnownSCM,
    trials: int = 10,
    seed: int = 0,
    horizon: int = 0,
    theta: Theta = NO_THETA,
) -> Float[Tensor, "k n"]:
    """Run policies of one class from the same first states with the same noise, and return their reward totals.

    In a task with differing subjects, trial i is of subject i, and `theta` is the factor that the policies are given.
    """
    for policy in policies:
        check_task(task, policy.schema, "policy")
    actor = joint_actor(policies)
    return returns(actor, task, len(policies), trials, seed, horizon, policies[0].device, theta)


@torch.no_grad()
def returns(
    actor: Actor,
    task: KnownSCM,
    policies: int,
    trials: int,
    seed: int,
    horizon: int = 0,
    device: torch.device = torch.device("cpu"),
    theta: Theta = NO_THETA,
) -> Float[Tensor, "k n"]:
    """Undiscounted returns of stacked policies; noise is drawn on the CPU, so that every device uses the same."""
    require(trials > 0, f"{trials} trials say nothing; ask for 1 or more")
    task = task.of_subjects(torch.arange(trials, device=device))
    observation_noise = [generator(seed, "evaluation blur") for _ in range(policies)]

    def act(state: Float[Tensor, "k n s"], factor: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        observed = [task.observe(states, random) for states, random in zip(state, observation_noise, strict=True)]
        return actor(torch.stack(observed), factor)

    start = task.initial(trials, generator(seed, "evaluation start")).to(device).expand(policies, -1, -1)
    simulator = TaskSimulator(task)
    noise = simulator.fresh(trials, derive(seed, "evaluation"), device)
    return Rollout(simulator, task, act).returns(start, noise, horizon or task.horizon, theta)
