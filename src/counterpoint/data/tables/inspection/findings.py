"""Count what a table holds, once the roles of its columns are set."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.tables.action_columns import FEW
from counterpoint.data.tables.clock import REGULAR, changes
from counterpoint.data.tables.episodes import is_repeated
from counterpoint.data.tables.inspection.facts import (
    AMOUNTS,
    BEYOND,
    MANY,
    RARE,
    ROLES,
    SOME,
    STEPS,
    TAIL,
    Clock,
    ColumnFacts,
    ColumnSupport,
    End,
    MissingValues,
    Rewards,
    SubjectCounts,
    Support,
)
from counterpoint.data.tables.inspection.page import Inspection
from counterpoint.data.tables.inspection.roles import ID, MOST_ACTION_COLUMNS, SAME
from counterpoint.data.tables.inspection.survey import Survey, SurveyedClock, SurveyedColumn
from counterpoint.data.tables.odd_values import isolated_values
from counterpoint.data.tables.reading import unusual_rewards
from counterpoint.data.tables.spelling import alike_ids

UNNAMED = f"fewer than {SOME} subjects"


def describe(survey: Survey, bins: Sequence[Bins]) -> Inspection:
    """Count what the table holds; suggestions are added later."""
    facts = tuple(_facts(survey, column) for column in survey.surveyed.values())
    ends = _ends(survey)
    open_ends = open_ends_of(survey, ends)
    return Inspection(
        source="",
        encoding="",
        records=_records(survey),
        columns=facts,
        clock=_clock(survey.clock),
        missing=_missing(survey, facts),
        actions=support_of(survey, bins),
        outcomes=ends,
        open_ends=int(open_ends.sum()),
        rewards=_rewards(survey, open_ends),
        guessed=tuple(role for role in ROLES if survey.roles[role] and not survey.declared[role]),
    )


def _facts(survey: Survey, column: SurveyedColumn) -> ColumnFacts:
    """Describe a column without showing a value of it."""
    values = survey.sorted(column)
    missing = np.isnan(values) & (column.kind != "unreadable")
    held = [role for role in ROLES if column.name in survey.roles[role]]
    mean, sd = _moments(survey, values) if "state" in held and column.kind in AMOUNTS else (None, None)
    run, left = _runs(survey.clock, missing) if missing.any() else (0, {})
    identifies = bool({"subject", "episode", "time"} & {*held}) or survey.unused.get(column.name) == ID
    is_amount = column.kind in ("number", "whole number") and not identifies
    low, high = _tails(survey, values) if is_amount else (None, None)
    is_id = bool(column.labels) and bool({"subject", "episode"} & {*held})
    return ColumnFacts(
        name=column.name,
        role=", ".join(held).replace("done", "outcome").replace("_", " "),
        guessed=bool(held) and not any(column.name in survey.declared[role] for role in held),
        kind="text or id" if is_id else column.kind,
        distinct=column.distinct,
        missing=float(missing.mean()),
        constant=column.distinct == 1,
        static=column.name in survey.static,
        like=next(iter(survey.copies.get(column.name, [])), ""),
        mean=mean,
        sd=sd,
        low=low,
        high=high,
        isolated=isolated_values(values) if is_amount else None,
        longest_run=run,
        left=left,
        note=_note(survey, column, held),
    )


def _note(survey: Survey, column: SurveyedColumn, held: list[str]) -> str:
    """Return why a column is not used, or remarks on one that is."""
    if not held:
        return survey.unused.get(column.name, "not named")
    used = {*survey.roles["action"], *survey.roles["state"]}
    copies = [name for name in survey.copies.get(column.name, []) if "state" in held and name in used]
    in_model = bool({"state", "action"} & {*held})
    notes = {
        f"{SAME} '{''.join(copies[:1])}'": bool(copies),
        column.trouble.partition(";")[0]: bool(column.trouble) and in_model,
        "always the same": column.distinct == 1,
        "fixed within subjects": column.name in survey.static and in_model,
        "read as a category": column.name in categories_of(survey),
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def categories_of(survey: Survey) -> list[str]:
    """Return the state columns of two whole numbers other than 0 and 1, as 1 and 2 for a sex."""
    return [c.name for c in survey.with_role("state") if c.kind == "whole number" and c.distinct == 2]


def _moments(survey: Survey, values: np.ndarray) -> tuple[float | None, float | None]:
    """Return mean and standard deviation, where enough subjects have a value and it is not constant."""
    observed = values[~np.isnan(values)]
    if survey.count_subjects(~np.isnan(values)) < MANY or (observed == observed[0]).all():
        return None, None
    return float(f"{observed.mean():.3g}"), float(f"{observed.std():.3g}")


def _tails(survey: Survey, values: np.ndarray) -> tuple[float | None, float | None]:
    """Return the 5% and the 95% quantile, where enough subjects are at or beyond each and it is not constant."""
    observed = values[~np.isnan(values)]
    if not len(observed) or (observed == observed[0]).all():
        return None, None
    low, high = np.quantile(observed, (TAIL, 1 - TAIL))
    if min(survey.count_subjects(values <= low), survey.count_subjects(values >= high)) < BEYOND:
        return None, None
    return float(f"{low:.3g}"), float(f"{high:.3g}")


def _runs(clock: SurveyedClock, missing: np.ndarray) -> tuple[int, dict[str, float]]:
    """Return the longest run of a subject's rows without a value, and the share missing after carrying forward."""
    rows = np.arange(len(missing))
    first = clock.records.subject_first_row
    steps = np.cumsum(clock.elapsed)
    seen = np.maximum.accumulate(np.where(missing, -1, rows))
    same_subject = seen >= first
    age = np.where(same_subject, steps - steps[seen], np.inf)
    run = rows - np.where(same_subject, seen, first - 1)
    return int(run[missing].max()), {str(n): float((missing & (age > n + 1e-9)).mean()) for n in STEPS}


