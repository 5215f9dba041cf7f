"""SCMs whose noise can be read off exactly, because p(s' | s, a) is fitted as a law that increases in its noise.

s'_i = s_i + f_i(s, a, θ, u_i): location-scale (f = μ + σ·u), location-scale with a bent noise, or a mixture whose
quantile function is f (Theorem 1 made literal). With an order of the state's columns given, f_i also sees the changes
of the columns before i (triangular).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Rate, Weight, Widths, check_settings
from counterpoint.data.jobs import Job, change_table, identity
from counterpoint.data.schema import Schema
from counterpoint.models.base import member_seeds, repeated
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel, StructuralMechanism
from counterpoint.nets.conditional import ConditionalLaw, Parents
from counterpoint.nets.laws import Gaussian, Law, Mixture, SkewedSpline, Spline
from counterpoint.nets.likelihood import Likelihood, VariationPenalty, fit_by_likelihood
from counterpoint.nets.stacked import columns, unstack, with_weights
from counterpoint.nets.training import Monitor, Schedule

BLOCK = 2**17
"""Numbers in a table that a processor's cache holds: work in blocks of that size is several times faster."""
ALIGNED = 64
"""Rows of a block are a multiple of this, which matrix products are fastest for."""
CAREFUL = Likelihood(Schedule(steps=3000, check_every=50, patience=15, rate="one-cycle"), learning_rate=5e-3)
"""How the default is fitted: up to 3000 steps, and no more than 750 after the best."""
BRIEF = Likelihood(Schedule(steps=1000, check_every=25, patience=10, rate="one-cycle"), learning_rate=2.5e-3)
"""How it is fitted to few rows: a third of the steps at half the rate, and no more than 250 after the best."""


@dataclass(frozen=True)
class DefaultLikelihood(Likelihood):
    """How `DensitySCM` is fitted where no `Likelihood` is given: `CAREFUL`, or `BRIEF` up to `few_rows` rows.

    A class of its own, because a `Likelihood` that is given is used as it is, also one with the numbers of `CAREFUL`.
    """

    schedule: Schedule = CAREFUL.schedule
    """Length, validation and learning-rate schedule."""
    learning_rate: Rate = CAREFUL.learning_rate
    """Peak learning rate of AdamW."""


