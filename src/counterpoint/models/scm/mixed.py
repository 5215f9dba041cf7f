"""An SCM of states with categorical columns beside continuous ones (or with categorical columns alone).

    continuous  s'_i = s_i + f_i(s, a, θ, u_i)                       u_i ~ N(0, 1), f_i increasing in u_i
    amounts     log s'_i = log s_i + f_i(s, a, θ, u_i)               where the rows say so
    computed    s'_l = s_l + f_l(the computed s, all other s', u_l)  (ratios, sums, scores)
    categorical s'_j = argmax_c log p_j(c | s, a, θ) + g_jc          g_jc ~ Gumbel(0)
    static      s'_k = s_k                                           (sex, age at admission)
    exogenous   s'_e = f_e(exogenous s, clock, static s, u_e)        (`exogenous.py`: no action changes them)

Given (s, a, θ) the columns' noises are taken to be independent. The noise table holds the u_i first, then the u_l, then
one Gumbel a category, column by column in the order of `categories`, then the u_e.

A column that is positive in every row may be an amount, which treatment and noise change by a share of it. Whether it
is one is decided by a linear regression of its log ratios or of its differences: whichever makes them likelier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Amount, Count, Finite, Positive, Weight, Widths, check_settings
from counterpoint.data.jobs import Categories, Job, fitting_table, identity, scaled_doses, spread_levels
from counterpoint.data.spaces import constant, places
from counterpoint.models.base import member_seeds, repeated
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel, StructuralMechanism
from counterpoint.models.scm.categorical import CategoricalLaw, check_codes, draw_exponentials, vote, wrong_codes
from counterpoint.models.scm.density import interquartile_mean
from counterpoint.models.scm.exogenous import ExogenousForm, ExogenousLaw
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.laws import Gaussian, Law, Spline
from counterpoint.nets.likelihood import Likelihood, VariationPenalty, fit_by_likelihood
from counterpoint.nets.training import Monitor

ROWS = 32_768
"""Rows that the choice of amounts is made on, the first of the table."""
RIDGE = 1e-3
"""Ridge of its regressions, for standardised columns and a row: columns may be collinear."""
Amounts = tuple[tuple[int, float], ...]
Doses = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True)
class ContextEncoding:
    """From a context, whose first columns are the state, to what a law reads."""

    categories: Categories
    amounts: Amounts = ()
    """(column, lowest): state columns read by their logarithm, and the value below which they are taken for it."""
    doses: Doses = ()
    """(column, levels): columns of the context that hold one of these numbers, in rising order."""
    scales: tuple[tuple[int, int], ...] = ()
    """(column of a dose, column of the state that it acts per)."""

    def link(self, values: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        """States, or contexts, with the logarithm of every amount."""
        if not self.amounts:
            return values
        columns, lowest = zip(*self.amounts, strict=True)
        where = places(columns, values.device)
        amounts = values.index_select(-1, where).clamp(min=constant(lowest, values.device)).log()
        return values.contiguous().index_copy(-1, where, amounts)

    def unlink(self, linked: Float[Tensor, "*n s"]) -> Float[Tensor, "*n s"]:
        """States back from `link`."""
        if not self.amounts:
            return linked
        where = places([column for column, _ in self.amounts], linked.device)
        return linked.contiguous().index_copy(-1, where, linked.index_select(-1, where).exp())

    def __call__(self, context: Float[Tensor, "*n c"]) -> Float[Tensor, "*n w"]:
        """What a law reads: every dose as it is, and a column for each of its levels but the first and the last."""
        inputs = [spread_levels(self.link(scaled_doses(context, self.scales)), self.categories)]
        for column, levels in self.doses:
            inner = constant(levels[1:-1], context.device)
            inputs.append(torch.isclose(context[..., column, None], inner).to(context))
        return torch.cat(inputs, -1) if self.doses else inputs[0]

    def width(self, context: int) -> int:
        """Columns that a law reads of a context of so many."""
        spread = sum(count - 1 for _, count in self.categories)
        return context + spread + sum(len(levels) - 2 for _, levels in self.doses)


def amounts_in(tables: Sequence[dict[str, Tensor]], columns: Sequence[int]) -> Amounts:
    """The columns that are amounts by the rows of all tables; half the lowest value that was seen goes with each."""
    state, after, context = (
        torch.cat([table[name][:ROWS] for table in tables]).double() for name in ("state", "next_state", "context")
    )
    lowest = torch.minimum(state, after).amin(0)
    positive = [column for column in columns if float(lowest[column]) > 0]
    if not positive:
        return ()
    logs = context.clone()
    logs[:, positive] = context[:, positive].log()
    ratio, difference = after[:, positive].log() - state[:, positive].log(), (after - state)[:, positive]
    gain = _rest(context, difference).log() - _rest(logs, ratio).log() - after[:, positive].log().mean(0)
    return tuple(
        (column, float(lowest[column]) / 2) for column, more in zip(positive, gain.tolist(), strict=True) if more > 0
    )


def _rest(x: Float[Tensor, "n c"], y: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviation of what a linear regression leaves of every y."""
    spread = x.std(0, correction=0)
    x, y = (x - x.mean(0)) / torch.where(spread > 0, spread, 1.0), y - y.mean(0)
    gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    rest = y - x @ torch.linalg.solve(gram, x.T @ y)
    return rest.square().mean(0).sqrt().clamp(min=1e-12)


