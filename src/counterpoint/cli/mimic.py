"""`counterpoint mimic` and `counterpoint cohort`: septic patients of MIMIC-III's raw files, or of a finished table."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from counterpoint.cli.console import progress, say, show
from counterpoint.cli.mirror import build, value
from counterpoint.core.errors import require
from counterpoint.core.settings import Positive

if TYPE_CHECKING:
    from counterpoint.sources.mimic.cohort import SepsisCohort
    from counterpoint.sources.mimic.published import PublishedCohort
else:
    SepsisCohort = value("counterpoint.sources.mimic.cohort", "SepsisCohort")
    PublishedCohort = value("counterpoint.sources.mimic.published", "PublishedCohort")


@dataclass(frozen=True)
class Mimic:
    """Make a table of septic patients from MIMIC-III. Writes the table, a manifest (.json) and a database (.duckdb).

    Stopped or killed, the same command continues after the last complete step, which the database keeps; with other
    options it repeats only what depends on them. No patient's values are printed.
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
        from counterpoint.core.tables import write_json

        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        cohort = build(self.cohort)
        with progress() as report:
            summary = cohort.build(self.raw, self.out, report, self.memory, self.threads)
        manifest = self.out.with_suffix(".json")
        command = fit_command(self.out, summary, self.cohort.held_out, self.cohort.seed)
        write_json({"options": asdict(self.cohort), **summary, "fit": command, "made_with": _versions()}, manifest)
        show(summary["attrition"], "stays that each step left")
        _print_summary(self.out, summary, command)


@dataclass(frozen=True)
class ImportCohort:
    """Make the same table of a finished cohort with the AI Clinician's or mimic_sepsis's columns. Writes a manifest.

    No patient's values are printed.
    """

    table: tyro.conf.Positional[Path]
    """CSV or Parquet file."""
    out: Path = Path("cohort.parquet")
    """Parquet file for the table."""
    cohort: tyro.conf.OmitArgPrefixes[PublishedCohort] = PublishedCohort()

    def execute(self) -> None:
        from counterpoint.core.provenance import provenance
        from counterpoint.core.tables import write_json

        require(self.out.suffix == ".parquet", f"--out {self.out} is no Parquet file; give it the ending .parquet")
        summary = build(self.cohort).build(self.table, self.out)
        command = fit_command(self.out, summary, self.cohort.held_out, self.cohort.seed)
        record = {"options": asdict(self.cohort), **summary, "fit": command, "made_with": provenance()}
        write_json(record, self.out.with_suffix(".json"))
        _print_summary(self.out, summary, command)


def _print_summary(out: Path, summary: dict[str, Any], command: str) -> None:
    say(f"{summary['rows']} rows of {summary['stays']} stays in {out}, how it was made in {out.with_suffix('.json')}")
    if summary["died"] in (0, summary["stays"]):
        say("note: every stay ended alike, so no policy can be distinguished from another by its outcomes")
    say(f"next: {command}")


def fit_command(out: Path, summary: dict[str, Any], held_out: float, seed: int) -> str:
    """Return the command that fits a model to the table: with the doses cut at the training patients' quantiles, scores
    and ratios declared, and the same patients held out."""
    cuts = [f"{name}={','.join(map(str, places))}" for name, places in summary["cuts"].items()]
    action = ["--action", *summary["cuts"], "--bins", *cuts] if cuts else ["--action", "fluid_bin", "vaso_bin"]
    declared = [word for kind in ("computed", "whole") if summary.get(kind) for word in (f"--{kind}", *summary[kind])]
    words = ["counterpoint", "fit", "--run", "runs/sepsis", "--data", str(out), "--subject", "patient",
             "--episode", "stay", "--time", "bloc", "--state", *summary["state"], *declared, *action,
             "--reward", "reward", "--done", "died", "survived", "--gaps", "bridge", "--held-out", str(held_out),
             "--seed", str(seed)]  # fmt: skip
    return shlex.join(words)


def _versions() -> dict[str, Any]:
    """Return the provenance of a table with the versions of the libraries that made it."""
    import duckdb
    import pyarrow

    from counterpoint.core.provenance import provenance

    return {**provenance(), "duckdb": duckdb.__version__, "pyarrow": pyarrow.__version__}
