"""Cohorts of septic patients: synthetic, with known truth, or a table of `counterpoint mimic` or `counterpoint cohort`.

Patients are split 80/10/10 as in the paper; learners see only the first part.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from counterpoint.core.artifacts import read_json
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.layout import Layout
from counterpoint.data.tables.reading import read_table
from counterpoint.data.transitions import Transitions, concatenate, held_out_subjects
from counterpoint.simulation.augmentation import without_noise
from reproduction.tasks.sepsis import SyntheticSepsis
from reproduction.tasks.synthetic_cohort import SyntheticCohort

PATIENTS = 15_656
"""In the paper, each with at least five steps."""
WINDOW = 5
"""Consecutive states from which the paper infers a patient's factor."""
HELD_OUT = 0.2
"""Share of the patients held out: one half for validation, the other for the test."""
DIED = "died"


@dataclass(frozen=True, eq=False)
class Split:
    """A cohort's rows, split by patient."""

    everybody: Transitions
    train: Transitions
    validation: Transitions
    test: Transitions

    @classmethod
    def of(cls, rows: Transitions, seed: int) -> "Split":
        """Split 80/10/10 by patient, and remove the simulator's noise."""
        rows = without_noise(rows)
        train, aside = rows.split(HELD_OUT, seed)
        tested = torch.isin(aside.subject, held_out_subjects(aside.subject, 0.5, derive(seed, "test")))
        return cls(rows, train, aside[~tested], aside[tested])

    @property
    def held_out(self) -> Transitions:
        """Validation and test patients together, on whom policies are evaluated."""
        return concatenate([self.validation, self.test])

    def with_numbers(self) -> "Split":
        """Return the same with flags as numbers."""
        return Split(*(with_numbers(part) for part in (self.everybody, self.train, self.validation, self.test)))

    def sizes(self) -> list[dict[str, Any]]:
        """Count patients, decisions, transitions and windows of five states, as the paper does."""
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        return [{"part": name, **_size(rows)} for name, rows in parts.items()]


def _size(rows: Transitions) -> dict[str, Any]:
    dead = died(rows)
    return {
        "patients": len(rows.subject.unique()),
        "decisions": len(rows),
        "transitions": int(rows.has_next.sum()),
        "windows": len(rows.windows(WINDOW).rows),
        "died": len(rows.subject[dead].unique()),
    }


@dataclass(frozen=True)
class SyntheticPatients:
    """Patients of the synthetic ward, treated by its physician; every seed has others."""

    patients: Positive = PATIENTS // 10
    """Their number; by default a tenth of the paper's cohort."""

    def __post_init__(self) -> None:
        check_settings(self)

    def task(self, seed: int) -> SyntheticSepsis:
        """Return the simulator of these patients."""
        return self.cohort(seed).task

    def read(self, seed: int) -> Transitions:
        """Return the log, with its noise. Records have any length: dropping short ones, as the paper does, would drop
        early deaths and discharges and bias every policy's value."""
        return self.cohort(seed).log()

    def cohort(self, seed: int) -> SyntheticCohort:
        return SyntheticCohort(self.patients, HELD_OUT, seed)


@dataclass(frozen=True)
class TableCohort:
    """A Parquet file of `counterpoint mimic` or `counterpoint cohort`, with its manifest in the same folder."""

    path: str
    digest: str
    """Hash of the table, which makes it part of a cell's key."""
    shortest: Positive = WINDOW
    """The least number of decisions of a stay."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, path: Path) -> "TableCohort":
        require(path.exists(), f"there is no cohort '{path}'; make one with counterpoint mimic or counterpoint cohort")
        with path.open("rb") as opened:
            return cls(str(path), hashlib.file_digest(opened, "sha256").hexdigest()[:16])

    def task(self, seed: int) -> None:
        """Return None: there is no simulator of these patients."""

    def read(self, seed: int) -> Transitions:
        """Read the rows, with doses binned at the manifest's cuts."""
        path = Path(self.path)
        again = "make the cohort again with counterpoint mimic"
        manifest = read_json(path.with_suffix(".json"), again)
        require({"state", "cuts"} <= manifest.keys(), f"'{path.with_suffix('.json')}' is no cohort's manifest; {again}")
        rows = read_table(path, layout_of(manifest), HELD_OUT, seed).rows
        kept = rows[lasting(rows, self.shortest)]
        require(len(kept) > 0, f"no stay of '{path}' has {self.shortest} decisions; use a larger cohort")
        return within_seen(kept)


Cohort = SyntheticPatients | TableCohort


def layout_of(manifest: dict[str, Any]) -> Layout:
    """How a cohort's table is read."""
    cuts: dict[str, Sequence[float]] = manifest["cuts"]
    return Layout(
        subject="patient",
        episode="stay",
        time="bloc",
        state=tuple(manifest["state"]),
        action=tuple(cuts) or ("fluid_bin", "vaso_bin"),
        bins=tuple(Bins(name, cuts=tuple(places)) for name, places in cuts.items()),
        reward="reward",
        done=(DIED, "survived"),
        gaps="bridge",
        knowledge=Knowledge(computed=tuple(manifest.get("computed", ())), whole=tuple(manifest.get("whole", ()))),
    )


def lasting(rows: Transitions, steps: int) -> Bool[Tensor, " n"]:
    """Return whether each row's episode has at least `steps` decisions."""
    return torch.bincount(rows.episode)[rows.episode] >= steps


def with_numbers(rows: Transitions) -> Transitions:
    """Return the rows with flags as numbers, which models with subject factors need; imagined flags stay between the
    codes 0 and 1."""
    schema = rows.schema
    states = tuple(replace(column, levels=()) for column in schema.states)
    ranges = tuple((column.name, 0.0, len(column.levels) - 1.0) for column in schema.states if column.levels)
    knowledge = replace(schema.knowledge, bounds=(*schema.knowledge.bounds, *ranges))
    return replace(rows, schema=replace(schema, states=states, knowledge=knowledge))


def within_seen(rows: Transitions) -> Transitions:
    """Return the rows with the observed range of every number as its bounds: imagined patients stay inside."""
    seen = torch.cat([rows.state, rows.next_state[rows.has_next]])
    ends = zip(rows.schema.states, seen.amin(0).tolist(), seen.amax(0).tolist(), strict=True)
    bounds = tuple((column.name, low, high) for column, low, high in ends if not column.levels and low < high)
    return replace(rows, schema=replace(rows.schema, knowledge=replace(rows.schema.knowledge, bounds=bounds)))


def died(rows: Transitions) -> Bool[Tensor, " n"]:
    """Return whether the patient dies in each row."""
    names = rows.outcome_names
    return rows.outcome == names.index(DIED) if DIED in names else torch.zeros(len(rows), dtype=torch.bool)


def dead_later(rows: Transitions) -> Bool[Tensor, " n"]:
    """Return whether each row's episode ends in death."""
    return torch.isin(rows.episode, rows.episode[died(rows)])


def one_ending(rows: Transitions) -> str:
    """Return why no policy can be evaluated if all patients ended alike; empty if they did not."""
    ended, dead = int(rows.terminated.sum()), int(died(rows).sum())
    if 0 < dead < ended:
        return ""
    all_of_them = "Nobody died" if not dead else "Everybody died"
    return (
        f"{all_of_them} in this cohort ({ended} stays that ended, {dead} in death): no policy can be evaluated from it,"
        " because all treatments have the same outcome."
    )
