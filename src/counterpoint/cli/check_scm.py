"""`counterpoint check-scm`: can this model's counterfactuals be trusted?"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.cli.console import progress, say, show

if TYPE_CHECKING:
    from counterpoint.checks.findings import CheckReport
    from counterpoint.run import Run


@dataclass(frozen=True)
class CheckScm:
    """Test a fitted SCM's assumptions. Prints a verdict; writes check.json and check.png into the run."""

    run: Path
    """Run folder with scm/."""
    data: Path | None = None
    """Table that counterpoint wrote; else the run's held-out subjects, else the rows of the fit."""
    outcome: tuple[str, ...] = ()
    """State columns on which the effects of the doses are compared with the log; by default the three with the clearest
    effects."""
    seed: int = 0
    """Seed of the rows that are sampled."""

    def execute(self) -> None:
        from counterpoint.run import Run

        run = Run(self.run)
        found = examine(run, self.data, self.seed, self.outcome)
        rows = [row for comparison in found.effects for row in comparison.table()]
        if rows:
            show(rows, "effects of doses: in the model, and as the log shows them with 95% intervals")
        say(found.verdict())
        say(f"\nfigure in {self.run / 'check.png'}, numbers in {run.path('check')}")


def examine(run: "Run", data: Path | None = None, seed: int = 0, outcomes: tuple[str, ...] = ()) -> "CheckReport":
    """Check the run's model on held-out rows, where there are any, and keep the report in the run."""
    from counterpoint.checks.assumptions import report
    from counterpoint.checks.effects import check_effects
    from counterpoint.checks.figure_data import figure_data
    from counterpoint.checks.findings import draw
    from counterpoint.core.artifacts import write_text
    from counterpoint.data import storage
    from counterpoint.page.check_figure import check_figure

    model, held_out = run.scm, run.held_out
    rows = held_out if len(held_out) else run.training
    given = storage.read(data) if data else None
    sample = draw(model, rows if given is None else given, seed)
    # The run records which subjects were held out; two patients may have the same numbers.
    is_held_out = sample.held_out or (given is None and len(held_out) > 0)
    sample = replace(sample, held_out=is_held_out)
    with progress() as watch:
        effects = check_effects(model, run.data if given is None else given, outcomes, seed)
        findings = report(sample, watch, effects)
        check_figure(findings, figure_data(sample), run.folder / "check.png")
    text = json.dumps(findings.to_json(), indent=2)
    run.keep("check", lambda path: write_text(path, text), ["scm"])
    return findings
