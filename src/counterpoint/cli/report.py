"""`counterpoint report`: one page about a run, for clinicians."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.cli.console import say

if TYPE_CHECKING:
    from counterpoint.page.summary import RunContents
    from counterpoint.run import Run

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Write report.html into the run folder: one file with the data and their gaps, the model's checks, its
    counterfactuals, the policy, its evaluation and every setting. It holds no patient's row, and needs no network."""

    run: Path
    """Run folder; a missing part is named on the page, with the command that makes it."""
    severity: str = ""
    """State column that measures severity; where none is named, the one most correlated with the total reward."""

    def execute(self) -> None:
        from counterpoint.core.artifacts import write_text
        from counterpoint.page.gather import gather
        from counterpoint.page.page import render
        from counterpoint.run import Run

        run = Run(self.run)
        page = render(gather(parts_of(run, self.severity)))
        write_text(self.run / PAGE, page)
        say(f"report in {self.run / PAGE} ({len(page.encode()) / 1e6:.1f} MB)")


def parts_of(run: "Run", severity: str = "") -> "RunContents":
    """Return the parts that a run has; a part that is stale or damaged is refused."""
    from counterpoint.page.summary import RunContents
    from counterpoint.policies.base import Verdict

    rows, held_out = run.data, run.held_out
    present = run.present()
    return RunContents(
        name=run.folder.resolve().name,
        rows=rows,
        held_out=len(held_out.subject.unique()),
        fingerprints=present,
        task=run.task if "task" in present else None,
        scm=run.scm if "scm" in present else None,
        check=run.check_report if "check" in present else None,
        policy=run.policy if "policy" in present else None,
        verdict=run.policy_verdict if "policy" in present else Verdict(),
        evaluation=run.evaluation if "evaluation" in present else None,
        returns=_returns(run) if "returns" in present else (),
        severity=severity,
    )


def _returns(run: "Run") -> tuple[float, ...]:
    """Return the true returns of trials in the run's simulator."""
    from counterpoint.core.tables import read_csv

    return tuple(float(row["return"]) for row in read_csv(run.path("returns")))
