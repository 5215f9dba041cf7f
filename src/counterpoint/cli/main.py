"""The command line: one subcommand a job; an error is one line and exit code 2.

Only the module of the command that is named is imported, and torch only after its options are understood.
"""

import difflib
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from counterpoint.core.version import VERSION

COMMANDS = {
    "check": ("check:Check", "look at a table before fitting"),
    "simulate": ("simulate:Simulate", "log trials in a simulator whose truth is known"),
    "fit": ("fit:Fit", "fit a structural causal model to logged rows"),
    "check-scm": ("check_scm:CheckScm", "test the fitted model's assumptions"),
    "augment": ("augment:Augment", "add counterfactual rows of other actions"),
    "train": ("train:Train", "learn a policy"),
    "evaluate": ("evaluate:Evaluate", "estimate the policy's mean return"),
    "report": ("report:Report", "write one page about a run"),
    "recommend": ("recommend:Recommend", "recommend actions to new subjects"),
    "compare": ("compare:Compare", "compare the policies of several runs"),
    "run": ("run:RunStudy", "fit to report in one command, from a study file"),
    "demo": ("demo:Demo", "the whole chain on a small simulation"),
    "mimic": ("mimic:Mimic", "make a table of septic patients from MIMIC-III"),
    "cohort": ("mimic:ImportCohort", "make the same table from a finished cohort"),
}
"""Module and class of every command, with a line about it."""

DESCRIPTION = """Counterfactual data augmentation and policy learning from logged decisions.

Start with `counterpoint demo`. With a table of your own: check, then fit, check-scm, augment, train, evaluate,
report, recommend, each with the same --run folder, or the chain up to report with `counterpoint run`.
`counterpoint COMMAND --help` explains a command."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command of `counterpoint`.

    Args:
        arguments: the words behind `counterpoint`; those of the process where none are given.
    """
    words = sys.argv[1:] if arguments is None else [str(word) for word in arguments]
    if words == ["--version"]:
        print(f"counterpoint {VERSION}")
    elif not words or words[0] in ("-h", "--help"):
        print(overview())
        sys.exit(0 if words else 2)
    else:
        execute(parse(words))


def overview() -> str:
    """Return the help of the whole command line: every command with a line about it."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: counterpoint [-h] [--version] COMMAND …", "", DESCRIPTION, "", "commands:", *lines])


def parse(words: list[str]) -> Any:
    """Return the command that the words name, with its options; a wrong word ends the program with exit code 2."""
    name, *options = words
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        fix = f"did you mean {close[0]}?" if close else f"use one of {', '.join(COMMANDS)}"
        print(f"counterpoint: '{name}' is not a command; {fix}", file=sys.stderr)
        sys.exit(2)
    module, _, kind = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"counterpoint.cli.{module}"), kind)
    return parse_options(command, options, f"counterpoint {name}")


def parse_options(command: Any, options: list[str], program: str, description: str | None = None) -> Any:
    """Return a command, or one of a union of commands, with its options.

    Args:
        command: a dataclass whose fields are the options, or a union of such classes as subcommands.
        options: the words of the command line.
        program: what help and errors call the command.
        description: the first paragraph of the help; the class's docstring where none is given.
    """
    import tyro

    if hasattr(command, "with_options_of"):
        command = command.with_options_of(options)
    return tyro.cli(command, prog=program, description=description, args=options)


def run_command(commands: Any, program: str, description: str, arguments: list[str] | None = None) -> None:
    """Parse the arguments as one of a union of commands and run it."""
    options = sys.argv[1:] if arguments is None else arguments
    execute(parse_options(commands, options, program, description))


def execute(command: Any) -> None:
    """Run a command with one torch thread, because two threads that share a core are far slower."""
    import torch

    from counterpoint.cli.console import visible
    from counterpoint.cli.mirror import build
    from counterpoint.core.artifacts import FIXES
    from counterpoint.core.errors import CounterpointError

    torch.set_num_threads(1)
    try:
        _check_folders(command)
        build(command).execute()
    except CounterpointError as error:
        print(f"counterpoint: {visible(in_flags(str(error)))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        reason = visible(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        print(f"counterpoint: {reason}; {FIXES.get(error.errno or 0, 'check the path')}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        how = "the same command with --resume" if hasattr(command, "saving") else "the same command"
        print(f"counterpoint: stopped; {how} goes on", file=sys.stderr)
        sys.exit(130)


def _check_folders(command: Any) -> None:
    """Refuse a folder that cannot be written into before the work: the one of --out, else the run's."""
    from counterpoint.core.artifacts import check_writable

    out = getattr(command, "out", None) or getattr(command, "run", None)
    if isinstance(out, Path):
        check_writable(out.parent if out.suffix else out)


def in_flags(message: str) -> str:
    """Return a message with the flags of the command line in place of Python's arguments.

    Example:
        >>> in_flags("set last='drop' instead")
        'set --last drop instead'
    """
    flags = re.sub(r"\b([a-z][a-z_]*)=(?=['\[(\d…-])", lambda match: f"--{match[1].replace('_', '-')} ", message)
    return re.sub(r"(--[a-z-]+) '([^' ]*)'", r"\1 \2", flags)
