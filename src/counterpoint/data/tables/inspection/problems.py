"""Problems that a user must decide on or correct, why they matter, and the flag that settles each."""

import shlex
from collections.abc import Iterator

from counterpoint.core.wording import counted
from counterpoint.data.schema import quoted
from counterpoint.data.tables.inspection.facts import (
    RARE,
    Clock,
    ColumnSupport,
    End,
    Rewards,
    SubjectCounts,
    Support,
    TableProblem,
)
from counterpoint.data.tables.inspection.page import SETTLED, Inspection, percent
from counterpoint.data.tables.inspection.roles import ENDING, ID, LEAKS, OTHER, OVERLAP, SAME, SUMS, TREATMENTS, says
from counterpoint.data.tables.inspection.survey import ALIKE, Survey

OFTEN = 0.2
"""Share of missing values from which a mask is suggested."""
LEFT_OUT = (
    (ENDING, "as state it would reveal the future, and an outcome must be yes or no", "--done NAME"),
    (OVERLAP, "a row can have one outcome only", "--done NAME"),
    (OTHER, "what is given in the same hour belongs to the action, not to the state before it", "--action NAME"),
)
"""Why columns are left out that a user may want to choose, and how."""
Rule = tuple[object, str, str, str]
"""A problem that exists where the first item is true; what it is, why it matters, and what settles it."""


def problems_of(survey: Survey, inspection: Inspection) -> Iterator[TableProblem]:
    """Return the problems, the hardest first."""
    rules = [
        *_about_roles(survey),
        *_about_subjects(inspection.records, "".join(survey.roles["subject"])),
        *_about_time(survey, inspection),
        *_about_columns(survey, inspection),
        *_about_missing(inspection),
        *(rule for column in inspection.actions.doses for rule in _about_action(column)),
        *_about_support(inspection.actions),
        *(rule for end in inspection.outcomes for rule in _about_end(end, "outcome" in inspection.choices)),
        *_about_ends(inspection),
        *_about_rewards(inspection.rewards, "".join(survey.roles["reward"])),
    ]
    return (TableProblem(*words) for holds, *words in rules if holds)


def encoding_problems(declared: str, used: str) -> list[TableProblem]:
    """Return a problem where the file cannot be read in the declared encoding."""
    if declared == used:
        return []
    what = f"the file is not {declared}; it can be read as {used}"
    return [TableProblem(what, "letters beyond a to z would be refused or wrong", f"--encoding {used}")]


def _about_roles(survey: Survey) -> list[Rule]:
    add = "add one: perhaps 1 on the row of a discharge, −1 on that of a death, 0 on all others"
    needed = {
        "subject": ("says whose row it is", "patients cannot be followed, nor held out from training"),
        "time": ("orders the rows of a subject", "nothing says which row comes next"),
        "state": ("can be a state", "a model must see how the patient is"),
        "action": ("looks like an action", "nothing can be asked about other doses"),
        "reward": ("looks like a reward", f"nothing says what is good; {add}"),
    }
    return [
        (not survey.roles[role], f"no column {what}", why, f"--{role} NAME") for role, (what, why) in needed.items()
    ]


def _about_subjects(records: SubjectCounts, name: str) -> list[Rule]:
    nobody = f"{counted(records.nobody, 'row')} without a value in '{name}'"
    alike = f"{counted(records.alike, 'id')} in '{name}' like another but for blanks, capitals or zeros, as 7 and 007"
    twice = f"{counted(records.duplicates, 'row')} with the same subject and time as another"
    first = "nothing says which comes first, so the loader refuses them"
    if records.duplicates * 2 > records.rows:
        first += "; is this a list of measurements? then give each kind a column"
    keep = "keep one row for each, or --episode NAME where a subject has several stays"
    single = f"{records.single:,} of {counted(records.subjects, 'subject')} with one row only"
    lost = "one row leads nowhere: without an outcome it is lost, unless it is taken for an end"
    return [
        (records.nobody, nobody, "the loader refuses nobody's rows", "drop them"),
        (records.alike, alike, "one patient may be taken for two", "write the ids alike"),
        (records.duplicates, twice, first, keep),
        (records.single, single, lost, "--last terminal"),
    ]


def _about_time(survey: Survey, inspection: Inspection) -> list[Rule]:
    clock = inspection.clock or Clock("", 0, 0, 0.0, 0.0)
    name = "".join(survey.roles["time"])
    choice = inspection.choices.get("gaps")
    why = "a model of one step must not see two; cut ends the episode there, bridge takes the rows as consecutive"
    if choice == "bridge":
        why = "one model of a step fits steps of all lengths badly; better bring the table to a grid of equal steps"
    what = f"{clock.gaps:,} of {counted(clock.pairs, 'pair')} of rows are not one step of {clock.step} apart"
    trouble = survey.clock.trouble if name else ""
    return [
        (trouble, f"the times in '{name}' cannot be read", trouble, "correct them, or --time NAME"),
        (clock.gaps, what, why, f"--gaps {choice} --step {clock.step}"),
    ]