def _missing(survey: Survey, facts: Sequence[ColumnFacts]) -> MissingValues:
    states = [fact for fact in facts if fact.name in survey.roles["state"]]
    if not states:
        return MissingValues()
    readable = [column.values for column in survey.with_role("state") if column.kind != "unreadable"]
    rows = np.isnan(readable).any(0) if readable else np.zeros(1)
    left = {str(n): float(np.mean([fact.left.get(str(n), 0.0) for fact in states])) for n in STEPS}
    return MissingValues(float(rows.mean()), float(np.mean([fact.missing for fact in states])), left)


def _records(survey: Survey) -> SubjectCounts:
    """Count rows and subjects."""
    rows = len(survey.columns)
    duplicates = int(survey.clock.repeated.sum())
    if not survey.roles["subject"]:
        return SubjectCounts(rows, duplicates=duplicates)
    subject = survey.records.subject
    sizes = np.diff(np.r_[np.flatnonzero(changes(subject)), rows])
    return SubjectCounts(
        rows=rows,
        subjects=len(sizes),
        episodes=int(survey.records.opens.sum()),
        rows_least=int(sizes.min()),
        rows_median=float(np.median(sizes)),
        rows_most=int(sizes.max()),
        single=int((sizes == 1).sum()),
        duplicates=duplicates,
        nobody=int((subject < 0).sum()),
        alike=alike_ids(survey.with_role("subject")[0].labels),
    )


def _clock(clock: SurveyedClock) -> Clock | None:
    """Describe how regular the times are; None where there are none."""
    if not clock.step:
        return None
    steps = clock.elapsed[~clock.records.opens & ~clock.repeated]
    off = np.abs(steps - 1)
    return Clock(
        step=clock.step,
        pairs=len(steps),
        gaps=int((off > REGULAR).sum()),
        longest=float(f"{steps.max():.3g}") if len(steps) else 0.0,
        irregular=float((off > 0.01).mean()) if len(steps) else 0.0,
    )


