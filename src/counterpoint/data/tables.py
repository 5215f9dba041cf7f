"""Tables in and out: CSV, Parquet, pandas and polars become `Transitions`, and `Transitions` become files.

A clinical table has one row per subject and time, so the next state of row t is the state of row t + 1 of the same
episode. A record of T rows has no row after its last action; what that means is the user's choice (`last`).
No error message shows a value of a state column: rows and columns are named, patients' data are not.
"""

import difflib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import numpy as np
import torch

from counterpoint.data.spaces import ActionSpace, Box, Discrete, check_actions
from counterpoint.data.transitions import COLUMNS, Transitions
from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    import narwhals as nw
    import pyarrow as pa

Last = Literal["truncate", "terminal", "drop"]
FEW = 50
"""A numeric action with at most this many distinct values is taken to be discrete."""
MARK = "# counterpoint "
FORMAT = 1


def from_dataframe(
    table: Any,
    *,
    subject: str,
    time: str,
    state: str | Sequence[str],
    action: str | Sequence[str],
    reward: str,
    done: str | None = None,
    truncated: str | None = None,
    episode: str | None = None,
    next_state: str | Sequence[str] | None = None,
    actions: ActionSpace | None = None,
    labels: Sequence[str] = (),
    last: Last | None = None,
) -> Transitions:
    """Transitions from a pandas or polars DataFrame or the path of a CSV or Parquet file, one row per subject and time.

    Rows are sorted by subject (then `episode`) and time and numbered 0, 1, 2, … within the episode. A row whose `done`
    is true ends its episode with an outcome (terminated); one whose `truncated` is true ends it because the record
    stops; where both are true the outcome counts. Rows that follow start a new episode. The next state is the state of
    the episode's next row, or the columns `next_state` where the table carries them; none is ever invented.

    `last` says what the end of an episode is where neither column marks it:

    - `"terminal"`: an outcome. The row is kept as terminated; without a next state it serves value learning only.
    - `"truncate"`: the record stops, life goes on. What the last action led to was never seen, so the last row only
      gives the row before it a next state and is dropped; the row before is marked truncated. (A reward written on the
      dropped row goes with it; if it is the outcome, mark the row `done` instead.) Rows marked in `truncated` are
      treated alike. With `next_state` columns the outcome was seen: the row is kept and marked itself.
    - `"drop"`: the last row is dropped and nothing is marked.

    Where some end is unmarked and `last` is None, an error asks for the choice. The action and the reward of a dropped
    row may be missing; nothing else may, except the next state of a terminated row.

    Without `actions` the space is inferred: at most 50 distinct numeric actions make a `Discrete` of them, more make a
    `Box` from the least to the greatest, and text or categories make a one-hot `Discrete` over the sorted labels (or
    over `labels`, in that order, so that two tables share one space). A single numeric column with a `Discrete` of
    wider features holds the action's index.

    Rows in error messages are counted from 0 in the order of the table as given.
    """
    state, action = _names(state), _names(action)
    following = None if next_state is None else _names(next_state)
    _check_request(state, action, following, last)
    columns = _open(table, [subject, time, *state, *action, reward, *(following or ()), done, truncated, episode])
    layout = _layout(columns, subject, time, done, truncated, episode, last, shift=following is None)
    needed = np.zeros(len(columns), dtype=bool)
    needed[layout.order[layout.keep]] = True

    states = np.column_stack([columns.numbers(name) for name in state])[layout.order]
    if following is None:
        next_states = _shift(states, layout.end)
    else:
        next_states = _next_states(columns, following, layout)[layout.order]
    features, space, action_names = _actions(columns, action, actions, labels, needed)
    rows = layout.order[layout.keep]
    present, subjects = np.unique(layout.subject[layout.keep], return_inverse=True)
    return Transitions.logged(
        state=torch.from_numpy(states[layout.keep]),
        action=features[torch.from_numpy(rows)],
        reward=torch.from_numpy(columns.numbers(reward, needed)[rows]),
        next_state=torch.from_numpy(next_states[layout.keep]),
        terminated=torch.from_numpy(layout.terminated[layout.keep]),
        truncated=torch.from_numpy(layout.truncated[layout.keep]),
        subject=torch.from_numpy(subjects),
        episode=torch.from_numpy(np.unique(layout.episode[layout.keep], return_inverse=True)[1]),
        step=torch.from_numpy(layout.step[layout.keep]),
        actions=space,
        state_names=state,
        action_names=action_names,
        subject_names=[layout.subject_names[code] for code in present],
    )


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _check_request(state: list[str], action: list[str], following: list[str] | None, last: str | None) -> None:
    if not state or not action:
        raise CounterpointError("no state or no action column was named; pass state=['…'] and action='…'")
    for names in (state, action, following or []):
        if len(set(names)) < len(names):
            raise CounterpointError(f"{_quoted(names)}: one is named twice; name each once")
    if following is not None and len(following) != len(state):
        raise CounterpointError(
            f"next_state names {len(following)} columns but state names {len(state)}; name one for each state column"
        )
    if last is not None and last not in get_args(Last):
        raise CounterpointError(f"last={last!r} is not one of 'terminal', 'truncate', 'drop'; pick one")


