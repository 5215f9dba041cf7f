"""One damaged table through the commands, and what came of it: refused, warned, harmless, silently wrong, traceback."""

import contextlib
import csv
import io
import math
import os
import random
import re
import shutil
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tyro

import counterpoint as cp
from counterpoint.cli import main as cli
from counterpoint.cli.fit import Fit
from counterpoint.cli.recommend import SHOWN
from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.reading import read_table
from counterpoint.policies.recommendation import WITHHELD
from damage_kinds import KINDS, Trace
from damage_log import BASES, NUMBERS, Log, Row, clean

REFUSED, WARNED, HARMLESS = "refused", "warned", "harmless"
SILENT, TRACEBACK = "silently wrong", "traceback"
CLASSES, BAD = (REFUSED, WARNED, HARMLESS, SILENT, TRACEBACK), (SILENT, TRACEBACK)
MODES = ("log", "new")
CLEAN = "no damage"
"""The kind of a table that is not damaged: a warning or a refusal of it is a false alarm."""
LOGS, NEW = 2, 12
"""Clean logs of each base; new patients of a table."""
QUICK_FIT = ("scm:density", "--scm.ensemble", "1", "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "20")
QUICK_TRAIN = ("--method", "d3qn", "--hidden", "16", "--steps", "60", "--batch", "32")
CLOSE = 1e-4
"""Numbers that differ by less than this share are the same."""


DESCRIPTIONS = (
    r"[\d,]+ rows and \d+ columns\. [\d,]+ subjects: ",
    r"[└┌├╭╰]",
    r"(columns|Time|Missing values of the state|None\.|Actions|Outcomes and rewards|Next|Nothing\.)$",
    r"(To correct or to decide|Settled by the flags below, unless you know better|What the loader would do)$",
    r"\w+: fixed within subjects$",
    r"A role with a question mark is a guess\.",
    r"One step is ",
    r"\d+(\.\d+)?% of the rows lack at least one value\.",
    r"(column: .*steps|dose_mg: rows)$",
    r"dose_mg: [\d,]+ different values",
    r"- (died|discharged): \d+ subjects, \d+ rows$",
    r"- \d+ of \d+ episodes end without an outcome$",
    r"\d+\. [\d,]+ of [\d,]+ (episodes end without an outcome|pairs of rows are not one step of [\d:h ]+ apart)$",
    r"\d+\. \d+(\.\d+)?% of the rows lack a value of the state",
    r"\d+\. [\d,]+ different doses in 'dose_mg'$",
    r"\d+\. \d+ actions? taken on fewer than \d+ rows$",
    r"Too few subjects for a verdict$",
    r"A verdict needs \d+ held-out subjects",
    r"With the flags below, it reads [\d,]+ rows in \d+ episodes of \d+ subjects",
    r"(- It warns|note): [\d,]+ of [\d,]+ pairs of rows are not one step of [\d:]+ apart and were cut",
    r"(- It warns|note): \d+ bins? stands? for doses of 'dose_mg' that differ",
    r"model of kind \w+ fitted on [\d,]+ rows? of [\d,]+ subjects?",
    r"recommended to (the first \d+ of )?\d+ subjects$",
    r"\S+: (((\w+, )*\w+ not measured now|\d+ gaps? among its rows)(; )?)+$",
    r"Trust in the model behind this policy: not checked",
    r"- It was learned without the run's model",
    r"value and support of every action in ",
    r"note: values of \d+ of \d+ subjects lay outside the returns that an episode can have",
)
"""What is said of tables without damage; none of it is a warning."""
DESCRIPTION = re.compile("|".join(DESCRIPTIONS))
FLAGS = ("counterpoint fit", "Do: ", "Why: ")
"""Lines that belong to another."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    out: str
    err: str
    code: int | None
    """None where it ended in an error that is not an exit."""


@dataclass(frozen=True)
class Verdict:
    """What came of one table."""

    result: str
    why: str = ""
    late: bool = False
    """Whether the damage was acted on all the same: the model was fitted and only `check` had warned, or a warning
    stands beside other advice."""


@dataclass(frozen=True)
class Case:
    """One table: which mode and kind, and its number, which seeds it."""

    mode: str
    number: int
    kind: str
    seed: int

    @property
    def rng(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.mode}/{self.number}/{self.kind}")


def command(*words: object) -> Said:
    """Run one command as the command line does, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(word) for word in words])
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except Exception:
            traceback.print_exc()
            code = None
    return Said(out.getvalue(), err.getvalue(), code)


