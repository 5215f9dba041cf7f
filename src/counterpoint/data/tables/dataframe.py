"""A user's table as `Transitions`: one call that takes what users have and says what it did."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.core.settings import checked
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import ActionSpace
from counterpoint.data.tables.dates import DateOrder
from counterpoint.data.tables.missing import Method
from counterpoint.data.tables.reader import Gaps, Last, Outcome, Reader
from counterpoint.data.transitions import Transitions


@checked
def from_dataframe(
    table: Any,
    *,
    subject: str = "",
    time: str = "",
    state: str | Sequence[str] = (),
    action: str | Sequence[str] = (),
    reward: str = "",
    done: str | Sequence[str] | None = None,
    truncated: str | None = None,
    episode: str | None = None,
    next_state: str | Sequence[str] | None = None,
    actions: ActionSpace | Bins | Sequence[Bins] | None = None,
    labels: Sequence[str] = (),
    last: Last | None = None,
    outcome: Outcome | None = None,
    step: str | float | None = None,
    gaps: Gaps | None = None,
    categorical: Sequence[str] | Mapping[str, Sequence[str]] = (),
    numeric: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    missing: Method = "refuse",
    carry_forward: float = 0.0,
    masks: Sequence[str] = (),
    encoding: str = "utf-8",
    dates: DateOrder | None = None,
    zone: str = "",
    knowledge: Knowledge = Knowledge(),
    held_out: float = 0.0,
    seed: int = 0,
    like: Schema | None = None,
) -> Transitions:
    """Transitions from a pandas or polars DataFrame or the path of a CSV or Parquet file, a row a subject and time.

    Rows are sorted by subject (then `episode`) and time and numbered 0, 1, 2, … within the episode. A row whose `done`
    is true ends its episode with an outcome (terminated; several columns, as `["died", "discharged"]`, tell several
    outcomes apart, each with its own chance and reward); one whose `truncated` is true ends it because the record
    stops; where both are true the outcome counts. Rows that follow start a new episode. The next state is the state of
    the episode's next row, or the columns `next_state` where the table carries them; none is ever invented.

    `outcome="last row of the subject"` reads a flag that is repeated on all of a subject's rows (died in hospital) as
    the end of the subject's last row; `"marked row"` says that each marked row is an end, however many there are.

    `last` says what the end of an episode is where neither column marks it:

    - `"terminal"`: an outcome, called "ended" beside those marked. The row is kept as terminated; without a next state
      it serves the ends and value learning only.
    - `"truncate"`: the record stops, life goes on. What the last action led to was never seen, so the last row only
      gives the row before it a next state and is dropped; the row before is marked truncated. Where dropped rows carry
      a reward unlike all others, perhaps an outcome, this is refused. Rows marked in `truncated` are treated alike.
      With `next_state` columns the outcome was seen: the row is kept and marked itself.
    - `"drop"`: the last row is dropped and nothing is marked.

    Rows of an episode are one `step` apart (a number, or "4h" for dates; the commonest distance where none is given).
    Where they are not, `gaps` must say: `"cut"` stops the episode there, `"bridge"` takes the rows as consecutive.

    Dates written as 31/01/2024 are day-first or month-first as some date tells; where none does, `dates` must say.
    Times that name a zone are not compared with times that name none, unless `zone` says what those are in.

    Text, categorical and 0/1 columns of the state are categories, others numbers; `categorical` (names, or a mapping
    from name to levels in their order) and `numeric` declare otherwise. `units` go with the table to all made of it.

    Missing values of the state are refused, unless `missing` says how they are filled: values at most `carry_forward`
    steps old are carried forward, then the training subjects' `"median"`, `"mean"` or a `"linear"` regression on the
    other columns stands in; `masks` names columns that get a 0/1 column beside them. The action and the reward of a
    dropped row may be missing; nothing else may, except the next state of a terminated row.

    Without `actions` the space is inferred: at most 50 distinct numeric actions make a `Discrete` of them, more make a
    `Box` from the least to the greatest, and text or categories make a one-hot `Discrete` over the sorted labels (or
    over `labels`, in that order, so that two tables share one space); ordered categories are numbered in their order.
    `Bins` cut amounts into doses; several columns make a product. A single numeric column with a `Discrete` of wider
    features holds the action's index.

    `knowledge` declares bounds, whole numbers, cosines and sines of angles, the range of the reward, and a mirror
    symmetry (see `Knowledge`): rows that are not so are refused, and every imagined row is so.

    Fills and cuts are learned without the subjects that `rows.split(held_out, seed)` keeps aside. `like=rows.schema`
    reads another table exactly as one before, and nothing else need be said.

    Rows in error messages are counted from 0 in the order of the table as given. What a reader should know was done
    (gaps cut, subjects without a row, lost digits) is said as a `CounterpointWarning`.
    """
    if like is not None and not subject:
        reader = getattr(like, "reader", None)
        if not isinstance(reader, Reader):
            raise CounterpointError("like is no schema of rows that were read from a table; pass like=rows.schema")
    else:
        reader = Reader(
            subject=subject,
            time=time,
            state=_names(state),
            action=_names(action),
            reward=reward,
            done=_names(done),
            truncated=truncated or "",
            episode=episode or "",
            next_state=_names(next_state),
            actions=None if _is_bins(actions) else actions,  # pyright: ignore[reportArgumentType]
            bins=_bins(actions) if _is_bins(actions) else (),
            labels=tuple(map(str, labels)),
            last=last,
            outcome=outcome,
            step="" if step is None else str(step),
            gaps=gaps,
            categorical=_declared(categorical),
            numeric=_names(numeric),
            units=tuple(units.items()) if isinstance(units, Mapping) else units or (),  # pyright: ignore[reportArgumentType]
            missing=missing,
            carry_forward=carry_forward,
            masks=_names(masks),
            encoding=encoding,
            dates=dates,
            zone=zone,
            knowledge=knowledge,
        )
    rows, notes = reader.read(table, held_out, seed, like)
    for note in notes:
        warnings.warn(note, CounterpointWarning, stacklevel=2)
    return rows


def _names(columns: Any) -> tuple[str, ...]:
    if columns is None:
        return ()
    if isinstance(columns, str):
        return (columns,)
    try:
        return tuple(columns)
    except TypeError:
        raise CounterpointError(f"{columns!r} does not name columns; give a name or a list of names") from None


def _is_bins(actions: Any) -> bool:
    return isinstance(actions, Bins) or (isinstance(actions, list | tuple) and len(actions) > 0)


def _bins(actions: Any) -> tuple[Bins, ...]:
    given = (actions,) if isinstance(actions, Bins) else tuple(actions)
    if not all(isinstance(each, Bins) for each in given):
        raise CounterpointError("actions is a list of something other than Bins; pass Discrete.of([…]), a Box or Bins")
    return given


def _declared(categorical: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if isinstance(categorical, Mapping):
        return tuple((name, tuple(str(level) for level in _names(levels))) for name, levels in categorical.items())
    return tuple((name, ()) for name in _names(categorical))
