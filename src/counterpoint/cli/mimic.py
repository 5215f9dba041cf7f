"""`counterpoint mimic` and `counterpoint cohort`: septic patients of MIMIC-III's raw files, or of a finished table."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from counterpoint.cli.console import progress, say, show
from counterpoint.core.errors import require
from counterpoint.core.provenance import provenance
from counterpoint.core.settings import Positive
from counterpoint.core.tables import write_json
from counterpoint.sources.mimic.cohort import SepsisCohort
from counterpoint.sources.mimic.published import PublishedCohort


@dataclass(frozen=True)
class Mimic:
    """Make a table of septic patients from MIMIC-III. Writes the table, a manifest (.json) and a database (.duckdb).

    Stopped or killed, the same command goes on after the last whole step, which the database keeps; with other options
    it makes again only what depends on them. Nothing of a patient is printed.
    """

    raw: tyro.conf.Positional[str]
    """Folder of MIMIC-III's CSV files (.csv or .csv.gz), or a database with them in the schema mimiciii: a DuckDB file,
    or Postgres by postgresql://… or words like 'dbname=mimic host=…'."""
    out: Path = Path("cohort.parquet")
    """Parquet file for the table."""
    cohort: tyro.conf.OmitArgPrefixes[SepsisCohort] = SepsisCohort()
    memory: str = "4GB"
    """Memory that DuckDB may use; what does not fit goes to disk beside the table."""
    threads: Positive = 2
    """Threads that DuckDB may use; the table does not depend on it."""

    def execute(self) -> None:
        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        with progress() as report:
            found = self.cohort.build(self.raw, self.out, report, self.memory, self.threads)
        manifest = self.out.with_suffix(".json")
        command = fit_command(self.out, found, self.cohort.held_out, self.cohort.seed)
        write_json({"options": asdict(self.cohort), **found, "fit": command, "made_with": _versions()}, manifest)
        show(found["attrition"], "stays that each step left")
        _say_what_is_there(self.out, found, command)


@dataclass(frozen=True)
class ImportCohort:
    """Make the same table of a finished cohort with the AI Clinician's or mimic_sepsis's columns. Writes a manifest.

    Nothing of a patient is printed.
    """

    table: tyro.conf.Positional[Path]
    """CSV or Parquet file."""
    out: Path = Path("cohort.parquet")
    """Parquet file for the table."""
    cohort: tyro.conf.OmitArgPrefixes[PublishedCohort] = PublishedCohort()

    def execute(self) -> None:
        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        found = self.cohort.build(self.table, self.out)
        command = fit_command(self.out, found, self.cohort.held_out, self.cohort.seed)
        record = {"options": asdict(self.cohort), **found, "fit": command, "made_with": provenance()}
        write_json(record, self.out.with_suffix(".json"))
        _say_what_is_there(self.out, found, command)


def _say_what_is_there(out: Path, found: dict[str, Any], command: str) -> None:
    say(f"{found['rows']} rows of {found['stays']} stays in {out}, how it was made in {out.with_suffix('.json')}")
    if found["died"] in (0, found["stays"]):
        say("note: every stay ended alike, so no policy can be told from another by its outcomes")
    say(f"next: {command}")


def fit_command(out: Path, found: dict[str, Any], held_out: float, seed: int) -> str:
    """How the table is read: the doses cut where the training patients' were, scores and ratios declared, and the same
    patients held out."""
    cuts = [f"{name}={','.join(map(str, places))}" for name, places in found["cuts"].items()]
    action = ["--action", *found["cuts"], "--bins", *cuts] if cuts else ["--action", "fluid_bin", "vaso_bin"]
    declared = [word for kind in ("computed", "whole") if found.get(kind) for word in (f"--{kind}", *found[kind])]
    words = ["counterpoint", "fit", "--run", "runs/sepsis", "--data", str(out), "--subject", "patient",
             "--episode", "stay", "--time", "bloc", "--state", *found["state"], *declared, *action,
             "--reward", "reward", "--done", "died", "survived", "--gaps", "bridge", "--held-out", str(held_out),
             "--seed", str(seed)]  # fmt: skip
    return shlex.join(words)


def _versions() -> dict[str, Any]:
    import duckdb
    import pyarrow

    return {**provenance(), "duckdb": duckdb.__version__, "pyarrow": pyarrow.__version__}