def failure(said: Sequence[Said]) -> Verdict | None:
    """Whether a command refused the table, or failed to."""
    for each in said:
        lines = each.err.strip().splitlines()
        if each.code is None:
            return Verdict(TRACEBACK, " ".join(lines[-1:]))
        if each.code not in (0, 2):
            return Verdict(TRACEBACK, f"exit code {each.code}: {' '.join(lines[-1:])}")
        if each.code == 2:
            one = len(lines) == 1 and lines[0].startswith("counterpoint: ")
            return Verdict(REFUSED, lines[0]) if one else Verdict(TRACEBACK, f"not one line: {each.err!r}")
        if "Traceback" in each.err:
            return Verdict(TRACEBACK, f"a traceback though it passed: {lines[-1]}")
    return None


def statements(said: Sequence[Said]) -> dict[str, str]:
    """What the commands stated: lines without their numbers, with the lines as they stand.

    A row of a table on the terminal counts by its first cell and its last, the note, and only where there is a note.
    Progress bars, suggested command lines, and what describes clean tables too are no statements.
    """
    found: dict[str, str] = {}
    for line in "\n".join(f"{each.out}\n{each.err}" for each in said).splitlines():
        line = line.strip()
        if line.startswith(("│", "|")):
            cells = [cell.strip() for cell in re.split("[│|]", line)[1:-1]]
            line = f"{cells[0]}: {cells[-1]}" if len(cells) > 1 and re.search("[a-z]{3}", cells[-1]) else ""
        line = re.sub(r"^\S*\.csv(\.gz)?: ", "", line)
        if line and not line.startswith(FLAGS) and not re.search("[━┃]", line) and not DESCRIPTION.match(line):
            found[re.sub(r"\d+([.,:]\d+)*", "#", line)] = line
    return found


def warning(said: Sequence[Said], before: Sequence[Said], named: str) -> str:
    """The first line that is not one of those of the clean table and names what is wrong; empty where there is none."""
    old = statements(before)
    new = [line for pattern, line in statements(said).items() if pattern not in old]
    return next((line for line in new if re.search(named, line, re.IGNORECASE)), "")


# What was read


Reading = dict[str, list[tuple[Any, ...]]]
"""The rows of every subject by name: state with its levels, action, reward, how it ends, place in the episode, and the
state that follows."""


def reading(rows: cp.Transitions) -> Reading:
    names = rows.schema.state_names
    found: Reading = {name: [] for name in rows.subject_names}
    for i in range(len(rows)):
        state = _named(rows, rows.state[i].tolist())
        following = _named(rows, rows.next_state[i].tolist())
        outcome = rows.outcome_names[int(rows.outcome[i])] if rows.outcome[i] >= 0 else ""
        row = (*(state[name] for name in names), *rows.action[i].tolist(), float(rows.reward[i]), outcome)
        found[rows.subject_names[int(rows.subject[i])]].append(
            (names, *row, bool(rows.truncated[i]), int(rows.step[i]), *(following[name] for name in names))
        )
    return found


def _named(rows: cp.Transitions, state: list[float]) -> dict[str, str | float]:
    """A state by column, with levels by name and None for what is not known."""
    found: dict[str, Any] = {}
    for column, value in zip(rows.schema.states, state, strict=True):
        known = not math.isnan(value)
        found[column.name] = None if not known else column.levels[int(value)] if column.levels else value
    return found


def difference(found: Reading, right: Reading, ids: dict[str, str]) -> str:
    """The first thing that was not read as it should be; empty where all was."""
    found = {ids.get(name, name): rows for name, rows in found.items()}
    if found.keys() != right.keys():
        same = len(found.keys() & right.keys())
        return f"{len(found)} subjects were read, {same} of them among the {len(right)} that are right"
    for name, rows in right.items():
        if len(found[name]) != len(rows):
            return f"{len(found[name])} rows of a subject were read and {len(rows)} would be right"
        for one, two in zip(found[name], rows, strict=True):
            if len(one) != len(two) or one[0] != two[0]:
                return "the state has other columns"
            if not all(map(alike, one, two)):
                place = [alike(a, b) for a, b in zip(one, two, strict=True)].index(False)
                return f"{_columns(two[0], len(two))[place]} is {one[place]} where {two[place]} is right"
    return ""


def _columns(state: tuple[str, ...], width: int) -> list[str]:
    """What stands at every place of a row that was read."""
    rest = ["reward", "outcome", "truncated", "step", *(f"the next {name}" for name in state)]
    actions = ["action"] * (width - 1 - len(state) - len(rest))
    return ["columns", *state, *actions, *rest]


