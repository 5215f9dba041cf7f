"""`counterpoint augment`: imagined rows beside the real ones."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.commands.console import say
from counterpoint.counterfactual import Augmenter
from counterpoint.data import storage
from counterpoint.runs import Run


@dataclass(frozen=True)
class Augment:
    """Ask the fitted SCM about other actions. Writes augmented.parquet (real and imagined rows) into the run folder."""

    run: Path
    """Run folder with data, task and scm."""
    augmenter: tyro.conf.OmitArgPrefixes[Augmenter] = Augmenter()
    seed: int = 0
    """Seed of the alternative actions."""

    def execute(self) -> None:
        run = Run(self.run)
        augmented = self.augmenter.augment(run.training, run.scm, run.task, self.seed)
        run.keep("augmented", lambda path: storage.write(augmented, path), ["data", "split", "task", "scm"])
        imagined = augmented.imagined
        ends = int((imagined & augmented.terminated).sum())
        say(f"{int((~imagined).sum())} real and {int(imagined.sum())} imagined rows ({ends} of them end) in"
            f" {run.path('augmented')}")  # fmt: skip
