"""What would have happened to these very subjects under another policy: episodes replayed with their own noise.

    u_t abducted from (s_t, a_t, s_{t+1}) of the record,    s'_{t+1} = f(s'_t, π(s'_t), θ, u_t),    s'_0 = s_0

Buesing et al. 2019 (CF-PE): the mean over subjects estimates what the policy is worth. A record has noise for as many
steps as it has rows, so returns are compared over those steps alone: who died in the record and would have lived under
the policy is credited to the end of the record and not beyond, unless a `horizon` is given to which all go on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.support import Similar
from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Count, Share, checked
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.ope.episodes import Episodes
from counterpoint.ope.member_returns import MemberReturns
from counterpoint.policies.base import Policy
from counterpoint.simulation.models import ModelSimulator, abducted
from counterpoint.simulation.rollout import Noise, Rollout, RolloutStep, TaskSimulator, on_device
from counterpoint.tasks.base import KnownSCM, Task, check_task


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
