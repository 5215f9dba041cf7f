"""`counterpoint check-scm`: can this model's counterfactuals be trusted?"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from counterpoint.checks.assumptions import report
from counterpoint.checks.figure_data import figure_data
from counterpoint.checks.findings import CheckReport, draw
from counterpoint.cli.console import progress, say
from counterpoint.core.artifacts import write_text
from counterpoint.data import storage
from counterpoint.page.check_figure import check_figure
from counterpoint.run import Run


@dataclass(frozen=True)
class CheckScm:
    """Test a fitted SCM's assumptions. Says a verdict in plain words; writes check.json and check.png into the run."""

    run: Path
    """Run folder with scm/."""
    data: Path | None = None
    """Table that counterpoint wrote; else the run's held-out subjects, else the rows of the fit."""
    seed: int = 0
    """Seed of the rows that are looked at."""

    def execute(self) -> None:
        run = Run(self.run)
        say(examine(run, self.data, self.seed).verdict())
        say(f"\nfigure in {self.run / 'check.png'}, numbers in {run.path('check')}")


def examine(run: Run, data: Path | None = None, seed: int = 0) -> CheckReport:
    """Check the run's model on rows it has not seen, where there are any, and keep what is found."""
    model, own = run.scm, run.held_out
    rows = storage.read(data) if data else own if len(own) else run.training
    sample = draw(model, rows, seed)
    # The run knows whose rows the model has seen; two patients may have the same numbers.
    aside = not data and len(own) > 0
    sample = replace(sample, held_out=aside or sample.held_out)
    with progress() as watch:
        found = report(sample, watch)
        check_figure(found, figure_data(sample), run.folder / "check.png")
    text = json.dumps(found.to_json(), indent=2)
    run.keep("check", lambda path: write_text(path, text), ["scm"])
    return found
