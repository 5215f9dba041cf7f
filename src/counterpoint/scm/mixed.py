"""An SCM of states with categorical columns beside continuous ones (or with categorical columns alone).

    continuous  s'_i = s_i + f_i(s, a, θ, u_i)                       u_i ~ N(0, 1), f_i increasing in u_i
    categorical s'_j = argmax_c log p_j(c | s, a, θ) + g_jc          g_jc ~ Gumbel(0)
    static      s'_k = s_k                                           (sex, age at admission)

Given (s, a, θ) the columns' noises are taken to be independent. The noise table holds the u_i first, then
one Gumbel a category, column by column in the order of `categories`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.artifacts import device_of
from counterpoint.data.jobs import Categories, Job, fitting_table, identity, spread_levels
from counterpoint.data.spaces import places
from counterpoint.errors import CounterpointError
from counterpoint.model import member_seeds, one_a_member
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.laws import Law, Spline
from counterpoint.nets.likelihood import Likelihood, VariationPenalty, fit_by_likelihood
from counterpoint.nets.training import Monitor
from counterpoint.scm.base import SCMRecipe, StructuralCausalModel, StructuralMechanism
from counterpoint.scm.categorical import (
    CategoricalLaw,
    check_codes,
    draw_exponentials,
    vote,
    wrong_codes,
)
from counterpoint.scm.density import interquartile_mean
from counterpoint.seeding import generator
from counterpoint.settings import Count, Positive, Weight, Widths, check_settings


class MixedMechanism(StructuralMechanism):
    """A law of the change of the continuous columns and a Gumbel-max law of the codes, on the same one-hot context."""

    def __init__(
        self,
        law: ConditionalLaw,
        codes: CategoricalLaw,
        categories: Categories,
        static: tuple[int, ...],
        state: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.law, self.codes, self.categories, self.seed = law, codes, categories, seed
        self.members = law.members
        self.moving = tuple((column, count) for column, count in categories if column not in static)
        self.coded = [column for column, _ in self.moving]
        self.continuous = _continuous(categories, static, state)
        spread = sum(count - 1 for _, count in categories)
        self.context_width = law.context.mean.shape[-1] - spread
        self.noise_width = law.size + sum(codes.counts)

    @property
    def normal_noise(self) -> int:
        return self.law.size

    @property
    def noise_columns(self) -> list[int]:
        """The state column that each noise moves."""
        return [*self.continuous, *(column for column, count in self.moving for _ in range(count))]

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        """The point of a continuous column; for a code, where no point exists, a posterior draw fixed by the recipe.

        The draw belongs to the row's place in the table: the same table always gives the same noise, and rows that are
        alike still get draws of their own, so that counterfactuals keep the right frequencies over a table.
        """
        return self.posterior(context, state, next_state, generator(self.seed, "gumbel"))

    def posterior(self, context: Tensor, state: Tensor, next_state: Tensor, random: torch.Generator) -> Tensor:
        self._check(state, next_state)
        seen = spread_levels(context, self.categories)
        change = next_state[..., self.continuous] - state[..., self.continuous]
        fresh = draw_exponentials(state.shape[1], sum(self.codes.counts), random).to(state)
        gumbels = self.codes.abduct(seen, next_state[..., self.coded], fresh)
        return torch.cat([self.law.abduct(seen, change), gumbels], -1)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        self._check(state)
        seen = spread_levels(context, self.categories)
        continuous, coded = (places(columns, state.device) for columns in (self.continuous, self.coded))
        next_state = state.clone(memory_format=torch.contiguous_format)
        change = self.law.predict(seen, noise[..., : self.law.size])
        next_state[..., continuous] = state[..., continuous] + change
        next_state[..., coded] = self.codes.predict(seen, noise[..., self.law.size :])
        return next_state

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        """The members' interquartile mean for a continuous column, their vote for a categorical one."""
        combined = interquartile_mean(predictions)
        for column, count in self.categories:
            combined[:, column] = vote(predictions[..., column], count)
        return combined

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        normal = torch.randn(count, self.law.size, generator=random, device=random.device)
        return torch.cat([normal, -draw_exponentials(count, sum(self.codes.counts), random).log()], -1)

    def _check(self, *states: Tensor) -> None:
        if _capturing(states[0]):
            return
        for values in states:
            for column, count in self.categories:
                codes = values[0, :, column]
                wrong = wrong_codes(codes, count)
                if len(wrong):
                    raise CounterpointError(
                        f"state column number {column} holds {float(codes[wrong[0]]):g}, which is not a code"
                        f" 0 to {count - 1}; recode the column as it was for the fit"
                    )


