"""`counterpoint demo`: the whole chain on 50 trials, in a few minutes."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.cli.console import Saving


@dataclass(frozen=True)
class Demo:
    """D3QN, CTRL_g and a search inside the SCM on 50 logged trials of noisy CartPole. Writes a table, two figures and
    the policies, and prints the searched rule in words."""

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
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        from counterpoint.cli.demo_chain import run_demo

        run_demo(self)
