"""An SCM with subject factors: s' = f(s, a, θ, u), θ ~ N(0, I) for each subject, with an exact posterior.

`model.subject_factors(rows)` gives the posterior of every subject from its rows: a sum over them, in any order and of
any number, the prior for none. `model.factors_before(rows)` gives, for every row, what its subject's earlier rows say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Rate, Share, Widths, check_settings
from counterpoint.data.jobs import Job, check_fittable, context, identity
from counterpoint.data.schema import Schema
from counterpoint.models.base import member_seeds
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel
from counterpoint.models.scm.effects.changes import Change, EquationForm
from counterpoint.models.scm.effects.choosing import choose_changes, choose_factors, choose_noise
from counterpoint.models.scm.effects.doses import scaled_columns
from counterpoint.models.scm.effects.law import EffectsLaw
from counterpoint.models.scm.effects.learner import EffectsTraining, SubjectRows, bootstrap, rows_of_subjects
from counterpoint.models.scm.effects.linear import LinearEffects, fit, improve
from counterpoint.models.scm.effects.mechanism import EffectsMechanism, align
from counterpoint.models.scm.effects.prepared import EffectsTable, Prepared, prepare
from counterpoint.models.scm.exogenous import ExogenousForm, ExogenousLaw
from counterpoint.nets.likelihood import held_out_last
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, Schedule, train

MEMBER_ROUNDS = 30
"""Iterations by which a bootstrapped member's linear model moves on from the first member's."""
MARGIN = 0.1
"""Share of a column's logged range by which `bounded` equations may leave it."""
FEWEST = 8
"""Subjects below which none is kept aside, and the linear model is kept."""


