"""The backups of fitted Q evaluation: one weighted least-squares problem a member, all solved in one update."""

import sys
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.data.transitions import Transitions
from counterpoint.nets.learner import Learner
from counterpoint.ope.critic import subjects_of
from counterpoint.ope.episodes import Question
from counterpoint.ope.features import BLOCK, Features
from counterpoint.policies.base import action_numbers

FREE = 1e-6
"""Share of the ridge that the constant bears: nothing is known beforehand of the mean."""
MOMENTS = 2**24
"""Numbers of the subjects' matrices Σ φφ' held at once."""


class FittedQ(Learner):
    """All members' backups: update j makes w_j of w_{j−1}."""

    eager_updates = sys.maxsize
    done: Tensor

    def __init__(
        self, question: Question, counts: Float[Tensor, "b subjects"], features: Features, ridge: float, horizon: int
    ) -> None:
        super().__init__()
        rows, device = question.rows, features.device
        known = (rows.terminated | rows.has_next).nonzero()[:, 0]
        log, self.discount = rows[known], question.discount
        following = torch.where(log.has_next[:, None], log.next_state, log.state)
        told = features.taken(log.state, action_numbers(log))
        after = features.expected(following, question.policy_after[known])
        penalty = torch.full((features.width,), ridge, dtype=torch.double, device=device)
        penalty[0] *= FREE
        self.mix = _whitening(told, penalty)
        self.told, self.after = told @ self.mix.float(), after @ self.mix.float()
        self.goes_on = (~log.terminated).float().to(device)[:, None]
        self.reward, self.subject = log.reward.to(device)[:, None], subjects_of(rows)[known].to(device)
        self.counts = counts.float().to(device)
        self.low, self.high = feasible(log, self.subject, self.counts, self.discount, horizon)
        self.factor = _factor(self.told, self.subject, self.counts, self.mix.T @ penalty.diag() @ self.mix)
        self.function = nn.Module()
        self.function.weights = nn.Parameter(torch.zeros(len(counts), horizon, features.width, device=device), False)
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    @property
    def weights(self) -> Float[Tensor, "b h d"]:
        """The weights of mixed features, from which training goes on."""
        return self.function.weights.detach()  # pyright: ignore[reportReturnType, reportCallIssue]

    @property
    def coefficients(self) -> Float[Tensor, "b h d"]:
        """The weights of the features as they are."""
        return (self.weights.double() @ self.mix.T).float()

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Nothing is left to chance."""
        return {"none": torch.zeros(steps, 1)}

    @torch.no_grad()
    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        step = int(self.done)
        moment = torch.zeros(len(self.counts), self.told.shape[1], device=self.told.device, dtype=torch.double)
        for block in torch.arange(len(self.told)).split(BLOCK):
            here = slice(int(block[0]), int(block[-1]) + 1)
            target = self._target(here, step) * self.counts[:, self.subject[here]].T
            moment += (target.T @ self.told[here]).double()
        self.weights[:, step] = torch.cholesky_solve(moment[..., None], self.factor)[..., 0].float()
        self.done += 1
        return {"coefficients": self.weights[:, step].square().sum(1)}

    def _target(self, rows: slice, step: int) -> Float[Tensor, "r b"]:
        """r + γ·(1 − terminated)·V(s') of every member."""
        if step == 0:
            return self.reward[rows].expand(-1, len(self.counts))
        value = self.after[rows] @ self.weights[:, step - 1].T
        value = value.clamp(self.low[:, step - 1], self.high[:, step - 1])
        return self.reward[rows] + self.discount * self.goes_on[rows] * value

    def optimizers(self) -> Sequence[Optimizer]:
        return ()

    def network(self) -> nn.Module:
        return self.function


def feasible(
    rows: Transitions, subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], discount: float, horizon: int
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """The least and the largest return of 1, 2, … steps that rewards seen in a member allow."""
    reward, ends = rows.reward.to(counts), rows.terminated.to(counts.device)

    def largest(values: Tensor, which: Tensor) -> Tensor:
        unseen = torch.full_like(counts[0], -torch.inf)
        own = unseen.scatter_reduce(0, subject[which], values[which], "amax")
        return torch.where(counts > 0, own, -torch.inf).amax(1)

    bounds = []
    for sign in (-1.0, 1.0):
        end, elsewhere = largest(sign * reward, ends), largest(sign * reward, ~ends)
        bound = [torch.maximum(end, elsewhere)]
        for _ in range(horizon - 1):
            bound.append(torch.maximum(end, elsewhere + discount * bound[-1]))
        bounds.append(sign * torch.stack(bound, 1))
    return bounds[0], bounds[1]


def _whitening(told: Float[Tensor, "n d"], ridge: Float[Tensor, " d"]) -> Float[Tensor, "d d"]:
    """M with M'(Σ φφ' + ridge)M = 1: of mixed features φM single precision loses nothing that counts."""
    total = ridge.diag()
    for block in told.split(BLOCK):
        total += block.double().T @ block.double()
    lower = torch.linalg.cholesky(total)
    return torch.linalg.solve_triangular(lower, torch.eye(len(ridge)).to(lower), upper=False).T


def _factor(
    told: Float[Tensor, "n d"], subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], penalty: Tensor
) -> Float[Tensor, "b d d"]:
    """The Cholesky factor of Σ_i c_i φφ' + penalty in every member, from the matrix of each subject."""
    width = told.shape[1]
    total = penalty.repeat(len(counts), 1, 1)
    rows = torch.bincount(subject, minlength=counts.shape[1]).tolist()
    own = torch.argsort(subject, stable=True).split(rows)
    for some in torch.arange(len(own)).split(max(MOMENTS // width**2, 1)):
        moments = torch.stack([told[own[i]].T @ told[own[i]] for i in some.tolist()])
        total += (counts[:, some.to(counts.device)] @ moments.flatten(1)).view_as(total)
    return torch.linalg.cholesky(total)
