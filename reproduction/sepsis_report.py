"""What `python -m reproduction sepsis` needs beside the experiment: the demo's cohort, and the report of a run."""

import os
from pathlib import Path

from counterpoint.cli.check_scm import examine
from counterpoint.cli.mimic import Mimic
from counterpoint.cli.report import PAGE, Report
from counterpoint.core.artifacts import read_json, write_text
from counterpoint.core.errors import require
from counterpoint.data import storage
from counterpoint.models.dynamics.outcome import LearnedTask
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy
from counterpoint.registry import load
from counterpoint.run import Run
from reproduction.sepsis import Sepsis
from reproduction.sepsis_cohort import HELD_OUT

DEMO = "COUNTERPOINT_MIMIC_DEMO"


def demo_cohort(raw: Path | None, out: Path) -> Path:
    """Return the cohort of MIMIC-III's open demo; it is made unless it exists."""
    folder, table = raw or Path(os.environ.get(DEMO, "")), out / "sepsis-demo" / "cohort.parquet"
    require(folder != Path(), f"the demo's raw folder is not known; give --raw, or set {DEMO}")
    if not table.exists() or not table.with_suffix(".json").exists():
        Mimic(str(folder), table).execute()
    return table


def report_of(experiment: Sepsis, out: Path) -> Path:
    """Make the run folder and the report of the first seed's searched policy; return the report's path."""
    parts, run = experiment.parts(out), Run(out / experiment.name / f"seed-{experiment.first_seed}")
    require(parts.exists(), f"'{out / experiment.name}' has no parts of a run; remove its cells and run it again")
    run.start(storage.read(parts / "data.parquet"), HELD_OUT, experiment.first_seed)
    run.keep_task(load(parts / "task", LearnedTask))
    run.keep_model(load(parts / "scm", StructuralCausalModel))
    examine(run)
    policy = load(parts / "policy", Policy)
    run.keep("policy", policy.with_verdict(run.check_verdict).save, ["data", "split", "task", "scm"])
    evaluation = Evaluation.from_json(read_json(parts / "evaluation.json", "run the experiment again"))
    run.keep("evaluation", lambda path: write_text(path, evaluation.text()), ["data", "split", "policy"])
    Report(run.folder).execute()
    return run.folder / PAGE
