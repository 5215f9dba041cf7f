"""How many factors subjects differ by, and what each column's change means: chosen on subjects kept aside.

Both are tried with the linear model, which takes a second. A candidate's score is the marginal likelihood of whole
subjects it was not fitted on, in the units of the columns themselves. Of two candidates the simpler one is
kept unless the other is better by more than the standard error of their difference over subjects.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.models.scm.effects.changes import CHANGES, Change, EquationForm
from counterpoint.models.scm.effects.linear import fit
from counterpoint.models.scm.effects.prepared import EffectsTable, Prepared, prepare

FOLDS = 3
MOST_SUBJECTS = 1000
"""Subjects that a choice is made on at most."""
ROUNDING = 1e-9
"""A gain in log density below this is none."""
TRIED_FACTORS = 2
"""Factors with which the meaning of changes is chosen, where their number is not given."""


def held_out_density(ready: Prepared, factors: int, seed: int) -> Float[Tensor, " n"]:
    """The log density of every subject's whole record, under a model fitted on the other folds."""
    subjects = len(ready.sums.rows)
    fold = torch.randperm(subjects, generator=generator(seed, "folds")) % FOLDS
    density = torch.full((subjects,), -torch.inf, dtype=torch.double)
    for i in range(FOLDS):
        density[fold == i] = fit(ready.sums[fold != i], factors).log_likelihood(ready.sums[fold == i])
    return density + ready.log_slope


def better(simple: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> bool:
    """Whether the other candidate is better by more than the standard error of the difference."""
    gain = (other - simple).nan_to_num(-1e30, 1e30, -1e30)
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5 + ROUNDING)


def some_subjects(table: EffectsTable, seed: int) -> EffectsTable:
    """The table, or `MOST_SUBJECTS` of its subjects."""
    if table.subjects <= MOST_SUBJECTS:
        return table
    return table.of(torch.randperm(table.subjects, generator=generator(seed, "choice"))[:MOST_SUBJECTS])


def choose_changes(table: EffectsTable, layout: EquationForm, factors: int | None, seed: int) -> EquationForm:
    """What each column's change means, one column after another; ratios only where the column is always positive."""
    table = some_subjects(table, seed)
    tried = TRIED_FACTORS if factors is None else factors
    densities: dict[EquationForm, Float[Tensor, " n"]] = {}
    for column in _positive(table, layout):
        for change in CHANGES[1:]:
            other = replace(layout, changes=_with(layout.changes, column, change))
            for form in (layout, other):
                if form not in densities:
                    densities[form] = held_out_density(prepare(table, form, min(tried, 1)), tried, seed)
            layout = other if better(densities[layout], densities[other]) else layout
    return layout


def choose_noise(table: EffectsTable, layout: EquationForm, factors: int | None, seed: int) -> EquationForm:
    """Whether part of the noise is proportional to the amount."""
    other, table = replace(layout, combined=True), some_subjects(table, seed)
    if table.subjects < FOLDS or not any(layout.additive):
        return layout
    tried = min(TRIED_FACTORS if factors is None else factors, 1)
    simple = prepare(table, layout, tried)
    if not simple.rows.affordable:  # No row is weighed by its own noise, so that both would fit alike.
        return layout
    densities = held_out_density(prepare(table, other, tried), tried, seed)
    return other if better(held_out_density(simple, tried, seed), densities) else layout


def choose_factors(table: EffectsTable, layout: EquationForm, most: int, seed: int) -> int:
    """How many factors subjects differ by: one more as long as it pays."""
    table = some_subjects(table, seed)
    if table.subjects < FOLDS:
        return 0
    ready = prepare(table, layout, 1)
    best = held_out_density(ready, 0, seed)
    for factors in range(1, most + 1):
        density = held_out_density(ready, factors, seed)
        if not better(best, density):
            return factors - 1
        best = density
    return most


def _positive(table: EffectsTable, layout: EquationForm) -> list[int]:
    """The moving columns that are positive in every row; none where there are too few subjects to choose by."""
    if table.subjects < FOLDS:
        return []
    return [column for column in layout.moving if table.positive(column)]


def _with(changes: Sequence[Change], column: int, change: Change) -> tuple[Change, ...]:
    return tuple(change if i == column else other for i, other in enumerate(changes))
