"""Data section of the page: subjects, lengths and outcomes of episodes, state columns, gaps and actions."""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.statistics import Interval
from counterpoint.core.wording import discounted
from counterpoint.data.schema import Column
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.page.cells import (
    FEW,
    SMALLEST,
    PageTable,
    between,
    counted,
    hidden,
    number,
    over_steps,
    quantiles,
    share,
    shares_in,
    subjects_in,
    tail,
)
from counterpoint.page.choices import with_unit

NORMAL_95 = 1.96
MOST_BARS = 20
MOST_ACTIONS = 40
"""Actions in a table, at most."""


@dataclass(frozen=True)
class Bars:
    """Bar chart of counts of subjects; None for hidden counts."""

    label: str
    width: int
    """Width of a bar; the first begins at 1."""
    counts: tuple[int | None, ...]


@dataclass(frozen=True)
class CohortSummary:
    """Texts and tables about the log."""

    facts: tuple[tuple[str, str], ...]
    lengths: Bars
    outcomes: PageTable
    columns: PageTable
    actions: PageTable
    gaps: str
    """How missing values were treated."""
    returned: Interval
    """Mean total reward of an episode, with its 95% interval over subjects."""
    returned_of: str
    """The subjects, steps and discount of `returned`, in words."""


@dataclass(frozen=True)
class RecordSummary:
    """Episodes of a log."""

    subject: Int[Tensor, " e"]
    length: Int[Tensor, " e"]
    returned: Float[Tensor, " e"]
    first: Int[Tensor, " e"]
    """First row of each."""
    last: Int[Tensor, " e"]


def records_of(rows: Transitions) -> RecordSummary:
    """Summarise the episodes of real rows."""
    order = rows.in_order()
    subject, episode = rows.subject[order], rows.episode[order]
    opens = torch.ones(len(order), dtype=torch.bool)
    opens[1:] = (subject.diff() != 0) | (episode.diff() != 0)
    number_of, starts = opens.cumsum(0) - 1, opens.nonzero()[:, 0]
    total = torch.zeros(len(starts), dtype=torch.double).index_add(0, number_of, rows.reward[order].double())
    length = torch.bincount(number_of)
    return RecordSummary(subject[starts], length, total, order[starts], order[starts + length - 1])


def mean_of(values: Float[Tensor, " e"], subject: Int[Tensor, " e"]) -> Interval:
    """A mean over episodes with its normal 95% interval; episodes of one subject may go together."""
    mean = float(values.mean())
    apart = torch.zeros(int(subject.max()) + 1, dtype=torch.double).index_add(0, subject, values - mean)
    error = NORMAL_95 * sqrt(float(apart.square().sum())) / len(values)
    return Interval(mean, mean - error, mean + error)


def cohort(rows: Transitions, held_out: int) -> CohortSummary:
    """What may be shown of a log of real rows, `held_out` of its subjects kept aside."""
    records = records_of(rows)
    whole, returned = len(records.subject.unique()), mean_of(records.returned, records.subject)
    median = quantiles(records.length.float(), 0.5)[0]
    returned_of = (
        f"all {counted(whole)} logged subjects, {over_steps(len(rows), len(records.length))}, {discounted(1.0)}"
    )
    facts = (
        ("Subjects", counted(whole)),
        ("Held out, not used for learning", counted(held_out)),
        ("Episodes", f"{len(records.length):,}"),
        ("Decisions logged", f"{len(rows):,}"),
        ("Length of an episode, median", f"{number(median)} steps"),
        (
            f"Logged total reward of an episode, mean (95% interval), of {returned_of}",
            between(returned.estimate, returned.low, returned.high),
        ),
    )
    measured, actions = _columns(rows, whole), _actions(rows, whole)
    lengths, outcomes = _lengths(records), _outcomes(rows, records)
    return CohortSummary(facts, lengths, outcomes, measured, actions, _gaps(rows), returned, returned_of)


