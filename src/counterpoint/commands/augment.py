"""`counterpoint augment`: imagined rows beside the real ones."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.commands.console import AUGMENTED, DATA, SCM, existing, load_task, say
from counterpoint.counterfactual import Augmenter
from counterpoint.data import storage
from counterpoint.dynamics.base import DynamicsModel
from counterpoint.library import load_kind
from counterpoint.scm.base import StructuralCausalModel


@dataclass(frozen=True)
class Augment:
    """Ask the fitted SCM about other actions. Writes augmented.parquet (real and imagined rows) into the run folder."""

    run: Path
    """Run folder with data.parquet and scm/."""
    scm: Path | None = None
    """Folder of a fitted model; the run's scm/ where none is given."""
    augmenter: tyro.conf.OmitArgPrefixes[Augmenter] = Augmenter()
    seed: int = 0
    """Seed of the alternative actions."""

    def execute(self) -> None:
        data = storage.read(existing(self.run / DATA, "run simulate or fit first"))
        model = load_kind(self.scm or self.run / SCM, (StructuralCausalModel, DynamicsModel), "a model of the dynamics")
        augmented = self.augmenter.augment(data, model, load_task(self.run), self.seed)
        storage.write(augmented, self.run / AUGMENTED)
        imagined = int(augmented.imagined.sum())
        say(f"{len(augmented) - imagined} real and {imagined} imagined rows in {self.run / AUGMENTED}")
