"""Whether every command and every method works on a GPU: `python benchmarks/gpu_smoke.py --device cuda`.

The chain of the README, as a user types it, a process a command: a log of CartPole and one of a small ward with doses
in bins are fitted, checked, augmented, learned from with every value of `train --method`, evaluated, reported on and
asked for recommendations; the ward's doses also as they are. Every other SCM is fitted too. No test sees a part left
on the wrong device where there is no GPU. `--device cpu --quick` is a dry run of the same chain. Prints a table (step,
seconds, ok or the last line of the error); the last line is JSON, and the exit code 1 where a step failed.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from counterpoint.cli import train
from counterpoint.cli.main import main as counterpoint
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import named_methods
from counterpoint.nets.training import Schedule

PERSONAL = train.PERSONAL
RULES = ("search", "ctrl-p", "near-practice", "practice")
"""Methods that take continuous doses."""
CATEGORIES = (*train.PARENTS, "d3qn", "bcq")
"""Methods that take a state with categories; the models of the others take numbers alone."""
PLANS = "pets"
"""The method whose policy plans at every step, which takes a processor minutes: it is tried for a few steps only."""
NEEDED = ("simulate", "fit", "augment", "train")
"""Commands without which the rest of a chain has nothing to work on."""
NOT_RUN = "not run: an earlier step failed"
QUICK_UPDATES = 40
Q_NETWORK = ("--steps", "1000", "--check-every", "250")
QUICK_Q_NETWORK = ("--steps", "40", "--check-every", "20", "--hidden", "32", "32", "--batch", "64")
QUICK_SEARCH = ("--rounds", "2", "--restarts", "1", "--horizon", "8")
STATE = ("--state", "age", "lactate", "pressure", "ventilated")


@dataclass(frozen=True)
class Chain:
    """Commands on one run folder, which begins as a copy of another chain's where `after` names one."""

    run: str
    steps: tuple[tuple[str, ...], ...]
    after: str = ""


def ward(subjects: int, rows: int, seed: int = 0) -> pd.DataFrame:
    """Records of patients who respond differently to a skewed dose; a fifth of them die."""
    random = np.random.default_rng(seed)
    records = []
    for subject in range(subjects):
        lactate, pressure = random.normal(3.0, 1.0), random.normal(70.0, 8.0)
        response, dies = float(random.choice([-0.6, 1.8])), random.random() < 0.2
        ventilated = int(random.random() < 0.4)
        age = round(float(random.normal(60.0, 10.0)), 1)
        for row in range(rows):
            dose = 0.0 if random.random() < 0.3 else float(np.exp(random.normal(-0.9, 1.0)))
            last = row == rows - 1
            records.append(
                {
                    "patient": f"p{subject:03d}",
                    "hour": 4 * row,
                    "age": age,
                    "lactate": None if row and random.random() < 0.05 else round(lactate, 3),
                    "pressure": round(pressure, 2),
                    "ventilated": ventilated,
                    "dose": round(dose, 3),
                    "reward": round(-abs(lactate - 1.5), 3),
                    "died": int(dies and last),
                    "discharged": int(not dies and last),
                }
            )
            lactate = 0.8 * lactate + 0.5 - 0.6 * response * dose + float(random.normal(0.0, 0.2))
            pressure = 0.9 * pressure + 7.0 + 4.0 * response * dose + float(random.normal(0.0, 2.0))
            ventilated = int(random.random() < (0.7 if ventilated else 0.2))
    return pd.DataFrame(records)


def tables(folder: Path, quick: bool) -> None:
    """The ward's log, new patients and one patient's history as CSV files, and new states of CartPole."""
    subjects, rows = (30, 12) if quick else (120, 12)
    ward(subjects, rows).to_csv(folder / "ward.csv", index=False)
    outcomes = ["reward", "died", "discharged"]
    ward(5, rows, seed=1).drop(columns=outcomes).to_csv(folder / "new.csv", index=False)
    ward(1, rows, seed=2).drop(columns=outcomes).to_csv(folder / "history.csv", index=False)


