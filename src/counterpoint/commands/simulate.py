"""`counterpoint simulate`: logged trials from a simulator whose truth is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from counterpoint.commands.console import DATA, ready, save_task, say
from counterpoint.data import storage
from counterpoint.methods.behaviour import trained_behaviour
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.simulate import random_policy, simulate


@dataclass(frozen=True)
class Simulate:
    """Log trials of noisy CartPole, as the paper's data set SD. Writes data.parquet and task.json into the run."""

    run: Path
    """Run folder."""
    task: CartPole = CartPole()
    """The simulator."""
    trials: int = 250
    """Trials; the paper's subsets are the first 50, 100, … 250."""
    steps: int = 20
    """Steps a trial."""
    behaviour: Literal["random", "trained"] = "random"
    """Who acts: uniform random actions, or a policy trained for ten episodes (paper, appendix D)."""
    stop_at_failure: bool = False
    """End a trial at its first failure; the paper logs all steps."""
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        policy = random_policy(self.task) if self.behaviour == "random" else trained_behaviour(self.task, self.seed)
        data = simulate(self.task, policy, self.trials, self.steps, self.seed, self.stop_at_failure)
        storage.write(data, ready(self.run) / DATA)
        save_task(self.task, self.run)
        say(f"{len(data)} rows of {self.trials} trials in {self.run / DATA}")
