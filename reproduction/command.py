"""`python -m reproduction`: run one experiment, or all of them with one pool of processes."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from counterpoint.cli.console import CONSOLE, progress, say, show
from counterpoint.cli.main import run_command
from counterpoint.core.artifacts import device_of, encode
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import write_json
from reproduction.ablations import ablations, quick_ablations, quick_search_ablations, search_ablations
from reproduction.classic import Classic, quick_problems
from reproduction.clinic import Clinic
from reproduction.clinic import methods as clinic_methods
from reproduction.clinic import quick as quick_clinic
from reproduction.counterfactuals import Counterfactuals
from reproduction.counterfactuals import quick as quick_counterfactuals
from reproduction.effects import Effects
from reproduction.effects import estimators as effect_estimators
from reproduction.effects import quick as quick_effects
from reproduction.evaluation import EvaluationBenchmark
from reproduction.evaluation import quick as quick_evaluation
from reproduction.executors import Auto, Executor, InProcess, Joblib, Ray, Report
from reproduction.experiment import Experiment, Finished, choose, run
from reproduction.groups import GroupAccuracy
from reproduction.groups import quick as quick_groups
from reproduction.hd import HD, HD_PROTOCOL, hd_arms, quick_hd_arms
from reproduction.logs import RANDOM_ACTION_SHARE
from reproduction.sd import QUICK_EPISODES, WITHOUT_FAILURES, quick_sd, sd
from reproduction.sepsis import Sepsis
from reproduction.sepsis_arms import SepsisArms, quick_sepsis_arms
from reproduction.sepsis_cohort import Cohort, SyntheticPatients, TableCohort
from reproduction.sepsis_report import demo_cohort, report_of
from reproduction.synthetic_cohort import MakeSyntheticCohort
from reproduction.tumour import TumourBenchmark
from reproduction.tumour import quick as quick_tumour

Part = Literal[
    "sd", "hd", "hd-nonrandom", "search-ablations", "sepsis", "classic", "sd-nonrandom", "counterfactuals", "ablations",
    "sd-nonrandom-20", "tumour", "groups", "evaluation", "effects",
    "clinic",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order of the work: parts with long cells first, so that no process is left alone with one at the end."""
SEEDS = {"classic": 10, "sepsis": 10, "counterfactuals": 5, "tumour": 5, "groups": 10, "effects": 5, "clinic": 5}
"""Data sets and training seeds of a part; 20 of any other."""
WITH_WORLDS = ("effects", "clinic")
"""Parts that have --worlds."""
QUICK_SEEDS, QUICK_PATIENTS = 2, 300
"""With --quick: seeds, and synthetic patients."""
ONE_SEED = ("counterfactuals", "tumour", "groups")
"""Parts that have one seed with --quick."""
SECONDS = {
    "sd": (360, 5770), "hd": (83, 1944), "hd-nonrandom": (62, 1221), "search-ablations": (325, 1008),
    "sepsis": (226, 2888), "classic": (13, 437), "sd-nonrandom": (187, 2380), "counterfactuals": (22, 3225),
    "ablations": (164, 735), "sd-nonrandom-20": (93, 394), "tumour": (29, 1894), "groups": (9, 655),
    "evaluation": (24, 1052), "effects": (20, 3200), "clinic": (60, 15000),
}  # fmt: skip
"""Seconds of a part, measured: with --quick on one core, and in full in one process on a H200 shared with others."""
CPU_SAVES, GPU_SAVES = 5.0, 60.0
"""Seconds between two checkpoints: a stack of a hundred networks on a GPU is quick to train and slow to write."""

