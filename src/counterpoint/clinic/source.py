"""The raw tables of MIMIC-III: a folder of CSV files, packed or not, or a DuckDB file, as views of the same columns.

No message holds a value of a row: DuckDB's own messages quote the line that it could not read.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.errors import CounterpointError, require

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
"""What is read of MIMIC-III: tables, columns and their types."""
SCHEMAS = ("mimiciii", "main")
"""Where the tables of a DuckDB file may stand."""


def open_source(connection: "duckdb.DuckDBPyConnection", path: Path) -> dict[str, list[object]]:
    """Views raw_NAME of every table, and what tells whether the files are still the same."""
    if path.is_dir():
        return {name: _open_csv(connection, path, name) for name in TABLES}
    require(path.is_file(), f"'{path}' does not exist; name the folder of MIMIC-III's CSV files or a DuckDB file of it")
    return _open_database(connection, path)


def _open_csv(connection: "duckdb.DuckDBPyConnection", folder: Path, name: str) -> list[object]:
    found = sorted(file for file in folder.iterdir() if file.name.lower() in (f"{name}.csv", f"{name}.csv.gz"))
    require(bool(found), f"'{folder}' has no {name.upper()}.csv or {name.upper()}.csv.gz; download all of MIMIC-III")
    require(len(found) == 1, f"'{folder}' has both '{found[0].name}' and '{found[-1].name}'; leave one of them there")
    file = found[0]
    # Everything as text: types that DuckDB guesses from the first rows differ from file to file.
    table = f"read_csv({_text(str(file))}, header=true, all_varchar=true, delim=',', quote='\"', escape='\"')"
    _make_view(connection, name, table, _columns(connection, table, file), str(file))
    state = file.stat()
    return [file.name, state.st_size, state.st_mtime_ns]


def _open_database(connection: "duckdb.DuckDBPyConnection", path: Path) -> dict[str, list[object]]:
    import duckdb

    try:
        connection.execute(f"ATTACH {_text(str(path))} AS source (READ_ONLY)")
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
    return {name: [path.name, state.st_size, state.st_mtime_ns] for name in TABLES}


def _columns(connection: "duckdb.DuckDBPyConnection", table: str, where: Path) -> set[str]:
    import duckdb

    try:
        return {row[0].lower() for row in connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()}
    except duckdb.Error:
        raise CounterpointError(f"'{where}' is no table with a row of column names; download it again") from None


def _make_view(connection: "duckdb.DuckDBPyConnection", name: str, table: str, has: set[str], where: str) -> None:
    missing = [column for column in TABLES[name] if column not in has]
    require(not missing, f"'{where}' has no column {', '.join(missing).upper()}; download it again")
    columns = ", ".join(f'CAST("{column}" AS {kind}) AS {column}' for column, kind in TABLES[name].items())
    connection.execute(f"CREATE OR REPLACE TEMP VIEW raw_{name} AS SELECT {columns} FROM {table}")
    words = ", ".join(f'CAST("{column}" AS VARCHAR) AS {column}' for column in TABLES[name])
    connection.execute(f"CREATE OR REPLACE TEMP VIEW words_{name} AS SELECT {words} FROM {table}")


def what_is_wrong(connection: "duckdb.DuckDBPyConnection", tables: list[str]) -> str:
    """Which column of these raw tables holds something else than it should; no value is named."""
    import duckdb

    for name in tables:
        kinds = TABLES[name]
        wrong = [f"count_if({c} IS NOT NULL AND TRY_CAST({c} AS {kind}) IS NULL)" for c, kind in kinds.items()]
        try:
            counts = connection.execute(f"SELECT {', '.join(wrong)} FROM words_{name}").fetchone() or ()
        except duckdb.Error:
            return f"{name.upper()} cannot be read to its end (a broken line or archive); download it again"
        for (column, kind), count in zip(kinds.items(), counts, strict=True):
            if count:
                return f"{column.upper()} of {name.upper()} has {count} values that are no {kind}; download it again"
    return "a table does not hold what MIMIC-III's does; download it again"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
