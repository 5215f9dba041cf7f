"""What the commands share: progress bars and tables on the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from counterpoint.nets.training import Monitor

CONSOLE = Console(soft_wrap=True)


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


def visible(text: str, keep: str = "") -> str:
    """The text with a code in place of every character that is not seen, but those of `keep`.

    A terminal obeys control characters, and two ids that differ in an unseen character would look the same.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Rows as a table on the terminal; nothing in them is markup."""
    table = Table(title=_literal(title), title_justify="left")
    for name in rows[0]:
        justify = "left" if isinstance(rows[0][name], str) else "right"
        table.add_column(_literal(name), justify=justify, overflow="fold")
    for row in rows:
        cells = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values())
        table.add_row(*map(_literal, cells))
    CONSOLE.print(table)


def _literal(text: str) -> Text:
    return Text(visible(text))


def say(text: str) -> None:
    """Lines of plain text."""
    CONSOLE.print(Text(visible(text, keep="\n")))
