"""`counterpoint report`: one page a run that a clinician can read."""

from dataclasses import dataclass
from pathlib import Path

from counterpoint.cli.console import say
from counterpoint.core.artifacts import write_text
from counterpoint.core.tables import read_csv
from counterpoint.page.contents import RunContents
from counterpoint.page.gather import gather
from counterpoint.page.page import render
from counterpoint.policies.base import Verdict
from counterpoint.run import Run

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Write report.html into the run folder: one file with the data and their gaps, the model's checks, what it
    imagines, the policy, its evaluation and every setting. It holds no patient's row, and needs no network."""

    run: Path
    """Run folder; what is not there yet is said to be missing, with the command that makes it."""
    severity: str = ""
    """State column that severity is read from; the one that goes most with the total reward where none is named."""

    def execute(self) -> None:
        run = Run(self.run)
        page = render(gather(parts_of(run, self.severity)))
        write_text(self.run / PAGE, page)
        say(f"report in {self.run / PAGE} ({len(page.encode()) / 1e6:.1f} MB)")


def parts_of(run: Run, severity: str = "") -> RunContents:
    """What is there of a run; a part that is stale or damaged is refused."""
    rows, aside = run.data, run.held_out
    there = run.present()
    return RunContents(
        name=run.folder.resolve().name,
        rows=rows,
        held_out=len(aside.subject.unique()),
        fingerprints=there,
        task=run.task if "task" in there else None,
        scm=run.scm if "scm" in there else None,
        check=run.check_report if "check" in there else None,
        policy=run.policy if "policy" in there else None,
        verdict=run.policy_verdict if "policy" in there else Verdict(),
        evaluation=run.evaluation if "evaluation" in there else None,
        returns=_returns(run) if "returns" in there else (),
        severity=severity,
    )


def _returns(run: Run) -> tuple[float, ...]:
    """True returns of trials in the run's simulator."""
    return tuple(float(row["return"]) for row in read_csv(run.path("returns")))
