"""Open the raw tables of MIMIC-III: a folder of CSV files, compressed or not, a DuckDB file or a Postgres database.

Messages show no value of a row; DuckDB's own messages, which quote lines, are not passed on.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.core.errors import CounterpointError, require
from counterpoint.sources.mimic import postgres
from counterpoint.sources.mimic.postgres import quoted

if TYPE_CHECKING:
    import duckdb

TABLES = {
    "admissions": {"subject_id": "INTEGER", "hadm_id": "INTEGER", "admittime": "TIMESTAMP", "dischtime": "TIMESTAMP",
                   "hospital_expire_flag": "INTEGER"},
    "chartevents": {"subject_id": "INTEGER", "hadm_id": "INTEGER", "icustay_id": "INTEGER", "itemid": "INTEGER",
                    "charttime": "TIMESTAMP", "value": "VARCHAR", "valuenum": "DOUBLE", "error": "INTEGER"},
    "diagnoses_icd": {"hadm_id": "INTEGER", "seq_num": "INTEGER", "icd9_code": "VARCHAR"},
    "icustays": {"subject_id": "INTEGER", "hadm_id": "INTEGER", "icustay_id": "INTEGER", "intime": "TIMESTAMP",
                 "outtime": "TIMESTAMP"},
    "inputevents_cv": {"icustay_id": "INTEGER", "charttime": "TIMESTAMP", "itemid": "INTEGER", "amount": "DOUBLE",
                       "rate": "DOUBLE", "rateuom": "VARCHAR"},
    "inputevents_mv": {"icustay_id": "INTEGER", "starttime": "TIMESTAMP", "endtime": "TIMESTAMP", "itemid": "INTEGER",
                       "amount": "DOUBLE", "rate": "DOUBLE", "rateuom": "VARCHAR", "statusdescription": "VARCHAR"},
    "labevents": {"hadm_id": "INTEGER", "itemid": "INTEGER", "charttime": "TIMESTAMP", "valuenum": "DOUBLE"},
    "microbiologyevents": {"subject_id": "INTEGER", "hadm_id": "INTEGER", "chartdate": "TIMESTAMP",
                           "charttime": "TIMESTAMP"},
    "outputevents": {"icustay_id": "INTEGER", "charttime": "TIMESTAMP", "itemid": "INTEGER", "value": "DOUBLE"},
    "patients": {"subject_id": "INTEGER", "gender": "VARCHAR", "dob": "TIMESTAMP", "dod": "TIMESTAMP"},
    "prescriptions": {"hadm_id": "INTEGER", "icustay_id": "INTEGER", "startdate": "TIMESTAMP", "drug_type": "VARCHAR",
                      "drug": "VARCHAR", "gsn": "VARCHAR", "route": "VARCHAR"},
}  # fmt: skip
"""The tables and columns that are read, with their types."""
SCHEMAS = ("mimiciii", "main")
"""Schemas of a DuckDB file in which tables are looked for."""
NEEDED = ("admissions", "chartevents", "icustays", "labevents", "microbiologyevents", "patients", "prescriptions")
"""Tables that must have rows."""
BROKEN_FILE = "a line or the archive is broken: download it again"
BROKEN_TABLE = "load it again"
LOST_SERVER = "the server ended the connection, or a value is damaged: look at its log"


@dataclass(frozen=True)
class MimicSource:
    """The views raw_NAME of all tables."""

    state: dict[str, list[object]]
    """State of every table, which changes when the table does."""
    fix: str
    """Advice for a table that cannot be read to its end."""
    files: dict[str, Path] = field(default_factory=dict)
    """File of each table in a folder."""


def open_source(connection: "duckdb.DuckDBPyConnection", raw: Path | str) -> MimicSource:
    """Create views of every table of a folder, a DuckDB file or a Postgres database."""
    if postgres.is_postgres(raw):
        return _open_postgres(connection, str(raw))
    path = Path(raw)
    if path.is_dir():
        return _open_folder(connection, path)
    require(
        path.is_file(),
        f"'{path}' {'is no regular file' if path.exists() else 'does not exist'}; name the folder of MIMIC-III's CSV"
        " files, a DuckDB file or postgresql://…",
    )
    return _open_database(connection, path)


def _open_folder(connection: "duckdb.DuckDBPyConnection", folder: Path) -> MimicSource:
    files = {name: _file_of(folder, name) for name in TABLES}
    for name, file in files.items():
        # Everything as text: types that DuckDB guesses from the first rows differ from file to file.
        table = _csv(file)
        _make_view(connection, name, table, _columns(connection, table, file), str(file))
        empty = name in NEEDED and not connection.execute(f"SELECT 1 FROM words_{name} LIMIT 1").fetchall()
        require(not empty, f"'{file}' has no row; download it again")
    states = {name: file.stat() for name, file in files.items()}
    return MimicSource({n: [files[n].name, s.st_size, s.st_mtime_ns] for n, s in states.items()}, BROKEN_FILE, files)


def _csv(file: Path) -> str:
    """Return the SQL that reads one file: DuckDB would take *, ? and [ in a path for patterns, and a folder called
    subject_id=1 for a column."""
    path = quoted(re.sub(r"([*?\[])", r"[\1]", str(file)))
    options = "header=true, all_varchar=true, delim=',', quote='\"', escape='\"', hive_partitioning=false"
    return f"read_csv({path}, {options})"


def _file_of(folder: Path, name: str) -> Path:
    files = sorted(file for file in folder.iterdir() if file.name.lower() in (f"{name}.csv", f"{name}.csv.gz"))
    require(bool(files), f"'{folder}' has no {name.upper()}.csv or {name.upper()}.csv.gz; download all of MIMIC-III")
    require(len(files) == 1, f"'{folder}' has both '{files[0].name}' and '{files[-1].name}'; leave one of them there")
    require(files[0].is_file(), f"'{files[0]}' is no regular file but a pipe, a device or a folder; put the file there")
    return files[0]


def _open_database(connection: "duckdb.DuckDBPyConnection", path: Path) -> MimicSource:
    import duckdb

    try:
        connection.execute(f"ATTACH {quoted(str(path))} AS source (READ_ONLY)")
    except duckdb.Error:
        raise CounterpointError(f"'{path}' is no DuckDB file, or in use; name one, or a folder") from None
    listed = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'source'"
        " UNION SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = 'source'"
    ).fetchall()
    places = {(schema.lower(), name.lower()): f'source."{schema}"."{name}"' for schema, name in listed}
    for name in TABLES:
        table = next((places[schema, name] for schema in SCHEMAS if (schema, name) in places), None)
        if table is None:
            raise CounterpointError(f"'{path}' has no table mimiciii.{name}; load the whole of MIMIC-III into it")
        _make_view(connection, name, table, _columns(connection, table, path), f"{path}, table {name}")
    state = path.stat()
    return MimicSource({name: [path.name, state.st_size, state.st_mtime_ns] for name in TABLES}, BROKEN_TABLE)


def _open_postgres(connection: "duckdb.DuckDBPyConnection", words: str) -> MimicSource:
    postgres.attach(connection, words)
    tables = postgres.tables(connection, TABLES)
    for name, (table, _) in tables.items():
        _make_view(connection, name, table, _columns(connection, table, name), f"Postgres, table {name}")
    return MimicSource({name: state for name, (_, state) in tables.items()}, LOST_SERVER)


def _columns(connection: "duckdb.DuckDBPyConnection", table: str, where: Path | str) -> set[str]:
    import duckdb

    try:
        return {row[0].lower() for row in connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()}
    except duckdb.OutOfMemoryException:
        raise CounterpointError(f"'{where}' needs more memory to be read; give more with --memory") from None
    except duckdb.Error:
        raise CounterpointError(
            f"'{where}' is no table in UTF-8 with a row of column names; download it again"
        ) from None


def _make_view(connection: "duckdb.DuckDBPyConnection", name: str, table: str, has: set[str], where: str) -> None:
    missing = [column for column in TABLES[name] if column not in has]
    require(not missing, f"'{where}' has no column {', '.join(missing).upper()}; download it again")
    columns = ", ".join(f'CAST("{column}" AS {kind}) AS {column}' for column, kind in TABLES[name].items())
    connection.execute(f"CREATE OR REPLACE TEMP VIEW raw_{name} AS SELECT {columns} FROM {table}")
    words = ", ".join(f'CAST("{column}" AS VARCHAR) AS {column}' for column in TABLES[name])
    connection.execute(f"CREATE OR REPLACE TEMP VIEW words_{name} AS SELECT {words} FROM {table}")


def what_is_wrong(connection: "duckdb.DuckDBPyConnection", tables: list[str], fix: str) -> str:
    """Return a message about the column of these raw tables that has values of a wrong type."""
    import duckdb

    for name in tables:
        kinds = TABLES[name]
        wrong = [f"count_if({c} IS NOT NULL AND TRY_CAST({c} AS {kind}) IS NULL)" for c, kind in kinds.items()]
        try:
            counts = connection.execute(f"SELECT {', '.join(wrong)} FROM words_{name}").fetchone() or ()
        except duckdb.Error:
            return f"{name.upper()} cannot be read to its end; {fix}"
        for (column, kind), count in zip(kinds.items(), counts, strict=True):
            if count:
                return f"{column.upper()} of {name.upper()} has {count} values that are no {kind}; download it again"
    if not tables:
        return "the database beside the cohort could not be written; make room on the disk"
    named = ", ".join(tables).upper()
    return f"{named} could not be read to the end ({fix}), or what is made of it not written (make room on the disk)"
