"""The result of `check`, as a page, JSON, a command line, Python code and a study file."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from counterpoint.core.wording import counted
from counterpoint.data.role_words import bounds_of, cycle_of
from counterpoint.data.tables.inspection.facts import (
    BEYOND,
    MANY,
    NEEDED,
    RARE,
    STEPS,
    Clock,
    ColumnFacts,
    End,
    MissingValues,
    Rewards,
    RoleGuess,
    SubjectCounts,
    Support,
    TableProblem,
    Trial,
)

MEANS, QUANTILES, ISOLATED = "mean ± sd", "5% to 95%", "isolated"
JUDGED, HELD_OUT = 50, 0.2
"""Subjects that `evaluate` needs for a verdict, and the share of a table that `fit` keeps for it."""
SETTLED = "it is left out"
AS_WORDS = ("bins", "cyclic", "bounds")
"""Choices that are words of the command line, and otherwise arguments of `from_dataframe`."""
LEGEND = (
    f"A role with a question mark is a guess. No patient's values are shown: a mean needs {MANY} subjects, a quantile"
    f" {BEYOND} at or beyond it. Isolated values are far from all others."
)


@dataclass(frozen=True)
class Inspection:
    """Result of `check`: `page` and `to_json` describe the table, `command`, `call` and `study` read it."""

    source: str
    """The path; empty for a DataFrame."""
    encoding: str
    records: SubjectCounts
    columns: tuple[ColumnFacts, ...]
    clock: Clock | None
    missing: MissingValues
    actions: Support
    outcomes: tuple[End, ...]
    open_ends: int
    """Episodes whose last row has no outcome."""
    rewards: Rewards
    guessed: tuple[str, ...]
    """The roles that were guessed."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Suggested fields of `Layout`; bins as on the command line."""
    guesses: tuple[RoleGuess, ...] = ()
    """Roles of columns that the rows show, which are among the choices."""
    questions: tuple[RoleGuess, ...] = ()
    """Roles of columns that only the user can know, which are not."""
    problems: tuple[TableProblem, ...] = ()
    trial: Trial = Trial()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return json.loads(json.dumps(asdict(self) | {"flags": self.flags()}))

    def flags(self) -> list[str]:
        """Return the choices as flags of `counterpoint fit`."""
        words: list[str] = []
        for name, value in self.choices.items():
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        return words

    def command(self) -> str:
        """Return the command line of `counterpoint fit`."""
        start = ["counterpoint", "fit", "--run", "runs/first", "--data", self.source or "TABLE"]
        unnamed = [word for role in NEEDED if role not in self.choices for word in (f"--{role}", "NAME")]
        return shlex.join([*start, *self.flags(), *unnamed])

    def call(self) -> str:
        """Return the call of `from_dataframe`."""
        words = [f"{name}={_python(name, value)}" for name, value in self.choices.items() if name not in AS_WORDS]
        words += [_python(name, self.choices[name]) for name in ("cyclic", "bounds") if name in self.choices]
        bins = ", ".join(f"cp.Bins({column.name!r}, {column.bins})" for column in self.actions.doses if column.bins)
        return f"cp.from_dataframe({', '.join(['table', *words, *([f'actions=[{bins}]'] if bins else [])])})"

    def study(self) -> str:
        """Return the choices as a study file for `counterpoint run`."""
        lines = ["# How the table is read, as counterpoint check suggests.", "[table]"]
        for name, value in self.choices.items():
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines += [f"# {guess.why}" for guess in self.guesses if guess.setting == name]
            guessed = name in self.guessed or any(guess.setting == name for guess in self.guesses)
            lines.append(f"{name} = {text}" + ("  # guessed" if guessed else ""))
        for question in self.questions:
            lines += [f"# {question.why}:", f"# {question.setting} = {json.dumps([question.word], ensure_ascii=False)}"]
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """Return everything as Markdown."""
        parts = [f"# {self.source or 'The table'}", summary(self), "## Columns", markdown(column_rows(self)), LEGEND]
        for title, text in sections(self).items():
            parts += [f"## {title}", text]
        return "\n\n".join(parts) + "\n"


def _python(name: str, value: Any) -> str:
    """Return a choice as an argument of `from_dataframe`."""
    if name == "cyclic":
        return f"cyclic={dict(map(cycle_of, value))!r}"
    if name == "bounds":
        return f"knowledge=cp.Knowledge(bounds={tuple(map(bounds_of, value))!r})"
    return repr(value)


