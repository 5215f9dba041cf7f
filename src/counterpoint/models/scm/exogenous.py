"""The law of exogenous columns: what no action changes is predicted from its own past, the clock and static columns.

A number that often holds one value exactly, as a meal that is mostly 0, has that value with a probability and is
otherwise continuous. The law reads no action, no subject factor, and no column that an action reaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.settings import Count, Finite, check_settings
from counterpoint.data.jobs import Categories, spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import places
from counterpoint.models.base import repeated
from counterpoint.models.scm.categorical import CategoricalLaw, draw_exponentials
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.laws import SkewedSpline
from counterpoint.nets.likelihood import Likelihood, fit_by_likelihood
from counterpoint.nets.training import Monitor, Schedule

ATOM = 0.1
"""Share of the rows above which a single value of a number gets a probability of its own."""
FEWEST_ROWS = 8
"""Rows with another value that a continuous law needs; with fewer there is no atom."""
HIDDEN = (32, 32)
"""Widths of the laws' networks."""
LIKELIHOOD = Likelihood(Schedule(steps=400, check_every=25, patience=4, rate="one-cycle"), learning_rate=5e-3)
"""How the laws are fitted: they have few inputs."""


@dataclass(frozen=True)
class ExogenousForm:
    """Which columns are exogenous, and which columns their laws read."""

    numbers: tuple[Count, ...] = ()
    """Exogenous columns of numbers."""
    codes: Categories = ()
    """(column, count) of exogenous categories."""
    inputs: tuple[Count, ...] = ()
    """Columns that the laws read: those that no action reaches."""
    levels: Categories = ()
    """(place among the inputs, count) of the categories among them."""
    atoms: tuple[tuple[Count, Finite], ...] = ()
    """(column, value) of numbers with a value that many rows hold exactly."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, schema: Schema) -> "ExogenousForm":
        """Return the form that a schema declares, without atoms."""
        counts = dict(schema.categories)
        inputs = schema.autonomous
        return cls(
            numbers=tuple(i for i in schema.exogenous if i not in counts),
            codes=tuple((i, counts[i]) for i in schema.exogenous if i in counts),
            inputs=inputs,
            levels=tuple((place, counts[i]) for place, i in enumerate(inputs) if i in counts),
        )

    @property
    def columns(self) -> tuple[int, ...]:
        """The exogenous columns, numbers first."""
        return (*self.numbers, *(column for column, _ in self.codes))

    def with_atoms(self, next_state: Float[Tensor, "n s"]) -> "ExogenousForm":
        """Return the form with the atoms of these rows."""
        atoms: list[tuple[int, float]] = []
        for column in self.numbers:
            values, counts = next_state[:, column].unique(return_counts=True)
            most = int(counts.argmax())
            others = len(next_state) - int(counts[most])
            if counts[most] >= ATOM * len(next_state) and others >= FEWEST_ROWS:
                atoms.append((column, float(values[most])))
        return replace(self, atoms=tuple(atoms))

    def read(self, state: Float[Tensor, "*n s"]) -> Float[Tensor, "*n i"]:
        """Return what the laws read of states."""
        return spread_levels(state.index_select(-1, places(self.inputs, state.device)), self.levels)

    @property
    def width(self) -> int:
        """How many columns the laws read."""
        return len(self.inputs) + sum(count - 1 for _, count in self.levels)


class ExogenousLaw(nn.Module):
    """Every member's laws of the exogenous columns."""

    def __init__(self, members: int, form: ExogenousForm) -> None:
        super().__init__()
        self.members, self.form = members, form
        laws = [ConditionalLaw(members, form.width, 1, SkewedSpline(), HIDDEN) for _ in form.numbers]
        self.numbers = nn.ModuleList(laws)
        counts = [*(2 for _ in form.atoms), *(count for _, count in form.codes)]
        self.codes = CategoricalLaw(members, form.width, counts, HIDDEN)

    @property
    def normals(self) -> int:
        """Width of the standard normal noise, which comes first: one for each number."""
        return len(self.numbers)

    @property
    def noise_width(self) -> int:
        """Width of the noise: behind the normals two Gumbels for each atom, and one for each level of a category."""
        return self.normals + sum(self.codes.counts)

    @property
    def noise_columns(self) -> list[int]:
        """The state column of every noise."""
        atoms = [column for column, _ in self.form.atoms for _ in range(2)]
        return [*self.form.numbers, *atoms, *(column for column, count in self.form.codes for _ in range(count))]

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """Draw the noise of `count` rows."""
        normals = torch.randn(count, self.normals, generator=random, device=random.device)
        return torch.cat([normals, -draw_exponentials(count, sum(self.codes.counts), random).log()], -1)

    def predict(self, state: Float[Tensor, "m n s"], noise: Float[Tensor, "m n u"]) -> Float[Tensor, "m n e"]:
        """Return the next values of `form.columns`."""
        inputs, form = self.form.read(state), self.form
        normals, gumbels = noise[..., : self.normals], noise[..., self.normals :]
        parts = [law.predict(inputs, normals[..., i : i + 1]) for i, law in enumerate(self.numbers)]  # pyright: ignore[reportCallIssue]
        codes = self.codes.predict(inputs, gumbels) if self.codes.size else gumbels
        for i, (column, value) in enumerate(form.atoms):
            place = form.numbers.index(column)
            parts[place] = torch.where(codes[..., i : i + 1] > 0, value, parts[place])
        return torch.cat([*parts, codes[..., len(form.atoms) :]], -1)

    def combine(self, predictions: Float[Tensor, "m n s"], combined: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """Return `combined` with the members' median in the exogenous columns, which keeps their atoms."""
        columns = places(self.form.columns, predictions.device)
        return combined.index_copy(-1, columns, predictions.index_select(-1, columns).median(0).values)

    def write(self, after: Float[Tensor, "m n s"], values: Float[Tensor, "m n e"]) -> Float[Tensor, "m n s"]:
        """Return next states with these values of `form.columns`."""
        return after.contiguous().index_copy(-1, places(self.form.columns, after.device), values)

    def abduct(
        self, state: Float[Tensor, "m n s"], next_state: Float[Tensor, "m n s"], random: torch.Generator
    ) -> Float[Tensor, "m n u"]:
        """Return the noise behind the next values; what a code or an atom leaves open is drawn."""
        inputs, form, atoms = self.form.read(state), self.form, dict(self.form.atoms)
        normals = torch.randn(state.shape[1], self.normals, generator=random, device=random.device).to(state)
        exponentials = draw_exponentials(state.shape[1], sum(self.codes.counts), random).to(state)
        parts, switches = [], []
        for i, (column, law) in enumerate(zip(form.numbers, self.numbers, strict=True)):
            after = next_state[..., column : column + 1]
            noise = law.abduct(inputs, after)  # pyright: ignore[reportCallIssue]
            if column in atoms:
                held = after == atoms[column]
                noise = torch.where(held, normals[:, i : i + 1].expand_as(noise), noise)
                switches.append(held.to(after))
            parts.append(noise)
        if self.codes.size:
            codes = [next_state[..., column : column + 1] for column, _ in form.codes]
            parts.append(self.codes.abduct(inputs, torch.cat([*switches, *codes], -1), exponentials))
        return torch.cat(parts, -1)

    def fit(
        self,
        tables: Sequence[dict[str, Tensor]],
        ensemble: int,
        seeds: Sequence[int],
        identity: str,
        monitor: Monitor,
    ) -> None:
        """Fit `ensemble` members to each table of state, next_state and subject."""
        atoms = dict(self.form.atoms)
        for column, law in zip(self.form.numbers, self.numbers, strict=True):
            parts = []
            for table in tables:
                after = table["next_state"][:, column]
                kept = after != atoms[column] if column in atoms else torch.ones_like(after, dtype=torch.bool)
                kept = kept if int(kept.sum()) >= FEWEST_ROWS else torch.ones_like(kept)
                part = {"context": self.form.read(table["state"])[kept], "y": after[kept, None]}
                parts.append(part | {"subject": table["subject"][kept]})
            stage = monitor.stage(f"exogenous-{column}")
            fit_by_likelihood(law, repeated(parts, ensemble), seeds, LIKELIHOOD, identity, stage)
        if self.codes.size:
            parts = [
                {"context": self.form.read(t["state"]), "y": self._codes_of(t["next_state"]), "subject": t["subject"]}
                for t in tables
            ]
            stage = monitor.stage("exogenous-codes")
            fit_by_likelihood(self.codes, repeated(parts, ensemble), seeds, LIKELIHOOD, identity, stage)

    def _codes_of(self, next_state: Float[Tensor, "n s"]) -> Float[Tensor, "n c"]:
        switches = [(next_state[:, column] == value).to(next_state) for column, value in self.form.atoms]
        return torch.stack([*switches, *(next_state[:, column] for column, _ in self.form.codes)], -1)
