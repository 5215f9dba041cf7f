"""The benchmark of counterfactuals: every estimator against SCMs whose truth is known, over sample sizes and seeds.

A row is (scm, n, seed, method, error, fresh_error, round_trip, recipe, commit): errors of counterfactuals, of fresh
noise in the same model, and of the answer to the action that was taken. Fits of one estimator on problems alike in
shape are learned together, in packs that the definition fixes; two estimators that differ in their abduction alone are
read off one fit. Every finished pack is a file of its own, so that a killed run goes on. A changed recipe or other code
is another pack. Seconds, which no two runs share, have a file of their own.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import encode, recipe_hash, write_text
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.results import made_by, provenance, where, write_csv, write_json
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.bicogan import AdversarialSCM
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV
from counterpoint.tasks.synthetic import PROBLEMS, SIMPSON_SYMPROD, TRIANGLE_NLIN, CausalSet, OneStep, sample
from counterpoint.tasks.tumour import Tumour
from reproduction.cells import Rows, carry_out, read_rows, refuse_failures, write_rows
from reproduction.estimators import about_seconds, auto_candidates, estimators, fit_graphs, gap, quick_estimators
from reproduction.executors import Executor, InProcess
from reproduction.grid import code_version
from reproduction.measures.counterfactual_error import CounterfactualError, questions, score
from reproduction.pages.counterfactuals import COLUMNS, Expected, counterfactual_errors, counterfactuals_page
from reproduction.peers_dowhy import DoWhyGCM
from reproduction.workers import Report, silent

NINE: dict[str, KnownSCM] = {**PROBLEMS, "cartpole": CartPole()}
TASKS: dict[str, KnownSCM] = {**NINE, "tumour": Tumour(), "hiv": HIV()}
SETS: dict[str, CausalSet] = {"triangle-nlin": TRIANGLE_NLIN, "simpson-symprod": SIMPSON_SYMPROD}
SET_ROWS = 20_000
"""The causal sets are published with this many rows."""
TEST_ROWS = 2000
Problem = tuple[str, int]
"""An SCM and the rows to fit on."""


@dataclass(frozen=True)
class Pack:
    """Fits on problems alike in shape, learned in one stack, and the estimators that are read off them."""

    estimators: tuple[tuple[str, Any], ...]
    """(name, recipe) of each; the first is fitted."""
    fits: tuple[tuple[str, int, int], ...]
    """(scm, rows, seed) of each."""

    @property
    def key(self) -> str:
        """What defines the pack, the code included."""
        return recipe_hash(code_version(), TEST_ROWS, self)

    @property
    def recipe(self) -> Any:
        """What is fitted."""
        return self.estimators[0][1]

    @property
    def title(self) -> str:
        """What a line about it names."""
        return f"{' and '.join(name for name, _ in self.estimators)} on {self.fits[0][0]}"

    @property
    def about_seconds(self) -> float:
        """About how long it takes, for the order of the work alone."""
        return sum(about_seconds(self.recipe, n, columns_of(scm)) for scm, n, _ in self.fits)


@dataclass(frozen=True)
class Counterfactuals:
    """What to run."""

    scms: tuple[str, ...] = (*TASKS, *SETS)
    """Which SCMs."""
    n: Widths = (1000, 5000)
    """Rows to fit on; the causal sets have their own number."""
    set_rows: Positive = SET_ROWS
    """Rows of the causal sets."""
    seeds: Positive = 5
    """Data sets and fits."""
    first_seed: Count = 0
    """The first of them."""
    estimators: Mapping[str, Any] = field(default_factory=estimators)
    """Who is asked."""
    pack_size: Count = 0
    """Fits that are learned in one stack at most; 0 for all that are alike, which suits a GPU."""
    name: str = "counterfactuals"
    """What the files are called."""

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [scm for scm in self.scms if scm not in (*TASKS, *SETS)]
        require(not unknown, f"there is no SCM '{(*unknown, '')[0]}'; choose from {', '.join((*TASKS, *SETS))}")
        require(bool(self.packs()), "there is nothing to run; name SCMs, numbers of rows and estimators that fit them")

    def problems(self) -> list[Problem]:
        """Every SCM with every number of rows."""
        return [(scm, n) for scm in self.scms for n in ((self.set_rows,) if scm in SETS else self.n)]

    def gaps(self) -> dict[tuple[str, str], str]:
        """(method, scm) that cannot be asked, and why."""
        found = {
            (name, scm): gap(recipe, columns_of(scm), scm in SETS)
            for name, recipe in self.estimators.items()
            for scm in self.scms
        }
        return {place: why for place, why in found.items() if why}

    def packs(self) -> list[Pack]:
        """All of the work, the longest first."""
        trained: dict[Any, list[tuple[str, Any]]] = {}
        for name, recipe in self.estimators.items():
            trained.setdefault(trained_as(recipe), []).append((name, recipe))
        packs = [pack for own in trained.values() for pack in self._packs_of(tuple(own))]
        return sorted(packs, key=lambda pack: -pack.about_seconds)

    def _packs_of(self, own: tuple[tuple[str, Any], ...]) -> Iterator[Pack]:
        """The packs of estimators that are trained in one way, all of which can be asked the same."""
        (name, recipe), gaps = own[0], self.gaps()
        problems = [problem for problem in self.problems() if (name, problem[0]) not in gaps]
        alike: dict[Any, list[tuple[str, int, int]]] = {}
        for (scm, n), seed in product(problems, range(self.first_seed, self.first_seed + self.seeds)):
            alike.setdefault(shape_of(scm), []).append((scm, n, seed))
        for fits in alike.values():
            # DoWhy gains nothing from a stack, and processes can share small packs out.
            size = self.seeds if isinstance(recipe, DoWhyGCM) else self.pack_size or len(fits)
            for first in range(0, len(fits), size):
                yield Pack(own, tuple(fits[first : first + size]))

    def run(
        self,
        out: Path,
        executor: Executor = InProcess(),
        device: str = "cpu",
        report: Report = silent,
        command: str = "",
    ) -> Rows:
        """Run what is not done yet; write `<name>.csv`, `.seconds.json`, `.md`, `.settings.json` and figures."""
        packs, folder = self.packs(), out / self.name / "cells"
        left = [pack for pack in packs if read_rows(folder / f"{pack.key}.json", COLUMNS) is None]
        keep = lambda pack, rows: write_rows(folder / f"{pack.key}.json", rows)
        work, failures = partial(run_pack, device=device), out / f"{self.name}.failures.txt"
        failed = carry_out(left, work, keep, lambda pack: pack.title, len(packs), failures, executor, report)
        found = [read_rows(folder / f"{pack.key}.json", COLUMNS) or [] for pack in packs]
        rows = self._write(found, out, command or "Counterfactuals().run")
        refuse_failures(failed, len(packs), "packs")
        return rows

    def _write(self, packs: Sequence[Rows], out: Path, command: str) -> Rows:
        """The files of a run from its packs, in the order of the table and not of the work."""
        places = [(s, n, m) for s, n in self.problems() for m in self.estimators]
        order = {place: number for number, place in enumerate(places)}
        rows = sorted(
            (row for pack in packs for row in pack),
            key=lambda row: (order[row["scm"], row["n"], row["method"]], row["seed"]),
        )
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        write_json(_seconds(rows), out / f"{self.name}.seconds.json")
        made = made_by([[{**pack[0], "seconds": _whole(pack)}] for pack in packs if pack], "method")
        write_json({**encode(self), **made, **provenance(), **_peers()}, out / f"{self.name}.settings.json")
        if rows:
            write_text(out / f"{self.name}.md", counterfactuals_page(rows, self.expected(), command))
            self._draw(rows, out)
        return rows

    def _draw(self, rows: Rows, out: Path) -> None:
        """A figure for each number of rows, the estimators in their order."""
        names = list(self.estimators)
        for n in sorted({row["n"] for row in rows}):
            some = sorted((row for row in rows if row["n"] == n), key=lambda row: names.index(row["method"]))
            counterfactual_errors(some, out / f"{self.name}_{n}.png", title=f"Counterfactual error, {n} rows")

    def expected(self) -> Expected:
        """What a whole table holds."""
        return Expected(
            tuple(self.problems()),
            tuple(self.estimators),
            self.seeds,
            self.gaps(),
            auto_candidates(self.estimators),
            tuple(scm for scm in self.scms if scm in NINE),
        )


def quick() -> Counterfactuals:
    """Four SCMs, few rows, one seed and brief training: less than two minutes on one core."""
    scms = ("b", "f", "cartpole", "triangle-nlin")
    return Counterfactuals(scms, (400,), 400, 1, estimators=quick_estimators(), name="counterfactuals-quick")


def named(wanted: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """The estimators of these names, or all of them where none is named."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise CounterpointError(f"there is no method '{unknown[0]}'; choose from {', '.join(known)}")
    return {name: recipe for name, recipe in known.items() if not wanted or name in wanted}