Executors = (
    Annotated[Auto, tyro.conf.subcommand("auto", description="a process for every core, or all here with a GPU")]
    | Annotated[InProcess, tyro.conf.subcommand("in-process", description="all in this process")]
    | Annotated[Joblib, tyro.conf.subcommand("joblib", description="processes on this machine")]
    | Annotated[Ray, tyro.conf.subcommand("ray", description="a Ray cluster")]
)


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment: a table with its settings, statistics and figures. Started again, it goes on where it was."""

    experiment: tyro.conf.Positional[Part | Literal["all"]]
    """sd (Figure 2a), hd (Figure 2b), sd-nonrandom and hd-nonrandom (their twins in the appendix), sd-nonrandom-20 (few
    random actions), ablations of CTRL_g and search-ablations of the search in its SCM, classic (the search in
    Gymnasium's environments), sepsis (Figure 3), counterfactuals (every SCM against known truth), tumour (forecasts of
    tumours under treatment), groups (subjects' gravities recovered), evaluation (off-policy estimates against known
    returns), effects (counterfactuals in confounded logs), clinic (policies learned from
    clinical logs); or all of them."""
    out: Path = Path("results")
    """Folder for <experiment>.csv, .md, .png and .settings.json; cells and checkpoints lie in <experiment>/."""
    quick: bool = False
    """Small networks, few seeds, one size: minutes on two cores. Results go to <experiment>-quick."""
    seeds: int | None = None
    """Data sets and training seeds; the experiment's own number where none is given."""
    methods: tuple[str, ...] = ()
    """Some of the methods; all where none is named."""
    worlds: tuple[str, ...] = ()
    """Of clinic, some of the worlds, and of effects, some of the tasks; all where none is named."""
    subjects: tuple[int, ...] = ()
    """Of clinic: subjects of the logs; 30, 100 and 300 where none is given."""
    device: str = "auto"
    """cpu, cuda or auto."""
    plan: bool = False
    """Print what is done, what is left and about how long it takes, and stop."""
    cohort: str = "synthetic"
    """Of sepsis: synthetic, whose truth is known; demo, of MIMIC-III's open demo; or a file of `counterpoint mimic` or
    `counterpoint cohort`."""
    patients: int | None = None
    """Of sepsis' synthetic cohort: 1,565, or 300 with --quick; the paper has 15,656."""
    raw: Path | None = None
    """Of sepsis' demo: its raw folder; the variable COUNTERPOINT_MIMIC_DEMO where none is given."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the rows do not depend on it."""

    def execute(self) -> None:
        parts = self.parts()
        if self.plan:
            show(list(self.planned(parts)), "what there is to do, and about how many minutes it takes")
            return
        failures = []
        record: dict[str, Any] = {}
        names = {experiment.name: part for part, experiment in parts.items()}
        with cell_progress() as report:
            saves = GPU_SAVES if self.on_gpu else CPU_SAVES
            for finished in run(list(parts.values()), self.out, self._executor, self.device, report, saves):
                part = names[finished.experiment.name]
                record[part] = self._recorded(finished)
                self._announce(finished)
                if finished.failures:
                    failures.append(finished)
        if self.experiment == "all":
            self._write_record({part: record[part] for part in parts})
        if len(failures) == 1:
            failures[0].refuse_failures()
        names_of_failed = ", ".join(finished.experiment.name for finished in failures)
        require(not failures, f"cells of {names_of_failed} failed; run the same command again to try them once more")

    def parts(self) -> dict[str, Experiment]:
        """The experiments that the options describe, by part."""
        if self.experiment != "sepsis" and (self.cohort, self.patients, self.raw) != ("synthetic", None, None):
            raise CounterpointError(f"{self.experiment} has neither --cohort nor --patients nor --raw; leave them out")
        if self.experiment not in WITH_WORLDS and self.worlds:
            raise CounterpointError(f"{self.experiment} has no --worlds; leave it out")
        if self.experiment != "clinic" and self.subjects:
            raise CounterpointError(f"{self.experiment} has no --subjects; leave it out")
        if self.experiment != "all":
            return {self.experiment: self.part(self.experiment)}
        require(not self.methods and self.seeds is None, "all has neither --methods nor --seeds; run one part alone")
        return {name: self.part(name) for name in PARTS}

    def part(self, name: Part) -> Experiment:
        """The experiment of one part."""
        seeds = self._seeds(name)
        # All of a method in one stack keeps a GPU busy; small stacks can be shared out among processes.
        stack_size = None if self.on_gpu else seeds
        if name in ("classic", "groups", "evaluation") and self.methods:
            raise CounterpointError(f"{name} has no --methods; leave it out")
        match name:
            case "sd" | "sd-nonrandom" | "sd-nonrandom-20":
                behaviour = "random" if name == "sd" else "non-random"
                few = name == "sd-nonrandom-20"
                methods = self.methods or (WITHOUT_FAILURES if few else ())
                share = 0.2 if few else RANDOM_ACTION_SHARE
                return (quick_sd if self.quick else sd)(behaviour, seeds, methods, stack_size, share)
            case "ablations":
                return (quick_ablations if self.quick else ablations)(seeds, self.methods, stack_size)
            case "search-ablations":
                return (quick_search_ablations if self.quick else search_ablations)(seeds, self.methods, stack_size)
            case "hd" | "hd-nonrandom":
                behaviour = "random" if name == "hd" else "non-random"
                arms = choose((quick_hd_arms if self.quick else hd_arms)(), self.methods)
                protocol = replace(HD_PROTOCOL, evaluation_trials=QUICK_EPISODES) if self.quick else HD_PROTOCOL
                return HD(behaviour, arms, seeds, protocol=protocol, name=name + "-quick" * self.quick)
            case "classic":
                quick = Classic(quick_problems(), seeds, name="classic-quick")
                return quick if self.quick else Classic(seeds=seeds)
            case "sepsis":
                return self._sepsis(seeds)
            case "counterfactuals":
                base = quick_counterfactuals() if self.quick else Counterfactuals()
                estimators = choose(base.estimators, self.methods)
                return replace(base, seeds=seeds, estimators=estimators, stack_size=stack_size)
            case "tumour":
                base = quick_tumour() if self.quick else TumourBenchmark()
                forecasters = choose(base.forecasters, self.methods, "model")
                return replace(base, seeds=TumourBenchmark().seeds[:seeds], forecasters=forecasters)
            case "groups":
                return replace(quick_groups() if self.quick else GroupAccuracy(), seeds=seeds)
            case "evaluation":
                base = quick_evaluation() if self.quick else EvaluationBenchmark()
                return base if self.seeds is None else replace(base, repetitions=dict.fromkeys(base.repetitions, seeds))
            case "effects":
                base = quick_effects() if self.quick else Effects()
                some = choose(effect_estimators(), self.methods) if self.methods else base.estimators
                return replace(base, seeds=seeds, estimators=some, tasks=self.worlds or base.tasks)
            case "clinic":
                base = quick_clinic() if self.quick else Clinic()
                chosen = choose(clinic_methods(), self.methods) if self.methods else base.methods
                places = choose(base.worlds, self.worlds, "world")
                return replace(
                    base, worlds=places, subjects=self.subjects or base.subjects, seeds=seeds, methods=chosen
                )

    def _seeds(self, name: Part) -> int:
        usual = SEEDS.get(name, 20)
        if self.quick:
            usual = 1 if name in ONE_SEED else QUICK_SEEDS
        elif name == "sepsis" and self.cohort != "synthetic":
            usual = 1
        seeds = usual if self.seeds is None else self.seeds
        require(seeds > 0, f"{seeds} seeds are nothing to run; set --seeds to 1 or more")
        if name.startswith(("sd", "hd")) or name.endswith("ablations"):
            require(seeds > 1, f"{seeds} seeds give no interval; set --seeds to 2 or more")
        return seeds

    def _sepsis(self, seeds: int) -> Sepsis:
        arms = quick_sepsis_arms() if self.quick else SepsisArms()
        arms = replace(arms, policies=self.methods or arms.policies)
        trials = 500 if self.quick else 2000
        return Sepsis(self._cohort(), arms, seeds, trials=trials, name="sepsis" + "-quick" * self.quick)

    def _cohort(self) -> Cohort:
        if self.cohort == "synthetic":
            usual = QUICK_PATIENTS if self.quick else SyntheticPatients().patients
            return SyntheticPatients(self.patients or usual)
        if self.patients is not None:
            raise CounterpointError("--patients is for the synthetic cohort; a table has those that it has")
        return TableCohort.of(demo_cohort(self.raw, self.out) if self.cohort == "demo" else Path(self.cohort))

    @property
    def on_gpu(self) -> bool:
        """Whether cells train on a GPU; a cluster's workers may have the GPU that this machine lacks."""
        if isinstance(self.executor, Ray) and self.device.startswith("cuda"):
            return True
        return device_of(self.device).type == "cuda"

    @property
    def _executor(self) -> Executor:
        """The executor. One process leaves a GPU idle most of the time, so all parts share it among many."""
        if isinstance(self.executor, Auto) and self.experiment == "all" and self.on_gpu:
            return Joblib(max((os.cpu_count() or 1) - 1, 1))
        return self.executor

    @property
    def processes(self) -> int:
        """Processes that share the work; what a cluster has is not known here."""
        if isinstance(self._executor, Joblib):
            return self._executor.workers
        return (os.cpu_count() or 1) if isinstance(self._executor, Auto) and not self.on_gpu else 1

    def planned(self, parts: dict[str, Experiment]) -> Iterator[dict[str, Any]]:
        """A line for every part and, where there are several, one for all."""
        lines = []
        for part, experiment in parts.items():
            stored = experiment.stored(self.out)
            done = sum(record is not None for record in stored)
            left = len(stored) - done
            seconds = SECONDS[part][not self.quick] * left / len(stored) / self.processes
            lines.append({"part": part, "cells": len(stored), "done": done, "to do": left, "minutes": seconds / 60})
        yield from lines
        if len(lines) > 1:
            yield {"part": "all", **{name: sum(line[name] for line in lines) for name in list(lines[0])[1:]}}

    def _announce(self, finished: Finished) -> None:
        """A short table, and where the files are."""
        experiment = finished.experiment
        if finished.rows:
            title, table = experiment.summary(finished.rows)
            if table and self.experiment != "all":
                show(table, title)
            elif title and self.experiment != "all":
                say(title)
            if isinstance(experiment, Sepsis) and experiment.parts(self.out).exists():
                say(f"the report of seed {experiment.first_seed} is in {report_of(experiment, self.out)}")
            say(f"{experiment.name}: every row in {self.out / experiment.name}.csv")
        if finished.failures:
            show(finished.failures, f"{experiment.name}: cells that failed")

    def _recorded(self, finished: Finished) -> dict[str, Any]:
        """What `all.settings.json` says of a part."""
        experiment = finished.experiment
        records = [record for record in experiment.stored(self.out) if record is not None]
        return {
            "command": experiment.command,
            "cells": len(experiment.cells()),
            "done": len(records),
            "seconds": round(finished.seconds, 1),
            "seconds_of_cells": round(sum(record["seconds"] for record in records), 1),
            "failed": [failure["reason"] for failure in finished.failures] or None,
        }

    def _write_record(self, parts: dict[str, Any]) -> None:
        """What ran, in `all.settings.json`: commands, cells and seconds since the start at which each part was done."""
        words = ["python", "-m", "reproduction", "all", *["--quick"] * self.quick, "--device", self.device]
        call = {"command": shlex.join(words), "executor": encode(self._executor), "processes": self.processes}
        path = self.out / f"all{'-quick' * self.quick}.settings.json"
        write_json({**call, **provenance(), "parts": parts}, path)
        say(f"what ran and how long it took is in {path}")


@contextmanager
def cell_progress() -> Iterator[Report]:
    """Progress bars on a terminal; in a file or a pipe, a line whenever cells are done."""
    if CONSOLE.is_terminal:
        with progress() as report:
            yield report
    else:
        yield lambda stage, done, total: say(f"{done} of {total} cells") if stage == "cells" else None


def main(arguments: list[str] | None = None) -> None:
    """Run one command of `python -m reproduction`."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["synthetic-cohort"]:
        about = "Make a table of synthetic septic patients."
        run_command(MakeSyntheticCohort, "python -m reproduction synthetic-cohort", about, words[1:])
        return
    about = "Run the experiments of the paper and the benchmarks. `synthetic-cohort` makes a table of septic patients."
    run_command(Reproduce, "python -m reproduction", about, words)
