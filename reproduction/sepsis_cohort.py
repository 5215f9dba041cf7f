"""Who is treated: a synthetic cohort, whose truth is known, or a table that `counterpoint mimic` or `cohort` made.

Patients are split once, 80/10/10 as in the paper: nothing is learned from those of validation and test.
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
from counterpoint.tasks.sepsis import SyntheticSepsis
from reproduction.tasks.synthetic_cohort import SyntheticCohort

PATIENTS = 15_656
"""Of the paper, each with at least five steps."""
WINDOW = 5
"""States in a row from which the paper infers a patient's factor."""
HELD_OUT = 0.2
"""Share of the patients that nothing is learned from: one half for validation, the other for the test."""
DIED = "died"


@dataclass(frozen=True, eq=False)
class Split:
    """A cohort's rows by patient."""

    everybody: Transitions
    train: Transitions
    validation: Transitions
    test: Transitions

    @classmethod
    def of(cls, rows: Transitions, seed: int) -> "Split":
        """80/10/10 by patient; a simulator's noise is not for learners."""
        rows = without_noise(rows)
        train, aside = rows.split(HELD_OUT, seed)
        tested = torch.isin(aside.subject, held_out_subjects(aside.subject, 0.5, derive(seed, "test")))
        return cls(rows, train, aside[~tested], aside[tested])

    @property
    def held_out(self) -> Transitions:
        """Validation and test together: policies are judged on all patients whom nobody learned from."""
        return concatenate([self.validation, self.test])

    def with_numbers(self) -> "Split":
        """The same with every flag read as a number."""
        return Split(*(with_numbers(part) for part in (self.everybody, self.train, self.validation, self.test)))

    def sizes(self) -> list[dict[str, Any]]:
        """Patients, decisions, transitions and windows of five states, as the paper counts them."""
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
    """Patients of the synthetic ward, other ones for every seed, treated by its physician."""

    patients: Positive = PATIENTS // 10
    """How many; a tenth of the paper's cohort unless told."""

    def __post_init__(self) -> None:
        check_settings(self)

    def task(self, seed: int) -> SyntheticSepsis:
        """The equations of these patients."""
        return self.cohort(seed).task

    def read(self, seed: int) -> Transitions:
        """The log, with the noise that made it. Records of any length: leaving out short ones, as the paper does, would
        leave out early deaths and early discharges, and no policy's value would be that of the rest."""
        return self.cohort(seed).log()

    def cohort(self, seed: int) -> SyntheticCohort:
        return SyntheticCohort(self.patients, HELD_OUT, seed)


@dataclass(frozen=True)
class TableCohort:
    """A Parquet file of `counterpoint mimic` or `counterpoint cohort`, beside its manifest."""

    path: str
    digest: str
    """Hash of the table: another table has other results."""
    shortest: Positive = WINDOW
    """Decisions that a stay has at least."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, path: Path) -> "TableCohort":
        require(path.exists(), f"there is no cohort '{path}'; make one with counterpoint mimic or counterpoint cohort")
        with path.open("rb") as opened:
            return cls(str(path), hashlib.file_digest(opened, "sha256").hexdigest()[:16])

    def task(self, seed: int) -> None:
        """Nobody knows the equations of these patients."""

    def read(self, seed: int) -> Transitions:
        """The rows, doses cut where the manifest says."""
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
    """Whether each row's episode has so many decisions at least."""
    return torch.bincount(rows.episode)[rows.episode] >= steps


def with_numbers(rows: Transitions) -> Transitions:
    """The same rows with every flag as a number: models that know patients apart are for numbers, and the codes of a
    flag are 0 and 1, between which imagined ones stay."""
    schema = rows.schema
    states = tuple(replace(column, levels=()) for column in schema.states)
    between = tuple((column.name, 0.0, len(column.levels) - 1.0) for column in schema.states if column.levels)
    knowledge = replace(schema.knowledge, bounds=(*schema.knowledge.bounds, *between))
    return replace(rows, schema=replace(schema, states=states, knowledge=knowledge))


def within_seen(rows: Transitions) -> Transitions:
    """The same rows, with the range of every number in them declared: no imagined patient leaves what was measured."""
    seen = torch.cat([rows.state, rows.next_state[rows.has_next]])
    ends = zip(rows.schema.states, seen.amin(0).tolist(), seen.amax(0).tolist(), strict=True)
    bounds = tuple((column.name, low, high) for column, low, high in ends if not column.levels and low < high)
    return replace(rows, schema=replace(rows.schema, knowledge=replace(rows.schema.knowledge, bounds=bounds)))


def died(rows: Transitions) -> Bool[Tensor, " n"]:
    """The rows on which a patient dies."""
    names = rows.outcome_names
    return rows.outcome == names.index(DIED) if DIED in names else torch.zeros(len(rows), dtype=torch.bool)


def dead_later(rows: Transitions) -> Bool[Tensor, " n"]:
    """The rows of episodes that end in death."""
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
