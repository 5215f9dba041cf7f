"""Damaged hospital tables and new patients: each is refused, warned of by name, or read as it should be.

    python benchmarks/damage.py [--tables 400] [--patients 200] [--seed 0] [--jobs 2]
    python benchmarks/damage.py --kind "rows after death"     # one kind only
    python benchmarks/damage.py --case log/17                 # one table again, with all that was printed
    python benchmarks/damage.py --list

`fuzz.py` spoils bytes, cells and arguments, and asks whether the loader reads what its docstring says. Here most cells
are well formed and mean something else: another unit, a sentinel, a date with the day first, a record under two ids. A
clean log of the simulated patients of `damage_log.py` is damaged in one of the ways of `damage_kinds.py`, and goes
through `counterpoint check` and `counterpoint fit`; damaged tables of new patients go through `counterpoint recommend`
with a policy of the clean log. All run by the entry point of the command line, and are one of:

- refused: exit code 2 and one line;
- warned: a line that the clean table does not have names the column or the damage; no recommendation is named where
  the table of new patients leads to another one;
- harmless: what was read is what the clean table says (numbers within 1 part in 10,000), or the recommendations and
  values are those of the undamaged patients;
- silently wrong: none of these;
- traceback: any other error or exit code, a refusal of several lines, or no end within `--limit` seconds.

The last line is a JSON object; the exit code is 1 when a table was silently wrong or ended in a traceback.
"""

import argparse
import contextlib
import csv
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import tyro

import counterpoint as cp
from counterpoint import cli
from counterpoint.commands.console import progress
from counterpoint.commands.fit import Fit
from counterpoint.commands.recommend import SHOWN
from counterpoint.errors import CounterpointError
from counterpoint.report.results import markdown_table
from damage_kinds import KINDS, Kind, Trace
from damage_log import BASES, Log, clean