def read(bins: bool, numbers: bool) -> tuple[str, ...]:
    """Flags that read the ward's table, its 0/1 column as a category or as a number."""
    cut = ("--bins", "3") if bins else ()
    kept = ("--numeric", "ventilated") if numbers else ()
    roles = ("--subject", "patient", "--time", "hour", *STATE, "--action", "dose", "--reward", "reward")
    return (*roles, "--done", "died", "discharged", "--missing", "median", *cut, *kept)


def chains(device: str, quick: bool) -> list[Chain]:
    """All of them, a chain after the one that it copies."""
    on, trials = ("--device", device), "20" if quick else "50"
    learner = QUICK_Q_NETWORK if quick else Q_NETWORK
    check, augment, report = ("check-scm",), ("augment",), ("report",)
    pole = ("simulate", "--trials", trials, "--held-out", "0.2")
    patients = ("simulate", "--trials", trials, "--held-out", "0.2", "task:tumour", "--task.patients", trials)
    new, history = ("recommend", "--data", "new.csv"), ("recommend", "--history", "history.csv")
    effects = ("scm:random-effects",)

    def table(bins: bool, *scm: str, numbers: bool = False) -> tuple[str, ...]:
        return ("fit", *on, "--data", "ward.csv", *read(bins, numbers), *scm)

    def tried(method: str) -> tuple[tuple[str, ...], ...]:
        simulated = ("evaluate", "--trials", "2", "--horizon", "3" if method == PLANS else "20")
        return (simulated, report) if method == PLANS else (simulated, ("evaluate", "--log"), report)

    def sized(method: str) -> tuple[str, ...]:
        if method in train.SEARCHED:
            return QUICK_SEARCH if quick else ()
        return learner if train.learns_q(method) else ()

    def learned(method: str) -> tuple[str, ...]:
        groups = ("--groups", "2") if method in PERSONAL else ()
        return ("train", "--method", method, *on, *groups, *sized(method))

    methods: tuple[str, ...] = get_args(train.Method)
    bases = [
        Chain("pole", (pole, ("fit", *on), check, augment)),
        Chain("tumour-effects", (patients, ("fit", *on, *effects), check)),
        Chain("ward", (("check", "ward.csv"), table(True), check, augment)),
        Chain("ward-numbers", (table(True, numbers=True), augment)),
        Chain("ward-effects", (table(True, *effects, numbers=True), check)),
        Chain("doses", (table(False), check)),
        Chain("doses-effects", (table(False, *effects, numbers=True), check)),
    ]
    shorter = ("--scm.training.schedule.steps", str(QUICK_UPDATES)) if quick else ()
    fits = [
        Chain(f"pole-{name}", (("fit", *on, f"scm:{name}", *shorter), check, augment), "pole")
        for name in ("bicogan", "conditional-bicogan")
    ]
    every = [*bases, *fits]
    for method in methods:
        effects_of = "-effects" if method in PERSONAL else ""
        log = "tumour-effects" if method in PERSONAL else "pole"
        every.append(Chain(f"{log}-{method}", (learned(method), *tried(method)), log))
        patients_of = effects_of if method in CATEGORIES else "-numbers"
        asked = () if method == PLANS else (("evaluate",), new)
        after = (*asked, report, *((history,) if method in PERSONAL else ()))
        every.append(Chain(f"ward-{method}", (learned(method), *after), f"ward{patients_of}"))
        if method in RULES:
            every.append(Chain(f"doses-{method}", (learned(method), *after), f"doses{effects_of}"))
    return every


def command(run: str, step: Sequence[str]) -> list[str]:
    """What a user types, without the program's name."""
    verb, *flags = step
    return [verb, *flags] if verb == "check" else [verb, "--run", run, *flags]


