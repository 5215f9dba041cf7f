"""What would have happened to these very subjects under another policy: episodes replayed with their own noise.

    u_t abducted from (s_t, a_t, s_{t+1}) of the record,    s'_{t+1} = f(s'_t, π(s'_t), θ, u_t),    s'_0 = s_0

Buesing et al. 2019 (CF-PE): the mean over subjects estimates what the policy is worth. A record has noise for as many
steps as it has rows, so returns are compared over those steps alone: who died in the record and would have lived under
the policy is credited to the end of the record and not beyond.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.errors import require
from counterpoint.evaluation.off_policy.episodes import Episodes
from counterpoint.model import Model
from counterpoint.policies.base import Policy
from counterpoint.scm.support import Similar
from counterpoint.settings import checked
from counterpoint.simulation.models import ModelSimulator, abducted
from counterpoint.simulation.rollout import Noise, Rollout, Step, TaskSimulator, on_device
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
    """The return of the record, over the same steps."""

    @property
    def returns(self) -> Float[Tensor, "e m"]:
        """The return of every episode in every member."""
        return (self.alive * self.reward).sum(1)

    @property
    def value(self) -> float:
        """CF-PE: the mean over episodes and members."""
        return float(self.returns.mean())

    def interval(self, share: float = 0.9, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Where the value lies, episodes and members drawn again with replacement."""
        returns, random = self.returns.double(), torch.Generator().manual_seed(seed)
        episodes, members = (torch.randint(n, (draws, n), generator=random) for n in returns.shape)
        means = returns[episodes].mean(1).gather(1, members).mean(1)
        low, high = means.quantile(torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.double)).tolist()
        return low, high


@torch.no_grad()
@checked
def replay(
    rows: Transitions,
    policy: Policy,
    model: Model | KnownSCM,
    task: Task,
    theta: Theta = NO_THETA,
    logged: Transitions | None = None,
) -> Replay:
    """Every episode of `rows` under the policy, with the noise of its own record.

    In a fitted model the noise is abducted; a known SCM takes what its simulator recorded. With `logged` rows every
    imagined action is looked for in similar logged states.
    """
    check_task(task, policy.schema, "policy")
    agree(policy.schema, rows.schema, "policy", "table")
    job = Job(rows, theta=theta)[rows.has_next]
    episodes = Episodes.of(job.data)
    places, length = episodes.places, episodes.length
    factors = job.rows_theta if job.theta.shape[1] or not isinstance(model, Model) else model.subjects(job.data)
    simulator, noise = _worlds(model, job, factors)
    first, device = places[:, 0], model.device if isinstance(model, Model) else job.data.state.device
    start, told = (x[first].repeat(len(noise), 1)[None].to(device) for x in (job.data.state, factors))
    own = noise[:, places.clamp(min=0)].transpose(1, 2).to(device)  # [m, t, e, u]
    rollout = Rollout(simulator, on_device(task, device), on_device(policy, device).actor())
    steps = list(rollout(start, lambda t: _step(own[:, t]), places.shape[1], told))
    return _replay(job.data, steps, places, length, len(noise), logged)


def _worlds(
    model: Model | KnownSCM, job: Job, factors: Tensor
) -> tuple[TaskSimulator | ModelSimulator, Float[Tensor, "m n u"]]:
    """Where episodes are replayed, and every row's noise in each member."""
    if isinstance(model, Model):
        return ModelSimulator([model]), abducted(model, Job(job.data, job.seed, factors))
    require(job.data.noise.shape[1] > 0, "the rows carry no recorded noise; pass rows that the simulator logged")
    return TaskSimulator(model), job.data.noise[None]


def _step(noise: Float[Tensor, "m e u"]) -> Noise:
    return (noise.flatten(0, 1)[None],)


def _replay(
    rows: Transitions,
    steps: list[Step],
    places: Int[Tensor, "e t"],
    length: Int[Tensor, " e"],
    members: int,
    logged: Transitions | None,
) -> Replay:
    """The steps as a table; nothing counts behind the end of a record."""

    def table(name: str) -> Tensor:
        column = torch.stack([getattr(step, name)[0] for step in steps], 1).to(rows.state.device)
        column = torch.nn.functional.pad(column.movedim(1, -1), (0, places.shape[1] - len(steps))).movedim(-1, 1)
        return column.unflatten(0, (members, -1)).movedim(0, 2)

    recorded = (torch.arange(places.shape[1]) < length[:, None]).float()
    state, action, reward, alive, after = (table(n) for n in ("state", "action", "reward", "alive", "next_state"))
    factual = (rows.reward[places.clamp(min=0)] * recorded).sum(1)
    support = _support(state, action, logged)
    return Replay(state, action, reward, alive * recorded[..., None], after, support, factual)


def _support(
    state: Float[Tensor, "e t m s"], action: Float[Tensor, "e t m a"], logged: Transitions | None
) -> Float[Tensor, "e t m"]:
    shape = state.shape[:3]
    if logged is None or not isinstance(logged.actions, Discrete):
        return torch.full(shape, torch.nan)
    taken, _ = Similar(logged).taken(state.flatten(0, 2), logged.actions.count)
    share = taken.float() / taken.sum(1, keepdim=True).clamp(min=1)
    return share.gather(1, logged.actions.index(action.flatten(0, 2))[:, None])[:, 0].view(shape)
