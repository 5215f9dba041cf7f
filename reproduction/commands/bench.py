"""`counterpoint bench`: models against the truth."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from counterpoint.cli.console import say
from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import CounterpointError, require
from reproduction.commands.watching import Executors, watching_cells
from reproduction.counterfactuals import Counterfactuals, named
from reproduction.counterfactuals import quick as quick_counterfactuals
from reproduction.evaluation import EvaluationBenchmark, repetitions
from reproduction.evaluation import quick as quick_evaluation
from reproduction.executors import Auto
from reproduction.groups import GroupAccuracy
from reproduction.groups import quick as quick_groups
from reproduction.tumour import TumourBenchmark, forecasters, quick


@dataclass(frozen=True)
class BenchCounterfactuals:
    """Score every SCM estimator on SCMs whose truth is known. Writes counterfactuals.csv, .md, figures and settings."""

    out: Path = Path("results")
    """Folder for the results; started again, it goes on where it was."""
    scms: tuple[str, ...] = ()
    """Some of the SCMs; all where none is named."""
    n: tuple[int, ...] = ()
    """Rows to fit on; 1000 and 5000 where none is named. The causal sets have 20000."""
    seeds: int = 0
    """Data sets and fits; 5 where 0."""
    methods: tuple[str, ...] = ()
    """Some of the estimators; all where none is named. DoWhy gcm needs the extra `bench`."""
    quick: bool = False
    """Four SCMs, few rows, one seed, brief training: two minutes. Results go to counterfactuals-quick."""
    device: str = "auto"
    """cpu, cuda or auto."""
    pack_size: int | None = None
    """Fits learned in one stack; all that are alike on a GPU, the seeds of one problem on a CPU. Part of what fixes the
    rows."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the rows do not depend on it."""

    def execute(self) -> None:
        benchmark = self.benchmark()
        with watching_cells() as report:
            rows = benchmark.run(self.out, self.executor, self.device, report, self.command())
        say(f"{len(rows)} rows in {self.out / benchmark.name}.csv, tables in {self.out / benchmark.name}.md")

    def command(self) -> str:
        """What to type for the same numbers."""
        told = {"--scms": self.scms, "--n": self.n, "--seeds": (self.seeds,) * bool(self.seeds)}
        told["--methods"] = tuple(f"'{name}'" for name in self.methods)
        words = [" ".join(map(str, (flag, *values))) for flag, values in told.items() if values]
        return " ".join(["counterpoint bench counterfactuals", *["--quick"] * self.quick, *words])

    def benchmark(self) -> Counterfactuals:
        """What the options describe."""
        base = quick_counterfactuals() if self.quick else Counterfactuals()
        require(self.seeds >= 0, f"--seeds {self.seeds} is no number of seeds; give 1 or more")
        seeds = self.seeds or base.seeds
        on_gpu = device_of(self.device).type == "cuda"
        return replace(
            base,
            scms=self.scms or base.scms,
            n=self.n or base.n,
            seeds=seeds,
            estimators=named(self.methods, base.estimators),
            pack_size=self.pack_size if self.pack_size is not None else 0 if on_gpu else seeds,
        )


@dataclass(frozen=True)
class BenchTumour:
    """Score forecasters on the Causal Transformer's tumour benchmark. Writes tumour.csv, .md, .png, .settings.json."""

    out: Path = Path("results")
    """Folder for the results; started again, it goes on where it was."""
    patients: tuple[int, ...] = ()
    """Training patients; 10000, 1000, 300 and 100 where none is named."""
    gammas: tuple[float, ...] = ()
    """Strengths of confounding; 0 to 4 where none is named."""
    seeds: tuple[int, ...] = ()
    """Data sets; 10, 101, 1010, 10101 and 101010, the published five, where none is named."""
    models: tuple[str, ...] = ()
    """Some of the models; all where none is named."""
    quick: bool = False
    """Two strengths of confounding, few patients, one seed: a minute. Results go to tumour-quick."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the errors do not depend on it."""

    def execute(self) -> None:
        benchmark = self.benchmark()
        with watching_cells() as report:
            rows = benchmark.run(self.out, self.executor, report, "counterpoint bench tumour" + " --quick" * self.quick)
        say(f"{len(rows)} rows in {self.out / benchmark.name}.csv, tables in {self.out / benchmark.name}.md")

    def benchmark(self) -> TumourBenchmark:
        """What the options describe."""
        known = forecasters()
        unknown = [name for name in self.models if name not in known]
        if unknown:
            raise CounterpointError(f"there is no model '{unknown[0]}'; choose from {', '.join(known)}")
        base = quick() if self.quick else TumourBenchmark()
        return replace(
            base,
            patients=self.patients or base.patients,
            gammas=self.gammas or base.gammas,
            seeds=self.seeds or base.seeds,
            forecasters={name: known[name] for name in self.models or known},
        )