def alike(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= CLOSE * max(1e-3, abs(one), abs(two))
    return one == two


# Clean logs


@dataclass(frozen=True)
class Clean:
    """A clean log with its run folder, what the commands said of it, and how it was read."""

    log: Log
    run: Path
    said: tuple[Said, Said]
    rows: cp.Transitions
    read: Reading


def fit_words(log: Log, path: Path, run: Path) -> list[str]:
    return ["--run", str(run), "--data", str(path), *log.options(), *log.words, *QUICK_FIT]


def look(log: Log, path: Path, run: Path) -> list[Said]:
    """`check`, and `fit` where that did not refuse."""
    said = [command("check", path, *log.options())]
    return [*said, command("fit", *fit_words(log, path, run))] if said[0].code == 0 else said


@cache
def room() -> Path:
    """A folder of this process."""
    return Path(tempfile.mkdtemp(prefix="damage-"))


@cache
def prepared(base: str, seed: int) -> Clean:
    """A clean log, fitted, and a policy learned from it."""
    log = clean({each.name: each for each in BASES}[base], seed)
    folder = room() / f"{base}-{seed}"
    folder.mkdir()
    path, run = write(log, folder, "log"), folder / "run"
    said = look(log, path, run)
    said_of_training = command("train", "--run", run, *QUICK_TRAIN)
    for each in (*said, said_of_training):
        if each.code != 0:
            raise RuntimeError(f"the clean log {base}/{seed} is not taken: {each.err or each.out}")
    rows = cp.read(run / "data.parquet")
    aside = {rows.subject_names[i] for i in rows.split(0.2, 0)[1].subject.unique().tolist()}
    log.held = frozenset(row["_who"] for row in log.rows if row["patient"] in aside)
    return Clean(log, run, (said[0], said[1]), rows, reading(rows))


def write(log: Log, folder: Path, name: str) -> Path:
    path = folder / f"{log.stem or name}{log.suffix}"
    if log.beside:
        (folder / f"{log.beside}{log.suffix}").write_bytes(
            clean(log.base, 10**6, 20, new="reward" not in log.names).content()
        )
    if log.fifo:
        os.mkfifo(path)
    else:
        path.write_bytes(log.content())
    return path


def rightly_read(log: Log, folder: Path) -> Reading | None:
    """How `fit` reads a table that is right; None where it refuses it."""
    path = write(log, folder, "right")
    fit: Any = tyro.cli(Fit, args=fit_words(log, path, folder / "none"))
    try:
        return reading(read_table(path, fit.columns.layout(), 0.2, 0).rows)
    except CounterpointError:
        return None


# Verdicts


def judge_log(trace: Trace, before: Clean, log: Log, folder: Path) -> tuple[Verdict, list[Said]]:
    """A damaged log through `check` and `fit`."""
    run = folder / "run"
    said = look(log, write(log, folder, "log"), run)
    if verdict := failure(said):
        return verdict, said
    if line := warning(said[1:], before.said[1:], trace.named):
        return Verdict(WARNED, line), said
    if line := warning(said, before.said, trace.named):
        return Verdict(WARNED, line, late=True), said
    right = before.read if trace.right is None else rightly_read(trace.right, folder)
    if right is None:
        return Verdict(SILENT, "what should be refused was read without a word"), said
    wrong = difference(reading(cp.read(run / "data.parquet")), right, trace.ids)
    return Verdict(SILENT, wrong) if wrong else Verdict(HARMLESS), said


def recommended(run: Path, log: Log, folder: Path, name: str) -> tuple[Said, list[dict[str, str]]]:
    """What `recommend` says of a table of new patients, and the file it writes."""
    out = folder / f"{name}-advice.csv"
    said = command("recommend", "--run", run, "--data", write(log, folder, name), "--out", out)
    if said.code != 0:
        return said, []
    with out.open(newline="", encoding="utf-8") as file:
        return said, list(csv.DictReader(file))


def judge_new(trace: Trace, before: Clean, whole: Log, log: Log, folder: Path) -> tuple[Verdict, list[Said]]:
    """A damaged table of new patients through `recommend`."""
    said_before, right = recommended(before.run, trace.right or whole, folder, "right")
    said, found = recommended(before.run, log, folder, "new")
    if verdict := failure([said]):
        return verdict, [said]
    unsafe = [row["subject"] for row in found if row["subject"].startswith(("=", "+", "@", "\t"))]
    hidden = [row["subject"] for row in found[:SHOWN] if row["subject"].strip("'\t ") not in said.out]
    if unsafe or hidden:
        what = "a formula in the file" if unsafe else "an id that is shown otherwise than it is"
        return Verdict(SILENT, f"{what}: {(unsafe or hidden)[0]!r}"), [said]
    wrong, safe = other_advice(found, right, trace)
    line = warning([said], [said_before], trace.named)
    if not wrong:
        return Verdict((line and WARNED) or safe, line), [said]
    return (Verdict(WARNED, line, late=True) if line else Verdict(SILENT, wrong)), [said]


def other_advice(found: list[dict[str, str]], right: list[dict[str, str]], trace: Trace) -> tuple[str, str]:
    """The first recommendation without a word that is not the right one, else what became of those that differ.

    They are refused where no recommendation is given, with a reason; warned of where the patient's note names why.
    """
    if not right:
        return "what should be refused was advised on without a word", ""
    known, seen, classes = {row["subject"].strip(): row for row in right}, set[str](), {HARMLESS}
    for row in found:
        name = row["subject"] if row["subject"] in trace.ids else row["subject"].removeprefix("'")
        name = trace.ids.get(name, name).strip()
        what = "a patient is advised twice" if name in seen else other(row, known.get(name))
        seen.add(name)
        noted = name in known and row["why"] != known[name]["why"]
        if what and row["recommended"] == WITHHELD and row["why"]:
            classes.add(REFUSED)
        elif what and noted and re.search(trace.named, row["why"], re.IGNORECASE):
            classes.add(WARNED)
        elif what:
            return what, ""
    lost = known.keys() - seen
    safe = next(each for each in (WARNED, REFUSED, HARMLESS) if each in classes)
    return f"{len(lost)} patients are missing" if lost else "", safe


def other(row: dict[str, str], right: dict[str, str] | None) -> str:
    """The first thing in which a patient's advice differs from the right one."""
    if right is None:
        return f"'{row['recommended']}' is recommended to somebody who is no patient"
    for name, cell in right.items():
        if name == "recommended" and row.get(name) != cell:
            return f"'{row.get(name)}' is recommended where '{cell}' is right"
        if name.startswith("value") and not alike(number(row.get(name)), number(cell)):
            return f"{name} is {row.get(name)} where {cell} is right"
    return ""


def number(cell: str | None) -> Any:
    try:
        return float(cell or "")
    except ValueError:
        return cell


def judge_clean(before: Clean, log: Log, folder: Path, new: bool) -> tuple[Verdict, list[Said]]:
    """A table without damage: every statement but a description, and every refusal, is a false alarm."""
    if new:
        said = [recommended(before.run, log, folder, "new")[0]]
    else:
        said = look(log, write(log, folder, "log"), folder / "run")
    if verdict := failure(said):
        return verdict, said
    return next((Verdict(WARNED, line) for line in statements(said).values()), Verdict(HARMLESS)), said


def inside(new: Log, log: Log) -> Log:
    """The new patients whose last values lie within those that the log has."""
    limits = {}
    for name in ("age", *NUMBERS):
        values = [float(row[name]) for row in log.rows if row[name] and row["_who"] not in log.held]
        limits[name] = min(values), max(values)

    def usual(row: Row) -> bool:
        return all(low <= float(row[name] or low) <= high for name, (low, high) in limits.items())

    new.rows = [row for row in new.rows if all(usual(each) for each in new.of([row["_who"]]))]
    return new


def judge(case: Case) -> tuple[Verdict, list[Said]]:
    """Damage a clean table, or leave it as it is, and look what comes of it."""
    rng, new = case.rng, case.mode == "new"
    bases = KINDS[case.kind].bases if case.kind != CLEAN else tuple(base.name for base in BASES)
    before = prepared(rng.choice(bases), rng.randrange(LOGS))
    folder = Path(tempfile.mkdtemp(dir=room()))
    try:
        if case.kind == CLEAN:
            count = 3 * NEW if new else rng.choice((50, 80, 150))
            log = clean(before.log.base, rng.randrange(10**6), count, new=new)
            return judge_clean(before, inside(log, before.log) if new else log, folder, new)
        whole = clean(before.log.base, rng.randrange(10**6), NEW, new=True) if new else before.log
        log = whole.copy()
        trace = KINDS[case.kind].damage(log, rng)
        if new:
            return judge_new(trace, before, whole, log, folder)
        return judge_log(trace, before, log, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