def trained_as(recipe: Any) -> Any:
    """What two estimators share that one fit serves."""
    return recipe.trained if isinstance(recipe, AdversarialSCM) else recipe


def fingerprint(recipe: Any) -> str:
    """A hash of a recipe, with a letter before it so that a CSV does not give it back as a number."""
    return f"r{recipe_hash(recipe)}"


def columns_of(scm: str) -> int:
    """Columns of the state, or variables of the graph."""
    return len(SETS[scm].names) if scm in SETS else len(TASKS[scm].state_names)


def shape_of(scm: str) -> tuple[Any, ...]:
    """What must agree for two problems to be learned in one stack; a graph is learned alone."""
    return (scm,) if scm in SETS else (TASKS[scm].state_names, TASKS[scm].actions)


def log(scm: str, n: int, seed: int) -> Transitions:
    """`n` rows of a problem with their noise; trials of 20 steps under random actions where it is sequential."""
    task = TASKS[scm]
    if isinstance(task, OneStep):
        return sample(task, n, seed)
    return simulate(task, random_policy(task), n // 20, 20, seed)


def blind(rows: Transitions) -> Transitions:
    """Without the noise: no model may see it."""
    return replace(rows, noise=rows.noise[:, :0])


def run_pack(pack: Pack, report: Report = silent, device: str = "cpu") -> Rows:
    """Fit every problem of a pack, in one stack, and judge each model on rows it has not seen."""
    begun = time.process_time()
    models = _fitted(pack, device)
    made = {**where(), "seconds": (time.process_time() - begun) / len(models)}
    made["commit"] = made["commit"] or "unknown"
    found = (
        (name, recipe, fit, _error(model if recipe == pack.recipe else recipe.reread(model), fit))
        for name, recipe in pack.estimators
        for model, fit in zip(models, pack.fits, strict=True)
    )
    return [
        {"scm": scm, "n": n, "seed": seed, "method": name, "error": error.error, "fresh_error": error.fresh_error,
         "round_trip": error.round_trip, "recipe": fingerprint(recipe), **made}
        for name, recipe, (scm, n, seed), error in found
    ]  # fmt: skip


def _fitted(pack: Pack, device: str) -> list[Any]:
    scm, seeds = pack.fits[0][0], [seed for _, _, seed in pack.fits]
    if scm in SETS:
        tables = [SETS[scm].sample(n, derive(seed, "fit"))[0] for _, n, seed in pack.fits]
        return fit_graphs(pack.recipe, tables, SETS[scm].parents, seeds, device)
    jobs = [Job(blind(log(scm, n, derive(seed, "fit"))), seed) for scm, n, seed in pack.fits]
    return pack.recipe.fit_many(jobs, device=device)


def _error(model: Any, fit: tuple[str, int, int]) -> CounterfactualError:
    scm, _, seed = fit
    if scm in SETS:
        return _set_error(model, SETS[scm], seed)
    return score(model, questions(TASKS[scm], log(scm, TEST_ROWS, derive(seed, "test")), seed), seed)


def _set_error(model: Any, causal: CausalSet, seed: int) -> CounterfactualError:
    """Mean distance over interventions at the 25th, 50th and 75th percentiles."""
    x, noise = causal.sample(TEST_ROWS, derive(seed, "test"))
    answers, fresh = [], []
    for variable, value in causal.questions(x):
        truth, held = causal.counterfactual(noise, variable, value), {variable: value}
        answers.append(_distance(model.counterfactual(x, held), truth))
        fresh.append(_distance(model.sample(len(x), generator(seed, "fresh"), held), truth))
    round_trip = _distance(model.counterfactual(x, {}), x)
    return CounterfactualError(fmean(answers), fmean(fresh), round_trip, float("nan"), ())


def _distance(left: Float[Tensor, "n x"], right: Float[Tensor, "n x"]) -> float:
    return float((left - right).norm(dim=1).mean())


def _whole(pack: Rows) -> float:
    """Seconds of all fits of a pack; estimators that were read off one fit all tell its seconds."""
    return sum(row["seconds"] for row in pack if row["method"] == pack[0]["method"])


def _seconds(rows: Rows) -> dict[str, Any]:
    """Processor seconds of a fit: method → scm → rows, the mean over the stack that it was learned in."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["scm"], {})[str(row["n"])] = round(row["seconds"], 3)
    return found


def _peers() -> dict[str, str]:
    """Versions of libraries beside which ours is measured, where they are there."""
    try:
        return {"dowhy": metadata.version("dowhy")}
    except metadata.PackageNotFoundError:
        return {}
