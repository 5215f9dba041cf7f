"""`counterpoint fit`: a structural causal model of a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from counterpoint.commands.console import DATA, HELD_OUT, SCM, TASK, TASK_FILE, Saving, existing, ready, say, watching
from counterpoint.commands.tables import Columns
from counterpoint.data import storage
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError
from counterpoint.scm.auto import Auto, Choice
from counterpoint.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.scm.density import DensitySCM
from counterpoint.seeding import generator

Recipe = (
    Annotated[DensitySCM, tyro.conf.subcommand("density", description="exact abduction; the default")]
    | Annotated[BiCoGAN, tyro.conf.subcommand("bicogan", description="the paper's model")]
    | Annotated[ConditionalBiCoGAN, tyro.conf.subcommand("conditional-bicogan", description="encoder sees (s, a, s')")]
)


@dataclass(frozen=True)
class Fit:
    """Fit an SCM to logged rows. Writes scm/ into the run folder; for your own table also data.parquet and task/."""

    run: Path
    """Run folder."""
    data: Path | None = None
    """CSV or Parquet table; the run folder's data.parquet where none is given."""
    columns: tyro.conf.OmitArgPrefixes[Columns] = Columns()
    scm: Recipe = DensitySCM()
    """Which model; leave it out for the default."""
    auto: bool = False
    """Choose between exact models by how well they foresee held-out rows; the reason is printed and kept."""
    held_out: float = 0.0
    """Share of the subjects kept aside for check-scm."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        path = existing(self.data or self.run / DATA, "run simulate first or name a table with --data")
        data, kept = self._split(self.columns.read(path))
        with watching(self.run, self.saving) as monitor:
            model = (Auto() if self.auto else self.scm).fit(data, self.seed, monitor.stage("scm"), self.device)
            if not (self.run / TASK_FILE).exists():
                Outcome().fit(data, self.seed, monitor.stage("task")).save(self.run / TASK)
        if self.data is not None:
            storage.write(data, ready(self.run) / DATA)
        if len(kept):
            storage.write(kept, self.run / HELD_OUT)
        model.save(self.run / SCM)
        if isinstance(model.recipe, Choice):
            say(model.recipe.why)
        say(f"{type(model.recipe).__name__} fitted on {len(data.with_next())} rows, in {self.run / SCM}")

    def _split(self, data: Transitions) -> tuple[Transitions, Transitions]:
        """Rows to fit on and rows kept aside, by subject and never by row."""
        if not 0 <= self.held_out < 1:
            raise CounterpointError(f"--held-out {self.held_out} is not a share; give a number from 0 to below 1")
        subjects = len(data.subject_names)
        order = torch.randperm(subjects, generator=generator(self.seed, "held out subjects"))
        aside = torch.isin(data.subject, order[: round(subjects * self.held_out)])
        return data[~aside], data[aside]
