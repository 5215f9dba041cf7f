"""`counterpoint reproduce`: experiments as grids that can be killed, restarted and spread out."""

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from counterpoint.cli.console import say, show
from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import CounterpointError
from counterpoint.tasks.cartpole import PLANETS
from reproduction.ablations import (
    ablation_comparisons,
    ablations,
    quick_ablations,
    quick_search_ablations,
    search_ablations,
)
from reproduction.behaviour import RANDOM_ACTION_SHARE
from reproduction.classic import COLUMNS as CLASSIC_COLUMNS
from reproduction.classic import Classic, quick_problems
from reproduction.commands.sepsis import demo_cohort, report_of
from reproduction.commands.watching import Executors, watching_cells
from reproduction.executors import Auto, Ray
from reproduction.grid import Grid, Protocol
from reproduction.hd import HD, HD_PROTOCOL
from reproduction.hd_arms import hd_arms, quick_hd_arms
from reproduction.pages.hd import means
from reproduction.pages.sepsis import policy_lines, why_none_is_evaluated
from reproduction.runner import Ran, run
from reproduction.sd import quick_sd, sd, sd_comparisons
from reproduction.sepsis import REPORTED, Sepsis
from reproduction.sepsis_arms import SepsisArms, quick_sepsis_arms
from reproduction.sepsis_cohort import PATIENTS, Cohort, SyntheticPatients, TableCohort
from reproduction.summary import levels, write_summary