@dataclass(frozen=True)
class _Layout:
    """Which row follows which: `order` sorts the table, every other array is in sorted order."""

    order: np.ndarray
    keep: np.ndarray
    end: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    subject: np.ndarray
    subject_names: list[str]
    episode: np.ndarray
    step: np.ndarray


def _layout(
    columns: "_Columns",
    subject: str,
    time: str,
    done: str | None,
    truncated: str | None,
    episode: str | None,
    last: Last | None,
    shift: bool,
) -> _Layout:
    """Sort the rows and cut them into episodes."""
    nowhere = np.zeros(len(columns), dtype=bool)
    codes, names = columns.codes(subject)
    group = nowhere if episode is None else columns.codes(episode)[0]
    moment = columns.times(time)
    order = np.lexsort((moment, group, codes))
    keys = [name for name in (subject, episode, time) if name is not None]
    _check_unique(order, (codes[order], group[order], moment[order]), keys)

    over = nowhere if done is None else columns.flags(done)[order]
    stopped = nowhere if truncated is None else columns.flags(truncated)[order] & ~over
    start = _changes(codes[order]) | _changes(group[order]) | np.r_[True, (over | stopped)[:-1]]
    end = np.r_[start[1:], True]
    unmarked = end & ~over & ~stopped
    _check_choice(unmarked, order, done, last)
    over = over | (unmarked & (last == "terminal"))
    stopped = stopped | (unmarked & (last == "truncate"))
    dropped = (unmarked & (last == "drop")) | (stopped & shift)
    # Shifting, the last row of a record that stops is only a next state, so the mark moves to the row that leads there.
    marked = np.r_[stopped[1:] & ~start[1:], False] if shift else stopped
    if dropped.all():
        raise CounterpointError(
            "no episode has two rows, so no row has a next state; pass last='terminal' to keep them"
        )
    first = np.flatnonzero(start)
    number = np.cumsum(start) - 1
    step = np.arange(len(order)) - first[number]
    return _Layout(order, ~dropped, end, over, marked, codes[order], names, number, step)


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it; the first always does."""
    return np.r_[True, values[1:] != values[:-1]]


def _check_unique(order: np.ndarray, keys: tuple[np.ndarray, ...], names: list[str]) -> None:
    same = ~np.logical_or.reduce([_changes(key) for key in keys])
    if same.any():
        places = np.flatnonzero(same)
        place = places[np.argmin(order[places])]
        shared = " and ".join(f"'{name}'" for name in names)
        raise CounterpointError(
            f"rows {order[place - 1]} and {order[place]} have the same {shared} ({len(places)} such rows);"
            " keep one row for each"
        )


def _check_choice(unmarked: np.ndarray, order: np.ndarray, done: str | None, last: Last | None) -> None:
    if last is None and unmarked.any():
        why = "no done column is given" if done is None else f"column '{done}' does not mark them"
        raise CounterpointError(
            f"{unmarked.sum()} episodes end without an outcome (first at row {order[unmarked].min()}): {why}; choose"
            " last='terminal' (it was the outcome), 'truncate' (the record stops) or 'drop'"
        )


def _shift(states: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The state one row later; NaN where the episode ends."""
    shifted = np.full_like(states, np.nan)
    shifted[:-1] = states[1:]
    shifted[end] = np.nan
    return shifted


