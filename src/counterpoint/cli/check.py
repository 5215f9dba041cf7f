"""`counterpoint check`: what is in a table, and which flags `fit` needs for it."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.cli.console import CONSOLE, say, show


@dataclass(frozen=True)
class Check:
    """Look at a table before fitting: what each column seems to be, what is odd, which flags settle it.

    Columns that you do not name are guessed, and marked so. No patient's values are shown. The command line to run next
    is printed last.
    """

    table: tyro.conf.Positional[Path]
    """CSV, TSV or Parquet table."""
    subject: str = ""
    """Column that says whose row it is."""
    time: str = ""
    """Column that orders the rows of a subject: numbers, or dates."""
    state: tuple[str, ...] = ()
    """Columns of the state."""
    action: tuple[str, ...] = ()
    """Column (or columns) of the action."""
    reward: str = ""
    """Column of the reward."""
    done: tuple[str, ...] = ()
    """Column (or columns) that is true where an episode ends with an outcome, as died discharged."""
    episode: str = ""
    """Column that numbers or names the episodes of a subject."""
    encoding: str = "utf-8"
    """Encoding of a text file, as latin-1."""
    out: Path | None = None
    """Folder for check-table.json and check-table.md."""
    write_study: Path | None = None
    """File for the suggested choices, TOML, as `counterpoint run` takes it."""

    def execute(self) -> None:
        from counterpoint.core.artifacts import write_text
        from counterpoint.data.tables.inspection import (
            ISOLATED,
            LEGEND,
            MEANS,
            QUANTILES,
            check,
            column_rows,
            sections,
            summary,
        )

        roles = ("subject", "time", "state", "action", "reward", "done", "episode", "encoding")
        inspection = check(self.table, **{role: getattr(self, role) for role in roles})
        say(f"{self.table}: {summary(inspection)}\n")
        rows = column_rows(inspection)
        if CONSOLE.width < 125:
            numbers = (MEANS, QUANTILES, ISOLATED)
            show([{name: cell for name, cell in row.items() if name not in numbers} for row in rows], "columns")
            rows = [{name: row[name] for name in ("column", *numbers)} for row in rows if row[ISOLATED]]
        if rows:
            show(rows, "numbers" if CONSOLE.width < 125 else "columns")
        say(LEGEND)
        for title, text in sections(inspection).items():
            say(f"\n{title}\n{text}")
        if self.out is not None:
            write_text(self.out / "check-table.json", json.dumps(inspection.to_json(), indent=2))
            write_text(self.out / "check-table.md", inspection.page())
            say(f"\nthe same in {self.out / 'check-table.md'}, numbers in {self.out / 'check-table.json'}")
        if self.write_study is not None:
            write_text(self.write_study, inspection.study())
            command = shlex.join(["counterpoint", "run", str(self.table), "--config", str(self.write_study)])
            say(f"\nthe same choices are in {self.write_study}; the whole chain with them: {command}")
