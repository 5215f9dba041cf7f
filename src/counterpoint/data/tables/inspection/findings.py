"""What a table holds, counted once the roles are known."""

from collections.abc import Sequence

import numpy as np

from counterpoint.data.doses import Bins
from counterpoint.data.tables.clock import REGULAR, changes
from counterpoint.data.tables.episodes import is_repeated
from counterpoint.data.tables.inspection.actions import actions_of
from counterpoint.data.tables.inspection.columns import TakenColumn
from counterpoint.data.tables.inspection.facts import (
    AMOUNTS,
    MANY,
    ROLES,
    STEPS,
    Clock,
    ColumnFacts,
    End,
    Gone,
    Rewards,
    SubjectCounts,
)
from counterpoint.data.tables.inspection.look import Log, Look
from counterpoint.data.tables.inspection.page import Inspection
from counterpoint.data.tables.inspection.roles import SAME
from counterpoint.data.tables.spelling import alike_ids


def find(look: Look, bins: Sequence[Bins]) -> Inspection:
    """What the table holds; what to do about it comes later."""
    facts, ends = tuple(_facts(look, column) for column in look.taken.values()), _ends(look)
    open_ends = open_ends_of(look, ends)
    return Inspection(
        source="",
        encoding="",
        records=_records(look),
        columns=facts,
        clock=_clock(look.log),
        missing=_gone(look, facts),
        actions=actions_of(look, bins),
        outcomes=ends,
        open_ends=int(open_ends.sum()),
        rewards=_rewards(look, open_ends),
        guessed=tuple(role for role in ROLES if look.roles[role] and not look.given[role]),
    )


def _facts(look: Look, column: TakenColumn) -> ColumnFacts:
    """What may be said of a column without showing a value of it."""
    values, readable = look.sorted(column), column.kind != "unreadable"
    missing = np.isnan(values) & readable
    held = [role for role in ROLES if column.name in look.roles[role]]
    mean, sd = _centre(look, values) if "state" in held and column.kind in AMOUNTS else (None, None)
    run, left = _runs(look.log, missing) if missing.any() else (0, {})
    return ColumnFacts(
        name=column.name,
        role=", ".join(held).replace("done", "outcome").replace("_", " "),
        guessed=bool(held) and not any(column.name in look.given[role] for role in held),
        kind="text or id" if column.labels and {"subject", "episode"} & {*held} else column.kind,
        distinct=column.distinct,
        missing=float(missing.mean()),
        constant=column.distinct == 1,
        static=column.name in look.static,
        like=next(iter(look.alike.get(column.name, [])), ""),
        mean=mean,
        sd=sd,
        longest_run=run,
        left=left,
        note=_note(look, column, held),
    )