def _ends(survey: Survey) -> tuple[End, ...]:
    """Count how often and where every outcome is marked."""
    starts = np.flatnonzero(changes(survey.records.subject))
    size = np.diff(np.r_[starts, len(survey.columns)])
    ends = []
    for column in survey.with_role("done"):
        flag = survey.flag(column)
        count = np.add.reduceat(flag.astype(int), starts)
        repeated = (count == size) & (size > 1)
        end = End(
            name=column.name,
            rows=int(flag.sum()),
            subjects=int((count > 0).sum()),
            repeated=int(repeated.sum()),
            several=int(((count > 1) & ~repeated).sum()),
            early=int(((count > 0) & ~flag[starts + size - 1]).sum()),
            missing=int(np.isnan(column.values).sum()),
        )
        ends.append(end)
    return tuple(ends)


def repeats(ends: Sequence[End]) -> bool:
    """Return whether an outcome is repeated on all rows of subjects that had it, by the rule of `read_table`."""
    return any(is_repeated(end.name, end.repeated, end.subjects) for end in ends)


def open_ends_of(survey: Survey, ends: Sequence[End]) -> np.ndarray:
    """Return the last rows of episodes that no column marks."""
    counted_rows = survey.records.subject_last | (not repeats(ends))
    marked = np.zeros(len(survey.columns), dtype=bool)
    for column in survey.with_role("done"):
        marked |= survey.flag(column) & counted_rows
    for column in survey.with_role("truncated"):
        marked |= survey.flag(column)
    return survey.records.last & ~marked


def _rewards(survey: Survey, open_ends: np.ndarray) -> Rewards:
    """Describe where rewards are, and whether unmarked last rows carry unusual ones."""
    columns = [column for column in survey.with_role("reward") if column.kind in AMOUNTS]
    if not columns:
        return Rewards()
    reward = survey.sorted(columns[0])
    last = survey.records.last
    present = ~np.isnan(reward)
    paid = present & (reward != 0)
    lost = reward[open_ends & present]
    usual = reward[~last & present]
    return Rewards(
        missing=int((~present & ~last).sum()),
        last_only=bool(paid.any() and not (paid & ~last).any() and not last.all()),
        constant=columns[0].distinct == 1,
        unlike=bool(len(usual) and unusual_rewards(lost, usual).any()),
    )


def suggested_bins(survey: Survey) -> tuple[Bins, ...]:
    """Suggest bins for doses with too many different values, alone or in combination."""
    columns = survey.with_role("action")
    amounts = [column for column in columns if column.kind in AMOUNTS and not column.labels]
    many = [column for column in amounts if column.distinct > FEW]
    if len(amounts) == len(columns) > 1 and not many and _combinations(amounts) > FEW:
        many = amounts
    return tuple(Bins(column.name, 5 if len(columns) < MOST_ACTION_COLUMNS else 3) for column in many)


def _combinations(columns: Sequence[SurveyedColumn]) -> int:
    index = np.zeros(len(columns[0].values), dtype=np.int64)
    for column in columns:
        codes = np.unique(column.values, return_inverse=True)[1]
        index = np.unique(index * (codes.max() + 1) + codes, return_inverse=True)[1]
    return int(index.max()) + 1


