"""Doses, the state columns that remember them, and the columns that they are scaled by."""

from dataclasses import dataclass

from counterpoint.data.schema import Schema


@dataclass(frozen=True)
class DoseColumns:
    """A dose and the state columns that remember it."""

    name: str
    action: int
    """Index of the action column."""
    inputs: tuple[int, ...]
    """Indices, in (state, action), of the columns whose coefficients are effects of the dose."""


def dose_columns(schema: Schema) -> list[DoseColumns]:
    """The dose columns of a schema with the state columns that remember them: lags, and recursions that read them."""
    states = schema.state_names
    found = []
    for index, name in enumerate(schema.action_names):
        remembered = _remembered(schema, name)
        columns = [states.index(column) for column in states if column in remembered]
        found.append(DoseColumns(name, index, (*columns, len(states) + index)))
    return found


def _remembered(schema: Schema, dose: str) -> set[str]:
    """State columns that are computed from a dose, directly or by way of one another."""
    sources = {column: {source} for column, source in schema.knowledge.carried}
    for recursion in schema.knowledge.recursions:
        sources[recursion.column] = {name for name, _ in recursion.weights}
    reached = {dose}
    while True:
        more = {column for column, read in sources.items() if read & reached} - reached
        if not more:
            return reached - {dose}
        reached |= more


def scaled_columns(schema: Schema) -> tuple[tuple[int, int], ...]:
    """(i, j) pairs: column i of (state, action) is a dose, or remembers one, that acts per state column j."""
    states = schema.state_names
    divisors = {action: states.index(column) for action, column in schema.knowledge.per}
    pairs = [
        (column, divisors[dose.name])
        for dose in dose_columns(schema)
        if dose.name in divisors
        for column in dose.inputs
    ]
    return tuple(sorted(pairs))