def _about_columns(survey: Survey, inspection: Inspection) -> Iterator[Rule]:
    ids = {*survey.roles["subject"], *survey.roles["episode"], *survey.roles["done"]}
    for column in survey.surveyed.values():
        what, _, fix = column.trouble.partition("; ")
        odd = column.trouble and column.name not in ids and survey.unused.get(column.name) != ID
        yield odd, f"column '{column.name}' {what}", "a model cannot take it as it is", fix or "leave it out"
    for fact in inspection.columns:
        what = f"column '{fact.name}' {fact.note.partition(';')[0]} (|correlation| above {ALIKE})"
        why, fix = "two names for one thing hide what causes what", "leave one out" if fact.role else SETTLED
        yield fact.note.startswith(SAME), what, why, fix
    dull = [fact.name for fact in inspection.columns if "state" in fact.role and fact.constant]
    yield dull, f"{quoted(dull)} always the same", "it teaches nothing", "leave it out of --state"
    sums = [name for name in survey.roles["state"] if says(name, SUMS) and says(name, TREATMENTS)]
    why = "the state before the action would then know the action"
    yield sums, f"{quoted(sums)} may count the dose of its own row", why, "leave it out, or move it down one row"
    for name, unused in survey.unused.items():
        what = f"column '{name}' left out: {unused.removeprefix(LEAKS)}"
        yield unused.startswith(LEAKS), what, "as state it would reveal the future", SETTLED
    for reason, why, flag in LEFT_OUT:
        names = [name for name, unused in survey.unused.items() if unused == reason]
        yield names, f"{quoted(names)} left out: {reason}", why, flag


def _about_missing(inspection: Inspection) -> list[Rule]:
    missing = inspection.missing
    carried = inspection.choices.get("carry_forward")
    lack = f"{percent(missing.rows)} of the rows lack a value of the state ({percent(missing.cells)} of all values)"
    left = (
        f"; carried forward {counted(carried, 'step')}, {percent(missing.left[str(carried)])} are left"
        if carried
        else ""
    )
    fill = "--missing median" + (f" --carry-forward {carried}" if carried else "")
    often = [fact.name for fact in inspection.columns if "state" in fact.role and fact.missing > OFTEN]
    what, why = f"{quoted(often)} missing on more than a fifth of the rows", "that nobody measured may say something"
    return [
        (missing.cells, lack, f"the loader refuses them unless a rule says how to fill them{left}", fill),
        (often, what, f"{why}; a mask keeps it", f"--masks {shlex.join(often)}"),
    ]


def _about_action(column: ColumnSupport) -> list[Rule]:
    name = column.name
    why = "policies choose from a list; bins are quantiles of what was given, and no dose is a bin of its own"
    required = "the action must be known on every row but a last one that is dropped"
    negative = f"{counted(column.negative, 'negative dose')} in '{name}'"
    fixed = "the effect of what a patient always gets cannot be separated from the patient"
    return [
        (column.bins, f"{column.distinct:,} different doses in '{name}'", why, f"--bins {name}={column.bins}"),
        (
            column.missing,
            f"{counted(column.missing, 'row')} without a value in '{name}'",
            required,
            "write 0 where none was given",
        ),
        (column.negative, negative, "no dose is below none", "correct them"),
        (column.static, f"'{name}' never changes within a subject", fixed, "--action NAME"),
        (column.distinct < 2, f"'{name}' is always the same", "there is nothing to choose", "--action NAME"),
    ]


def _about_support(actions: Support) -> list[Rule]:
    never, fewer = actions.possible - actions.taken, "fewer --bins, or pool them in the table"
    what = f"{never} of {actions.possible} combinations of actions never taken"
    rare = f"{counted(actions.rare, 'action')} taken on fewer than {RARE} rows"
    return [
        (never, what, "nothing can be learned of them", fewer),
        (actions.rare, rare, "what follows them is uncertain", fewer),
    ]


def _about_end(end: End, repeated: bool) -> list[Rule]:
    name = end.name
    whole = f"'{name}' is true on every row of {counted(end.repeated, 'subject')}"
    several = f"'{name}' is true on several rows of {counted(end.several, 'subject')}"
    missing = f"{counted(end.missing, 'row')} without a value in '{name}'"
    early = f"'{name}' is true of {counted(end.early, 'subject')}, but not on the last row"
    flag = "--outcome 'last row of the subject'"
    return [
        (not end.rows, f"'{name}' is never true, or not yes or no", "no record ends with it", "--done NAME"),
        (end.repeated and repeated, whole, "each of these rows would be an end", flag),
        (end.early and repeated, early, "the loader cannot see when it happened", "mark the last row too"),
        (
            end.several and not repeated,
            several,
            "every marked row ends an episode",
            "mark one row, drop those after it",
        ),
        (end.missing, missing, "the loader refuses them", "write 0 where it did not happen"),
    ]


def _about_ends(inspection: Inspection) -> list[Rule]:
    why = "truncate says that the record stops and life goes on, terminal that it is an end, drop loses the last row"
    if inspection.rewards.unlike:
        why = "their last rewards are unlike all others, so they seem to be ends; truncate would lose these rewards"
    what = f"{inspection.open_ends:,} of {counted(inspection.records.episodes, 'episode')} end without an outcome"
    only = "no record ends with a death or a discharge, they only stop"
    return [
        (not inspection.outcomes, "no outcome column", only, "--done NAME"),
        (inspection.open_ends and inspection.records.episodes, what, why, f"--last {inspection.choices.get('last')}"),
    ]


def _about_rewards(rewards: Rewards, name: str) -> list[Rule]:
    gone = f"{counted(rewards.missing, 'row')} before an episode's last without a value in '{name}'"
    last = f"rewards other than 0 in '{name}' stand on last rows only"
    many = "a policy then learns from ends only, so it matters that they are marked and that there are many"
    return [
        (rewards.missing, gone, "the loader refuses them", "write 0 where nothing is earned"),
        (
            rewards.constant,
            f"the reward '{name}' is always the same",
            "no policy is better than another",
            "--reward NAME",
        ),
        (rewards.last_only, last, many, "mark these rows in --done"),
    ]
