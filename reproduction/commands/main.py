"""The command line of the reproduction: `python -m reproduction reproduce sd`, `… bench counterfactuals`."""

from typing import Annotated

import tyro

from counterpoint.cli.main import run_command
from reproduction.commands.bench import Bench
from reproduction.commands.reproduce import Reproduce
from reproduction.commands.synthetic_cohort import MakeSyntheticCohort

Command = (
    Annotated[MakeSyntheticCohort, tyro.conf.subcommand("synthetic-cohort")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)


def main(arguments: list[str] | None = None) -> None:
    """Run one command."""
    run_command(Command, "python -m reproduction", "Experiments of the paper and benchmarks.", arguments)
