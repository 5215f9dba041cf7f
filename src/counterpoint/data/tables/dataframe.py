"""Read a user's table as `Transitions` in one call."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.core.settings import checked
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.layout import DateOrder, Gaps, Last, Layout, Method, Outcome
from counterpoint.data.spaces import ActionSpace
from counterpoint.data.tables.columns import Table
from counterpoint.data.tables.reading import read_table
from counterpoint.data.transitions import Transitions

Names = str | Sequence[str]


@checked
def from_dataframe(
    table: Table,
    *,
    subject: str = "",
    time: str = "",
    state: Names = (),
    action: Names = (),
    reward: str = "",
    done: Names | None = None,
    truncated: str | None = None,
    episode: str | None = None,
    next_state: Names | None = None,
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
    exogenous: Names | None = None,
    cyclic: Mapping[str, float] | None = None,
    recursion: Names | None = None,
    on_board: Mapping[str, str | float] | None = None,
    running_sum: Mapping[str, str | float] | None = None,
    sign: Mapping[tuple[str, str], int] | None = None,
    per: Mapping[str, str] | None = None,
    held_out: float = 0.0,
    seed: int = 0,
    like: Transitions | None = None,
) -> Transitions:
    """Read transitions from a table with one row per subject and time.

    Rows are sorted by subject (then `episode`) and time and numbered 0, 1, 2, … within the episode. Row numbers in
    error messages count from 0 in the table's own order. Notes on how the table was read (gaps, subjects without a
    row, lost digits) are `CounterpointWarning`s.

    Args:
        table: A pandas or polars DataFrame, or the path of a CSV, TSV or Parquet file.
        subject: Column that identifies the subject.
        time: Column that orders a subject's rows: numbers or dates.
        state: Columns of the state.
        action: Column or columns of the action.
        reward: Column of the reward; or, where the table has no such column, an expression of state and action
            columns, of their values in the next row, and of outcomes (1 in the row that ends with one):
            `"-(marker - 100)**2 / 100 - 0.1*dose"`, `"-abs(next marker - 100) - 50*died"`. It is computed exactly in
            every imagined row, and no reward is learned. Allowed are numbers, `+ - * / **`, comparisons, abs, min,
            max, log, exp, sqrt and where(condition, a, b); names with blanks stand between backticks.
        done: Column or columns that are true where an episode ends with an outcome (terminated), as
            `["died", "discharged"]`. Every outcome gets its own probability and reward. Rows that follow start a new
            episode.
        truncated: Column that is true where the record stops without an outcome. Where both are true, the outcome
            counts.
        episode: Column that identifies a subject's episodes.
        next_state: Columns of the next state. Without them it is the state of the episode's next row.
        actions: Action space, or `Bins` that cut amounts into doses. Without it, at most 50 distinct numbers make a
            `Discrete` space of them, more numbers a `Box`; text or categories make a one-hot `Discrete` space over the
            sorted labels, ordered categories are numbered; several columns make a product. A single numeric column
            with a `Discrete` space of several features holds the action's index.
        labels: Labels of a text action in the order of the actions, so that two tables share one space.
        last: What an episode's end is where neither `done` nor `truncated` marks it. `"terminal"`: an outcome, named
            "ended" beside marked ones; the row has no next state and is used for ends and value learning only.
            `"truncate"`: the record stops; the last row only gives the row before it a next state and is dropped, and
            the row before is marked truncated. This is refused where dropped rows have unusual rewards, perhaps of an
            outcome. With `next_state` columns the row is kept and marked itself. `"drop"`: the last row is dropped
            and nothing is marked.
        outcome: `"last row of the subject"` reads a flag that is repeated on all of a subject's rows (died in
            hospital) as an outcome of the subject's last row; `"marked row"` makes every marked row an end.
        step: Time between two rows, a number or "4h" for dates; the commonest distance where it is not given.
        gaps: What to do where rows are not one step apart: `"cut"` ends the episode there, `"bridge"` takes the rows
            as consecutive.
        categorical: State columns that are categories: names, or a mapping from names to levels in their order. Text,
            categorical and 0/1 columns are categories by default.
        numeric: State columns of 0 and 1 that are numbers.
        units: Units of columns by name; things with different units refuse each other.
        missing: How missing values of the state are filled: `"refuse"`, or with the training subjects' `"median"`,
            `"mean"` or a `"linear"` regression on the other columns. Actions and rewards of dropped rows and next
            states of terminated rows may be missing too; nothing else may.
        carry_forward: Steps for which the last value is carried forward first.
        masks: State columns that get a column of 0 and 1 which marks missing values.
        encoding: Encoding of a text file.
        dates: Order of day and month in dates such as 03/04/2024, where no date of the table shows it.
        zone: Zone of times that name none, where others do.
        knowledge: Declared facts about columns, such as bounds: rows that violate them are refused, and imagined rows
            satisfy them.
        exogenous: State columns that no action changes (an announced meal, the ward's census). Models predict them
            from their own past, clocks and static columns; counterfactuals leave them as they were.
        cyclic: Periods of state columns that begin again, as `{"hour": 24}`. Such a column becomes its cosine and its
            sine; where it advances by the same amount every step, both are computed in imagined rows, else learned.
        recursion: State columns that follow a linear recursion of their own value, the actions, the exogenous columns
            (of this row and the next) and a constant. Its weights are learned from the training subjects' rows, and a
            column that follows none is refused.
        on_board: Half-lives of doses, or of state columns, as `{"heparin": "6h"}` (a number in the unit of a time
            column of numbers). Each adds the state column heparin_on_board with
            b' = 0.5^(step / half-life)·(b + heparin), which is 0 at the start of a record.
        running_sum: Windows of doses, or of state columns, as `{"heparin": "6h"}`: whole steps, at most 24. Each adds
            the state column heparin_sum, the sum over the rows of the window before the row, and the earlier values
            that it needs, heparin_1_ago and so on.
        sign: Signs of effects, as `{("heparin", "ptt"): 1}`: more of the dose never lowers (1) or never raises (-1) the
            state column.
        per: Scales of doses, as `{"heparin": "weight"}`: effects act through heparin / weight. The scale is a positive
            state column that is constant within subjects.
        held_out: Share of the subjects that fills, cuts and levels are learned without, as `rows.split` holds out.
        seed: Seed that chooses these subjects.
        like: Transitions of another table, by whose layout and schema this table is read; no other argument is needed.
    """
    if like is not None and not subject:
        if like.layout is None:
            raise CounterpointError("like has rows that were not read from a table; pass rows of from_dataframe")
        layout = like.layout
    else:
        bins = _bins(actions)
        layout = Layout(
            subject=subject,
            time=time,
            state=_names(state),
            action=_names(action),
            reward=reward,
            done=_names(done),
            truncated=truncated or "",
            episode=episode or "",
            next_state=_names(next_state),
            actions=None if bins else actions,  # pyright: ignore[reportArgumentType]
            bins=bins,
            labels=tuple(map(str, labels)),
            last=last,
            outcome=outcome,
            step="" if step is None else str(step),
            gaps=gaps,
            categorical=_declared(categorical),
            numeric=_names(numeric),
            units=tuple(units.items()) if isinstance(units, Mapping) else units or (),
            missing=missing,
            carry_forward=carry_forward,
            masks=_names(masks),
            encoding=encoding,
            dates=dates,
            zone=zone,
            knowledge=_with_roles(knowledge, _names(exogenous), sign, per),
            cyclic=tuple((name, float(period)) for name, period in (cyclic or {}).items()),
            recursion=_names(recursion),
            on_board=_durations(on_board),
            running_sum=_durations(running_sum),
        )
    rows, notes = read_table(table, layout, held_out, seed, None if like is None else like.schema)
    for note in notes:
        warnings.warn(note, CounterpointWarning, stacklevel=2)
    return rows


def _with_roles(
    known: Knowledge,
    exogenous: tuple[str, ...],
    sign: Mapping[tuple[str, str], int] | None,
    per: Mapping[str, str] | None,
) -> Knowledge:
    return replace(
        known,
        exogenous=tuple(dict.fromkeys((*known.exogenous, *exogenous))),
        signs=(*known.signs, *((action, column, value) for (action, column), value in (sign or {}).items())),
        per=(*known.per, *(per or {}).items()),
    )


def _durations(durations: Mapping[str, str | float] | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(duration)) for name, duration in (durations or {}).items())


def _names(columns: Names | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    if isinstance(columns, str):
        return (columns,)
    try:
        return tuple(columns)
    except TypeError:
        raise CounterpointError(f"{columns!r} does not name columns; give a name or a list of names") from None


def _bins(actions: ActionSpace | Bins | Sequence[Bins] | None) -> tuple[Bins, ...]:
    """Return the bins among the arguments of `actions`; () for an action space."""
    if isinstance(actions, Bins):
        return (actions,)
    if not isinstance(actions, list | tuple) or not actions:
        return ()
    if not all(isinstance(item, Bins) for item in actions):
        raise CounterpointError("actions is a list of something other than Bins; pass Discrete.of([…]), a Box or Bins")
    return tuple(actions)


def _declared(categorical: Sequence[str] | Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if isinstance(categorical, Mapping):
        return tuple((name, tuple(str(level) for level in _names(levels))) for name, levels in categorical.items())
    return tuple((name, ()) for name in _names(categorical))
