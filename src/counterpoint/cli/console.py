"""Progress bars and tables on the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from counterpoint.nets.training import Monitor

CONSOLE = Console(soft_wrap=True)


@dataclass(frozen=True)
class Saving:
    """Checkpoints of a long job."""

    resume: bool = False
    """Continue a stopped job from its last checkpoint."""
    save_seconds: float = 5.0
    """Seconds between two checkpoints."""


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Draw a progress bar for every stage; report(stage, done, total) moves it."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=CONSOLE) as bars:
        stages: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done)

        yield report


@contextmanager
def watching(run: Path, saving: Saving) -> Iterator["Monitor"]:
    """Yield a monitor that keeps checkpoints in the run folder and draws the progress."""
    from counterpoint.nets.training import Monitor

    with progress() as report:
        yield Monitor(run / "checkpoints", saving.resume, report, save_seconds=saving.save_seconds)


def visible(text: str, keep: str = "") -> str:
    """Return the text with an escape code for every invisible character, except those of `keep`.

    A terminal obeys control characters, and two ids that differ in an invisible character would look the same.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print rows as a table; nothing in them is taken for markup."""
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
    """Print plain text."""
    CONSOLE.print(Text(visible(text, keep="\n")))