@dataclass(frozen=True)
class BenchGroups:
    """Name gravities by groups of subjects' factors, beside the best that can be. Writes groups.csv, .md and .png."""

    out: Path = Path("results")
    """Folder for the results; started again, it goes on where it was."""
    seeds: int = 10
    """Logs."""
    quick: bool = False
    """One log of few subjects: a minute. Results go to groups-quick."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the numbers do not depend on it."""

    def execute(self) -> None:
        benchmark = self.benchmark()
        with watching_cells() as report:
            rows = benchmark.run(self.out, self.executor, report)
        say(f"{len(rows)} rows in {self.out / benchmark.name}.csv, a table in {self.out / benchmark.name}.md")

    def benchmark(self) -> GroupAccuracy:
        """What the options describe."""
        return quick_groups() if self.quick else GroupAccuracy(seeds=self.seeds)


@dataclass(frozen=True)
class BenchEvaluation:
    """Judge policies of known value from logs of known writers. Writes evaluation.csv, .md, .png, .settings.json."""

    out: Path = Path("results")
    """Folder for the results; started again, it goes on where it was."""
    tasks: tuple[str, ...] = ()
    """Some of icu-sepsis (needs the extra `bench`), tumour, hiv and cartpole; all where none is named."""
    logs: int = 0
    """Logs of every task; 50 of icu-sepsis, 20 of tumour and cartpole and 3 of hiv where 0."""
    quick: bool = False
    """Two short logs of one task: a minute. Results go to evaluation-quick."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the numbers do not depend on it."""

    def execute(self) -> None:
        benchmark = self.benchmark()
        with watching_cells() as report:
            rows = benchmark.run(self.out, self.executor, report, self.command())
        say(f"{len(rows)} rows in {self.out / benchmark.name}.csv, tables in {self.out / benchmark.name}.md")

    def command(self) -> str:
        """What to type for the same numbers."""
        tasks, logs = (
            " ".join(("", "--tasks", *self.tasks)) * bool(self.tasks),
            f" --logs {self.logs}" * bool(self.logs),
        )
        return "counterpoint bench evaluation" + (" --quick" if self.quick else tasks + logs)

    def benchmark(self) -> EvaluationBenchmark:
        """What the options describe."""
        if self.quick:
            return quick_evaluation()
        usual = repetitions()
        return EvaluationBenchmark({task: self.logs or usual.get(task, 1) for task in self.tasks or usual})


@dataclass(frozen=True)
class Bench:
    """Models and estimates against the truth: counterfactuals of known SCMs, tumours under planned treatment, subjects
    told apart, policies judged from logs."""

    what: tyro.conf.OmitArgPrefixes[
        tyro.conf.OmitSubcommandPrefixes[
            Annotated[BenchCounterfactuals, tyro.conf.subcommand("counterfactuals")]
            | Annotated[BenchTumour, tyro.conf.subcommand("tumour")]
            | Annotated[BenchGroups, tyro.conf.subcommand("groups")]
            | Annotated[BenchEvaluation, tyro.conf.subcommand("evaluation")]
        ]
    ]
    """The benchmark."""

    def execute(self) -> None:
        self.what.execute()

    def described(self) -> Counterfactuals | TumourBenchmark | GroupAccuracy | EvaluationBenchmark:
        """The benchmark that the options describe."""
        return self.what.benchmark()