def _note(look: Look, column: TakenColumn, held: list[str]) -> str:
    """Why a column is not used, or what to know of it."""
    if not held:
        return look.unused.get(column.name, "not named")
    used = {*look.roles["action"], *look.roles["state"]}
    copies = [name for name in look.alike.get(column.name, []) if "state" in held and name in used]
    notes = {
        f"{SAME} '{(copies or [''])[0]}'": bool(copies),
        column.trouble.partition(";")[0]: bool(column.trouble) and bool({"state", "action"} & {*held}),
        "always the same": column.distinct == 1,
        "fixed within subjects": column.name in look.static and bool({"state", "action"} & {*held}),
        "read as a category": column.name in categories_of(look),
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def categories_of(look: Look) -> list[str]:
    """Whole numbers of the state with two values that are not 0 and 1, as 1 and 2 for a sex."""
    return [c.name for c in look.those("state") if c.kind == "whole number" and c.distinct == 2]


def _centre(look: Look, values: np.ndarray) -> tuple[float | None, float | None]:
    """Mean and deviation to three digits, where enough subjects have a value and it is not always the same."""
    known = values[~np.isnan(values)]
    if look.subjects_of(~np.isnan(values)) < MANY or (known == known[0]).all():
        return None, None
    return float(f"{known.mean():.3g}"), float(f"{known.std():.3g}")


def _runs(log: Log, missing: np.ndarray) -> tuple[int, dict[str, float]]:
    """The longest run of a subject's rows without a value, and the share missing once values are carried forward."""
    rows, clock = np.arange(len(missing)), np.cumsum(log.elapsed)
    seen = np.maximum.accumulate(np.where(missing, -1, rows))
    own = seen >= log.first_row
    age = np.where(own, clock - clock[seen], np.inf)
    run = rows - np.where(own, seen, log.first_row - 1)
    return int(run[missing].max()), {str(n): float((missing & (age > n + 1e-9)).mean()) for n in STEPS}


def _gone(look: Look, facts: Sequence[ColumnFacts]) -> Gone:
    """How much of the state is missing."""
    states = [fact for fact in facts if fact.name in look.roles["state"]]
    if not states:
        return Gone()
    readable = [column.values for column in look.those("state") if column.kind != "unreadable"]
    rows = np.isnan(readable).any(0) if readable else np.zeros(1)
    left = {str(n): float(np.mean([fact.left.get(str(n), 0.0) for fact in states])) for n in STEPS}
    return Gone(float(rows.mean()), float(np.mean([fact.missing for fact in states])), left)


def _records(look: Look) -> SubjectCounts:
    """How many rows and subjects, and what is odd about whose they are."""
    log, rows = look.log, len(look.columns)
    if not look.roles["subject"]:
        return SubjectCounts(rows, duplicates=int(log.same.sum()))
    sizes = np.diff(np.r_[np.flatnonzero(changes(log.subject)), rows])
    names = look.those("subject")[0].labels
    return SubjectCounts(
        rows=rows,
        subjects=len(sizes),
        episodes=int(log.opens.sum()),
        rows_least=int(sizes.min()),
        rows_median=float(np.median(sizes)),
        rows_most=int(sizes.max()),
        single=int((sizes == 1).sum()),
        duplicates=int(log.same.sum()),
        nobody=int((log.subject < 0).sum()),
        alike=alike_ids(names),
    )


def _clock(log: Log) -> Clock | None:
    """How regular the times are; none where there are none."""
    if not log.step:
        return None
    steps = log.elapsed[~log.opens & ~log.same]
    off = np.abs(steps - 1)
    return Clock(
        step=log.step,
        pairs=len(steps),
        gaps=int((off > REGULAR).sum()),
        longest=float(f"{steps.max():.3g}") if len(steps) else 0.0,
        irregular=float((off > 0.01).mean()) if len(steps) else 0.0,
    )


def _ends(look: Look) -> tuple[End, ...]:
    """How often and where every outcome is marked."""
    starts = np.flatnonzero(changes(look.log.subject))
    size = np.diff(np.r_[starts, len(look.columns)])
    ends = []
    for column in look.those("done"):
        flag = look.flag(column)
        count, final = np.add.reduceat(flag.astype(int), starts), flag[starts + size - 1]
        whole = (count == size) & (size > 1)
        masks = (flag, count > 0, whole, (count > 1) & ~whole, (count > 0) & ~final, np.isnan(column.values))
        ends.append(End(column.name, *(int(mask.sum()) for mask in masks)))
    return tuple(ends)


def repeats(ends: Sequence[End]) -> bool:
    """Whether an outcome is repeated on all rows of subjects that had it, as the loader has it."""
    return any(is_repeated(end.name, end.repeated, end.subjects) for end in ends)


def open_ends_of(look: Look, ends: Sequence[End]) -> np.ndarray:
    """The last rows of episodes that nothing marks."""
    final = np.r_[changes(look.log.subject)[1:], True] | (not repeats(ends))
    marked = np.zeros(len(look.columns), dtype=bool)
    for column in look.those("done"):
        marked |= look.flag(column) & final
    for column in look.those("truncated"):
        marked |= look.flag(column)
    return look.log.last & ~marked


def _rewards(look: Look, open_ends: np.ndarray) -> Rewards:
    """Where rewards stand, and whether the last rows that nothing marks carry unusual ones."""
    found = [column for column in look.those("reward") if column.kind in AMOUNTS]
    if not found:
        return Rewards()
    reward, last = look.sorted(found[0]), look.log.last
    known = ~np.isnan(reward)
    paid, lost, usual = known & (reward != 0), reward[open_ends & known], reward[~last & known]
    low, high = (usual.min(), usual.max()) if len(usual) else (-1e300, 1e300)
    unlike = (lost < low - (high - low)) | (lost > high + (high - low))  # As the loader has it.
    return Rewards(
        missing=int((~known & ~last).sum()),
        last_only=bool(paid.any() and not (paid & ~last).any() and not last.all()),
        constant=found[0].distinct == 1,
        unlike=bool(unlike.any()),
    )