def support_of(survey: Survey, bins: Sequence[Bins]) -> Support:
    """Count how often every action, and every combination of several columns' actions, was taken."""
    columns = survey.with_role("action")
    bins_of = {column_bins.column: column_bins for column_bins in bins}
    coded = [_coded(survey, column, bins_of.get(column.name)) for column in columns]
    names = [
        labels if column.name in bins_of else _public_names(survey, labels, codes)
        for column, (labels, codes) in zip(columns, coded, strict=True)
    ]
    parts = tuple(
        _column_support(survey, column, bins_of.get(column.name), labels, codes)
        for column, labels, (_, codes) in zip(columns, names, coded, strict=True)
    )
    possible = math.prod(map(len, names)) if names else 0
    if not 0 < possible <= 1_000_000:
        return Support(parts)
    index = np.zeros(len(survey.columns), dtype=np.int64)
    complete = np.ones(len(survey.columns), dtype=bool)
    for labels, codes in coded:
        index = index * len(labels) + codes
        complete &= codes >= 0
    places, counts = np.unique(index[complete], return_counts=True)
    support: dict[tuple[str, ...], int] = {}
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        combination = _combination(place, names)
        support[combination] = support.get(combination, 0) + count
    return Support(parts, possible, len(places), int((counts < RARE).sum()), tuple(support.items()))


def _combination(place: int, names: Sequence[list[str]]) -> tuple[str, ...]:
    """Return the labels of one combination; the last column changes fastest."""
    labels: list[str] = []
    for column_names in reversed(names):
        place, code = divmod(place, len(column_names))
        labels.append(column_names[code])
    return tuple(reversed(labels))


def _coded(survey: Survey, column: SurveyedColumn, bins: Bins | None) -> tuple[list[str], np.ndarray]:
    """Return the labels of one column's actions and each sorted row's code, -1 where it has none."""
    values = survey.sorted(column)
    present = ~np.isnan(values)
    nothing: tuple[list[str], np.ndarray] = ([], np.full(len(values), -1))
    if column.labels:
        return list(column.labels), np.where(present, values, -1).astype(np.int64)
    if bins is not None:
        try:
            fitted = bins.fit(column.name, values[present])
        except CounterpointError:
            return nothing  # The trial reports the reason.
        codes = fitted.codes(np.where(present, values, 0.0))
        return _bin_names(fitted, survey.count_subjects(present) >= MANY), np.where(present, codes, -1)
    amounts = np.unique(values[present])
    if not 0 < len(amounts) <= FEW or column.kind not in AMOUNTS:
        return nothing
    return [f"{amount:.10g}" for amount in amounts], np.where(present, np.searchsorted(amounts, values), -1)


def _bin_names(column: ActionColumn, shown: bool) -> list[str]:
    """Name bins by their cuts, or by numbers where too few subjects determine the cuts."""
    cuts = [f"{float(f'{cut:.3g}'):g}" for cut in column.cuts]  # 1250, not 1.25e+03.
    if not shown or not cuts or len(set(cuts)) < len(cuts):
        return [f"bin {i}" for i in range(column.count)]
    inner = [f"{low} to {high}" for low, high in pairwise(cuts)]
    return ["0"] * column.zero + [f"below {cuts[0]}", *inner, f"{cuts[-1]} and up"]


def _public_names(survey: Survey, labels: list[str], codes: np.ndarray) -> list[str]:
    """Return the labels; one that few subjects had is replaced."""
    if not labels:
        return []
    pairs = np.unique(survey.records.subject[codes >= 0] * len(labels) + codes[codes >= 0])
    subjects = np.bincount(pairs % len(labels), minlength=len(labels))
    return [label if count >= SOME else UNNAMED for label, count in zip(labels, subjects, strict=True)]


def _column_support(
    survey: Survey, column: SurveyedColumn, bins: Bins | None, labels: list[str], codes: np.ndarray
) -> ColumnSupport:
    support: dict[str, int] = {}
    counts = np.bincount(codes[codes >= 0], minlength=len(labels)).tolist()
    for label, count in zip(labels, counts, strict=True):
        support[label] = support.get(label, 0) + count
    return ColumnSupport(
        name=column.name,
        distinct=column.distinct,
        bins=bins.count if bins else 0,
        missing=int(np.isnan(column.values).sum()),
        negative=int((column.values < 0).sum()),
        static=column.name in survey.static,
        choices=len(labels),
        support=support,
    )