class LawMechanism(StructuralMechanism):
    """A conditional law of the change s' − s, read as a structural equation."""

    def __init__(self, law: ConditionalLaw) -> None:
        super().__init__()
        self.law, self.members = law, law.members
        self.context_width, self.noise_width = law.context.mean.shape[-1], law.size

    @property
    def block(self) -> int:
        return max(BLOCK // (self.members * self.noise_width) // ALIGNED, 1) * ALIGNED

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return self.law.abduct(context, next_state - state)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return state + self.law.predict(context, noise)

    def counterfactual(
        self, context: Tensor, state: Tensor, next_state: Tensor, others: Sequence[Tensor]
    ) -> list[Tensor]:
        before = columns(state).mT
        return [before + change for change in self.law.counterfactual(context, next_state - state, others)]

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        return interquartile_mean(predictions)


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

    command: ClassVar = ("density", "learned shape of the noise, exact abduction")
    law: Law = SkewedSpline()
    """The law of one column: SkewedSpline() learns a shape, Gaussian() is location-scale, the others take any."""
    ensemble: Positive = 5
    """Members whose counterfactuals are averaged."""
    hidden: Widths = (64, 64)
    """Widths of the network from (s, a, θ) to the law's parameters."""
    order: tuple[Count, ...] = ()
    """State columns from cause to effect, for a triangular map; empty for a diagonal one."""
    likelihood: Likelihood = DefaultLikelihood()
    """How it is fitted."""
    variation_penalty: Weight = 3.0
    """Price of every departure from linear regression with one noise for all, over √rows; 0 for plain likelihood."""
    few_rows: Count = 2000
    """Largest number of rows that the default likelihood fits by `BRIEF`: longer training gains nothing there. A
    `likelihood` that is passed is used whatever the number of rows."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            sorted(self.order) == list(range(len(self.order))),
            f"order={self.order} must name every state column, 0 to the last, once; leave it out for a diagonal map",
        )

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        if self.likelihood == DefaultLikelihood():
            return self._by_rows(jobs, monitor, device)
        schema = jobs[0].data.schema
        if schema.categories or schema.unpredicted or schema.computed:
            return [model.with_recipe(self) for model in self._mixed(schema).fit_many(jobs, monitor, device)]
        tables, seeds = [change_table(job) for job in jobs], member_seeds(jobs, self.ensemble)
        state, context = tables[0]["y"].shape[1], tables[0]["context"].shape[1]
        mechanism = self.build(state, context, len(seeds)).to(device_of(device))
        stacked = repeated(tables, self.ensemble)
        fit_by_likelihood(mechanism.law, stacked, seeds, self.likelihood, identity(self, jobs), monitor, self.penalty())
        return self.cut(mechanism, jobs)

    def _by_rows(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> list[StructuralCausalModel]:
        """Fit jobs of few rows in one stack and the others in another, so that no fit depends on the other jobs."""
        few = [len(job.data) <= self.few_rows for job in jobs]
        fitted: dict[int, StructuralCausalModel] = {}
        for brief in sorted(set(few)):
            recipe = replace(self, likelihood=BRIEF if brief else CAREFUL)
            places = [i for i, is_few in enumerate(few) if is_few == brief]
            stage = monitor.stage("few rows" if brief else "many rows") if len(set(few)) > 1 else monitor
            fitted |= zip(places, recipe.fit_many([jobs[i] for i in places], stage, device), strict=True)
        return [fitted[i].with_recipe(self) for i in range(len(jobs))]

    def _mixed(self, schema: Schema) -> SCMRecipe:
        """The same for a state some of whose columns are categories, never change or follow from others."""
        from counterpoint.models.scm.exogenous import ExogenousForm
        from counterpoint.models.scm.mixed import MixedSCM  # Here, because mixed states are built on this file.

        require(not self.order, "an order is for states of numbers; this one has other columns too")
        return MixedSCM(
            schema.categories,
            self.law,
            schema.unpredicted,
            schema.computed,
            tuple(i for i in schema.computed if schema.state_names[i] in schema.knowledge.whole),
            doses=tuple((i, levels) for i, levels in schema.dose_levels if i not in dict(schema.scales)),
            scales=schema.scales,
            exogenous=ExogenousForm.of(schema) if schema.exogenous else None,
            ensemble=self.ensemble,
            hidden=self.hidden,
            likelihood=self.likelihood,
            variation_penalty=self.variation_penalty,
        )

    def penalty(self) -> VariationPenalty | None:
        return VariationPenalty(self.variation_penalty) if self.variation_penalty else None

    def build(self, state: int, context: int, members: int) -> LawMechanism:
        return LawMechanism(ConditionalLaw(members, context, state, self.law, self.hidden, self._parents(state)))

    def _parents(self, state: int) -> Parents:
        require(
            len(self.order) in (0, state), f"order={self.order} names {len(self.order)} columns of {state}; name all"
        )
        return tuple(tuple(self.order[: self.order.index(i)]) for i in range(state)) if self.order else ()


def default_scm(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """What to use without further knowledge: location-scale with a learned noise that the context may bend."""
    return DensitySCM(ensemble=ensemble, order=order)


def location_scale(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·u."""
    return DensitySCM(Gaussian(), ensemble, order=order, likelihood=Likelihood(), variation_penalty=0.0)


def spline_flow(ensemble: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' = μ(s, a) + σ(s, a)·spline⁻¹(u; s, a)."""
    return DensitySCM(Spline(), ensemble, order=order, likelihood=Likelihood(), variation_penalty=0.0)


def quantile(ensemble: int = 5, components: int = 5, order: tuple[int, ...] = ()) -> DensitySCM:
    """s' is the Φ(u)-quantile of a mixture of Gaussians."""
    return DensitySCM(Mixture(components), ensemble, order=order, likelihood=Likelihood(), variation_penalty=0.0)


@dataclass(frozen=True)
class GraphSCM:
    """A fitted ensemble over variables with a known graph and no action: x_i = f_i(x_parents, u_i).

    Its questions are do(x_j = v). The law's context has no columns; its parents are the graph.
    """

    law: ConditionalLaw

    @torch.no_grad()
    def abduct(self, x: Float[Tensor, "n x"]) -> Float[Tensor, "m n x"]:
        """Every member's noise for what was seen."""
        stacked = self._stack(x)
        return self.law.abduct(stacked[..., :0], stacked)

    @torch.no_grad()
    def predict(self, noise: Float[Tensor, "m n x"], held: dict[int, float] | None = None) -> Float[Tensor, "n x"]:
        """What the members make of this noise, combined; the variables in `held` are fixed at their value."""
        return interquartile_mean(self.law.predict(noise[..., :0], noise, held))

    def counterfactual(self, x: Float[Tensor, "n x"], held: dict[int, float]) -> Float[Tensor, "n x"]:
        """What the same rows would have been with the variables in `held` at their values."""
        return self.predict(self.abduct(x), held).to(x)

    def sample(self, count: int, random: torch.Generator, held: dict[int, float] | None = None) -> Float[Tensor, "n x"]:
        """Fresh rows, the same noise for every member."""
        return self.predict(self._stack(torch.randn(count, self.law.size, generator=random)), held).to(random.device)

    def _stack(self, x: Tensor) -> Float[Tensor, "m n x"]:
        return x.to(self.law.y.mean).expand(self.law.members, -1, -1)


def fit_graph(
    recipe: DensitySCM,
    tables: Sequence[Float[Tensor, "n x"]],
    parents: Parents,
    seeds: Sequence[int],
    monitor: Monitor = Monitor(),
    device: str = "cpu",
) -> list[GraphSCM]:
    """Fit one SCM a table, all in one loop, with the law, ensemble and training of `recipe`."""
    size, ensemble = tables[0].shape[1], recipe.ensemble
    members = [derive(seed, "member", m) for seed in seeds for m in range(ensemble)]
    build = lambda count: ConditionalLaw(count, 0, size, recipe.law, recipe.hidden, parents)
    whole = build(len(members)).to(device_of(device))
    columns = [{"context": x[:, :0], "y": x, "subject": torch.arange(len(x))} for x in tables]
    run = recipe_hash(recipe, parents, list(seeds), [tensors_hash({"x": x}) for x in tables])
    stacked = repeated(columns, ensemble)
    fit_by_likelihood(whole, stacked, members, recipe.likelihood, run, monitor, recipe.penalty())
    return [GraphSCM(with_weights(build(ensemble), part)) for part in unstack(whole.state_dict(), len(tables))]
