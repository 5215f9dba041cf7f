"""Damaged hospital tables and new patients: each is refused, warned of by name, or read as it should be.

    python benchmarks/damage.py [--tables 400] [--patients 200] [--clean 40] [--seed 0] [--jobs 2] [--out PAGE.md]
    python benchmarks/damage.py --kind "rows after death"     # one kind only
    python benchmarks/damage.py --case log/17                 # one table again, with all that was printed
    python benchmarks/damage.py --list

`fuzz.py` spoils bytes, cells and arguments, and asks whether the loader reads what its docstring says. Here most cells
are well formed and mean something else: another unit, a sentinel, a date with the day first, a record under two ids. A
clean log of the simulated patients of `damage_log.py` is damaged in one of the ways of `damage_kinds.py`, and goes
through `counterpoint check` and `counterpoint fit`; damaged tables of new patients go through `counterpoint recommend`
with a policy of the clean log. All run by the entry point of the command line, and are one of:

- refused: exit code 2 and one line, or no recommendation to the patients concerned, with a reason;
- warned: a line that the clean table does not have, and that is no description of a table, names the column or the
  damage. It is late where `check` alone warned and `fit` said nothing, or where it stands beside a recommendation that
  the undamaged patients would not get;
- harmless: what was read is what the clean table says (numbers within 1 part in 10,000), or the recommendations and
  values are those of the undamaged patients;
- silently wrong: none of these;
- traceback: any other error or exit code, a refusal of several lines, or no end within `--limit` seconds.

`--clean` tables of either sort have no damage: a refusal of them, and any line but a description, is a false alarm.
The last line is a JSON object; the exit code is 1 when a table was silently wrong or ended in a traceback, or when an
alarm was false. `--out` writes the page, results/damage.md.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from counterpoint.cli.console import progress
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from damage_kinds import KINDS
from damage_verdicts import BAD, CLASSES, CLEAN, HARMLESS, MODES, TRACEBACK, WARNED, Case, Verdict, judge, room

Result = tuple[Case, Verdict, float]
"""A table, what came of it, and the seconds that it took."""
WHAT = {"log": "logs", "new": "tables of new patients"}


def serve(line: Connection) -> None:
    """A worker: judge the tables that come, until none does."""
    os.environ["COLUMNS"] = "240"
    torch.set_num_threads(1)
    line.send("ready")
    try:
        while (case := line.recv()) is not None:
            start = time.monotonic()
            try:
                verdict, _ = judge(case)
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
) -> Iterator[Result]:
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


def clean_cases(mode: str, count: int, seed: int) -> list[Case]:
    return [Case(mode, i, CLEAN, seed) for i in range(count)]


def table_of(results: Sequence[Result]) -> str:
    """Kinds by classes."""
    counts: dict[str, Counter[str]] = {}
    for case, verdict, _ in results:
        counts.setdefault(f"{case.kind} ({case.mode})", Counter())[verdict.result] += 1
    rows = [{"damage": name, **{each: str(found[each] or "") for each in CLASSES}} for name, found in counts.items()]
    total = Counter(verdict.result for _, verdict, _ in results)
    return markdown_table([*rows, {"damage": "all", **{each: str(total[each]) for each in CLASSES}}])


def record_of(results: Sequence[Result], seed: int) -> dict[str, Any]:
    """The figures of a run."""
    damaged = [each for each in results if each[0].kind != CLEAN]
    record: dict[str, Any] = {"seed": seed, "kinds": len({case.kind for case, _, _ in damaged})}
    for mode in MODES:
        counts = Counter(verdict.result for case, verdict, _ in damaged if case.mode == mode)
        record[mode] = {name: counts[name] for name in CLASSES}
        record[mode]["late"] = sum(verdict.late for case, verdict, _ in damaged if case.mode == mode)
    record["bad"] = [f"{case.mode}/{case.number} {case.kind}: {v.result}" for case, v, _ in damaged if v.result in BAD]
    for mode in MODES:
        clean = [verdict for case, verdict, _ in results if case.kind == CLEAN and case.mode == mode]
        alarms = sum(verdict.result != HARMLESS for verdict in clean)
        record[f"clean_{mode}"] = {"tables": len(clean), "false_alarms": alarms}
    return record


def page(results: Sequence[Result], record: dict[str, Any], command: str) -> str:
    """What the run found, as results/damage.md has it."""
    about = provenance()
    where = ", ".join(f"{name} {about[name]}" for name in ("commit", "torch"))
    late = {mode: f"{record[mode]['late']} of {record[mode][WARNED]} warnings" for mode in MODES}
    clean = {
        mode: f"{record[f'clean_{mode}']['false_alarms']} of {record[f'clean_{mode}']['tables']}" for mode in MODES
    }
    totals = [{"tables": WHAT[mode], **{name: record[mode][name] for name in CLASSES}} for mode in MODES]
    damaged = [each for each in results if each[0].kind != CLEAN]
    return f"""# Damaged hospital tables

