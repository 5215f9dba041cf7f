"""`counterpoint fit`: a structural causal model of a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from counterpoint.cli.column_flags import Columns
from counterpoint.cli.console import Saving, say, watching
from counterpoint.cli.mirror import choice, commands, value
from counterpoint.core.errors import require
from counterpoint.core.settings import Share
from counterpoint.core.wording import counted

AUTO = (
    "auto",
    "the default: for your own table the better of partially-linear and density on held-out subjects, by predictions"
    " over several steps and by dose effects; density for simulated data",
)
if TYPE_CHECKING:
    from counterpoint.models.base import Recipe
    from counterpoint.models.scm.base import StructuralCausalModel

    SCMChoice = Recipe[StructuralCausalModel] | None
else:
    SCMChoice = choice(commands("models"), AUTO)

HELD_OUT = 0.2
"""Default share of held-out subjects in a user's table."""


@dataclass(frozen=True)
class Fit:
    """Fit an SCM to logged rows. Writes scm/ into the run folder; for your own table also data, split and task."""

    run: Path
    """Run folder."""
    data: Path | None = None
    """CSV or Parquet table; the run's own data where none is given."""
    columns: tyro.conf.OmitArgPrefixes[Columns] = Columns()
    scm: SCMChoice = None
    """Which model; leave it out to have it chosen. The reason of the choice is printed and kept."""
    discount: Share = value("counterpoint.models.dynamics.outcome", "Outcome")().discount
    """Discount factor per step of the task that is learned from your table, used by Q-learning."""
    held_out: float | None = None
    """Share of the subjects that nothing is learned from, for check-scm; 0.2 for a new table, and then decided."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        from counterpoint.models.dynamics.outcome import Outcome
        from counterpoint.models.scm.auto import AutoSCM
        from counterpoint.models.scm.density import DensitySCM
        from counterpoint.run import Run
        from counterpoint.tasks.base import KnownSCM

        run = Run(self.run)
        require(
            self.data is not None or not self.columns.reward_range,
            "--reward-range is declared with the table; give --data too",
        )
        default_share = HELD_OUT if self.held_out is None else self.held_out
        table = self.columns.read(self.data, default_share, self.seed) if self.data is not None else run.data
        new = self.data is not None and not (run.has("split") and table.fingerprint == run.data.fingerprint)
        share = default_share if new else self.held_out
        if not new:
            run.agree(self.held_out)
        data = table.split(share or 0.0, self.seed)[0] if new else run.training
        has_task = not new and run.has_task()
        with watching(self.run, self.saving) as monitor:
            recipe = self.scm or (DensitySCM() if has_task and isinstance(run.task, KnownSCM) else AutoSCM())
            model = recipe.fit(data, self.seed, monitor.stage("scm"), self.device)
            task = None if has_task else Outcome(discount=self.discount).fit(data, self.seed, monitor.stage("task"))
        if new:
            run.start(table, share, self.seed)
        if task is not None:
            run.keep_task(task)
        run.keep_model(model)
        if model.selection is not None:
            say(model.selection.why)
        rows, subjects = len(data.with_next()), len(data.subject.unique())
        fitted_on = f"{counted(rows, 'row')} of {counted(subjects, 'subject')}"
        say(f"model of kind {type(model.structure).__name__} fitted on {fitted_on}, in {run.path('scm')}")
