"""`counterpoint check-scm`: can this model's counterfactuals be trusted?"""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.artifacts import write_atomically
from counterpoint.commands.console import DATA, HELD_OUT, SCM, existing, say
from counterpoint.data import storage
from counterpoint.library import load_kind
from counterpoint.report.check_figure import check_figure
from counterpoint.scm.base import StructuralCausalModel
from counterpoint.scm.findings import draw


@dataclass(frozen=True)
class CheckScm:
    """Test a fitted SCM's assumptions. Says a verdict in plain words; writes check.json and check.png into the run."""

    run: tyro.conf.Positional[Path]
    """Run folder with scm/."""
    data: Path | None = None
    """Table that counterpoint wrote; else the rows that `fit --held-out` kept aside, else the rows of the fit."""
    seed: int = 0
    """Seed of the rows that are looked at."""

    def execute(self) -> None:
        model = load_kind(self.run / SCM, StructuralCausalModel, "a structural causal model")
        kept = self.run / HELD_OUT
        path = self.data or (kept if kept.exists() else self.run / DATA)
        rows = storage.read(existing(path, "run fit first or name a table with --data"))
        report = check_figure(draw(model, rows.with_next(), self.seed), self.run / "check.png")
        text = json.dumps(report.to_json(), indent=2)
        write_atomically(self.run / "check.json", lambda file: file.write(text.encode()))
        say(report.verdict())
        say(f"\nfigure in {self.run / 'check.png'}, numbers in {self.run / 'check.json'}")