def _next_states(columns: "_Columns", names: list[str], layout: _Layout) -> np.ndarray:
    """The table's own next states; only a terminated row may lack its own, and then all of it."""
    nothing = np.zeros(len(columns), dtype=bool)
    values = np.column_stack([columns.numbers(name, nothing) for name in names])
    absent = np.zeros(len(columns), dtype=bool)
    absent[layout.order[layout.terminated]] = True
    absent &= np.isnan(values).all(1)
    for column, name in zip(values.T, names, strict=True):
        _check_missing(name, np.isnan(column) & ~absent)
    return values


def _actions(
    columns: "_Columns", names: list[str], space: ActionSpace | None, labels: Sequence[str], needed: np.ndarray
) -> tuple[torch.Tensor, ActionSpace, list[str]]:
    """The actions' features in the table's row order, their space, and a name for each feature."""
    if labels or (len(names) == 1 and columns.holds_labels(names[0])):
        return _labelled(columns, names, space, list(labels), needed)
    values = np.column_stack([columns.numbers(name, needed) for name in names])
    values[~needed] = values[needed][0]  # Dropped rows may lack an action: any valid one keeps the row numbers right.
    space = _infer(values) if space is None else space
    features = torch.from_numpy(values)
    if isinstance(space, Discrete) and len(names) == 1 < space.width:
        check_actions(Discrete.of(list(range(space.count))), features, f"action index in column '{names[0]}'")
        names = [f"{names[0]}_{i}" for i in range(space.width)]
        return space.features(features[:, 0].round().long()), space, names
    check_actions(space, features, f"action in {_quoted(names)}")
    return features, space, names


def _quoted(names: Sequence[str]) -> str:
    return ("columns " if len(names) > 1 else "column ") + ", ".join(f"'{name}'" for name in names)


def _labelled(
    columns: "_Columns", names: list[str], space: ActionSpace | None, labels: list[str], needed: np.ndarray
) -> tuple[torch.Tensor, ActionSpace, list[str]]:
    """Treatments by name: the features of action i stand for label i."""
    if len(names) > 1:
        raise CounterpointError(f"labels name the actions of one column, not of {_quoted(names)}; pass one column")
    name = names[0]
    if space is not None and not (isinstance(space, Discrete) and space.count == len(labels)):
        raise CounterpointError(
            f"column '{name}' holds labels; pass labels=[…], one for each action of a Discrete space, or no actions"
        )
    codes, seen = columns.codes(name, needed)
    if labels:
        place = {str(label): i for i, label in enumerate(labels)}
        codes = np.array([place.get(label, -1) for label in seen])[codes]
        _check_labels(name, codes, needed, labels)
    space = Discrete.one_hot(len(labels or seen)) if space is None else space
    if space == Discrete.one_hot(space.count):
        names = [f"{name}={label}" for label in labels or seen]
    elif space.width > 1:
        names = [f"{name}_{i}" for i in range(space.width)]
    return space.features(torch.from_numpy(codes)), space, names


def _check_labels(name: str, codes: np.ndarray, needed: np.ndarray, labels: list[str]) -> None:
    unknown = np.flatnonzero((codes < 0) & needed)
    if len(unknown):
        raise CounterpointError(
            f"column '{name}' at row {unknown[0]} is none of the labels {', '.join(map(str, labels))}"
            f" ({len(unknown)} such rows); correct the rows or add the label"
        )


def _infer(values: np.ndarray) -> ActionSpace:
    distinct = _distinct(values)
    if len(distinct) <= FEW:
        return Discrete(tuple(tuple(map(float, row)) for row in distinct))
    return Box(tuple(map(float, values.min(0))), tuple(map(float, values.max(0))))


