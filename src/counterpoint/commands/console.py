"""What the commands share: progress bars, tables on the terminal, and run folders."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from counterpoint import artifacts
from counterpoint.errors import CounterpointError
from counterpoint.library import CLASSES, load
from counterpoint.nets.training import Monitor
from counterpoint.tasks.base import Task

CONSOLE = Console(soft_wrap=True)
DATA, HELD_OUT, AUGMENTED = "data.parquet", "held_out.parquet", "augmented.parquet"
TASK, TASK_FILE, SCM, POLICY = "task", "task.json", "scm", "policy"
"""Where things lie in a run folder."""


@dataclass(frozen=True)
class Saving:
    """How a long job is kept safe."""

    resume: bool = False
    """Go on where a stopped run left off."""
    save_seconds: float = 5.0
    """Seconds between two checkpoints."""


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """One progress bar a stage, moved by report(stage, done, total)."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=CONSOLE) as bars:
        stages: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done)

        yield report


@contextmanager
def watching(run: Path, saving: Saving) -> Iterator[Monitor]:
    """A monitor that keeps checkpoints in the run folder and draws the progress."""
    with progress() as report:
        yield Monitor(run / "checkpoints", saving.resume, report, save_seconds=saving.save_seconds)


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Rows as a table on the terminal."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    CONSOLE.print(table)


def say(text: str) -> None:
    CONSOLE.print(text, highlight=False, markup=False)


def save_task(task: Task, run: Path) -> None:
    """A simulator goes into task.json, so that later commands know what the rows are worth."""
    text = json.dumps(artifacts.encode(task), indent=2)
    artifacts.write_atomically(run / TASK_FILE, lambda file: file.write(text.encode()))


def load_task(run: Path) -> Task:
    """The run's task: a simulator from task.json or one learned by `fit`."""
    if (run / TASK_FILE).exists():
        try:
            task = artifacts.decode(json.loads((run / TASK_FILE).read_text()), CLASSES)
        except ValueError:
            raise CounterpointError(f"'{run / TASK_FILE}' is not JSON; run simulate again") from None
        if not isinstance(task, Task):
            raise CounterpointError(f"'{run / TASK_FILE}' does not hold a task; run simulate again")
        return task
    if (run / TASK).exists():
        return load(run / TASK)
    raise CounterpointError(f"'{run}' has no task; run simulate or fit with this --run first")


def ready(run: Path) -> Path:
    """The run folder, made where it is missing."""
    run.mkdir(parents=True, exist_ok=True)
    return run


def existing(path: Path, hint: str) -> Path:
    if not path.exists():
        raise CounterpointError(f"'{path}' does not exist; {hint}")
    return path