class Runner:
    """Runs chains in `folder`, several at once, a process a command."""

    def __init__(self, folder: Path, quick: bool, seconds: float) -> None:
        self.folder, self.quick, self.seconds = folder, quick, seconds
        # Each command is forked from a process that has imported everything and never used a GPU.
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["counterpoint.cli.main", "matplotlib.pyplot", "scipy.optimize"])
        self.table: list[dict[str, Any]] = []
        self.broken: set[str] = set()

    def chain(self, chain: Chain) -> None:
        """One chain after the other whose folder it copies."""
        stopped = chain.after in self.broken
        if chain.after and not stopped:
            shutil.copytree(self.folder / chain.after, self.folder / chain.run)
        for step in chain.steps:
            if stopped:
                self._keep(chain, step, 0.0, NOT_RUN)
                continue
            start_time = time.perf_counter()
            failure = self._failure(chain.run, step)
            self._keep(chain, step, time.perf_counter() - start_time, failure)
            stopped = bool(failure) and step[0] in NEEDED
        if stopped:
            self.broken.add(chain.run)

    def _failure(self, run: str, step: Sequence[str]) -> str:
        """The last line of what a command said, where it failed; nothing where it did not."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as said:
            options = (command(run, step), self.quick, str(self.folder), said.name)
            process = self.processes.Process(target=one_command, args=options)
            process.start()
            process.join(self.seconds)
            if process.exitcode is None:
                process.kill()
                process.join()
                return f"stopped after {self.seconds:g} s"
            if process.exitcode == 0:
                return ""
            lines = [line.strip() for line in Path(said.name).read_text().splitlines() if line.strip()]
            return lines[-1] if lines else f"exit code {process.exitcode}"

    def _keep(self, chain: Chain, step: Sequence[str], seconds: float, failure: str) -> None:
        row = {"step": f"{chain.run}: {_short(step)}", "seconds": round(seconds, 2), "result": failure or "ok"}
        self.table.append(row)
        print(f"{row['step']}: {row['result']} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _short(step: Sequence[str]) -> str:
    """A command without the flags that all have."""
    kept = [part for part in step if part.startswith("scm:") or part in ("--log", "--history")]
    return " ".join([step[0], *kept])


def run_all(every: Sequence[Chain], runner: Runner, workers: int) -> None:
    """First chains that begin anew, then those that copy them."""
    for copies in (False, True):
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(runner.chain, [chain for chain in every if bool(chain.after) == copies]))


def shortened(recipe: Any) -> Any:
    """The same recipe with at most `QUICK_UPDATES` updates wherever one has a schedule."""
    if isinstance(recipe, Schedule):
        fewer = min(recipe.steps, QUICK_UPDATES)
        return replace(recipe, steps=fewer, check_every=min(recipe.check_every, fewer // 2))
    if not is_dataclass(recipe) or isinstance(recipe, type):
        return recipe
    changes: dict[str, Any] = {
        field.name: shortened(getattr(recipe, field.name))
        for field in fields(recipe)
        if field.init and is_dataclass(getattr(recipe, field.name))
    }
    return replace(recipe, **changes)


def shortened_arms(learner: D3QN) -> dict[str, PolicyLearner]:
    """All methods, the models that they fit themselves trained for a few updates."""
    return {name: shortened(arm) for name, arm in named_methods(learner).items()}


def one_command(arguments: list[str], quick: bool, folder: str, said: str) -> None:
    """Run a command of counterpoint in `folder`; what it says goes into the file `said`."""
    os.chdir(folder)
    with Path(said).open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    with patch.object(train, "named_methods", shortened_arms if quick else named_methods):
        counterpoint(arguments)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="small sizes, for a dry run")
    parser.add_argument("--only", default="", help="only chains whose name holds this, and those that they copy")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1), help="commands at a time")
    parser.add_argument("--seconds", type=float, default=170.0, help="seconds after which a command counts as failed")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is available here; use --device cpu --quick for a dry run")
    if options.workers < 1 or options.seconds <= 0:
        parser.error("--workers and --seconds must be above 0")
    every = chains(options.device, options.quick)
    wanted = [chain for chain in every if options.only in chain.run]
    if not wanted:
        parser.error(f"no chain's name holds '{options.only}'")
    copied = {chain.after for chain in wanted}
    wanted = [chain for chain in every if chain in wanted or chain.run in copied]
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tables(Path(folder), options.quick)
        runner = Runner(Path(folder), options.quick, options.seconds)
        run_all(wanted, runner, options.workers)
    failed = [row for row in runner.table if row["result"] != "ok"]
    seconds = time.perf_counter() - start_time
    print(markdown_table(runner.table, formats={"seconds": ".1f"}))
    counts = {"steps": len(runner.table), "failed": len(failed), "wall_seconds": round(seconds, 1)}
    print(json.dumps({**vars(options), **counts, "table": runner.table, **provenance()}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