def _distinct(values: np.ndarray) -> np.ndarray:
    """The distinct rows in lexicographic order; column by column, as sorting whole rows is ten times slower."""
    rows = np.zeros(len(values), dtype=np.int64)
    for column in values.T:
        codes = np.unique(column, return_inverse=True)[1]
        rows = np.unique(rows * (codes.max() + 1) + codes, return_inverse=True)[1]
    return values[np.unique(rows, return_index=True)[1]]


def _open(table: Any, names: Sequence[str | None]) -> "_Columns":
    """The table behind a DataFrame or a path, with the named columns known to be there once."""
    import narwhals as nw

    native = _load(Path(table)) if isinstance(table, str | os.PathLike) else table
    try:
        frame = nw.from_native(native, eager_only=True)
    except TypeError:
        raise CounterpointError(
            f"cannot read a table from {type(table).__name__}; pass a pandas or polars DataFrame (collected, not lazy)"
            " or the path of a CSV or Parquet file"
        ) from None
    except nw.exceptions.DuplicateError:
        raise CounterpointError("the table has two columns of one name; rename or drop one") from None
    for name in names:
        if name is not None:
            _check_column(name, list(frame.columns))
    if not len(frame):
        raise CounterpointError("the table has no rows; pass a table with at least one row")
    return _Columns(frame)


def _check_column(name: str, columns: list[str]) -> None:
    if name in columns:
        if columns.count(name) > 1:
            raise CounterpointError(f"column '{name}' occurs {columns.count(name)} times; rename or drop the others")
        return
    columns = [str(column) for column in columns]
    close = difflib.get_close_matches(name.lower(), [column.lower() for column in columns], 1)
    shown = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    found = [column for column in columns if close and column.lower() == close[0]]
    hint = f"did you mean '{found[0]}'?" if found else f"the table has {shown}"
    raise CounterpointError(f"column '{name}' is not in the table; {hint}")


