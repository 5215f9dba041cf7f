"""SCMs whose noise can be read off exactly, because p(s' | s, a) is fitted as a law that increases in its noise.

s'_i = s_i + f_i(s, a, θ, u_i): location-scale (f = μ + σ·u), location-scale with a bent noise, or a mixture whose
quantile function is f (Theorem 1 made literal). With an order of the state's columns given, f_i also sees the changes
of the columns before i (triangular).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin, fitting_table
from counterpoint.nets.conditional import ConditionalLaw, Likelihood, Parents, fit_law
from counterpoint.nets.density import Bent, Gaussian, Law, Mixture, Spline
from counterpoint.nets.stacked import members_of
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.scm.base import Mechanism, SCMRecipe, StructuralCausalModel
from counterpoint.seeding import derive

BLOCK = 2**17
"""Numbers in a table that a processor's cache holds: work in blocks of that size is several times faster."""
CAREFUL = Likelihood(Schedule(steps=3000, check_every=50, patience=15, rate="one-cycle"), learning_rate=5e-3)
"""How the default is fitted: up to 3000 steps, and no more than 750 after the best."""


class LawMechanism(Mechanism):
    """A conditional law of the change s' − s, read as a structural equation."""

    def __init__(self, law: ConditionalLaw) -> None:
        super().__init__()
        self.law, self.members = law, law.members
        self.context_width, self.noise_width = law.context_mean.shape[-1], law.size

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return self._in_blocks(lambda c, s, after: self.law.abduct(c, after - s), context, state, next_state)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self._in_blocks(lambda c, s, u: s + self.law.predict(c, u), context, state, noise)

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        return interquartile_mean(predictions)

    def _in_blocks(self, function: Callable[..., Tensor], *tables: Float[Tensor, "m n _"]) -> Float[Tensor, "m n _"]:
        if tables[0].is_cuda:
            return function(*tables)
        rows = max(BLOCK // (self.members * self.noise_width), 1)
        pieces = zip(*(table.split(rows, 1) for table in tables), strict=True)
        return torch.cat([function(*piece) for piece in pieces], 1)


def interquartile_mean(predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
    """The members' mean without the lowest and highest quarter, so that one member astray does not carry the answer."""
    cut = len(predictions) // 4
    if not cut:
        return predictions.mean(0)
    return torch.stack(_sorted(predictions)[cut : len(predictions) - cut]).mean(0)


def _sorted(predictions: Float[Tensor, "m n s"]) -> list[Float[Tensor, "n s"]]:
    """The members in rising order, cell by cell: odd-even exchanges, faster for a few members than a general sort."""
    members = list(predictions.unbind(0))
    for turn in range(len(members)):
        for i in range(turn % 2, len(members) - 1, 2):
            low, high = members[i], members[i + 1]
            members[i], members[i + 1] = torch.minimum(low, high), torch.maximum(low, high)
    return members


@dataclass(frozen=True)
class DensitySCM(SCMRecipe):
    """An SCM from a law that abducts exactly. Assumes one noise a state column (with `order`, a triangular map)."""

    law: Law = Bent()
    """The law of one column: Bent() learns a shape, Gaussian() is location-scale, Spline() and Mixture() take any."""
    ensemble: int = 5
    """Members whose counterfactuals are averaged."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the network from (s, a, θ) to the law's parameters."""
    order: tuple[int, ...] = ()
    """State columns from cause to effect, for a triangular map; empty for a diagonal one."""
    likelihood: Likelihood = CAREFUL
    """How it is fitted."""
    simplicity: float = 3.0
    """Price of every departure from linear regression with one noise for all, over √rows; 0 for plain likelihood."""

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        tables = [_change(fitting_table(job)) for job in jobs]
        seeds = [derive(job.seed, "member", m) for job in jobs for m in range(self.ensemble)]
        state, context = tables[0]["y"].shape[1], tables[0]["context"].shape[1]
        mechanism = self.mechanism(state, context, len(seeds)).to(device_of(device))
        identity = recipe_hash(self, [(job.data.fingerprint, job.seed) for job in jobs])
        fit_law(
            mechanism.law, [t for t in tables for _ in range(self.ensemble)], seeds, self.likelihood, identity, monitor
        )
        return [self._cut(mechanism, i, len(jobs), job) for i, job in enumerate(jobs)]

    def mechanism(self, state: int, context: int, members: int) -> LawMechanism:
        law = ConditionalLaw(members, context, state, self.law, self.hidden, self._parents(state), self.simplicity)
        return LawMechanism(law)

    def _parents(self, state: int) -> Parents:
        return tuple(tuple(self.order[: self.order.index(i)]) for i in range(state)) if self.order else ()

    def _cut(self, stack: LawMechanism, index: int, jobs: int, job: Job) -> StructuralCausalModel:
        weights = members_of(stack.state_dict(), jobs, index, 1)
        mechanism = self.mechanism(stack.noise_width, stack.context_width, self.ensemble)
        mechanism.load_state_dict(weights)
        mechanism.to(next(stack.parameters()).device)
        return StructuralCausalModel(self, mechanism, job.data.actions, job.data.state_names, Origin.of(job))


def default_scm(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """What to use without further knowledge: location-scale with a learned noise that the context may bend."""
    return DensitySCM(ensemble=ensemble, order=order)


def location_scale(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·u."""
    return DensitySCM(Gaussian(), ensemble, order=order, likelihood=Likelihood(), simplicity=0.0)


def spline_flow(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·spline⁻¹(u; s, a)."""
    return DensitySCM(Spline(), ensemble, order=order, likelihood=Likelihood(), simplicity=0.0)


def quantile(ensemble: int = 5, components: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' is the Φ(u)-quantile of a mixture of Gaussians."""
    return DensitySCM(Mixture(components), ensemble, order=order, likelihood=Likelihood(), simplicity=0.0)


def _change(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"context": table["context"], "y": table["next_state"] - table["state"]}