@dataclass(frozen=True)
class RandomEffects(SCMRecipe):
    """An SCM with subject factors and their exact posterior, started from a linear mixed-effects model."""

    command: ClassVar = ("random-effects", "subjects differ, each by a factor with an exact posterior")
    factors: Count | None = None
    """How many numbers subjects differ by; none to choose on subjects kept aside."""
    changes: tuple[Change, ...] = ()
    """What each state column's change is; empty to choose on subjects kept aside."""
    ensemble: Positive = 5
    """Members, each on its own bootstrap of the subjects; they share θ."""
    hidden: Widths = (32, 32)
    """Widths of the network that adds to the linear model; none for the linear model alone, which takes seconds."""
    schedule: Schedule = Schedule(steps=600, check_every=50, patience=4, rate="one-cycle")
    """How long the network is trained; it is kept where it improves the score on held-out subjects."""
    learning_rate: Rate = 5e-3
    """Peak learning rate of AdamW."""
    batch: Positive = 32
    """Subjects a minibatch."""
    held_out: Share = 0.15
    """Share of the subjects kept aside to choose the best step."""
    most_factors: Positive = 4
    """Factors that are tried at most where their number is chosen."""
    bounded: bool = False
    """Whether next values are kept within the logged range and `MARGIN` of it beyond: a linear equation with subjects'
    own slopes may otherwise grow without end in a long rollout."""
    layout: EquationForm | None = None
    """Which columns have equations and of what kind; taken from the table."""
    exogenous: ExogenousForm | None = None
    """Which columns no action changes, and what their laws read; taken from the table."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.held_out < 1, "held_out=1 leaves nothing to learn from; give a number from 0 to below 1")
        require(
            self.schedule.check_every > 0,
            "networks are kept by their score on subjects kept aside; set schedule.check_every to 1 or more",
        )

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        tables = [_table(job) for job in jobs]
        chosen = [self.chosen(table, job) for table, job in zip(tables, jobs, strict=True)]
        models: dict[int, StructuralCausalModel] = {}
        for recipe in dict.fromkeys(chosen):
            places = [i for i, other in enumerate(chosen) if other == recipe]
            stage = monitor if len(set(chosen)) == 1 else monitor.stage(f"effects-{places[0]}")
            fitted = recipe._fit([jobs[i] for i in places], [tables[i] for i in places], stage, device)
            models |= zip(places, fitted, strict=True)
        return [models[i].with_recipe(self) for i in range(len(jobs))]

    def chosen(self, table: EffectsTable, job: Job) -> "RandomEffects":
        """The same recipe with everything decided that a table decides."""
        schema, seed = job.data.schema, derive(job.seed, "choice")
        plain: tuple[Change, ...] = self.changes or ("difference",) * len(schema.states)
        layout = EquationForm(plain, schema.categories, _unpredicted(schema), scaled_columns(schema))
        if self.bounded:
            layout = replace(layout, limits=_limits(table, layout))
        if self.changes:
            _check_changes(table, layout, schema)
        else:
            layout = choose_changes(table, layout, self.factors, seed)
        layout = choose_noise(table, layout, self.factors, seed)
        factors = choose_factors(table, layout, self.most_factors, seed) if self.factors is None else self.factors
        exogenous = ExogenousForm.of(schema).with_atoms(table.after) if schema.exogenous else None
        return replace(self, factors=factors, changes=layout.changes, layout=layout, exogenous=exogenous)

    def _fit(
        self, jobs: Sequence[Job], tables: Sequence[EffectsTable], monitor: Monitor, device: str
    ) -> list[StructuralCausalModel]:
        assert self.factors is not None
        members = self.ensemble * len(jobs)
        seeds, states = member_seeds(jobs, self.ensemble), jobs[0].data.state_size
        mechanism = self.build(states, tables[0].inputs.shape[1] + self.factors, members)
        initialise(mechanism.law.net, seeds)
        mechanism.law.silence(torch.ones(members, dtype=torch.bool))
        records, drawn = [], []
        for place, (job, table) in enumerate(zip(jobs, tables, strict=True)):
            record = self._records(job, table)
            subjects = [bootstrap(record.learned, member, job.seed) for member in range(self.ensemble)]
            self._start(mechanism.law, place * self.ensemble, table, record, subjects)
            records += [record] * self.ensemble
            drawn += subjects
        mechanism.to(device_of(device))
        if self.hidden and any(len(record.held) for record in records):
            self._train(mechanism.law, records, drawn, seeds, identity(self, jobs), monitor)
        if mechanism.exogenous is not None:
            rows = [{"state": t.state, "next_state": t.after, "subject": t.subject} for t in tables]
            mechanism.exogenous.fit(rows, self.ensemble, seeds, identity(self, jobs), monitor)
        models = self.cut(mechanism, jobs)
        for model, job in zip(models, jobs, strict=True):
            assert isinstance(model.mechanism, EffectsMechanism)
            align(model.mechanism, job.data)
        return models

    def _records(self, job: Job, table: EffectsTable) -> SubjectRows:
        assert self.layout is not None
        rows = rows_of_subjects(table.subject)
        learned, held = torch.arange(len(rows)), torch.arange(0)
        if len(rows) >= FEWEST and self.held_out:
            order, kept = held_out_last(learned, self.held_out, derive(job.seed, "held out"))
            learned, held = order[:kept], order[kept:]
        y = self.layout.change(table.state, table.after)
        return SubjectRows(table.inputs, table.state, y, rows, learned, held)

    def _start(
        self, law: EffectsLaw, first: int, table: EffectsTable, record: SubjectRows, drawn: Sequence[Tensor]
    ) -> None:
        """Every member of a job from a linear model of the subjects that it learns from."""
        assert self.layout is not None
        assert self.factors is not None
        ready = prepare(table, self.layout, self.factors)
        sums = ready.sums[record.learned]
        effects = fit(sums, self.factors)
        for member, subjects in enumerate(drawn):
            resampled = self._resampled(effects, ready, record, subjects) if member else effects
            law.take(first + member, resampled, ready)

    def _resampled(
        self, effects: LinearEffects, ready: Prepared, record: SubjectRows, subjects: Int[Tensor, " a"]
    ) -> LinearEffects:
        """The linear model of a bootstrap, moved on from that of all subjects so that both speak of the same θ."""
        counts = torch.bincount(subjects, minlength=len(ready.sums.rows))[record.learned].double()
        sums = ready.sums[record.learned]
        return improve(effects, sums, counts, MEMBER_ROUNDS) if effects.factors else fit(sums, 0, counts)

    def _train(
        self,
        law: EffectsLaw,
        records: Sequence[SubjectRows],
        drawn: Sequence[Tensor],
        seeds: Sequence[int],
        run: str,
        monitor: Monitor,
    ) -> None:
        """Train the networks, and go back to the linear model where they do not pay."""
        learner = EffectsTraining(law, records, drawn, self.batch, self.learning_rate)
        before = learner.score()
        monitor.report(monitor.name, 0, self.schedule.steps)
        trained = train(learner, self.schedule, seeds, run, monitor)
        law.silence(~(trained.best_score < before))

    def build(self, state: int, context: int, members: int) -> EffectsMechanism:
        require(
            self.layout is not None and self.factors is not None,
            "this recipe has not seen a table; fit it on one first",
        )
        assert self.layout is not None
        assert self.factors is not None
        inputs = context - self.factors + sum(count - 1 for _, count in self.layout.categories)
        law = EffectsLaw(members, self.layout, inputs, self.factors, self.hidden)
        return EffectsMechanism(law, context, None if self.exogenous is None else ExogenousLaw(members, self.exogenous))


def _unpredicted(schema: Schema) -> tuple[int, ...]:
    """Columns that have no equation; a category that changes is refused."""
    unpredicted = schema.unpredicted
    coded = [schema.state_names[column] for column, _ in schema.categories if column not in unpredicted]
    require(
        not coded,
        f"state column '{(coded or [''])[0]}' is a category that changes, and random effects are for numbers; use"
        " DensitySCM, or load the table with it as a number",
    )
    require(
        len(unpredicted) < len(schema.states),
        "every state column is static, so nothing ever changes; add one that does",
    )
    return unpredicted


def _limits(table: EffectsTable, layout: EquationForm) -> tuple[tuple[float, float], ...]:
    """The logged range of every moving column, widened by `MARGIN`; what is always positive stays so."""
    values = layout.of_moving(torch.cat([table.state, table.after])).double()
    low, high = values.amin(0), values.amax(0)
    margin = MARGIN * (high - low)
    lowest = torch.where(low > 0, (low - margin).maximum((1 - MARGIN) * low), low - margin)
    return tuple(zip(lowest.tolist(), (high + margin).tolist(), strict=True))


def _check_changes(table: EffectsTable, layout: EquationForm, schema: Schema) -> None:
    """Changes that were given are one for each column, and ratios are of what is always positive."""
    count, names = len(layout.changes), schema.state_names
    require(count == len(names), f"changes names {count} columns of {len(names)}; name all or none")
    wrong = [names[i] for i, is_ratio in enumerate(layout.relative) if is_ratio and not table.positive(i)]
    require(not wrong, f"state column '{(wrong or [''])[0]}' is not always positive; let its change be a difference")


def _table(job: Job) -> EffectsTable:
    """A job's real rows with a next state, subjects numbered from 0."""
    require(
        job.theta.shape[1] == 0,
        "random effects find the subjects' factors themselves; leave theta out, or use DensitySCM",
    )
    rows = job.data[~job.data.imagined & job.data.has_next]
    check_fittable(rows)
    number = (rows.subject.bincount() > 0).cumsum(0)[rows.subject] - 1
    return EffectsTable(context(rows.state, rows.action), rows.state, rows.next_state, number)