@dataclass(frozen=True)
class _Columns:
    """Columns by name, each checked as it is taken; only `needed` rows must have a value."""

    frame: "nw.DataFrame[Any]"

    def __len__(self) -> int:
        return len(self.frame)

    def arrow(self, name: str) -> "pa.Array":
        import pyarrow as pa

        try:
            column = self.frame.get_column(name).to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            _refuse_mixture(name, self.frame.get_column(name).to_list())
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def holds_labels(self, name: str) -> bool:
        import pyarrow as pa

        kind = self.arrow(name).type
        return pa.types.is_dictionary(kind) or _is_text(kind)

    def numbers(self, name: str, needed: np.ndarray | None = None) -> np.ndarray:
        """The column in single precision."""
        column = self.arrow(name)
        if not _is_numeric(column.type):
            _refuse_text(name, column.to_pylist())
        values = _float64(column)
        _check_missing(name, _among(np.isnan(values), needed))
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        _check_finite(name, np.isinf(values))
        return values

    def times(self, name: str) -> np.ndarray:
        """Numbers as they are, dates and times as integers, so that no two moments become one by rounding."""
        import pyarrow as pa

        column = self.arrow(name)
        _check_missing(name, column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
        if pa.types.is_temporal(column.type):
            return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_numpy()
        if pa.types.is_integer(column.type):
            return column.to_numpy()
        if not _is_numeric(column.type):
            raise CounterpointError(
                f"column '{name}' holds {column.type}; convert it to numbers or dates before loading"
            )
        values = _float64(column)
        _check_finite(name, np.isinf(values))
        return values

    def flags(self, name: str) -> np.ndarray:
        """Booleans, or numbers that are 0 or 1."""
        values = self.numbers(name)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise CounterpointError(
                f"column '{name}' is not true/false at row {wrong[0]} ({len(wrong)} such rows); use booleans or 0 and 1"
            )
        return values == 1

    def codes(self, name: str, needed: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """Labels as numbers in their sorted order, and the labels as text; a label on dropped rows only is none."""
        import pyarrow as pa

        column = self.arrow(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        encoded = column.dictionary_encode()
        labels = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(-1).to_numpy()
        blank = np.array([label == "" or label != label for label in labels] + [True])  # The last is index -1.
        _check_missing(name, _among(blank[indices], needed))
        used = np.unique(indices if needed is None else indices[needed])
        order = sorted(used.tolist(), key=labels.__getitem__)
        rank = np.zeros(len(labels) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[indices], [str(labels[i]) for i in order]


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_numeric(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(check(kind) for check in checks)


def _float64(column: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _among(rows: np.ndarray, needed: np.ndarray | None) -> np.ndarray:
    return rows if needed is None else rows & needed


def _check_missing(name: str, missing: np.ndarray) -> None:
    if missing.any():
        count = f"{missing.sum()} missing value{'s' if missing.sum() > 1 else ''}"
        raise CounterpointError(
            f"column '{name}' has {count} (first at row {missing.argmax()}); fill or drop them before loading"
        )


def _check_finite(name: str, infinite: np.ndarray) -> None:
    if infinite.any():
        raise CounterpointError(
            f"column '{name}' has {infinite.sum()} infinite or too large values (first at row {infinite.argmax()});"
            " replace or drop them before loading"
        )


def _refuse_text(name: str, values: list[Any]) -> NoReturn:
    """Name the first row that is no number, without showing it."""
    for row, value in enumerate(values):
        try:
            float(0 if value is None else value)
        except (TypeError, ValueError):
            raise CounterpointError(
                f"column '{name}' is not a number at row {row}; encode it as numbers or leave the column out"
            ) from None
    raise CounterpointError(f"column '{name}' holds numbers as text; convert it to numbers before loading")


def _refuse_mixture(name: str, values: list[Any]) -> NoReturn:
    """Name the first row that is text among numbers, or the other way round."""
    text = [isinstance(value, str) for value in values]
    row = text.index(not text[0]) if (not text[0]) in text else 0
    raise CounterpointError(f"column '{name}' mixes types (first at row {row}); make it all numbers or all text")


def _load(path: Path) -> "pa.Table":
    """A user's file."""
    from pyarrow import csv, parquet

    blanks = csv.ConvertOptions(strings_can_be_null=True)
    one = csv.ReadOptions(use_threads=False)  # Only then does a malformed row come with its number.
    readers = {
        ".csv": lambda: csv.read_csv(path, one, convert_options=blanks),
        ".parquet": lambda: parquet.read_table(path),
    }
    return _guarded(path, readers)


def _guarded(path: Path, readers: dict[str, Callable[[], Any]]) -> Any:
    """Call the reader for the suffix; a library's words about a bad file may quote patients and are not passed on."""
    import pyarrow as pa

    _check_suffix(path)
    if not path.is_file():
        raise CounterpointError(f"there is no file {path}; check the path")
    try:
        return readers[path.suffix.lower()]()
    except CounterpointError:
        raise
    except (pa.ArrowException, ValueError, KeyError) as error:
        place = re.search(r"Row #(\d+)", str(error))
        where = f" (line {place[1]})" if place else ""
        raise CounterpointError(
            f"{path} is not a readable {path.suffix[1:].lower()} file{where}; write it again, comma-separated if CSV"
        ) from None
    except OSError as error:
        raise CounterpointError(f"cannot read {path}: {error.strerror or 'damaged file'}; check the file") from None


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise CounterpointError(f"{path} ends in '{path.suffix}'; name it .csv or .parquet")


def write(transitions: Transitions, path: str | Path) -> None:
    """Save every column, the provenance, the action space and the names; the suffix .csv or .parquet picks the format.

    The file appears whole or not at all, and `read` gives back the same numbers bit for bit.
    """
    path = Path(path)
    _check_suffix(path)
    if not path.parent.is_dir():
        raise CounterpointError(f"there is no folder {path.parent}; create it first")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(transitions.to("cpu"), draft, path.suffix.lower())
        os.replace(draft, path)
    except OSError as error:
        raise CounterpointError(f"cannot write {path}: {error.strerror}; check the folder") from None
    finally:
        draft.unlink(missing_ok=True)


def _write(transitions: Transitions, path: Path, suffix: str) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    header = _header(transitions)
    fields = [getattr(transitions, name).detach().numpy() for name in COLUMNS]
    arrays = [pa.array(column) for field in fields for column in (field.T if field.ndim == 2 else [field])]
    table = pa.table(arrays, names=_file_columns(header))
    if suffix == ".parquet":
        parquet.write_table(table.replace_schema_metadata({"counterpoint": json.dumps(header)}), path)
    else:
        with path.open("wb") as file:
            file.write(f"{MARK}{json.dumps(header)}\n".encode())
            csv.write_csv(table, file)


def _header(transitions: Transitions) -> dict[str, Any]:
    """What the columns cannot say for themselves."""
    return {
        "format": FORMAT,
        "rows": len(transitions),
        "dtypes": {name: str(getattr(transitions, name).dtype).removeprefix("torch.") for name in COLUMNS},
        "actions": {"kind": type(transitions.actions).__name__, **asdict(transitions.actions)},
        "state_names": transitions.state_names,
        "action_names": transitions.action_names,
        "subject_names": transitions.subject_names,
        "noise_size": transitions.noise.shape[1],
    }


def _file_columns(header: dict[str, Any]) -> list[str]:
    return [f"{name}:{part}" if part is not None else name for name in COLUMNS for part in _parts(header, name)]


def _parts(header: dict[str, Any], name: str) -> list[Any]:
    """The columns of one field; a field of one number a row is [None]."""
    noise = list(range(header["noise_size"]))
    names = {"state": header["state_names"], "next_state": header["state_names"], "action": header["action_names"]}
    return list(names.get(name, noise if name == "noise" else [None]))


def read(path: str | Path) -> Transitions:
    """The transitions that `write` saved."""
    path = Path(path)
    header, table = _guarded(path, {".csv": lambda: _read_csv(path), ".parquet": lambda: _read_parquet(path)})
    if table.column_names != _file_columns(header) or len(table) != header["rows"]:
        raise CounterpointError(f"{path} was changed after it was written: rows or columns differ; write it again")
    return _guarded(path, dict.fromkeys((".csv", ".parquet"), lambda: _restore(header, table)))


def _parse_header(path: Path, text: str | bytes | None) -> dict[str, Any]:
    if text is None:
        raise CounterpointError(
            f"{path} was not written by counterpoint; load it with from_dataframe or the command's column flags,"
            " which say what each column is"
        )
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise CounterpointError(f"{path} has format {header['format']}, this version reads {FORMAT}; write it again")
    return header


def _read_parquet(path: Path) -> "tuple[dict[str, Any], pa.Table]":
    from pyarrow import parquet

    table = parquet.read_table(path)
    return _parse_header(path, (table.schema.metadata or {}).get(b"counterpoint")), table


def _read_csv(path: Path) -> "tuple[dict[str, Any], pa.Table]":
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        marked = file.read(len(MARK)) == MARK.encode()
        header = _parse_header(path, file.readline() if marked else None)
        kinds = [header["dtypes"][name] for name in COLUMNS for _ in _parts(header, name)]
        types = {name: pa.type_for_alias(kind) for name, kind in zip(_file_columns(header), kinds, strict=True)}
        options = csv.ConvertOptions(column_types=types, null_values=[])
        return header, csv.read_csv(file, csv.ReadOptions(use_threads=False), convert_options=options)


def _restore(header: dict[str, Any], table: "pa.Table") -> Transitions:
    columns = iter(table.columns)
    fields: dict[str, Any] = {}
    for name in COLUMNS:
        parts = [next(columns).to_numpy() for _ in _parts(header, name)]
        kind = getattr(torch, header["dtypes"][name])
        stacked = np.stack(parts, -1) if parts else np.zeros((header["rows"], 0))
        fields[name] = torch.from_numpy(stacked if name in MATRICES else parts[0].copy()).to(kind)
    space = dict(header["actions"])
    kind = {"Discrete": Discrete, "Box": Box}[space.pop("kind")]
    fields |= {name: tuple(header[name]) for name in ("state_names", "action_names", "subject_names")}
    return Transitions(**fields, actions=kind(**{key: _tuples(value) for key, value in space.items()}))


MATRICES = ("state", "next_state", "action", "noise")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
