"""`counterpoint bench`: models against the truth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from counterpoint.commands.console import progress, say
from counterpoint.experiments.counterfactuals import Counterfactuals


@dataclass(frozen=True)
class Bench:
    """Score every SCM estimator on SCMs whose truth is known. Writes counterfactuals.csv, .md and figures."""

    what: tyro.conf.Positional[Literal["counterfactuals"]]
    """The benchmark."""
    out: Path = Path("results")
    """Folder for the results; started again, it goes on where it was."""
    options: tyro.conf.OmitArgPrefixes[Counterfactuals] = Counterfactuals()

    def execute(self) -> None:
        with progress() as report:
            rows = self.options.run(self.out, report)
        say(f"{len(rows)} rows in {self.out / 'counterfactuals.csv'}, tables in {self.out / 'counterfactuals.md'}")
