"""`counterpoint reproduce all`: every table from one commit, with a plan before it starts and one record of what ran.

What a part has finished is not done again, so the whole can be stopped anywhere and goes on when started again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any

from counterpoint.cli.console import say, show
from counterpoint.core.artifacts import device_of, encode, read_json
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.results import provenance, same_commit, write_json
from reproduction.commands.parts import HOST, PARTS, QUICK, Part
from reproduction.executors import Auto, Executor, InProcess, Joblib, Ray
from reproduction.gpu_sharing import shared_gpu
from reproduction.jobserver import JobServer

PATIENCE = 60.0
"""Seconds that a part has to write its checkpoints after Ctrl-C."""


@dataclass(frozen=True)
class Ended:
    """How a part ended."""

    part: Part
    seconds: float
    why: str = ""
    """What went wrong; empty where nothing did."""


@dataclass(frozen=True)
class ReproduceAll:
    """All parts in one folder."""

    out: Path
    quick: bool
    device: str
    executor: Executor
    side_by_side: int | None
    keep: bool
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.without if name not in PARTS]
        require(not unknown, f"there is no part '{(*unknown, '')[0]}' to leave out; choose from {', '.join(PARTS)}")
        require(len(set(self.without)) < len(PARTS), "--without names every part; leave one to do")
        require(self.at_once > 0, f"{self.side_by_side} parts at a time are none; set --side-by-side to 1 or more")

    @property
    def at_once(self) -> int:
        """Parts at the same time. Nobody said: on a GPU all of them, for it is idle while one of them is written; on
        processors two, for while the last cells of one part are done there are cores for the next."""
        if self.side_by_side is not None:
            return self.side_by_side
        return 1 if not isinstance(self.executor, Auto) else len(PARTS) if self._on_gpu else 2

    @cached_property
    def parts(self) -> list[Part]:
        return [self._part(name, words) for name, words in PARTS.items() if name not in self.without]

    def _part(self, name: str, words: tuple[str, ...]) -> Part:
        device = () if name in HOST else ("--device", self.device)
        quick = QUICK.get(name, ("--quick",)) * self.quick
        return Part(name, (*words, *device, *quick, *self.executor_words(name)), self.out)

    def executor_words(self, name: str = "") -> tuple[str, ...]:
        """An executor as it is typed; parts at the same time share the processes of one. Beside a GPU, those that do
        not need it come first, each with a seventh of the processes."""
        match self.executor:
            case InProcess():
                return ("in-process",)
            case Ray(address, gpus):
                return "ray", "--address", address, "--gpus", str(gpus)
            case Auto() if self.at_once == 1:
                return ()
        few = name in HOST and self._on_gpu and self.at_once > 1
        return "joblib", "--workers", str(max(self.processes // 7, 1) if few else self.processes)

    @property
    def _on_gpu(self) -> bool:
        return device_of(self.device).type == "cuda"

    def show_plan(self) -> None:
        """The parts with what is done, what is left and the minutes it will take."""
        lines = []
        minutes = [self._expected(part) / self.processes / 60 for part in self.parts]
        for part, long in zip(self.parts, minutes, strict=True):
            done, total = part.cells()
            told = f"{long:.1f}" if isfinite(long) else "?"
            lines.append({"part": part.name, "cells": total, "done": done, "to do": total - done, "minutes": told})
        known = [each for each in minutes if isfinite(each)]
        # Side by side, parts share the processes that one alone would have.
        together = sum(known) / (self.at_once if isinstance(self.executor, InProcess | Ray) else 1)
        whole = {name: sum(line[name] for line in lines) for name in ("cells", "done", "to do")}
        unknown = " and what is not known" * (len(known) < len(minutes))
        lines.append({"part": "all", **whole, "minutes": f"{together:.1f}{unknown}"})
        show(lines, "what there is to do, and the minutes that it took a machine of this kind")

    @property
    def processes(self) -> int:
        """Processes that share the work: a core each, and on a machine with a GPU one core for all that is not work."""
        if isinstance(self.executor, Joblib):
            return self.executor.workers
        if not isinstance(self.executor, Auto):
            return 1
        return max((os.cpu_count() or 1) - self._on_gpu, 1) if self.at_once > 1 or not self._on_gpu else 1

    def run(self) -> None:
        """Whatever is left of every part; what fails is told in one line each, at the end in one line."""
        self._refuse_other_commits()
        record = Record(self)
        record.write()
        failed: list[Ended] = []
        for ended in self._in_turn() if self.at_once == 1 else self._side_by_side():
            record.add(ended)
            if ended.why:
                failed.append(ended)
                say(f"{ended.part.name} failed: {ended.why}")
        say(f"what ran, where and how long is in {record.path}")
        told = "; ".join(f"{each.part.name}: {each.why}" for each in failed)
        require(not failed, f"{len(failed)} of {len(self.parts)} parts failed ({told}); mend that and start it again")

    def _refuse_other_commits(self) -> None:
        """One folder holds the results of one commit, unless the user says otherwise."""
        here = provenance()["commit"]
        for part in self.parts:
            found = part.settings()
            made = [found, *found.get("ran_on", [])] if found else []
            _refuse(self, part.file, made, here)
        path = Record(self).path
        _refuse(self, path.name, [read_json(path, "choose a fresh --out")] if path.exists() else [], here)

    def _in_turn(self) -> Iterator[Ended]:
        for part in self.parts:
            say(f"\n{part.name}: {part.line}")
            begun = time.perf_counter()
            why = _execute(part)
            yield Ended(part, time.perf_counter() - begun, why)

    def _side_by_side(self) -> Iterator[Ended]:
        """Processes, which have their slots in the order of the parts."""
        with ExitStack() as around:
            if self._on_gpu and around.enter_context(shared_gpu()):
                say("processes share the GPU by MPS")
            server = around.enter_context(JobServer(self.processes))
            yield from self._apart(server)

    def _apart(self, server: JobServer) -> Iterator[Ended]:
        running: dict[str, subprocess.Popen[str]] = {}
        ranked = sorted(self.parts, key=lambda part: self._on_gpu and part.name not in HOST)
        with ThreadPoolExecutor(self.at_once) as threads:
            futures = [
                threads.submit(_execute_apart, part, running, server.environment(rank))
                for rank, part in enumerate(ranked)
            ]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                _stop(list(running.values()))
                raise

    def _expected(self, part: Part) -> float:
        """Seconds of one process for what is left; a part that nobody has timed may be the longest."""
        done, total = part.cells()
        each = part.seconds_a_cell(self.quick, total) if done < total else 0.0
        return inf if each is None else each * (total - done)


def _refuse(whole: ReproduceAll, what: str, made: Sequence[Mapping[str, Any]], here: str | None) -> None:
    """Raise where something was made by another commit."""
    for commit in (each.get("commit") for each in made):
        require(
            whole.keep or same_commit(commit, here),
            f"'{whole.out}' holds {what} of commit {commit}, and this is {here}; choose a fresh --out, or add --keep to"
            " go on with what older code has finished",
        )


def _execute(part: Part) -> str:
    """Run a part here; why it failed, or nothing."""
    try:
        part.command.execute()
    except CounterpointError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _execute_apart(part: Part, running: dict[str, "subprocess.Popen[str]"], told: Mapping[str, str]) -> Ended:
    """Run a part in a process of its own, which is `told` where to ask for slots; its lines come under its name."""
    begun, last = time.perf_counter(), ""
    words, environment = [sys.executable, "-m", "counterpoint", *part.typed], {**os.environ, **told}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        running[part.name] = process
        for line in process.stdout or ():
            last = line.strip() or last
            say(f"{part.name}: {line.rstrip()}")
    del running[part.name]
    why = "" if process.returncode == 0 else last.removeprefix("counterpoint: ") or f"exit code {process.returncode}"
    return Ended(part, time.perf_counter() - begun, why)


def _stop(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Ask every process to save and end, and end those that do not."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    until = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()


@dataclass
class Record:
    """What ran: `all.settings.json`, written before the first part and after every one. Parts may be left to another
    machine, so other calls than the last are told too."""

    whole: ReproduceAll
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            found = read_json(self.path, "choose a fresh --out")
            self.parts, self.earlier = found.pop("parts", {}), found.pop("earlier_calls", [])
            self.earlier = [call for call in [*self.earlier, found] if call != self.call()]

    @property
    def path(self) -> Path:
        return self.whole.out / f"all{'-quick' * self.whole.quick}.settings.json"

    def add(self, ended: Ended) -> None:
        """A part that has ended, with the seconds of earlier calls and those that its cells took, wherever they ran."""
        done, total = ended.part.cells()
        before = self.parts.get(ended.part.name, {}).get("seconds", 0.0)
        self.parts[ended.part.name] = {
            "command": ended.part.line,
            "seeds": ended.part.seeds(),
            "cells": total,
            "done": done,
            "seconds": round(before + ended.seconds, 1),
            "seconds_of_cells": round(sum(ended.part.settings().get("seconds", {}).values()), 1),
            "failed": ended.why or None,
        }
        self.write()

    def write(self) -> None:
        write_json({**self.call(), "earlier_calls": self.earlier, "parts": self.parts}, self.path)

    def call(self) -> dict[str, Any]:
        """What was typed, and where."""
        whole = self.whole
        words = ["counterpoint reproduce all", *(["--quick"] * whole.quick), f"--device {whole.device}"]
        words += [f"--side-by-side {whole.side_by_side}"] * (whole.side_by_side is not None)
        words += ["--without", *whole.without] if whole.without else []
        words += [] if isinstance(whole.executor, Auto) else whole.executor_words()
        ran = {"command": " ".join(words), "executor": encode(whole.executor), "processes": whole.processes}
        return {**ran, **provenance()}