def _lengths(records: RecordSummary) -> Bars:
    """Count subjects by the length of their longest episode."""
    longest = torch.zeros(int(records.subject.max()) + 1, dtype=torch.long)
    longest = longest.scatter_reduce(0, records.subject, records.length, "amax")
    width = -(-int(longest.max()) // MOST_BARS)
    counts = torch.bincount((longest[longest > 0] - 1) // width).tolist()
    shown = tuple(None if few else count for few, count in zip(hidden(counts), counts, strict=True))
    return Bars("steps of a subject’s longest episode", width, shown)


def _outcomes(rows: Transitions, records: RecordSummary) -> PageTable:
    """Table of the outcomes of episodes."""
    names = (*rows.outcome_names, "record stops, outcome unknown")
    outcome = rows.outcome[records.last]
    cell = torch.where(outcome >= 0, outcome, len(names) - 1)
    last = rows[records.last]
    counts, shares = subjects_in(last, cell, len(names)), shares_in(cell, len(names))
    lines = [
        (name, *(("not shown",) * 2 if few else (counted(count), share(part))))
        for name, count, part, few in zip(names, counts, shares, hidden(counts), strict=True)
    ]
    return PageTable("How episodes ended", ("Outcome", "Subjects", "Share of episodes"), tuple(lines))


def _columns(rows: Transitions, whole: int) -> PageTable:
    """Table of the state columns: quantiles or levels, and missing values."""
    level = tail(whole)
    masks = {column.mask_of: i for i, column in enumerate(rows.schema.states) if column.mask_of}
    lines = [
        (_named(column), _values(rows, i, level), _missing(rows, i, masks))
        for i, column in enumerate(rows.schema.states)
        if not column.mask_of
    ]
    ends = f"{level:.0%}, 50% and {1 - level:.0%} quantiles" if level else "quantiles are not shown of so few subjects"
    note = f"Numbers: {ends}. Categories: shares of rows; levels of fewer than ten subjects are not named. Constant:"
    note += " never changes within a subject."
    return PageTable("State columns", ("Column", "Values", "Missing"), tuple(lines), (0, 1), note)


def _named(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"{column.name}{unit}{', constant' if column.static else ''}"


def _values(rows: Transitions, place: int, level: float | None) -> str:
    column, values = rows.schema.states[place], rows.state[:, place]
    if not column.levels:
        return "not shown" if level is None else " · ".join(map(number, quantiles(values, level, 0.5, 1 - level)))
    cell, few = values.long(), rare_levels(rows, place)
    parts = zip(column.levels, shares_in(cell, len(few)), few, strict=True)
    shown = [f"{name} {share(part)}" for name, part, rare in parts if part and not rare]
    return ", ".join([*shown, *([f"{sum(few)} not shown"] if any(few) else [])])


def rare_levels(rows: Transitions, place: int) -> list[bool]:
    """Mark the levels of a category that are not named because of few subjects."""
    return hidden(subjects_in(rows, rows.state[:, place].long(), len(rows.schema.states[place].levels)))


def _missing(rows: Transitions, place: int, masks: dict[str, int]) -> str:
    """Share of values marked as missing; without marks, an upper bound: the share of values equal to the fill."""
    column = rows.schema.states[place]
    if column.name in masks:
        return _part(rows, rows.state[:, masks[column.name]] > 0)
    if column.fill is None:
        return "none"
    if column.fill.weights:
        return "not marked"
    at_fill = rows.state[:, place] == torch.tensor(column.fill.value, dtype=rows.state.dtype)
    return f"at most {_part(rows, at_fill)}" if bool(at_fill.any()) else "none"


def _part(rows: Transitions, flag: Bool[Tensor, " n"]) -> str:
    """Share of rows in which a flag is set; hidden for few subjects."""
    subjects = len(rows.subject[flag].unique())
    return f"in {FEW} subjects" if 0 < subjects < SMALLEST else share(float(flag.float().mean()))


def _gaps(rows: Transitions) -> str:
    layout = rows.layout
    if layout is None:
        return "The rows were not read from a table with gaps: no value is missing."
    if layout.missing == "refuse" and not layout.carry_forward:
        return "Missing values were refused when the table was read: no value is missing."
    kept = f"Values were carried forward for up to {layout.carry_forward:g} steps. " if layout.carry_forward else ""
    how = {
        "refuse": "Values still missing after that were refused.",
        "median": "Remaining missing values are the median of the training subjects, or their most frequent level.",
        "mean": "Remaining missing values are the mean of the training subjects, or their most frequent level.",
        "linear": "Remaining missing values are predicted from the other columns by regressions on training subjects.",
    }[layout.missing]
    return (
        f"{kept}{how} The run's table does not mark which values these are unless --masks names the column:"
        " “at most” counts every value equal to the one that fills a gap, and carried values are not counted."
    )


def _actions(rows: Transitions, whole: int) -> PageTable:
    if not isinstance(rows.actions, Discrete):
        return dose_quantiles("Doses given", {"logged": rows.action}, rows, whole)
    labels = rows.schema.labels(units=True)
    subjects, shares = subjects_in(rows, rows.action_index, len(labels)), shares_in(rows.action_index, len(labels))
    few = hidden(subjects)
    order = sorted(range(len(labels)), key=lambda i: -shares[i])[:MOST_ACTIONS]
    lines = []
    for i in order:
        cells = ("not shown", "not shown") if few[i] else (share(shares[i]), counted(subjects[i]))
        lines.append((labels[i], *cells))
    note = "Actions given to fewer than ten subjects are not counted."
    if len(labels) > MOST_ACTIONS:
        note += f" The {MOST_ACTIONS} commonest of {len(labels)} are shown."
    head = ("Action", "Share of decisions", "Subjects ever given")
    return PageTable("Actions given, commonest first", head, tuple(lines), note=note)


def dose_quantiles(caption: str, doses: dict[str, Float[Tensor, "n a"]], rows: Transitions, whole: int) -> PageTable:
    """Table of quantiles of continuous doses."""
    level = tail(whole)
    names = [with_unit(rows.schema, name) for name in rows.action_names]
    lines = [
        (f"{name}, {who}", *("not shown",) * 3)
        if level is None
        else (f"{name}, {who}", *map(number, quantiles(values[:, i], level, 0.5, 1 - level)))
        for i, name in enumerate(names)
        for who, values in doses.items()
    ]
    ends = (f"{level:.0%} quantile", "Median", f"{1 - level:.0%} quantile") if level else ("Low", "Median", "High")
    return PageTable(caption, ("Dose", *ends), tuple(lines))