def _capturing(values: Tensor) -> bool:
    """Whether a GPU is recording a graph, which must not wait for what the values are; the calls before it looked."""
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Mixed(SCMRecipe):
    """An SCM for states of which some columns, or all, hold codes 0 … count − 1.

    Assumes diagonal noise, and for the codes the Gumbel-max mechanism, which data cannot confirm.
    """

    categories: Categories
    """(column, count) of every categorical state column."""
    law: Law = Spline()
    """The law of one continuous column, as in `DensitySCM`."""
    static: tuple[Count, ...] = ()
    """State columns that never change within a subject; they are told, not foretold."""
    ensemble: Positive = 5
    """Members; continuous columns are averaged over them, codes are voted on (ties go to the lowest code)."""
    hidden: Widths = (64, 64)
    """Widths of both networks, from (s, a, θ) to the laws' parameters and to the categories' logits."""
    likelihood: Likelihood = Likelihood()
    """How both are fitted."""
    variation_penalty: Weight = 0.0
    """Price of a continuous column's departures from linear regression, as in `DensitySCM`."""
    draw_seed: int = 0
    """Seed of the posterior draw that `abduct` fixes for the codes; another seed is another draw."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        tables, seeds = [self._table(job) for job in jobs], member_seeds(jobs, self.ensemble)
        mechanism = self.build(jobs[0].data.state_size, tables[0]["raw"].shape[1], len(seeds)).to(device_of(device))
        for name, law in (("change", mechanism.law), ("codes", mechanism.codes)):
            if law.size:
                columns = [{"context": t["context"], "y": t[name], "subject": t["subject"]} for t in tables]
                stacked, stage = one_a_member(columns, self.ensemble), monitor.stage(name)
                priced = (
                    VariationPenalty(self.variation_penalty) if name == "change" and self.variation_penalty else None
                )
                fit_by_likelihood(law, stacked, seeds, self.likelihood, identity(self, jobs), stage, priced)
        return self.cut(mechanism, jobs)

    def build(self, state: int, context: int, members: int) -> MixedMechanism:
        check_categories(self.categories, self.static, state)
        width = context + sum(count - 1 for _, count in self.categories)
        moving = [count for column, count in self.categories if column not in self.static]
        continuous = _continuous(self.categories, self.static, state)
        law = ConditionalLaw(members, width, len(continuous), self.law, self.hidden)
        codes = CategoricalLaw(members, width, moving, self.hidden)
        return MixedMechanism(law, codes, self.categories, self.static, state, self.draw_seed)

    def _table(self, job: Job) -> dict[str, Tensor]:
        check_categories(self.categories, self.static, job.data.state_size)
        names, has_next = job.data.state_names, job.data.has_next[:, None]
        check_codes("state", job.data.state, self.categories, names)
        check_codes("next state", torch.where(has_next, job.data.next_state, 0.0), self.categories, names)
        table = fitting_table(job)
        coded = [column for column, _ in self.categories if column not in self.static]
        continuous = _continuous(self.categories, self.static, job.data.state_size)
        return {
            "raw": table["context"],
            "subject": table["subject"],
            "context": spread_levels(table["context"], self.categories),
            "change": (table["next_state"] - table["state"])[:, continuous],
            "codes": table["next_state"][:, coded],
        }


def categorical(*counts: int, ensemble: int = 5) -> Mixed:
    """A Gumbel-max SCM of a state whose every column is categorical, with these numbers of categories."""
    return Mixed(tuple(enumerate(counts)), ensemble=ensemble)


def _continuous(categories: Categories, static: tuple[int, ...], state: int) -> list[int]:
    coded = {column for column, _ in categories}
    return [column for column in range(state) if column not in coded and column not in static]


def check_categories(categories: Categories, static: tuple[int, ...], state: int) -> None:
    """Raise one line where `categories` does not fit a state of so many columns."""
    if not categories and not static:
        raise CounterpointError("Mixed has no categorical column; use DensitySCM for a state of continuous columns")
    columns = [column for column, _ in categories]
    for column, count in categories:
        if not 0 <= column < state or columns.count(column) > 1:
            raise CounterpointError(
                f"categories name column {column}, which is named twice or not one of the state's {state} columns;"
                f" name each of 0 to {state - 1} at most once"
            )
        if count < 2:
            raise CounterpointError(f"categories give column {column} {count} categories; it needs at least 2")
    if len(set(static)) >= state:
        raise CounterpointError("every state column is static, so nothing ever changes; add a column that does")