Experiment = Literal[
    "all", "sd", "sd-nonrandom", "hd", "hd-nonrandom", "ablations", "search-ablations", "classic", "sepsis"
]  # fmt: skip
QUICK_SEEDS, QUICK_PATIENTS, QUICK_EPISODES = 2, 300, 10
"""With --quick: seeds, synthetic patients, and episodes that a policy is tried in."""
CPU_SAVES, GPU_SAVES = 5.0, 60.0
"""Seconds between two checkpoints: a stack of a hundred networks on a GPU is quick to train and slow to write."""


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment: the table of returns, statistics and figures. Started again, it goes on where it was."""

    experiment: tyro.conf.Positional[Experiment]
    """sd (Figure 2a), hd (Figure 2b), sd-nonrandom and hd-nonrandom (their twins in the appendix), ablations of CTRL_g
    and of the search inside its SCM, classic (the search in Gymnasium's environments), sepsis (Figure 3); all of them,
    with `counterpoint bench`."""
    out: Path = Path("results")
    """Folder for <experiment>.csv, .md, .png and .settings.json; cells and checkpoints lie in <experiment>/."""
    quick: bool = False
    """Small networks, few seeds, two sizes: minutes on two cores. Results go to <experiment>-quick."""
    seeds: int | None = None
    """Data sets and training seeds; 20 (classic and sepsis: 10), or 2 with --quick."""
    methods: tuple[str, ...] = ()
    """Some of the methods; all where none is named."""
    trials: tuple[int, ...] = ()
    """Logged trials a data set has, other sizes than the experiment's."""
    random_action_share: float = RANDOM_ACTION_SHARE
    """Share of random actions in non-random logs; with few of them, logs hold no failures to learn from. Results with
    another share than 0.7 go to <experiment>-<percent>."""
    cohort: str = "synthetic"
    """Of sepsis: synthetic, whose truth is known; demo, of MIMIC-III's open demo; or a file of `counterpoint mimic` or
    `counterpoint cohort`."""
    patients: int | None = None
    """Of sepsis' synthetic cohort: 1,565, or 300 with --quick; the paper has 15,656."""
    raw: Path | None = None
    """Of sepsis' demo: its raw folder; the variable COUNTERPOINT_MIMIC_DEMO where none is given."""
    plan: bool = False
    """Of all: print what is done, what is left and how long it takes, and stop."""
    keep: bool = False
    """Of all: go on in a folder with results of another commit."""
    side_by_side: int | None = None
    """Of all: parts that run at the same time; they share the executor's processes, and a GPU by CUDA's MPS where that
    is installed. All of them on a GPU, two on processors."""
    without: tuple[str, ...] = ()
    """Of all: parts that are left to another machine, as those that need no GPU; without this option the command
    completes a folder with what both have made."""
    device: str = "auto"
    """cpu, cuda or auto."""
    pack_size: int | None = None
    """Cells learned in one stack; all of a method on a GPU, those of one size on a CPU. Part of what fixes the rows."""
    executor: tyro.conf.OmitArgPrefixes[Executors] = Auto()
    """Where the work is done; the rows do not depend on it."""

    def execute(self) -> None:
        if self.experiment == "all":
            self._all()
            return
        if self.plan or self.keep or self.without or self.side_by_side is not None:
            raise CounterpointError(
                f"{self.experiment} has neither --plan nor --keep nor --without nor --side-by-side; only all has"
            )
        if self.experiment == "sepsis":
            self._sepsis()
            return
        if self.cohort != "synthetic" or self.patients is not None or self.raw is not None:
            raise CounterpointError(f"{self.experiment} has neither --cohort nor --patients nor --raw; leave them out")
        if self.experiment == "classic":
            self._classic()
            return
        if self.experiment in ("hd", "hd-nonrandom"):
            self._hd()
            return
        grid = self.grid()
        say(f"{grid.name}: {len(grid.cells())} cells ({len(grid.arms)} methods × {len(grid.trials)} sizes × "
            f"{len(grid.seeds)} seeds) in {len(grid.packs())} packs; cells in {self.out / grid.name}\n")  # fmt: skip
        with watching_cells() as report:
            ran = run(grid, self.out, self.executor, self.device, report, GPU_SAVES if self._on_gpu() else CPU_SAVES)
        self._conclude(grid, ran)

    def described(self) -> Grid | HD | Classic | Sepsis:
        """The experiment that the options describe."""
        if self.experiment == "sepsis":
            return self.sepsis()
        if self.experiment == "classic":
            return self.classic()
        return self.hd() if self.experiment in ("hd", "hd-nonrandom") else self.grid()

    def _all(self) -> None:
        """Every part, one after the other or side by side."""
        # Its parts are commands, this one among them.
        from reproduction.commands.reproduce_all import ReproduceAll

        told = self.out, self.quick, self.device, self.executor, self.side_by_side, self.keep, self.without
        everything = ReproduceAll(*told)
        mine = replace(Reproduce("all"), plan=self.plan, **{f.name: getattr(self, f.name) for f in fields(everything)})
        if mine != self:
            raise CounterpointError("all takes its parts as they are; for other seeds, methods or logs run one alone")
        everything.show_plan()
        if not self.plan:
            everything.run()

    def grid(self) -> Grid:
        """The grid that the options describe."""
        seeds = self.seeds if self.seeds is not None else QUICK_SEEDS if self.quick else 20
        if seeds < 2:
            raise CounterpointError(f"{seeds} seeds give no interval; set --seeds to 2 or more")
        pack_size = self.pack_size if self.pack_size is not None else 0 if self._on_gpu() else seeds
        if pack_size < 0:
            raise CounterpointError(f"a pack cannot hold {pack_size} cells; set --pack-size to 1 or more, or 0 for all")
        if self.experiment == "ablations":
            grid = (quick_ablations if self.quick else ablations)(seeds, self.methods, pack_size)
        elif self.experiment == "search-ablations":
            grid = (quick_search_ablations if self.quick else search_ablations)(seeds, self.methods, pack_size)
        else:
            behaviour = "random" if self.experiment == "sd" else "non-random"
            grid = (quick_sd if self.quick else sd)(behaviour, seeds, self.methods, pack_size)
        return self._logged(grid)

    def _hd(self) -> None:
        """Policies from a log of five gravities, judged on each."""
        if self.trials or self.pack_size is not None:
            raise CounterpointError("hd has neither --trials nor --pack-size; leave them out")
        experiment = self.hd()
        with watching_cells() as report:
            rows = experiment.run(self.out, self.executor, self.device, report)
        show([{k: row[k] for k in ("method", *PLANETS, "mean")} for row in means(rows)], "mean return on each planet")
        say(f"every cell in {self.out / experiment.name}.csv, statistics in {self.out / experiment.name}.md")

    def hd(self) -> HD:
        """The experiment with five gravities that the options describe."""
        seeds = self.seeds if self.seeds is not None else QUICK_SEEDS if self.quick else 20
        arms = (quick_hd_arms if self.quick else hd_arms)()
        unknown = [name for name in self.methods if name not in arms]
        if unknown:
            raise CounterpointError(f"there is no method '{unknown[0]}'; choose from {', '.join(arms)}")
        chosen = {name: arm for name, arm in arms.items() if not self.methods or name in self.methods}
        behaviour = "random" if self.experiment == "hd" else "non-random"
        suffix = self._name().removeprefix(self.experiment)
        return HD(behaviour, chosen, seeds, protocol=self._protocol(HD_PROTOCOL), suffix=suffix)

    def _classic(self) -> None:
        """Search in Gymnasium's environments, which are no grid of one task's trials."""
        if self.trials or self.methods or self.pack_size is not None:
            raise CounterpointError("classic has neither --methods nor --trials nor --pack-size; leave them out")
        experiment = self.classic()
        with watching_cells() as report:
            rows = experiment.run(self.out, self.executor, self.device, report)
        show([{k: row[k] for k in CLASSIC_COLUMNS} for row in rows], "return in the environment and in the model")
        say(f"every cell in {self.out / experiment.name}.csv")

    def classic(self) -> Classic:
        """The experiment with Gymnasium's environments that the options describe."""
        seeds = self.seeds if self.seeds is not None else QUICK_SEEDS if self.quick else 10
        if seeds < 1:
            raise CounterpointError(f"{seeds} seeds are nothing to run; set --seeds to 1 or more")
        return Classic(quick_problems(), seeds, name="classic-quick") if self.quick else Classic(seeds=seeds)

    def _sepsis(self) -> None:
        """Policies for septic patients, judged by themselves, from records and against the truth where it is known."""
        if self.trials or self.pack_size is not None:
            raise CounterpointError("sepsis has neither --trials nor --pack-size; leave them out")
        experiment = self.sepsis()
        with watching_cells() as report:
            cells = experiment.run(self.out, self.executor, self.device, report, self._sepsis_command())
        if policies := policy_lines(cells):
            show(policies, "policies for septic patients")
            if REPORTED in experiment.arms.policies:
                say(f"the report of seed {experiment.first_seed} in {report_of(experiment, self.out)}")
        if why_not := why_none_is_evaluated(cells):
            say(why_not)
        say(f"every estimate in {self.out / experiment.name}.csv, tables in {self.out / experiment.name}.md")

    def sepsis(self) -> Sepsis:
        """The experiment with septic patients that the options describe."""
        cohort, seeds = self._cohort(), self.seeds
        arms = quick_sepsis_arms() if self.quick else SepsisArms()
        usual = QUICK_SEEDS if self.quick else 10 if isinstance(cohort, SyntheticPatients) else 1
        seeds = seeds if seeds is not None else usual
        arms = replace(arms, policies=self.methods or arms.policies)
        return Sepsis(cohort, arms, seeds, trials=500 if self.quick else 2000, name="sepsis" + "-quick" * self.quick)

    def _cohort(self) -> Cohort:
        if self.cohort == "synthetic":
            return SyntheticPatients(self.patients or (QUICK_PATIENTS if self.quick else PATIENTS // 10))
        if self.patients is not None:
            raise CounterpointError("--patients is for the synthetic cohort; a table has those that it has")
        return TableCohort.of(demo_cohort(self.raw, self.out) if self.cohort == "demo" else Path(self.cohort))

    def _sepsis_command(self) -> str:
        """What to type for the same numbers."""
        told = {"--cohort": None if self.cohort == "synthetic" else Path(self.cohort).name,
                "--patients": self.patients, "--seeds": self.seeds,
                "--methods": shlex.join(self.methods) or None}  # fmt: skip
        words = [f"{flag} {value}" for flag, value in told.items() if value is not None]
        return " ".join(["counterpoint reproduce sepsis", *words, *(["--quick"] * self.quick)])

    def _logged(self, grid: Grid) -> Grid:
        """The grid with other logs, where the options ask for them."""
        if not 0 <= self.random_action_share <= 1:
            raise CounterpointError(f"a share of {self.random_action_share} random actions is not possible; use 0 to 1")
        most = grid.protocol.logged_trials
        for trials in self.trials:
            if not 1 <= trials <= most:
                raise CounterpointError(f"a log has 1 to {most} trials, not {trials}; choose --trials in between")
        sizes = tuple(dict.fromkeys(self.trials)) or grid.trials
        return replace(grid, name=self._name(), trials=sizes, protocol=self._protocol(grid.protocol))

    def _protocol(self, usual: Protocol) -> Protocol:
        episodes = QUICK_EPISODES if self.quick else usual.evaluation_trials
        return replace(usual, random_action_share=self.random_action_share, evaluation_trials=episodes)

    def _name(self) -> str:
        """What the files are called: logs with another share of random actions are another experiment."""
        other = self.experiment.endswith("nonrandom") and self.random_action_share != RANDOM_ACTION_SHARE
        return self.experiment + f"-{100 * self.random_action_share:g}" * other + "-quick" * self.quick

    def _on_gpu(self) -> bool:
        """A cluster's workers may have the GPU that this machine lacks."""
        if isinstance(self.executor, Ray) and self.device.startswith("cuda"):
            return True
        return device_of(self.device).type == "cuda"

    def _conclude(self, grid: Grid, ran: Ran) -> None:
        """The summary beside the rows, a short table here, and what failed."""
        ablated = self.experiment.endswith("ablations")
        comparisons = ablation_comparisons(grid) if ablated else sd_comparisons(grid)
        failures = [each.row() for each in ran.failures]
        paper = "" if ablated else grid.behaviour
        if ran.rows:
            ceiling = next(iter(grid.arms.values())).task.ceiling
            page = write_summary(grid.name, ran.rows, comparisons, self.out, failures, paper, ceiling)
            show([{k: row[k] for k in ("method", "trials", "seeds", "estimate", "low", "high")}
                  for row in levels(ran.rows)], "interquartile mean return with 95% interval")  # fmt: skip
            say(f"every cell in {self.out / grid.name}.csv, statistics in {page}")
        if failures:
            show(failures, "cells that failed")
            raise CounterpointError(
                f"{len(failures)} of {len(grid.cells())} cells failed; run the same command again to try them once more"
            )