def percent(share: float) -> str:
    """Format a share in percent; only exact 0 and 1 become 0% and 100%."""
    hundredths = 100 * share
    if hundredths in (0.0, 100.0):
        return f"{hundredths:.0f}%"
    return "<0.1%" if hundredths < 0.1 else ">99.9%" if hundredths > 99.9 else f"{hundredths:.1f}%"


def summary(inspection: Inspection) -> str:
    """Describe the table in a sentence."""
    records = inspection.records
    start = f"{counted(records.rows, 'row')} and {counted(len(inspection.columns), 'column')}"
    if not records.subjects:
        return f"{start}; no column says whose rows they are."
    episodes = f" in {counted(records.episodes, 'episode')}" if records.episodes != records.subjects else ""
    size = f"{records.rows_least:,} to {records.rows_most:,} rows each, median {records.rows_median:g}"
    twice = f"{counted(records.duplicates, 'row')} repeat another's subject and time"
    single = f"{counted(records.single, 'subject')} with one row only"
    unique = "No two rows have the same subject and time"
    whose = f"{counted(records.subjects, 'subject')}{episodes}: {size}; {single}"
    return f"{start}. {whose}. {twice if records.duplicates else unique}."


def column_rows(inspection: Inspection) -> list[dict[str, str]]:
    """Return a row for every column, those with a role first."""
    ranks = {"subject": 0, "episode": 1, "time": 2, "state": 3, "action": 4, "": 9}
    return [
        {
            "column": fact.name,
            "role": (fact.role or "–") + (" ?" if fact.guessed else ""),
            "kind": fact.kind,
            "values": f"{fact.distinct:,}",
            "missing": percent(fact.missing),
            MEANS: "" if fact.mean is None else f"{fact.mean:g} ± {fact.sd:g}",
            QUANTILES: "" if fact.low is None else f"{fact.low:g} to {fact.high:g}",
            ISOLATED: "" if fact.isolated is None else f"{fact.isolated:,}",
            "note": fact.note,
        }
        for fact in sorted(inspection.columns, key=lambda fact: ranks.get(fact.role, 5))
    ]


def sections(inspection: Inspection) -> dict[str, str]:
    """Return the other sections of the page by title."""
    settled, unsettled = _problems_text(inspection)
    following = "Once this is corrected" if inspection.trial.error else "Next"
    parts = {
        "Time": _time_text(inspection.clock),
        "Missing values of the state": _missing_text(inspection),
        "Actions": _actions_text(inspection.actions),
        "Outcomes and rewards": _outcomes_text(inspection),
        "Roles of columns": _roles_text(inspection),
        "To correct or to decide": unsettled or "Nothing.",
        "Settled by the flags below, unless you know better": settled,
        "What the loader would do": _trial_text(inspection.trial),
        "Too few subjects for a verdict": _size_text(inspection.trial.subjects),
        following: f"    {inspection.command() if inspection.source else inspection.call()}",
    }
    return {title: text for title, text in parts.items() if text}


def _time_text(clock: Clock | None) -> str:
    if clock is None:
        return ""
    gaps = (
        f"{clock.gaps:,} are not one step apart, the longest {clock.longest:g} steps" if clock.gaps else "none is a gap"
    )
    exact = f"; {percent(clock.irregular)} are not exactly one step" if clock.irregular else ""
    return f"One step is {clock.step}. Of {counted(clock.pairs, 'pair')} of consecutive rows {gaps}{exact}."


def _missing_text(inspection: Inspection) -> str:
    missing = inspection.missing
    if not missing.cells:
        return "None." if "state" in inspection.choices else ""
    rows = [
        {"column": fact.name, "missing": percent(fact.missing), "longest run": f"{fact.longest_run:,}"}
        | {counted(n, "step"): percent(fact.left[str(n)]) for n in STEPS}
        for fact in inspection.columns
        if "state" in fact.role and fact.left
    ]
    rows += [{"column": "all states", "missing": percent(missing.cells), "longest run": "–"}]
    rows[-1] |= {counted(n, "step"): percent(missing.left[str(n)]) for n in STEPS}
    start = (
        f"{percent(missing.rows)} of the rows lack at least one value. The longest run is in rows of one subject; the"
    )
    return f"{start} last columns say what is left once values are carried forward so far.\n\n{markdown(rows)}"


