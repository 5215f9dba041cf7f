"""SCMs whose noise can be read off exactly, because p(s' | s, a) is fitted as a law that increases in its noise.

s'_i = s_i + f_i(s, a, θ, u_i): location-scale (f = μ + σ·u), location-scale bent by a spline, or a mixture whose
quantile function is f (Theorem 1 made literal). With an order of the state's columns given, f_i also sees the changes of
the columns before i (triangular).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from counterpoint.artifacts import device_of, recipe_hash
from counterpoint.data.jobs import Job, Origin, fitting_table
from counterpoint.nets.conditional import ConditionalLaw, Likelihood, Parents, fit_law
from counterpoint.nets.density import Gaussian, Law, Mixture, Spline
from counterpoint.nets.stacked import members_of
from counterpoint.nets.training import Monitor
from counterpoint.scm.base import Mechanism, SCMRecipe, StructuralCausalModel
from counterpoint.seeding import derive


class LawMechanism(Mechanism):
    """A conditional law of the change s' − s, read as a structural equation."""

    def __init__(self, law: ConditionalLaw) -> None:
        super().__init__()
        self.law, self.members = law, law.members
        self.context_width, self.noise_width = law.context_mean.shape[-1], law.size

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return self.law.abduct(context, next_state - state)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return state + self.law.predict(context, noise)


@dataclass(frozen=True)
class DensitySCM(SCMRecipe):
    """An SCM from a law that abducts exactly. Assumes one noise for each state column (or, with `order`, a triangular map)."""

    law: Law = Gaussian()
    """The law of one column: Gaussian() is location-scale, Spline() bends its noise, Mixture() takes any shape."""
    ensemble: int = 5
    """Members whose counterfactuals are averaged."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the network from (s, a, θ) to the law's parameters."""
    order: tuple[int, ...] = ()
    """State columns from cause to effect, for a triangular map; empty for a diagonal one."""
    likelihood: Likelihood = Likelihood()
    """How it is fitted."""

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
        return LawMechanism(ConditionalLaw(members, context, state, self.law, self.hidden, self._parents(state)))

    def _parents(self, state: int) -> Parents:
        return tuple(tuple(self.order[: self.order.index(i)]) for i in range(state)) if self.order else ()

    def _cut(self, stack: LawMechanism, index: int, jobs: int, job: Job) -> StructuralCausalModel:
        weights = members_of(stack.state_dict(), jobs, index, 1)
        mechanism = self.mechanism(stack.noise_width, stack.context_width, self.ensemble)
        mechanism.load_state_dict(weights)
        mechanism.to(next(stack.parameters()).device)
        return StructuralCausalModel(
            self, mechanism, job.data.actions, job.data.state_names, Origin.of(job)
        )


def location_scale(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·u."""
    return DensitySCM(Gaussian(), ensemble, order=order)


def spline_flow(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·spline⁻¹(u; s, a)."""
    return DensitySCM(Spline(), ensemble, order=order)


def quantile(ensemble: int = 5, components: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' is the Φ(u)-quantile of a mixture of Gaussians."""
    return DensitySCM(Mixture(components), ensemble, order=order)


def _change(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"context": table["context"], "y": table["next_state"] - table["state"]}