CHANGE, RATIOS, SCORES, CODES = "change", "computed", "scores", "codes"
"""The laws: of columns that chance moves, of computed numbers, of computed whole numbers, and of categories."""
STEPS = 31
"""Steps of every column that a score may be made of, at its quantiles."""
QUANTILE_ROWS = 100_000
"""Rows that the quantiles are of, at most."""


@dataclass(frozen=True)
class ColumnBlocks:
    """Which columns of a state are what, and how the laws see them."""

    seen: ContextEncoding
    static: tuple[int, ...]
    computed: tuple[int, ...]
    scores: tuple[int, ...]
    """Those of the computed ones that are whole numbers."""
    state: int
    """Columns of the state."""
    context: int
    """Columns of state, action and factor."""

    @property
    def moving(self) -> Categories:
        """The categories that change."""
        return tuple((column, count) for column, count in self.seen.categories if column not in self.static)

    @property
    def coded(self) -> list[int]:
        return [column for column, _ in self.moving]

    @property
    def own(self) -> dict[str, list[int]]:
        """The columns of numbers that each law is of; those of the later ones follow from those of the first."""
        other = {*self.static, *self.computed, *(column for column, _ in self.seen.categories)}
        ratios = [column for column in self.computed if column not in self.scores]
        columns = {CHANGE: [c for c in range(self.state) if c not in other], RATIOS: ratios, SCORES: list(self.scores)}
        return {name: part for name, part in columns.items() if part}

    @property
    def stepped(self) -> int:
        """Columns of numbers that a score may be made of."""
        return self.state - len(self.computed) - len(self.seen.categories) if self.scores else 0

    def computed_inputs(self, before: Tensor, after: Tensor) -> Tensor:
        """What computed columns follow from, of linked states: what they were, and all others as they are now.

        Amounts come twice, by their logarithm for ratios and as they are for sums.
        """
        others = [column for column in range(self.state) if column not in self.computed]
        codes = tuple((others.index(column), count) for column, count in self.seen.categories)
        was, now, amounts = (
            table.index_select(-1, places(columns, table.device))
            for table, columns in ((before, self.computed), (after, others), (after, self.summed))
        )
        return torch.cat([was, spread_levels(now, codes), amounts.exp()], -1)

    @property
    def summed(self) -> list[int]:
        """Amounts that are not computed."""
        return [column for column, _ in self.seen.amounts if column not in self.computed]

    def with_steps(self, inputs: Float[Tensor, "*n t"], steps: Float[Tensor, "*k c b"]) -> Float[Tensor, "*n w"]:
        """The same, and whether each number is beyond each of its steps: scores are sums of such steps."""
        numbers = inputs[..., len(self.computed) : len(self.computed) + self.stepped, None]
        return torch.cat([inputs, (numbers > steps.unsqueeze(-3)).to(inputs).flatten(-2)], -1)

    def read_width(self, name: str) -> int:
        """Columns that a law reads."""
        if name == CHANGE:
            return self.seen.width(self.context)
        inputs = self.state + sum(count - 1 for _, count in self.seen.categories) + len(self.summed)
        return inputs + self.stepped * STEPS * (name == SCORES)


