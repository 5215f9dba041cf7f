"""The parts of `counterpoint reproduce all`: tables that can each be made alone, by a command of its own."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import tyro

from counterpoint.core.artifacts import read_json
from counterpoint.core.results import hardware
from counterpoint.learners.methods import CTRL_G, CTRL_G_BICOGAN, SEARCH
from reproduction.classic import Classic
from reproduction.commands.bench import Bench
from reproduction.commands.reproduce import Reproduce
from reproduction.counterfactuals import Counterfactuals
from reproduction.evaluation import EvaluationBenchmark
from reproduction.grid import Grid
from reproduction.groups import GroupAccuracy
from reproduction.hd import HD
from reproduction.sepsis import Sepsis
from reproduction.tumour import TumourBenchmark

Command = Annotated[Reproduce, tyro.conf.subcommand("reproduce")] | Annotated[Bench, tyro.conf.subcommand("bench")]
Experiment = Grid | HD | Classic | Sepsis | Counterfactuals | TumourBenchmark | GroupAccuracy | EvaluationBenchmark
WITHOUT_FAILURES = ("D3QN", "Base-S", CTRL_G_BICOGAN, CTRL_G, "BCQ", SEARCH)
"""Who is asked to learn from logs of few random actions, most of which hold no failure."""
PARTS: Mapping[str, tuple[str, ...]] = {
    **{name: ("reproduce", name) for name in ("sd", "hd", "hd-nonrandom", "search-ablations", "sepsis", "classic")},
    "sd-nonrandom": ("reproduce", "sd-nonrandom"),
    "counterfactuals": ("bench", "counterfactuals"),
    "ablations": ("reproduce", "ablations"),
    "sd-nonrandom-20": ("reproduce", "sd-nonrandom", "--random-action-share", "0.2", "--methods", *WITHOUT_FAILURES),
    **{name: ("bench", name) for name in ("tumour", "groups", "evaluation")},
}
"""What to type for each, after `counterpoint`, in the order of the work: parts of long packs first, so that at the end
no process is left alone with one."""
HOST = ("tumour", "groups", "evaluation")
"""Parts that run on the processor alone."""
QUICK: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sd", "sd-nonrandom", "sd-nonrandom-20"), ("--quick", "--trials", "50")),
}
"""What --quick adds to a part, where it is not --quick alone."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one process for a whole part."""

    gpu: float | None = None
    """On one H200 and a core beside it."""
    core: float | None = None
    """On one core."""
    quick: float | None = None
    """On one core, with --quick."""


MEASURED: Mapping[str, Measured] = {
    "sd": Measured(gpu=5770, quick=360),
    "hd": Measured(gpu=1944, quick=83),
    "hd-nonrandom": Measured(gpu=1221, quick=62),
    "search-ablations": Measured(gpu=1008, quick=325),
    "sepsis": Measured(gpu=2888, quick=226),
    "classic": Measured(gpu=437, quick=13),
    "sd-nonrandom": Measured(gpu=2380, quick=187),
    "counterfactuals": Measured(gpu=3225, quick=22),
    "ablations": Measured(gpu=735, quick=164),
    "sd-nonrandom-20": Measured(gpu=394, quick=93),
    "tumour": Measured(gpu=1894, core=1894, quick=29),
    "groups": Measured(gpu=655, core=655, quick=9),
    "evaluation": Measured(gpu=1052, core=1052, quick=24),
}
"""What the tables of `results/` took, and runs with --quick, with as many processes at work as there were cores; a part
that is not here was not timed."""


@dataclass(frozen=True)
class Part:
    """One table."""

    name: str
    words: tuple[str, ...]
    """What to type after `counterpoint`, but for the folder."""
    out: Path
    """Where its files lie."""

    @property
    def typed(self) -> list[str]:
        """All that is typed after `counterpoint`; an executor is named last."""
        return [*self.words[:2], "--out", str(self.out), *self.words[2:]]

    @property
    def line(self) -> str:
        """What to type in a shell, but for the folder."""
        return shlex.join(["counterpoint", *self.words])

    @cached_property
    def command(self) -> Reproduce | Bench:
        return tyro.cli(Command, args=self.typed)

    @cached_property
    def experiment(self) -> Experiment:
        return self.command.described()

    @property
    def file(self) -> str:
        """What its files are called."""
        return self.experiment.name

    def settings(self) -> dict[str, Any]:
        """What an earlier run told of itself; empty where there was none."""
        path = self.out / f"{self.file}.settings.json"
        return read_json(path, "choose a fresh --out") if path.exists() else {}

    @cached_property
    def keys(self) -> list[Any]:
        """What its cells are known by."""
        experiment = self.experiment
        if isinstance(experiment, Counterfactuals):
            return [pack.key for pack in experiment.packs()]
        if isinstance(experiment, HD | Classic):
            return [pack.key(seed) for pack in experiment.packs() for seed in pack.seeds]
        return [cell.key for cell in experiment.cells()]

    def cells(self) -> tuple[int, int]:
        """How many are done, of how many."""
        kept = {path.stem for path in (self.out / self.file / "cells").glob("*.json")}
        return sum(key in kept for key in self.keys), len(self.keys)

    def seeds(self) -> Any:
        """The seeds of its cells; for evaluation, the logs of every task."""
        experiment: Any = self.experiment
        if isinstance(experiment, EvaluationBenchmark):
            return dict(experiment.repetitions)
        if isinstance(experiment, Grid | TumourBenchmark):
            return list(experiment.seeds)
        return list(range(experiment.first_seed, experiment.first_seed + experiment.seeds))

    def seconds_a_cell(self, quick: bool, cells: int) -> float | None:
        """What a cell took one process on a machine like this one: in an earlier run, else when it was measured."""
        earlier, here = self.settings(), hardware()
        made = earlier.get("ran_on", [])
        if made and earlier.get("seconds") and all(each["device"] == here["device"] for each in made):
            return sum(earlier["seconds"].values()) / sum(each["cells"] for each in made)
        known = MEASURED.get(self.name, Measured())
        whole = known.quick if quick else known.gpu if here["accelerator"] == "cuda" else known.core
        return None if whole is None else whole / cells
