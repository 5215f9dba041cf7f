"""`counterpoint check-scm`: can this model's counterfactuals be trusted?"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from counterpoint.artifacts import write_text
from counterpoint.commands.console import say
from counterpoint.data import storage
from counterpoint.report.check_figure import check_figure
from counterpoint.runs import Run
from counterpoint.scm.findings import draw


@dataclass(frozen=True)
class CheckScm:
    """Test a fitted SCM's assumptions. Says a verdict in plain words; writes check.json and check.png into the run."""

    run: tyro.conf.Positional[Path]
    """Run folder with scm/."""
    data: Path | None = None
    """Table that counterpoint wrote; else the run's held-out subjects, else the rows of the fit."""
    seed: int = 0
    """Seed of the rows that are looked at."""

    def execute(self) -> None:
        run = Run(self.run)
        model, own = run.scm, run.held_out
        rows = storage.read(self.data) if self.data else own if len(own) else run.training
        sample, figure = draw(model, rows, self.seed), self.run / "check.png"
        # The run knows whose rows the model has seen; two patients may have the same numbers.
        aside = not self.data and len(own) > 0
        report = check_figure(replace(sample, held_out=aside or sample.held_out), figure)
        text = json.dumps(report.to_json(), indent=2)
        run.keep("check", lambda path: write_text(path, text), ["scm"])
        say(report.verdict())
        say(f"\nfigure in {figure}, numbers in {run.path('check')}")