`{command}` ({where}): {record["kinds"]} kinds of damage. Logs go through `check` and `fit`, tables of new patients
through `recommend`; the classes are described in the script.

{markdown_table(totals)}

{late["log"]} of logs are by `check` alone, while `fit` goes on without a word; {late["new"]} of new patients stand
beside a recommendation that the undamaged patients would not get. False alarms: {clean["log"]} logs without damage,
{clean["new"]} tables of new patients without damage.

{table_of(damaged)}
"""


def show_case(case: Case) -> None:
    """One table again, with all that was printed."""
    os.environ["COLUMNS"] = "240"
    verdict, said = judge(case)
    for each in said:
        print(each.out, each.err, f"exit code {each.code}", sep="\n")
    print(f"{case.kind}: {verdict.result}{' (late)' * verdict.late}: {verdict.why}")
    shutil.rmtree(room(), ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=400, help="damaged logs, through check and fit")
    parser.add_argument("--patients", type=int, default=200, help="damaged tables of new patients, through recommend")
    parser.add_argument("--clean", type=int, default=40, help="logs, and tables of new patients, without damage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds that one table may take")
    parser.add_argument("--kind", action="append", default=[], help="only this kind; may be given again")
    parser.add_argument("--case", default="", help="one table again, as log/17, new/3 or clean/log/5")
    parser.add_argument("--words", action="store_true", help="show refusals and warnings too")
    parser.add_argument("--list", action="store_true", help="the kinds, and where each is tried")
    parser.add_argument("--out", type=Path, help="Markdown page of the result")
    options = parser.parse_args()
    unknown = [name for name in options.kind if name not in KINDS]
    if unknown:
        parser.error(f"there is no kind '{unknown[0]}'; --list shows them")
    return options


def case_named(name: str, seed: int, only: Sequence[str]) -> Case:
    """The table that `--case` names."""
    *clean, mode, number = name.split("/")
    count = int(number) + 1
    return (clean_cases(mode, count, seed) if clean else cases_of(mode, count, seed, only))[-1]


def run_all(options: argparse.Namespace) -> list[Result]:
    """Every table's result, in order."""
    cases = [
        *cases_of("log", options.tables, options.seed, options.kind),
        *cases_of("new", options.patients, options.seed, options.kind),
        *[case for mode in MODES for case in clean_cases(mode, options.clean, options.seed)],
    ]
    results = list[Result]()
    with progress() as report:
        for each in judged(cases, options.jobs, options.limit):
            results.append(each)
            report("tables", len(results), len(cases))
    place = {case: i for i, case in enumerate(cases)}
    return sorted(results, key=lambda each: place[each[0]])


def main() -> None:
    options = arguments()
    if options.list:
        print("\n".join(f"{each.where:<5}{name}" for name, each in KINDS.items()))
        return
    if options.case:
        show_case(case_named(options.case, options.seed, options.kind))
        return
    start, results = time.monotonic(), run_all(options)
    record = record_of(results, options.seed)
    words = f"--tables {options.tables} --patients {options.patients} --clean {options.clean} --seed {options.seed}"
    text = page(results, record, f"python benchmarks/damage.py {words}")
    print(text)
    for case, verdict, _ in results:
        notable = verdict.result != HARMLESS if options.words or case.kind == CLEAN else verdict.result in BAD
        if notable:
            kinds = "".join(f' --kind "{name}"' for name in options.kind)
            name = f"{'clean/' * (case.kind == CLEAN)}{case.mode}/{case.number}"
            late = " (late)" * verdict.late
            print(f"{verdict.result}{late}: {case.kind} (--case {name} --seed {options.seed}{kinds}): {verdict.why}")
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    longest = round(max((taken for _, _, taken in results), default=0.0), 1)
    record |= {"seconds": round(time.monotonic() - start), "longest": longest}
    print(json.dumps(record, ensure_ascii=False))
    sys.exit(bool(record["bad"] or any(record[f"clean_{mode}"]["false_alarms"] for mode in MODES)))


if __name__ == "__main__":
    main()
