"""`python -m reproduction synthetic-cohort`: synthetic septic patients in a table like that of `counterpoint mimic`."""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from counterpoint.cli.console import say
from counterpoint.cli.mimic import fit_command
from counterpoint.core.errors import require
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import write_json
from reproduction.tasks.synthetic_cohort import SyntheticCohort


@dataclass(frozen=True)
class MakeSyntheticCohort:
    """Make a table of synthetic septic patients: 46 columns, 25 actions, every equation known. Writes a manifest."""

    out: Path = Path("cohort.parquet")
    """Parquet file for the table."""
    cohort: tyro.conf.OmitArgPrefixes[SyntheticCohort] = SyntheticCohort()

    def execute(self) -> None:
        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        counts = self.cohort.build(self.out)
        # A patient who is still there at the horizon has no outcome; in a cohort of MIMIC-III every patient has one.
        command = f"{fit_command(self.out, counts, self.cohort.held_out, self.cohort.seed)} --truncated truncated"
        record = {"options": asdict(self.cohort), **counts, "fit": command, "made_with": provenance()}
        write_json(record, self.out.with_suffix(".json"))
        say(f"{counts['rows']} rows of {counts['stays']} stays in {self.out}, how it was made in {self.out.stem}.json")
        say(f"next: {command}")