REFUSED, WARNED, HARMLESS = "refused", "warned", "harmless"
SILENT, TRACEBACK = "silently wrong", "traceback"
CLASSES, BAD = (REFUSED, WARNED, HARMLESS, SILENT, TRACEBACK), (SILENT, TRACEBACK)
MODES = ("log", "new")
LOGS, NEW = 2, 12
"""Clean logs of each base; new patients of a table."""
QUICK_FIT = ("scm:density", "--scm.ensemble", "1", "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "20")
QUICK_TRAIN = ("--method", "d3qn", "--hidden", "16", "--steps", "60", "--batch", "32")
CLOSE = 1e-4
"""Numbers that differ by less than this share are the same."""


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
    Progress bars and the suggested command line are no statements.
    """
    found: dict[str, str] = {}
    for line in "\n".join(f"{each.out}\n{each.err}" for each in said).splitlines():
        line = line.strip()
        if line.startswith(("│", "|")):
            cells = [cell.strip() for cell in re.split("[│|]", line)[1:-1]]
            line = f"{cells[0]}: {cells[-1]}" if len(cells) > 1 and re.search("[a-z]{3}", cells[-1]) else ""
        if line and not line.startswith("counterpoint fit") and not re.search("[━┃]", line):
            found[re.sub(r"\d+([.,:]\d+)*", "#", line)] = line
    return found


def warning(said: Sequence[Said], before: Sequence[Said], named: str) -> str:
    """The first line that is not one of those of the clean table and names what is wrong; empty where there is none."""
    old = statements(before)
    new = [line for pattern, line in statements(said).items() if pattern not in old]
    return next((line for line in new if re.search(named, line, re.IGNORECASE)), "")


# What was read


Reading = dict[str, list[tuple[Any, ...]]]
"""The rows of every subject by name: state with its levels, action, reward, how it ends, place in the episode."""


def reading(rows: cp.Transitions) -> Reading:
    names = rows.schema.state_names
    found: Reading = {name: [] for name in rows.subject_names}
    for i in range(len(rows)):
        state = {
            column.name: column.levels[int(value)] if column.levels else value
            for column, value in zip(rows.schema.states, rows.state[i].tolist(), strict=True)
        }
        outcome = rows.outcome_names[int(rows.outcome[i])] if rows.outcome[i] >= 0 else ""
        row = (*(state[name] for name in names), *rows.action[i].tolist(), float(rows.reward[i]), outcome)
        found[rows.subject_names[int(rows.subject[i])]].append(
            (names, *row, bool(rows.truncated[i]), int(rows.step[i]))
        )
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
                column = [*two[0], "action", "reward", "outcome", "truncated", "step"][min(place - 1, len(two[0]) + 4)]
                return f"{column} is {one[place]} where {two[place]} is right"
    return ""


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
    return ["--run", str(run), "--data", str(path), *log.told(), *log.words, *QUICK_FIT]


def look(log: Log, path: Path, run: Path) -> list[Said]:
    """`check`, and `fit` where that did not refuse."""
    said = [command("check", path, *log.told())]
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
    path = folder / f"{name}{log.suffix}"
    if log.fifo:
        os.mkfifo(path)
    else:
        path.write_bytes(log.content())
    return path


def rightly_read(log: Log, folder: Path) -> Reading | None:
    """How `fit` reads a table that is right; None where it refuses it."""
    path = write(log, folder, "right")
    told: Any = tyro.cli(Fit, args=fit_words(log, path, folder / "none"))
    try:
        return reading(told.columns.reader().read(path, 0.2, 0).rows)
    except CounterpointError:
        return None


# Verdicts


def judge_log(trace: Trace, before: Clean, log: Log, folder: Path) -> tuple[Verdict, list[Said]]:
    """A damaged log through `check` and `fit`."""
    run = folder / "run"
    said = look(log, write(log, folder, "log"), run)
    if verdict := failure(said):
        return verdict, said
    if line := warning(said, before.said, trace.named):
        return Verdict(WARNED, line), said
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
    wrong, withheld = other_advice(found, right, trace)
    if not wrong:
        return (Verdict(WARNED, "withheld, or with a note of what is wrong") if withheld else Verdict(HARMLESS)), [said]
    line = warning([said], [said_before], trace.named)
    return (Verdict(WARNED, line) if line else Verdict(SILENT, wrong)), [said]


def other_advice(found: list[dict[str, str]], right: list[dict[str, str]], trace: Trace) -> tuple[str, bool]:
    """The first recommendation without a word that is not the right one, and whether others were withheld or noted."""
    if not right:
        return "what should be refused was advised on without a word", False
    known, seen, withheld = {row["subject"].strip(): row for row in right}, set[str](), False
    for row in found:
        name = row["subject"] if row["subject"] in trace.ids else row["subject"].removeprefix("'")
        name = trace.ids.get(name, name).strip()
        seen.add(name)
        if row["recommended"] == "none":
            withheld |= known.get(name, {}).get("recommended") != "none"
        elif name not in known:
            return f"'{row['recommended']}' is recommended to somebody who is no patient", False
        elif what := other(row, known[name]):
            if row["why"] == known[name]["why"] or not re.search(trace.named, row["why"], re.IGNORECASE):
                return what, False
            withheld = True
    lost = known.keys() - seen
    return f"{len(lost)} patients are missing" if lost else "", withheld


def other(row: dict[str, str], right: dict[str, str]) -> str:
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


def judge(case: Case, damage: Kind) -> tuple[Verdict, list[Said]]:
    """Damage a clean table and look what comes of it."""
    rng = case.rng
    base, seed = rng.choice(damage.bases), rng.randrange(LOGS)
    before = prepared(base, seed)
    whole = before.log if case.mode == "log" else clean(before.log.base, rng.randrange(10**6), NEW, new=True)
    log = whole.copy()
    trace = damage.damage(log, rng)
    folder = Path(tempfile.mkdtemp(dir=room()))
    try:
        if case.mode == "log":
            return judge_log(trace, before, log, folder)
        return judge_new(trace, before, whole, log, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Many tables


def serve(line: Connection) -> None:
    """A worker: judge the tables that come, until none does."""
    os.environ["COLUMNS"] = "240"
    torch.set_num_threads(1)
    line.send("ready")
    try:
        while (case := line.recv()) is not None:
            start = time.monotonic()
            try:
                verdict, _ = judge(case, KINDS[case.kind])
            except Exception as error:  # A fault of this script.
                traceback.print_exc()
                verdict = Verdict(TRACEBACK, f"in the benchmark itself: {type(error).__name__}: {error}")
            line.send((verdict, time.monotonic() - start))
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        shutil.rmtree(room(), ignore_errors=True)


class Worker:
    """A process that judges one table at a time, and is replaced when a table never ends."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.line, other = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=work, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.line.recv()
        self.case: Case | None = None
        self.until = 0.0

    def give(self, case: Case, limit: float) -> None:
        self.line.send(case)
        self.case, self.until = case, time.monotonic() + limit

    def answer(self, limit: float) -> tuple[Verdict, float] | None:
        """What came of the table; None while nothing did. A process that died or must be stopped is one no more."""
        if self.line.poll():
            try:
                return self.line.recv()
            except (EOFError, ConnectionError):
                self.stop()
                return Verdict(TRACEBACK, "the process died"), 0.0
        if time.monotonic() > self.until:
            self.stop()
            return Verdict(TRACEBACK, f"it did not end within {limit:.0f} s"), limit
        return None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def judged(
    cases: Sequence[Case], jobs: int, limit: float, work: Callable[[Connection], None] = serve
) -> Iterator[tuple[Case, Verdict, float]]:
    """Every table's verdict, as they come."""
    waiting, workers = list(reversed(cases)), [Worker(work) for _ in range(min(jobs, len(cases)))]
    try:
        while waiting or any(worker.case for worker in workers):
            for worker in workers:
                if worker.case is None and waiting:
                    worker.give(waiting.pop(), limit)
            wait([worker.line for worker in workers], timeout=0.2)
            for place, worker in enumerate(workers):
                if worker.case is not None and (answer := worker.answer(limit)):
                    yield worker.case, *answer
                    worker.case = None
                    if not worker.process.is_alive():
                        workers[place] = Worker(work)
    finally:
        for worker in workers:
            worker.stop()


def cases_of(mode: str, count: int, seed: int, only: Sequence[str]) -> list[Case]:
    """So many tables of all kinds in turn."""
    names = [name for name, each in KINDS.items() if each.where in (mode, "both") and (not only or name in only)]
    return [Case(mode, i, names[i % len(names)], seed) for i in range(count)] if names else []


def table_of(results: Sequence[tuple[Case, Verdict, float]]) -> str:
    """Kinds by classes."""
    counts: dict[str, Counter[str]] = {}
    for case, verdict, _ in results:
        counts.setdefault(f"{case.kind} ({case.mode})", Counter())[verdict.result] += 1
    rows = [{"damage": name, **{each: str(found[each] or "") for each in CLASSES}} for name, found in counts.items()]
    total = Counter(verdict.result for _, verdict, _ in results)
    return markdown_table([*rows, {"damage": "all", **{each: str(total[each]) for each in CLASSES}}])


def show_case(case: Case) -> None:
    """One table again, with all that was printed."""
    os.environ["COLUMNS"] = "160"
    verdict, said = judge(case, KINDS[case.kind])
    for each in said:
        print(each.out, each.err, f"exit code {each.code}", sep="\n")
    print(f"{case.kind}: {verdict.result}: {verdict.why}")
    shutil.rmtree(room(), ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=400, help="damaged logs, through check and fit")
    parser.add_argument("--patients", type=int, default=200, help="damaged tables of new patients, through recommend")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds that one table may take")
    parser.add_argument("--kind", action="append", default=[], help="only this kind; may be given again")
    parser.add_argument("--case", default="", help="one table again, as log/17 or new/3")
    parser.add_argument("--words", action="store_true", help="show refusals and warnings too")
    parser.add_argument("--list", action="store_true", help="the kinds, and where each is tried")
    told = parser.parse_args()
    unknown = [name for name in told.kind if name not in KINDS]
    if unknown:
        parser.error(f"there is no kind '{unknown[0]}'; --list shows them")
    return told


def main() -> None:
    told = arguments()
    if told.list:
        print("\n".join(f"{each.where:<5}{name}" for name, each in KINDS.items()))
        return
    cases = {
        mode: cases_of(mode, n, told.seed, told.kind)
        for mode, n in zip(MODES, (told.tables, told.patients), strict=True)
    }
    if told.case:
        mode, number = told.case.split("/")
        more = cases_of(mode, int(number) + 1, told.seed, told.kind)
        show_case(more[int(number)])
        return
    start, results = time.monotonic(), list[tuple[Case, Verdict, float]]()
    with progress() as report:
        for mode in MODES:
            for each in judged(cases[mode], told.jobs, told.limit):
                results.append(each)
                report(f"tables: {mode}", sum(case.mode == mode for case, _, _ in results), len(cases[mode]))
    results.sort(key=lambda each: (MODES.index(each[0].mode), each[0].number))
    print(table_of(results))
    bad = [(case, verdict) for case, verdict, _ in results if verdict.result in BAD]
    for case, verdict in [(c, v) for c, v, _ in results if v.result != HARMLESS] if told.words else bad:
        kinds = "".join(f' --kind "{name}"' for name in told.kind)
        print(
            f"{verdict.result}: {case.kind} (--case {case.mode}/{case.number} --seed {told.seed}{kinds}): {verdict.why}"
        )
    counts = {mode: dict(Counter(v.result for case, v, _ in results if case.mode == mode)) for mode in MODES}
    seconds = [taken for _, _, taken in results]
    record = {
        "seed": told.seed, "kinds": len({case.kind for case, _, _ in results}), **counts,
        "bad": [f"{case.mode}/{case.number} {case.kind}: {verdict.result}" for case, verdict in bad],
        "seconds": round(time.monotonic() - start), "longest": round(max(seconds, default=0.0), 1),
    }  # fmt: skip
    print(json.dumps(record, ensure_ascii=False))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
