"""Build a database file step by step, one table each; a step whose text, settings and inputs are unchanged is skipped.

A table and the hash of its inputs are written in one transaction.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoint.core.artifacts import digest
from counterpoint.core.errors import CounterpointError
from counterpoint.sources.mimic.reading import watched
from counterpoint.sources.mimic.source import MimicSource, open_source, what_is_wrong

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

Report = Callable[[str, int, int], None]
NOTES = "counterpoint_steps"


@dataclass(frozen=True)
class CohortStep:
    """A step that builds one table: a query in sql/, or a function that yields parts of the table."""

    table: str
    file: str = ""
    """Name of the query in sql/."""
    make: Callable[["Workspace"], Iterable["pd.DataFrame"]] | None = None
    """Yields the parts, all with the same columns."""
    text: str = ""
    """Text that changes whenever the function's result may change; unused for queries."""

    def recipe(self) -> str:
        """Return the text that determines the table."""
        if not self.file:
            return self.text
        return files("counterpoint.sources.mimic").joinpath("sql", self.file).read_text("utf-8")


@dataclass
class Workspace:
    """An open database file."""

    connection: "duckdb.DuckDBPyConnection"
    settings: dict[str, str]
    """Variables that queries read by getvariable('name')."""
    source: MimicSource
    report: Report
    built: list[str] = field(default_factory=list)
    """Tables that this run built."""

    def run(self, steps: list[CohortStep]) -> None:
        """Build the missing tables in order; a rebuilt step rebuilds all that follow."""
        parent = ""
        for number, step in enumerate(steps):
            self.report("steps", number, len(steps))
            text = step.recipe()
            variables = {name: self.settings[name] for name in sorted(set(re.findall(r"getvariable\('(\w+)'\)", text)))}
            read = {name: self.source.state[name] for name in sorted(set(re.findall(r"\braw_(\w+)", text)))}
            parent = digest([parent, step.table, text, variables, read])
            if not self._has(step.table, parent):
                self._make(step, text, parent, list(read))
                self.built.append(step.table)
        self.report("steps", len(steps), len(steps))

    def rows(self, query: str) -> Any:
        """Return the result of a query, which must have an ORDER BY, as a DataFrame; pandas' own types are too wide."""
        return self.connection.execute(query).df()

    def value(self, query: str) -> Any:
        """Return the first value of a query's result."""
        return (self.connection.execute(query).fetchone() or (None,))[0]

    def _has(self, table: str, made_from: str) -> bool:
        row = self.connection.execute(f"SELECT made_from FROM {NOTES} WHERE step = ?", [table]).fetchone()
        return row == (made_from,)

    def _make(self, step: CohortStep, text: str, made_from: str, read: list[str]) -> None:
        import duckdb

        ours = (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException, duckdb.InternalException)
        started = time.monotonic()
        self.connection.execute("BEGIN")
        try:
            if step.make is None:
                files = [self.source.files[name] for name in read if name in self.source.files]
                with watched(files, partial(self.report, f"table {step.table}")):
                    self.connection.execute(f"CREATE OR REPLACE TABLE {step.table} AS {text}")
            else:
                self._fill(step.table, step.make(self))
            self.connection.execute(
                f"INSERT OR REPLACE INTO {NOTES} VALUES (?, ?, ?)", [step.table, made_from, time.monotonic() - started]
            )
            self.connection.execute("COMMIT")
        except BaseException as error:
            with suppress(duckdb.Error):  # Without a connection there is no rollback.
                self.connection.execute("ROLLBACK")
            if isinstance(error, duckdb.OutOfMemoryException):
                message = f"step '{step.table}' needs more memory or disk; give more with --memory"
            elif isinstance(error, duckdb.Error) and not isinstance(error, ours):  # These quote rows and passwords.
                message = what_is_wrong(self.connection, read, self.source.fix)
            else:
                raise
            raise CounterpointError(message) from None

    def _fill(self, table: str, parts: Iterable["pd.DataFrame"]) -> None:
        for number, part in enumerate(parts):
            self.connection.register("part", part)
            verb = f"INSERT INTO {table}" if number else f"CREATE OR REPLACE TABLE {table} AS"
            self.connection.execute(f"{verb} SELECT * FROM part")
            self.connection.unregister("part")


@contextmanager
def workspace(
    raw: Path | str, file: Path, settings: dict[str, str], memory: str, threads: int, report: Report
) -> Iterator[Workspace]:
    """Open or create the database file `file`, with views of the raw tables."""
    connection = _connect(file)
    try:
        _configure(connection, file, memory, threads)
        for name, value in settings.items():
            connection.execute(f"SET VARIABLE {name} = '{value}'")
        yield Workspace(connection, settings, open_source(connection, raw), report)
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # DuckDB's message for Ctrl-C.
            raise KeyboardInterrupt from None
        raise
    finally:
        connection.close()


def _connect(file: Path) -> "duckdb.DuckDBPyConnection":
    try:
        import duckdb
    except ModuleNotFoundError:
        raise CounterpointError("MIMIC-III is read with DuckDB; pip install 'counterpoint[mimic]'") from None
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = duckdb.connect(str(file))
        columns = "step VARCHAR PRIMARY KEY, made_from VARCHAR, seconds DOUBLE"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {NOTES} ({columns})")
    except duckdb.Error:
        raise CounterpointError(
            f"'{file}' cannot be opened: it is no DuckDB file, or another run holds it; wait for that, or delete it"
        ) from None
    return connection


def _configure(connection: "duckdb.DuckDBPyConnection", file: Path, memory: str, threads: int) -> None:
    import duckdb

    try:
        connection.execute("SET memory_limit = ?", [memory])
    except duckdb.Error:
        raise CounterpointError(f"--memory {memory} is no amount of memory; write 4GB") from None
    connection.execute("SET temp_directory = ?", [str(file.with_name(f"{file.name}.tmp"))])
    connection.execute("SET threads = ?", [threads])
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET enable_progress_bar = false")
