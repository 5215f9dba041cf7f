"""`counterpoint augment`: imagined rows beside the real ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoint.cli.console import progress, say
from counterpoint.data.jobs import NO_THETA
from counterpoint.run import Run
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.ray_data import RayData
from counterpoint.simulation.streaming import AugmentationWork, ThisProcess, Written, augment

Places = (
    Annotated[ThisProcess, tyro.conf.subcommand("here", description="in this process; the default")]
    | Annotated[RayData, tyro.conf.subcommand("ray", description="a Ray cluster")]
)


@dataclass(frozen=True)
class Augment:
    """Ask the fitted SCM about other actions. Writes augmented.parquet (real and imagined rows) into the run folder.

    The table goes from file to file in pieces and need not fit in memory.
    """

    run: Path
    """Run folder with data, task and scm."""
    augmenter: tyro.conf.OmitArgPrefixes[Augmenter] = Augmenter()
    seed: int = 0
    """Seed of the alternative actions."""
    where: tyro.conf.OmitArgPrefixes[Places] = ThisProcess()
    """Who imagines."""

    def execute(self) -> None:
        run, written = Run(self.run), []
        run.keep("augmented", lambda path: written.append(self._write(run, path)), ["data", "split", "task", "scm"])
        (rows,) = written
        say(f"{rows.real} real and {rows.imagined} imagined rows ({rows.ends} of them end) in {run.path('augmented')}")

    def _write(self, run: Run, path: Path) -> Written:
        model = run.scm
        theta = model.subjects(run.training) if model.theta_width else NO_THETA
        work = AugmentationWork(run.training_source, self.augmenter, model, run.task, self.seed, theta)
        with progress() as report:
            return augment(work, path, self.where, report)
