"""`counterpoint demo`: the whole chain on 50 trials of CartPole and on a clinical table, in a few minutes."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.cli.console import Saving
from counterpoint.core.errors import require
from counterpoint.core.settings import Count, check_settings

FEWEST_PATIENTS = 25
"""Patients from which the clinical part has enough on both sides of its split."""


@dataclass(frozen=True)
class Demo:
    """D3QN, CTRL_g and a search inside the SCM on 50 logged trials of noisy CartPole. Writes a table, two figures and
    the policies, and prints the searched rule in words. Then the commands for your own table on records of simulated
    patients: practice, a policy near it, its verdict, a report and two recommendations, beside the true values."""

    run: Path = Path("runs/demo")
    """Run folder."""
    trials: int = 50
    """Logged trials of 20 steps."""
    seeds: int = 4
    """Data sets and training seeds; each method trains all of them in one stack."""
    length: float = 1.0
    """Multiplies the length of every training run; smaller is quicker and worse."""
    evaluation_trials: int = 10
    """Episodes on which every policy is evaluated."""
    patients: Count = 150
    """Patients of the clinical table; 0 leaves this part out."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def __post_init__(self) -> None:
        check_settings(self)

    def execute(self) -> None:
        from counterpoint.cli.demo_chain import run_demo
        from counterpoint.cli.demo_clinic import run_clinic

        require(
            self.patients == 0 or self.patients >= FEWEST_PATIENTS,
            f"{self.patients} patients are too few to hold some out and to write a report; set --patients to"
            f" {FEWEST_PATIENTS} or more, or to 0",
        )
        run_demo(self)
        if self.patients:
            run_clinic(self)
