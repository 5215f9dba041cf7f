"""Where the work of an experiment is done, as flags, and how far it is, on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from counterpoint.cli.console import CONSOLE, say
from reproduction.executors import Auto, InProcess, Joblib, Ray, Report

Executors = (
    Annotated[Auto, tyro.conf.subcommand("auto", description="a process for every core, or all here with a GPU")]
    | Annotated[InProcess, tyro.conf.subcommand("in-process", description="all in this process")]
    | Annotated[Joblib, tyro.conf.subcommand("joblib", description="processes on this machine")]
    | Annotated[Ray, tyro.conf.subcommand("ray", description="a Ray cluster")]
)


class TimeLeft(ProgressColumn):
    """What is still to do will take as long as what was done since the start."""

    def render(self, task: Any) -> Text:
        ran, spent = task.completed - task.fields["before"], task.fields["spent"]
        if ran <= 0 or not spent:
            return Text("…", no_wrap=True)
        left = spent / ran * (task.total - task.completed) - (task.elapsed - spent)
        return Text(f"{timedelta(seconds=max(round(left), 0))} left", no_wrap=True)


@contextmanager
def watching_cells() -> Iterator[Report]:
    """Bars on a terminal; in a file or a pipe, a line whenever cells are done."""
    if CONSOLE.is_terminal:
        with _bars() as report:
            yield report
    else:
        yield _tell


def _tell(name: str, done: int, total: int) -> None:
    if name == "cells":
        say(f"{done} of {total} cells")


@contextmanager
def _bars() -> Iterator[Report]:
    """One bar over the cells, which starts at those already done, and one for what is trained in this process."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeLeft(),
    )
    with Progress(*columns, console=CONSOLE) as bars:
        shown: dict[bool, tuple[str, Any]] = {}

        def report(name: str, done: int, total: int) -> None:
            before, bar = shown.get(name == "cells", ("", None))
            if before != name:
                if bar is not None:
                    bars.remove_task(bar)
                bar = bars.add_task(name, total=total, completed=done, before=done, spent=None)
                shown[name == "cells"] = name, bar
            task = next(task for task in bars.tasks if task.id == bar)
            bars.update(bar, completed=done, spent=task.elapsed)

        yield report
