"""`python -m reproduction synthetic-cohort`: synthetic septic patients in a table like that of `counterpoint mimic`."""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from counterpoint.cli.console import say
from counterpoint.cli.mimic import fit_command
from counterpoint.core.errors import require
from counterpoint.core.results import provenance, write_json
from reproduction.tasks.synthetic_cohort import SyntheticCohort


@dataclass(frozen=True)
class MakeSyntheticCohort:
    """Make a table of synthetic septic patients: 46 columns, 25 actions, every equation known. Writes a manifest."""

    out: Path = Path("cohort.parquet")
    """Parquet file for the table."""
    cohort: tyro.conf.OmitArgPrefixes[SyntheticCohort] = SyntheticCohort()

    def execute(self) -> None:
        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        found = self.cohort.build(self.out)
        # Who is still there at the horizon has no outcome, which a cohort of MIMIC-III always knows.
        command = f"{fit_command(self.out, found, self.cohort.held_out, self.cohort.seed)} --truncated truncated"
        record = {"options": asdict(self.cohort), **found, "fit": command, "made_with": provenance()}
        write_json(record, self.out.with_suffix(".json"))
        say(f"{found['rows']} rows of {found['stays']} stays in {self.out}, how it was made in {self.out.stem}.json")
        say(f"next: {command}")
