"""Read the raw tables from a Postgres database through DuckDB's extension `postgres`.

No message holds the connection string, which may hold a password; DuckDB's own messages quote it.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.core.errors import CounterpointError, require

if TYPE_CHECKING:
    import duckdb

SCHEMAS = ("mimiciii", "public")
"""Schemas in which tables are looked for."""
FORM = re.compile(r"postgres(ql)?://|\s*(host|hostaddr|port|dbname|user|password|passfile|service)\s*=")
INSTALL = """python -c "import duckdb; duckdb.sql('INSTALL postgres')\""""
CAUSES = {
    r"authentication failed|no password supplied": "the Postgres server refuses the user or the password; keep the"
    " password in ~/.pgpass or PGPASSWORD",
    r"database .* does not exist": "the Postgres server has no such database; check dbname",
    r"role .* does not exist": "the Postgres server has no such user; check user",
    r"Connection refused|could not translate host|No such file|timed? ?out|unreachable": "no Postgres server answers"
    " there; check host and port",
}
"""Patterns of libpq's messages, and our message for each."""
STATE = """
    SELECT n.nspname AS schema, t.relname AS name, current_database() AS base, p.relname AS part,
        p.relfilenode::BIGINT AS file, pg_relation_size(p.oid) AS bytes,
        coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0) AS writes,
        has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT') AS readable
    FROM pg_class AS t JOIN pg_namespace AS n ON n.oid = t.relnamespace
    JOIN pg_class AS p ON p.oid = t.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = t.oid)
    LEFT JOIN pg_stat_all_tables AS s ON s.relid = p.oid
    WHERE n.nspname IN ({schemas}) AND t.relname IN ({tables}) AND t.relkind IN ('r', 'p', 'v', 'm', 'f')
    ORDER BY 1, 2, 4
"""
"""Query for every table and partition: numbers that change with every write, and whether this user may read it."""


def is_postgres(raw: Path | str) -> bool:
    """Return whether a source is a libpq connection string: a URI, or words like dbname=mimic."""
    return isinstance(raw, str) and FORM.match(raw) is not None


def attach(connection: "duckdb.DuckDBPyConnection", words: str) -> None:
    """Attach the database as `source`, read-only. Extensions are not downloaded automatically."""
    import duckdb

    connection.execute("SET autoinstall_known_extensions = false")
    try:
        connection.execute("LOAD postgres")
    except duckdb.Error:
        raise CounterpointError(f"DuckDB reads Postgres by an extension that is not installed; {INSTALL}") from None
    try:
        connection.execute(f"ATTACH {quoted(words)} AS source (TYPE postgres, READ_ONLY)")
    except duckdb.Error as error:
        causes = (cause for pattern, cause in CAUSES.items() if re.search(pattern, str(error).replace(words, "")))
        unknown = "the Postgres database cannot be opened; try the same words with psql"
        raise CounterpointError(next(causes, unknown)) from None


def tables(connection: "duckdb.DuckDBPyConnection", names: Iterable[str]) -> dict[str, tuple[str, list[object]]]:
    """Return the qualified name of each table, and its state, which changes when the table is written."""
    names = list(names)
    rows = _ask(connection, STATE.format(schemas=_list(SCHEMAS), tables=_list(names)))
    sources = {}
    for name in names:
        schema = next((schema for schema in SCHEMAS if any(row[:2] == (schema, name) for row in rows)), None)
        require(schema is not None, f"Postgres has no table mimiciii.{name}; load the whole of MIMIC-III into it")
        state = [list(row) for row in rows if row[:2] == (schema, name)]
        require(
            all(row[-1] for row in state), f"this user may not read {schema}.{name} of Postgres; GRANT SELECT on it"
        )
        sources[name] = (f'source."{schema}"."{name}"', state)
    return sources


def _ask(connection: "duckdb.DuckDBPyConnection", query: str) -> list[tuple[object, ...]]:
    import duckdb

    try:
        return connection.execute("SELECT * FROM postgres_query('source', ?)", [query]).fetchall()
    except duckdb.Error:
        raise CounterpointError("Postgres does not list its tables; look at the server's log") from None


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
