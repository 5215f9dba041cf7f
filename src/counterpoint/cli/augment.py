"""`counterpoint augment`: counterfactual rows beside the real ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from counterpoint.cli.console import progress, say
from counterpoint.cli.mirror import choice, value

if TYPE_CHECKING:
    from counterpoint.run import Run
    from counterpoint.simulation.augmentation import Augmenter
    from counterpoint.simulation.streaming import AugmentationExecutor as Executor
    from counterpoint.simulation.streaming import AugmentedCounts, ThisProcess
else:
    Augmenter = value("counterpoint.simulation.augmentation", "Augmenter")
    ThisProcess = value("counterpoint.simulation.streaming", "ThisProcess")
    Executor = choice(
        {
            "here": ("counterpoint.simulation.streaming", "ThisProcess", "in this process; the default"),
            "ray": ("counterpoint.simulation.ray_data", "RayData", "a Ray cluster"),
        }
    )


@dataclass(frozen=True)
class Augment:
    """Add the fitted SCM's counterfactuals of other actions. Writes augmented.parquet (real and imagined rows) into the
    run folder.

    The table goes from file to file in pieces and need not fit in memory.
    """

    run: Path
    """Run folder with data, task and scm."""
    augmenter: tyro.conf.OmitArgPrefixes[Augmenter] = Augmenter()
    seed: int = 0
    """Seed of the alternative actions."""
    where: tyro.conf.OmitArgPrefixes[Executor] = ThisProcess()
    """Where the counterfactuals are computed."""

    def execute(self) -> None:
        from counterpoint.run import Run

        run = Run(self.run)
        counts: list[AugmentedCounts] = []
        run.keep("augmented", lambda path: counts.append(self._write(run, path)), ["data", "split", "task", "scm"])
        (rows,) = counts
        say(f"{rows.real} real and {rows.imagined} imagined rows ({rows.ends} of them end) in {run.path('augmented')}")

    def _write(self, run: "Run", path: Path) -> "AugmentedCounts":
        from counterpoint.data.jobs import NO_THETA
        from counterpoint.simulation.streaming import AugmentationWork, augment

        model = run.scm
        theta = model.subjects(run.training) if model.theta_width else NO_THETA
        work = AugmentationWork(run.training_source, self.augmenter, model, run.task, self.seed, theta)
        with progress() as report:
            return augment(work, path, self.where, report)
