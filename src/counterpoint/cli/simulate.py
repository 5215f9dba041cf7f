"""`counterpoint simulate`: logged trials of a simulator whose structural equations are known."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoint.cli.console import say
from counterpoint.cli.mirror import choice, commands, value
from counterpoint.core.settings import Count, check_settings
from counterpoint.core.wording import counted

if TYPE_CHECKING:
    from counterpoint.tasks.base import KnownSCM
    from counterpoint.tasks.cartpole import CartPole
else:
    CartPole = value("counterpoint.tasks.cartpole", "CartPole")


@dataclass(frozen=True)
class PopulationFlags:
    """How many patients with different responses are simulated; 0 for one typical patient."""

    patients: Count = 0
    """Patients that differ in their response."""
    patients_seed: int = 0
    """Seed of their responses."""

    def __post_init__(self) -> None:
        check_settings(self)


class TumourPatients(PopulationFlags):
    def task(self) -> "KnownSCM":
        from counterpoint.tasks import tumour

        return tumour.Tumour(tumour.population(self.patients, self.patients_seed)) if self.patients else tumour.Tumour()


class HIVPatients(PopulationFlags):
    def task(self) -> "KnownSCM":
        from counterpoint.tasks import hiv

        return hiv.HIV(hiv.population(self.patients, self.patients_seed)) if self.patients else hiv.HIV()


if TYPE_CHECKING:
    Simulator = KnownSCM | TumourPatients | HIVPatients
else:
    Simulator = (
        choice(commands("tasks"))
        | Annotated[TumourPatients, tyro.conf.subcommand("tumour", description="chemotherapy and radiotherapy")]
        | Annotated[HIVPatients, tyro.conf.subcommand("hiv", description="two drugs, six log states")]
    )


@dataclass(frozen=True)
class Simulate:
    """Log trials in a simulator, by default the paper's data set SD. Writes data, split and task into the run."""

    run: Path
    """Run folder."""
    task: Simulator = CartPole()
    """The simulator."""
    trials: int = 250
    """Trials; the paper's subsets are the first 50, 100, … 250."""
    steps: int = 20
    """Steps a trial."""
    stop_at_failure: bool = False
    """End a trial at its first failure; the paper logs all steps."""
    held_out: float | None = None
    """Share of the subjects that no later step learns from; none by default, and decided here, once."""
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        from counterpoint.run import Run
        from counterpoint.simulation.trials import random_policy, simulate

        task = self.task.task() if isinstance(self.task, TumourPatients | HIVPatients) else self.task
        data = simulate(task, random_policy(task), self.trials, self.steps, self.seed, self.stop_at_failure)
        run = Run(self.run)
        run.start(data, self.held_out, self.seed)
        run.keep_task(task)
        say(f"{counted(len(data), 'row')} of {counted(self.trials, 'trial')} in {run.path('data')}")
