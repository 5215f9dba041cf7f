"""MIMIC-III in Postgres: chosen by the form of the source, refused in one line without the password, the same bytes.

The last tests need a server: COUNTERPOINT_POSTGRES names an empty database that they may write to.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from counterpoint.cli.main import main
from counterpoint.core.errors import CounterpointError
from counterpoint.sources.mimic import postgres
from counterpoint.sources.mimic.cohort import SepsisCohort
from counterpoint.sources.mimic.source import TABLES
from counterpoint.sources.mimic.steps import CohortStep, Workspace, workspace
from helpers.mimic_raw import RawMimic, at, ward

SHAPES = False
SERVER = os.environ.get("COUNTERPOINT_POSTGRES", "")
served = pytest.mark.skipif(not SERVER, reason="COUNTERPOINT_POSTGRES names no empty Postgres database to write to")
KINDS = {"INTEGER": "INTEGER", "TIMESTAMP": "TIMESTAMP(0)", "DOUBLE": "DOUBLE PRECISION", "VARCHAR": "VARCHAR"}
SECRET = "h0rse-b4ttery"


class Asked:
    """A connection that answers some statements with an error or rows."""

    def __init__(self, answers: dict[str, object]) -> None:
        self.answers = answers

    def execute(self, query: str, *_: object) -> "Asked":
        self.answer = next((answer for begin, answer in self.answers.items() if query.startswith(begin)), [])
        if isinstance(self.answer, str):
            raise duckdb.IOException(self.answer)
        return self

    def fetchall(self) -> object:
        return self.answer


@pytest.mark.parametrize(
    ("raw", "is_one"),
    [
        ("postgresql://reader@host/mimic", True),
        ("postgres:///mimic", True),
        ("dbname=mimic host=here", True),
        (" service = mimic", True),
        ("mimic.duckdb", False),
        ("data/postgresql", False),
        (Path("host=here"), False),
    ],
)
def test_a_source_is_postgres_by_its_form(raw: Path | str, is_one: bool) -> None:
    assert postgres.is_postgres(raw) == is_one


def test_without_the_extension_the_line_says_how_to_install_it() -> None:
    with pytest.raises(CounterpointError, match="INSTALL postgres") as refused:
        postgres.attach(Asked({"LOAD": "Extension not found"}), f"postgresql://reader:{SECRET}@host/mimic")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ('FATAL: password authentication failed for user "reader"', "refuses the user or the password"),
        ("fe_sendauth: no password supplied", "PGPASSWORD"),
        ('FATAL:  database "nodb" does not exist', "check dbname"),
        ("port 1 failed: Connection refused", "no Postgres server answers"),
        ("could not translate host name", "no Postgres server answers"),
        (f'invalid integer value "{SECRET}" for connection option "port"', "psql"),
    ],
)
def test_why_a_server_refuses_is_said_without_the_password(cause: str, said: str) -> None:
    # The password looks like another cause: only what the server says counts.
    words = f"postgresql://reader:{SECRET}-timeout@host/mimic"
    with pytest.raises(CounterpointError, match=said) as refused:
        postgres.attach(Asked({"ATTACH": f'Unable to connect to Postgres at "{words}": {cause}'}), words)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_tables_are_found_in_the_schema_mimiciii_before_public_and_must_be_readable() -> None:
    row = lambda schema, name, readable=True: (schema, name, "mimic", name, 1, 8192, 5, readable)
    answers = {"SELECT": [row("mimiciii", "a"), row("public", "a"), row("public", "b")]}
    found = postgres.tables(Asked(answers), ["a", "b"])
    assert [place for place, _ in found.values()] == ['source."mimiciii"."a"', 'source."public"."b"']
    with pytest.raises(CounterpointError, match=r"no table mimiciii\.b; load"):
        postgres.tables(Asked({"SELECT": [row("mimiciii", "a")]}), ["a", "b"])
    with pytest.raises(CounterpointError, match=r"may not read mimiciii\.a .* GRANT SELECT"):
        postgres.tables(Asked({"SELECT": [row("mimiciii", "a", readable=False)]}), ["a"])


def test_the_command_refuses_in_one_line_that_does_not_hold_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mimic", f"postgresql://reader:{SECRET}@127.0.0.1:1/mimic", "--out", str(tmp_path / "cohort.parquet")])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err.count("\n") == 1
    assert "Postgres" in said.err
    assert SECRET not in said.out + said.err
    assert not (tmp_path / "cohort.json").exists()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[RawMimic]:
    """A ward in the schema mimiciii, CHARTEVENTS in partitions as mimic-code makes them."""
    raw = ward()
    folder = raw.write(tmp_path / "raw")
    with duckdb.connect() as base:
        base.execute("LOAD postgres")
        base.execute(f"ATTACH {postgres.quoted(SERVER)} AS source (TYPE postgres)")
        base.execute("CALL postgres_execute('source', 'CREATE SCHEMA mimiciii')")  # Fails where one is there already.
        for name, columns in TABLES.items():
            listed = ", ".join(f"{column} {KINDS[kind]}" for column, kind in columns.items())
            parts = " PARTITION BY RANGE (itemid)" if name == "chartevents" else ""
            base.execute(f"CALL postgres_execute('source', 'CREATE TABLE mimiciii.{name} ({listed}){parts}')")
        for low, high in (("MINVALUE", "200"), ("200", "MAXVALUE")):
            part = f"CREATE TABLE mimiciii.chart_{low} PARTITION OF mimiciii.chartevents"
            base.execute(f"CALL postgres_execute('source', '{part} FOR VALUES FROM ({low}) TO ({high})')")
        base.execute("CALL pg_clear_cache()")
        for name in TABLES:
            table = f"read_csv('{folder / name}.csv', header=true, all_varchar=true)"
            base.execute(f"INSERT INTO source.mimiciii.{name} SELECT {', '.join(TABLES[name])} FROM {table}")
        yield raw
        base.execute("CALL postgres_execute('source', 'DROP SCHEMA mimiciii CASCADE')")


@served
def test_a_server_gives_the_same_bytes_as_the_files(filled: RawMimic, tmp_path: Path) -> None:
    for name, raw in (("files", tmp_path / "raw"), ("server", SERVER)):
        SepsisCohort().build(raw, tmp_path / f"{name}.parquet", lambda *_: None, "1GB", 2)
    assert (tmp_path / "files.parquet").read_bytes() == (tmp_path / "server.parquet").read_bytes()


@served
def test_a_lost_server_is_one_line_and_the_next_run_goes_on(filled: RawMimic, tmp_path: Path) -> None:
    def lose(space: Workspace) -> Iterator[pd.DataFrame]:
        space.value("SELECT count(*) FROM raw_chartevents")
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with duckdb.connect() as base:
            base.execute("LOAD postgres")
            base.execute(f"ATTACH {postgres.quoted(SERVER)} AS source (TYPE postgres)")
            base.execute(f"SELECT * FROM postgres_query('source', '{others} AND datname = current_database()')")
        yield space.rows("SELECT * FROM raw_chartevents")

    def made(make: Callable[[Workspace], Iterator[pd.DataFrame]]) -> list[str]:
        with workspace(SERVER, tmp_path / "x.duckdb", {}, "1GB", 1, lambda *_: None) as space:
            space.run([CohortStep("a", make=make, text="raw_chartevents")])
            return space.built

    with pytest.raises(CounterpointError, match=r"CHARTEVENTS .*the server ended") as refused:
        made(lose)
    assert "\n" not in str(refused.value)
    assert made(lambda space: iter([space.rows("SELECT * FROM raw_chartevents")])) == ["a"]


@served
def test_what_is_written_to_the_server_is_noticed(filled: RawMimic, tmp_path: Path) -> None:
    def made() -> list[str]:
        with workspace(SERVER, tmp_path / "x.duckdb", {"mode": "corrected"}, "1GB", 1, lambda *_: None) as space:
            space.run(SepsisCohort().steps()[:5])
            return space.built

    assert made() == ["items", "chart", "comorbidities", "stays", "cultures"]
    assert made() == []
    with duckdb.connect() as base:
        base.execute("LOAD postgres")
        base.execute(f"ATTACH {postgres.quoted(SERVER)} AS source (TYPE postgres)")
        base.execute(f"INSERT INTO source.mimiciii.chartevents (itemid, charttime) VALUES (211, '{at(1)}')")
    assert made() == ["chart", "comorbidities", "stays", "cultures"]