def _actions_text(actions: Support) -> str:
    parts = list[str]()
    for column in actions.doses:
        cut = f", cut into {column.choices} bins" if column.bins and column.choices else ""
        parts.append(f"{column.name}: {counted(column.distinct, 'different value')}{cut}.")
        if column.support and len(actions.doses) != 2:
            parts.append(markdown([{column.name: name, "rows": f"{rows:,}"} for name, rows in column.support.items()]))
    if len(actions.doses) == 2 and actions.possible:
        parts.append(_grid(actions))
    if len(actions.doses) > 1 and actions.possible:
        seen = f"{actions.taken:,} were taken, {actions.rare:,} of them on fewer than {RARE} rows."
        parts.append(f"Together they make {actions.possible:,} actions, one for every combination: {seen}")
    return "\n\n".join(parts)


def _grid(actions: Support) -> str:
    """Return a table of the rows of every pair of actions, the first column's down and the second's across."""
    down, across = actions.doses
    rows = dict(actions.support)
    head = f"{down.name} ↓ {across.name} →"
    lines = [{head: one} | {two: f"{rows.get((one, two), 0):,}" for two in across.support} for one in down.support]
    return markdown(lines)


def _outcomes_text(inspection: Inspection) -> str:
    lines = [
        f"{end.name}: {counted(end.subjects, 'subject')}, {counted(end.rows, 'row')}" for end in inspection.outcomes
    ]
    if inspection.records.episodes:
        lines.append(
            f"{inspection.open_ends:,} of {counted(inspection.records.episodes, 'episode')} end without an outcome"
        )
    if inspection.rewards.last_only:
        lines.append("rewards other than 0 stand on last rows only")
    return "\n".join(f"- {line}" for line in lines)


def _roles_text(inspection: Inspection) -> str:
    lines = [f"{guess.why}: --{guess.setting} {guess.word}" for guess in inspection.guesses]
    lines += [f"A question: {guess.why}: --{guess.setting} {guess.word}" for guess in inspection.questions]
    return "\n".join(f"- {line}" for line in lines)


def _problems_text(inspection: Inspection) -> tuple[str, str]:
    """Return the problems that the suggested flags settle, and the others."""
    settled: list[str] = []
    unsettled: list[str] = []
    flags = set(inspection.flags())
    for problem in inspection.problems:
        part = settled if problem.flag == SETTLED or set(shlex.split(problem.flag)) <= flags else unsettled
        part.append(f"{len(part) + 1}. {problem.what}\n   Why: {problem.why}\n   Do: {problem.flag}")
    return "\n".join(settled), "\n".join(unsettled)


def _size_text(subjects: int) -> str:
    """Return why a policy could not be evaluated, or nothing where there are enough subjects."""
    if not subjects or subjects * HELD_OUT >= JUDGED:
        return ""
    if subjects < JUDGED:
        return (
            f"A verdict needs {JUDGED} subjects, and the table has {subjects:,}: no policy can be judged, however they"
            " are split. What can be had: practice itself (train --method practice), a comparison with it where the"
            " difference is large, and answers about single steps."
        )
    return (
        f"A verdict needs {JUDGED} held-out subjects; {HELD_OUT:.0%} of {subjects:,} are"
        f" {int(subjects * HELD_OUT):,}. With these a policy cannot be judged; --held-out sets more of them aside."
    )


def _trial_text(trial: Trial) -> str:
    start = f"Tried on {trial.sample:,} rows with the flags below" if trial.sample else "With the flags below"
    if trial.error:
        return f"{start}, it stops: {trial.error}"
    ends = [f"{count:,} in '{name}'" for name, count in trial.ends.items() if count]
    actions = counted(trial.actions, "action") if trial.actions else "continuous actions"
    text = (
        f"{start}, it reads {counted(trial.rows, 'row')} in {counted(trial.episodes, 'episode')} of"
        f" {counted(trial.subjects, 'subject')}, with {counted(trial.states, 'state column')} and {actions}."
        f" Episodes end: {', '.join([*ends, f'{trial.stopped:,} without an outcome'])}."
    )
    return "\n".join([text, *(f"- It warns: {note}" for note in trial.notes)])


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Format rows as a Markdown table with aligned columns, numbers to the right."""
    lines = [[*rows[0]], *([*row.values()] for row in rows)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    places = range(len(cells[0]))
    right = [all(re.match(r"[<>]?\d[\d,.]*%?$|–$", line[i]) for line in cells[1:]) for i in places]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in places]
    cells.insert(1, ["-" * (widths[i] - 1) + (":" if right[i] else "-") for i in places])
    padded = [[(str.rjust if right[i] else str.ljust)(line[i], widths[i]) for i in places] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
