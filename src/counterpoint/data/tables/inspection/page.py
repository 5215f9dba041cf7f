"""What `inspect` answers, and how it reads: as a page, as JSON, as a command line, as a study file."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from counterpoint.data.tables.inspection.facts import (
    MANY,
    NEEDED,
    RARE,
    STEPS,
    Actions,
    Clock,
    ColumnFacts,
    End,
    Gone,
    Rewards,
    SubjectCounts,
    TableProblem,
    Trial,
)

MEANS = "mean ± sd"
SETTLED = "it is left out"
LEGEND = f"A role with a question mark is a guess. No patient's values are shown; a mean needs {MANY} subjects."


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found: `page` to read, `to_json` to keep, `flags` and `study` to go on with."""

    source: str
    """The path; empty for a DataFrame."""
    encoding: str
    records: SubjectCounts
    columns: tuple[ColumnFacts, ...]
    clock: Clock | None
    missing: Gone
    actions: Actions
    outcomes: tuple[End, ...]
    open_ends: int
    """Episodes whose last row has no outcome."""
    rewards: Rewards
    guessed: tuple[str, ...]
    """The roles that were guessed."""
    choices: dict[str, Any] = field(default_factory=dict)
    """What the loader would be told, by the names of `Reader`'s fields; bins as the command line has them."""
    problems: tuple[TableProblem, ...] = ()
    trial: Trial = Trial()

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        return json.loads(json.dumps(asdict(self) | {"flags": self.flags()}))

    def flags(self) -> list[str]:
        """The choices as words of `counterpoint fit`'s command line."""
        words: list[str] = []
        for name, value in self.choices.items():
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        return words

    def command(self) -> str:
        """The command line to run next."""
        start = ["counterpoint", "fit", "--run", "runs/first", "--data", self.source or "TABLE"]
        unnamed = [word for role in NEEDED if role not in self.choices for word in (f"--{role}", "NAME")]
        return shlex.join([*start, *self.flags(), *unnamed])

    def call(self) -> str:
        """The same in Python."""
        words = [f"{name}={value!r}" for name, value in self.choices.items() if name != "bins"]
        bins = ", ".join(f"cp.Bins({dose.name!r}, {dose.bins})" for dose in self.actions.doses if dose.bins)
        return f"cp.from_dataframe({', '.join(['table', *words, *([f'actions=[{bins}]'] if bins else [])])})"

    def study(self) -> str:
        """The choices as a study file for `counterpoint run`."""
        lines = ["# How the table is read, as counterpoint check suggests.", "[table]"]
        for name, value in self.choices.items():
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {text}" + ("  # guessed" if name in self.guessed else ""))
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """Everything, as Markdown."""
        parts = [f"# {self.source or 'The table'}", summary(self), "## Columns", markdown(column_rows(self)), LEGEND]
        for title, text in sections(self).items():
            parts += [f"## {title}", text]
        return "\n\n".join(parts) + "\n"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share in percent; one that is neither 0 nor 1 is not rounded to it."""
    hundredths = 100 * share
    if hundredths in (0.0, 100.0):
        return f"{hundredths:.0f}%"
    return "<0.1%" if hundredths < 0.1 else ">99.9%" if hundredths > 99.9 else f"{hundredths:.1f}%"


def summary(found: Inspection) -> str:
    """The table in a sentence."""
    records = found.records
    start = f"{counted(records.rows, 'row')} and {counted(len(found.columns), 'column')}"
    if not records.subjects:
        return f"{start}; no column says whose rows they are."
    episodes = f" in {counted(records.episodes, 'episode')}" if records.episodes != records.subjects else ""
    size = f"{records.rows_least:,} to {records.rows_most:,} rows each, median {records.rows_median:g}"
    twice = f"{counted(records.duplicates, 'row')} repeat another's subject and time"
    single = f"{counted(records.single, 'subject')} with one row only"
    unique = "No two rows have the same subject and time"
    whose = f"{counted(records.subjects, 'subject')}{episodes}: {size}; {single}"
    return f"{start}. {whose}. {twice if records.duplicates else unique}."


def column_rows(found: Inspection) -> list[dict[str, str]]:
    """A line for every column, those with a role first."""
    ranks = {"subject": 0, "episode": 1, "time": 2, "state": 3, "action": 4, "": 9}
    return [
        {
            "column": fact.name,
            "role": (fact.role or "–") + (" ?" if fact.guessed else ""),
            "kind": fact.kind,
            "values": f"{fact.distinct:,}",
            "missing": percent(fact.missing),
            MEANS: "" if fact.mean is None else f"{fact.mean:g} ± {fact.sd:g}",
            "note": fact.note,
        }
        for fact in sorted(found.columns, key=lambda fact: ranks.get(fact.role, 5))
    ]


def sections(found: Inspection) -> dict[str, str]:
    """The rest of the page by title."""
    settled, unsettled = _said_problems(found)
    parts = {
        "Time": _said_time(found.clock),
        "Missing values of the state": _said_missing(found),
        "Actions": _said_actions(found.actions),
        "Outcomes and rewards": _said_outcomes(found),
        "To mend or to decide": unsettled or "Nothing.",
        "Settled by the flags below, unless you know better": settled,
        "What the loader would do": _said_trial(found.trial),
        "Once this is mended"
        if found.trial.error
        else "Next": f"    {found.command() if found.source else found.call()}",
    }
    return {title: text for title, text in parts.items() if text}


def _said_time(clock: Clock | None) -> str:
    if clock is None:
        return ""
    gaps = (
        f"{clock.gaps:,} are not one step apart, the longest {clock.longest:g} steps" if clock.gaps else "none is a gap"
    )
    exact = f"; {percent(clock.irregular)} are not exactly one step" if clock.irregular else ""
    return f"One step is {clock.step}. Of {counted(clock.pairs, 'pair')} of consecutive rows {gaps}{exact}."


def _said_missing(found: Inspection) -> str:
    gone = found.missing
    if not gone.cells:
        return "None." if "state" in found.choices else ""
    rows = [
        {"column": fact.name, "missing": percent(fact.missing), "longest run": f"{fact.longest_run:,}"}
        | {counted(n, "step"): percent(fact.left[str(n)]) for n in STEPS}
        for fact in found.columns
        if "state" in fact.role and fact.left
    ]
    rows += [{"column": "all states", "missing": percent(gone.cells), "longest run": "–"}]
    rows[-1] |= {counted(n, "step"): percent(gone.left[str(n)]) for n in STEPS}
    start = f"{percent(gone.rows)} of the rows lack at least one value. The longest run is in rows of one subject; the"
    return f"{start} last columns say what is left once values are carried forward so far.\n\n{markdown(rows)}"


def _said_actions(actions: Actions) -> str:
    parts = list[str]()
    for dose in actions.doses:
        cut = f", cut into {dose.choices} bins" if dose.bins and dose.choices else ""
        parts.append(f"{dose.name}: {counted(dose.distinct, 'different value')}{cut}.")
        if dose.support and len(actions.doses) != 2:
            parts.append(markdown([{dose.name: name, "rows": f"{rows:,}"} for name, rows in dose.support.items()]))
    if len(actions.doses) == 2 and actions.possible:
        parts.append(_grid(actions))
    if len(actions.doses) > 1 and actions.possible:
        seen = f"{actions.taken:,} were taken, {actions.rare:,} of them on fewer than {RARE} rows."
        parts.append(f"Together they make {actions.possible:,} actions, one for every combination: {seen}")
    return "\n\n".join(parts)


def _grid(actions: Actions) -> str:
    """The rows of every pair of actions, the first column's down and the second's across."""
    (down, across), rows = actions.doses, dict(actions.support)
    head = f"{down.name} ↓ {across.name} →"
    lines = [{head: one} | {two: f"{rows.get((one, two), 0):,}" for two in across.support} for one in down.support]
    return markdown(lines)


def _said_outcomes(found: Inspection) -> str:
    lines = [f"{end.name}: {counted(end.subjects, 'subject')}, {counted(end.rows, 'row')}" for end in found.outcomes]
    if found.records.episodes:
        lines.append(f"{found.open_ends:,} of {counted(found.records.episodes, 'episode')} end without an outcome")
    if found.rewards.last_only:
        lines.append("rewards other than 0 stand on last rows only")
    return "\n".join(f"- {line}" for line in lines)


def _said_problems(found: Inspection) -> tuple[str, str]:
    """The problems that the suggested flags settle, and those that they do not."""
    settled, unsettled, words = list[str](), list[str](), set(found.flags())
    for problem in found.problems:
        part = settled if problem.flag == SETTLED or set(shlex.split(problem.flag)) <= words else unsettled
        part.append(f"{len(part) + 1}. {problem.what}\n   Why: {problem.why}\n   Do: {problem.flag}")
    return "\n".join(settled), "\n".join(unsettled)


def _said_trial(trial: Trial) -> str:
    start = f"Tried on {trial.sample:,} rows with the flags below" if trial.sample else "With the flags below"
    if trial.error:
        return f"{start}, it stops: {trial.error}"
    ends = [f"{count:,} in '{name}'" for name, count in trial.ends.items() if count]
    actions = counted(trial.actions, "action") if trial.actions else "continuous actions"
    said = (
        f"{start}, it reads {counted(trial.rows, 'row')} in {counted(trial.episodes, 'episode')} of"
        f" {counted(trial.subjects, 'subject')}, with {counted(trial.states, 'state column')} and {actions}."
        f" Episodes end: {', '.join([*ends, f'{trial.stopped:,} without an outcome'])}."
    )
    return "\n".join([said, *(f"- It warns: {note}" for note in trial.notes)])


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Rows as a Markdown table that is also aligned to the eye; numbers stand to the right."""
    lines = [[*rows[0]], *([*row.values()] for row in rows)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    places = range(len(cells[0]))
    right = [all(re.match(r"[<>]?\d[\d,.]*%?$|–$", line[i]) for line in cells[1:]) for i in places]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in places]
    cells.insert(1, ["-" * (widths[i] - 1) + (":" if right[i] else "-") for i in places])
    padded = [[(str.rjust if right[i] else str.ljust)(line[i], widths[i]) for i in places] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