def steps_of(numbers: Float[Tensor, "n c"]) -> Float[Tensor, "c b"]:
    """Quantiles of every column."""
    shares = torch.linspace(0, 1, STEPS + 2, dtype=torch.double)[1:-1]
    return torch.quantile(numbers[:QUANTILE_ROWS].double(), shares, 0).T.float()


class MixedMechanism(StructuralMechanism):
    """Laws of the change of continuous columns, of computed ones and scores after them, and of the codes."""

    steps: Tensor

    def __init__(
        self,
        laws: dict[str, ConditionalLaw],
        codes: CategoricalLaw,
        layout: ColumnBlocks,
        members: int,
        seed: int,
        exogenous: ExogenousLaw | None = None,
    ) -> None:
        super().__init__()
        self.laws, self.codes, self.layout, self.seed = nn.ModuleDict(laws), codes, layout, seed
        self.members, self.context_width, self.exogenous = members, layout.context, exogenous
        self.noise_width = self.equation_noise + (exogenous.noise_width if exogenous else 0)
        self.register_buffer("steps", torch.zeros(members, layout.stepped, STEPS))

    @property
    def categories(self) -> Categories:
        return self.layout.seen.categories

    @property
    def normal_noise(self) -> int:
        return sum(len(columns) for columns in self.layout.own.values())

    @property
    def equation_noise(self) -> int:
        return self.normal_noise + sum(self.codes.counts)

    @property
    def noise_columns(self) -> list[int]:
        """The state column that each noise moves."""
        own = [column for columns in self.layout.own.values() for column in columns]
        coded = [column for column, count in self.layout.moving for _ in range(count)]
        return [*own, *coded, *(self.exogenous.noise_columns if self.exogenous else ())]

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        """The point of a continuous column; for a code, where no point exists, a posterior draw fixed by the recipe.

        The draw belongs to the row's place in the table: the same table always gives the same noise, and rows that are
        alike still get draws of their own, so that counterfactuals keep the right frequencies over a table.
        """
        return self.posterior(context, state, next_state, generator(self.seed, "gumbel"))

    def posterior(self, context: Tensor, state: Tensor, next_state: Tensor, random: torch.Generator) -> Tensor:
        self._check(state, next_state)
        layout, fresh = self.layout, draw_exponentials(state.shape[1], sum(self.codes.counts), random).to(state)
        before, after = layout.seen.link(state), layout.seen.link(next_state)
        noises, seen = [], layout.seen(context)
        for name, law in self.laws.items():
            read, columns = self._read(name, seen, before, after), places(layout.own[name], state.device)
            noises.append(law.abduct(read, (after - before).index_select(-1, columns)))  # pyright: ignore[reportCallIssue]
        noises.append(self.codes.abduct(seen, next_state[..., layout.coded], fresh))
        if self.exogenous is not None:
            noises.append(self.exogenous.abduct(state, next_state, random))
        return torch.cat(noises, -1)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        self._check(state)
        layout, sizes = self.layout, [len(columns) for columns in self.layout.own.values()]
        rest = self.noise_width - self.equation_noise
        *normal, gumbels, exogenous = noise.split([*sizes, sum(self.codes.counts), rest], -1)
        seen, before = layout.seen(context), layout.seen.link(state)
        after = before.clone(memory_format=torch.contiguous_format)
        if self.exogenous is not None:
            later = self.exogenous.predict(state, exogenous)
            after = layout.seen.link(self.exogenous.write(state, later))
        after[..., places(layout.coded, state.device)] = self.codes.predict(seen, gumbels)
        for (name, law), draws in zip(self.laws.items(), normal, strict=True):
            change = law.predict(self._read(name, seen, before, after), draws)  # pyright: ignore[reportCallIssue]
            after[..., places(layout.own[name], state.device)] += change
        return layout.seen.unlink(after)

    def _read(self, name: str, seen: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """What a law reads: the context, or for what is computed the other columns as they are now."""
        if name == CHANGE:
            return seen
        inputs = self.layout.computed_inputs(before, after)
        return self.layout.with_steps(inputs, self.steps) if name == SCORES else inputs

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        """The members' interquartile mean for a continuous column, their vote for a categorical one."""
        combined = interquartile_mean(predictions)
        if self.exogenous is not None:
            combined = self.exogenous.combine(predictions, combined)
        for column, count in self.categories:
            combined[:, column] = vote(predictions[..., column], count)
        return combined

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        normal = torch.randn(count, self.normal_noise, generator=random, device=random.device)
        gumbels = -draw_exponentials(count, sum(self.codes.counts), random).log()
        exogenous = [] if self.exogenous is None else [self.exogenous.prior(count, random)]
        return torch.cat([normal, gumbels, *exogenous], -1)

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
class MixedSCM(SCMRecipe):
    """An SCM for states of which some columns, or all, hold codes 0 … count − 1.

    Assumes diagonal noise, and for the codes the Gumbel-max mechanism, which data cannot confirm.
    """

    categories: Categories
    """(column, count) of every categorical state column."""
    law: Law = Spline()
    """The law of one continuous column, as in `DensitySCM`."""
    static: tuple[Count, ...] = ()
    """State columns that never change within a subject; they are inputs, not predicted."""
    computed: tuple[Count, ...] = ()
    """State columns that follow from the others of the same moment and from what they were themselves."""
    scores: tuple[Count, ...] = ()
    """Those of them that are whole numbers: sums of steps."""
    amounts: tuple[tuple[Count, Amount], ...] | None = None
    """(column, lowest value) of state columns modelled by their logarithm; none where the rows are to say which."""
    doses: tuple[tuple[Count, tuple[Finite, ...]], ...] = ()
    """(action column, its values in rising order) of doses whose effect need not be linear, seen level by level."""
    ensemble: Positive = 5
    """Members; continuous columns are averaged over them, codes are voted on (ties go to the lowest code)."""
    hidden: Widths = (64, 64)
    """Widths of both networks, from (s, a, θ) to the laws' parameters and to the categories' logits."""
    likelihood: Likelihood = Likelihood()
    """How both are fitted."""
    variation_penalty: Weight = 0.0
    """Price of a continuous column's departures from linear regression, as in `DensitySCM`."""
    scales: tuple[tuple[Count, Count], ...] = ()
    """(action column, state column) of doses that act per a static column, as a weight."""
    exogenous: ExogenousForm | None = None
    """Which columns no action changes, and what their laws read; they are among `static` too."""
    draw_seed: int = 0
    """Seed of the posterior draw that `abduct` fixes for the codes; another seed is another draw."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        tables, seeds = [self._table(job) for job in jobs], member_seeds(jobs, self.ensemble)
        state, context = tables[0]["state"].shape[1], tables[0]["context"].shape[1]
        if self.amounts is None:
            numbers = {*range(state)} - {*self.static, *(column for column, _ in self.categories)}
            exogenous = self.exogenous
            if exogenous is not None:
                exogenous = exogenous.with_atoms(torch.cat([table["next_state"] for table in tables]))
            structure = replace(self, amounts=amounts_in(tables, sorted(numbers)), exogenous=exogenous)
            return [model.with_recipe(self) for model in structure.fit_many(jobs, monitor, device)]
        mechanism = self.build(state, context, len(seeds)).to(device_of(device))
        fitted = [self._columns(mechanism, i * self.ensemble, table) for i, table in enumerate(tables)]
        laws: dict[str, Any] = {**mechanism.laws, **({CODES: mechanism.codes} if mechanism.codes.size else {})}
        for name, law in laws.items():
            columns = [
                {"context": laws_columns[name][0], "y": laws_columns[name][1], "subject": table["subject"]}
                for laws_columns, table in zip(fitted, tables, strict=True)
            ]
            stacked, stage = repeated(columns, self.ensemble), monitor.stage(name)
            # Scores and ratios are far from linear in what they are made of: only what happens by itself has a price.
            priced = name == CHANGE and self.variation_penalty
            penalty = VariationPenalty(self.variation_penalty) if priced else None
            fit_by_likelihood(law, stacked, seeds, self.likelihood, identity(self, jobs), stage, penalty)
        if mechanism.exogenous is not None:
            mechanism.exogenous.fit(tables, self.ensemble, seeds, identity(self, jobs), monitor)
        return self.cut(mechanism, jobs)

    def _columns(
        self, mechanism: MixedMechanism, first: int, table: dict[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """What each law reads and what it is of, in one table, whose first member is `first`; takes its steps."""
        layout = mechanism.layout
        before, after = (layout.seen.link(table[name]) for name in ("state", "next_state"))
        seen, inputs = layout.seen(table["context"]), layout.computed_inputs(before, after)
        read = {CHANGE: seen, RATIOS: inputs}
        if layout.scores:
            steps = steps_of(inputs[:, len(layout.computed) :][:, : layout.stepped])
            mechanism.steps[first : first + self.ensemble] = steps.to(mechanism.steps)
            read[SCORES] = layout.with_steps(inputs, steps)
        columns_of = {name: (read[name], (after - before)[:, columns]) for name, columns in layout.own.items()}
        return columns_of | {CODES: (seen, table["next_state"][:, layout.coded])}

    def build(self, state: int, context: int, members: int) -> MixedMechanism:
        check_categories(self.categories, (*self.static, *self.computed), state)
        doses = tuple((state + column, values) for column, values in self.doses)
        scales = tuple((state + column, by) for column, by in self.scales)
        seen = ContextEncoding(self.categories, self.amounts or (), doses, scales)
        layout = ColumnBlocks(seen, self.static, self.computed, self.scores, state, context)
        laws = {
            name: ConditionalLaw(
                members, layout.read_width(name), len(columns), self.law if name == CHANGE else Gaussian(), self.hidden
            )
            for name, columns in layout.own.items()
        }
        codes = CategoricalLaw(members, seen.width(context), [count for _, count in layout.moving], self.hidden)
        exogenous = None if self.exogenous is None else ExogenousLaw(members, self.exogenous)
        return MixedMechanism(laws, codes, layout, members, self.draw_seed, exogenous)

    def _table(self, job: Job) -> dict[str, Tensor]:
        check_categories(self.categories, (*self.static, *self.computed), job.data.state_size)
        names, has_next = job.data.state_names, job.data.has_next[:, None]
        check_codes("state", job.data.state, self.categories, names)
        check_codes("next state", torch.where(has_next, job.data.next_state, 0.0), self.categories, names)
        return fitting_table(job)


def categorical(*counts: int, ensemble: int = 5) -> MixedSCM:
    """A Gumbel-max SCM of a state whose every column is categorical, with these numbers of categories."""
    return MixedSCM(tuple(enumerate(counts)), ensemble=ensemble)


def check_categories(categories: Categories, static: tuple[int, ...], state: int) -> None:
    """Raise one line where `categories` does not fit a state of so many columns."""
    if not categories and not static:
        raise CounterpointError(
            "MixedSCM has no categorical column, and none that is static or computed; use DensitySCM"
        )
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
        raise CounterpointError("every state column is static or computed, so nothing changes; add one that does")
