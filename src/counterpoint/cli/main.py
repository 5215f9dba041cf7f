"""The command line: one subcommand a job; an error is one line and exit code 2."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from counterpoint.cli.augment import Augment
from counterpoint.cli.check import Check
from counterpoint.cli.check_scm import CheckScm
from counterpoint.cli.compare import Compare
from counterpoint.cli.console import visible
from counterpoint.cli.demo import Demo
from counterpoint.cli.evaluate import Evaluate
from counterpoint.cli.fit import Fit
from counterpoint.cli.mimic import ImportCohort, Mimic
from counterpoint.cli.recommend import Recommend
from counterpoint.cli.report import Report
from counterpoint.cli.run import RunStudy
from counterpoint.cli.simulate import Simulate
from counterpoint.cli.train import Train
from counterpoint.core.artifacts import FIXES, check_writable
from counterpoint.core.errors import CounterpointError
from counterpoint.core.version import VERSION

Command = (
    Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Simulate, tyro.conf.subcommand("simulate")]
    | Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Augment, tyro.conf.subcommand("augment")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[CheckScm, tyro.conf.subcommand("check-scm")]
    | Annotated[Recommend, tyro.conf.subcommand("recommend")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[RunStudy, tyro.conf.subcommand("run")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Mimic, tyro.conf.subcommand("mimic")]
    | Annotated[ImportCohort, tyro.conf.subcommand("cohort")]
)

DESCRIPTION = """Counterfactual data augmentation and policy learning from logged decisions.

Start with `counterpoint demo`. With a table of your own: check, then fit, check-scm, augment, train, evaluate,
report, recommend, each with the same --run folder, or the chain up to report with `counterpoint run`.
`counterpoint COMMAND --help` explains a command."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command of `counterpoint`."""
    run_command(Command, "counterpoint", DESCRIPTION, arguments)


def run_command(commands: Any, program: str, description: str, arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command with one torch thread: two that share a core are far slower."""
    torch.set_num_threads(1)
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(f"counterpoint {VERSION}")
        return
    command = tyro.cli(commands, prog=program, description=description, args=arguments)
    try:
        _check_folders(command)
        command.execute()
    except CounterpointError as error:
        print(f"counterpoint: {visible(in_flags(str(error)))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        what = visible(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        print(f"counterpoint: {what}; {FIXES.get(error.errno or 0, 'check the path')}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        how = "the same command with --resume" if hasattr(command, "saving") else "the same command"
        print(f"counterpoint: stopped; {how} goes on", file=sys.stderr)
        sys.exit(130)


def _check_folders(command: Any) -> None:
    """Refuse a folder that cannot be written into before the work: the one of --out, else the run's."""
    out = getattr(command, "out", None) or getattr(command, "run", None)
    if isinstance(out, Path):
        check_writable(out.parent if out.suffix else out)


def in_flags(message: str) -> str:
    """A message with the flags of the command line in place of Python's arguments: last='drop' is --last drop."""
    named = re.sub(r"\b([a-z][a-z_]*)=(?=['\[(\d…-])", lambda found: f"--{found[1].replace('_', '-')} ", message)
    return re.sub(r"(--[a-z-]+) '([^' ]*)'", r"\1 \2", named)
