"""The benchmark of counterfactuals: every model against SCMs whose truth is known, over sample sizes and seeds.

A row is (scm, n, seed, method, error, fresh_error, round_trip, seconds). The error of (s, a, s') problems is normalised
(1 is as good as copying the factual outcome); that of the two causal sets is the mean distance between answer and truth
under do(x_i = v), v the 25th, 50th and 75th percentile.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.artifacts import encode, recipe_hash, write_text
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.counterfactual_error import CounterfactualError, questions, score
from counterpoint.nets.laws import Mixture, Spline
from counterpoint.report.heatmap import counterfactual_errors
from counterpoint.report.results import markdown_table, provenance, read_csv, require_columns, write_csv, write_json
from counterpoint.scm.auto import Auto
from counterpoint.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.scm.density import DensitySCM, default_scm, location_scale
from counterpoint.scm.graph import fit_graph
from counterpoint.seeding import derive, generator
from counterpoint.settings import Positive, Widths, check_settings
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV
from counterpoint.tasks.synthetic import PROBLEMS, SIMPSON_SYMPROD, TRIANGLE_NLIN, CausalSet, OneStep, sample
from counterpoint.tasks.tumour import Tumour

COLUMNS = ("scm", "n", "seed", "method", "error", "fresh_error", "round_trip", "seconds", "recipe")
TASKS: dict[str, KnownSCM] = {**PROBLEMS, "cartpole": CartPole(), "tumour": Tumour(), "hiv": HIV()}
SETS: dict[str, CausalSet] = {"triangle-nlin": TRIANGLE_NLIN, "simpson-symprod": SIMPSON_SYMPROD}
SET_ROWS = 20_000
"""The causal sets are published with this many rows."""
TEST_ROWS = 2000


class Copy:
    """The answer that nothing would have changed."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> list["Copy"]:
        return [self for _ in jobs]

    def imagine(self, rows: Transitions, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        return rows.next_state[:, None].expand(-1, action.shape[1], -1)

    def sample(self, state: Tensor, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        return state


def methods() -> dict[str, Any]:
    """Every model, by the name it has in the table."""
    return {
        "copy the outcome": Copy(),
        "conditional mean": Deterministic(hidden=(64, 64), batch_norm=False),
        "BiCoGAN, paper": BiCoGAN(),
        "conditional BiCoGAN, encoder": ConditionalBiCoGAN(abduction="encoder"),
        "conditional BiCoGAN, inversion": ConditionalBiCoGAN(),
        "location-scale": location_scale(ensemble=1),
        "location-scale ×5": location_scale(),
        "mixture ×5": DensitySCM(Mixture()),
        "spline ×5": DensitySCM(Spline()),
        "default": default_scm(),
        "default, order given": replace(default_scm(), order=(0, 1, 2, 3)),
        "auto": Auto(),
    }


def fingerprint(method: str) -> str:
    """A hash of the recipe behind a name, with a letter before it so that a CSV does not give it back as a number."""
    return f"r{recipe_hash(methods()[method])}"


@dataclass(frozen=True)
class Counterfactuals:
    """What to run."""

    scms: tuple[str, ...] = (*TASKS, *SETS)
    """Which SCMs."""
    n: Widths = (1000, 5000)
    """Rows to fit on; the causal sets always have 20000."""
    seeds: Positive = 5
    """Data sets and fits."""
    first_seed: int = 0
    """The first of them."""
    methods: tuple[str, ...] = ()
    """Which models; all where none is named."""
    device: str = "cpu"
    """cpu, cuda or auto."""

    def __post_init__(self) -> None:
        check_settings(self)

    def cells(self) -> list[tuple[str, int, str]]:
        """(scm, n, method) in order; each is fitted on all seeds at once."""
        names = self._chosen(self.methods, tuple(methods()), "model") or tuple(methods())
        scms = self._chosen(self.scms, (*TASKS, *SETS), "SCM")
        return [(s, n, m) for s in scms for n in ((SET_ROWS,) if s in SETS else self.n) for m in names if fits(s, m)]

    def run(self, out: Path, report: Callable[[str, int, int], None] = lambda stage, done, total: None) -> list[dict]:
        """Run what the CSV in `out` does not hold yet; it is written after every cell, so a stopped run goes on."""
        path = out / "counterfactuals.csv"
        out.mkdir(parents=True, exist_ok=True)
        rows = read_csv(path) if path.exists() else []
        if rows:
            require_columns(rows, COLUMNS[:-1], path.name)
        cells = self.cells()
        for number, cell in enumerate(cells):
            recipe = fingerprint(cell[2])
            done = [row for row in rows if row.get("recipe") == recipe]
            missing = [seed for seed in self._seeds() if not any(_is(row, cell, seed) for row in done)]
            if missing:
                rows = [row for row in rows if not any(_is(row, cell, seed) for seed in missing)]
                rows += run_cell(*cell, missing, self.device)
                write_csv(rows, path, COLUMNS)
            report("cells", number + 1, len(cells))
        settings = {name: encode(method) for name, method in methods().items()}
        write_json(
            {"options": encode(self), "methods": settings, **provenance()}, out / "counterfactuals.settings.json"
        )
        write_pages(rows, out)
        return rows

    def _seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def _chosen(self, wanted: tuple[str, ...], known: tuple[str, ...], what: str) -> tuple[str, ...]:
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise CounterpointError(f"there is no {what} '{unknown[0]}'; choose from {', '.join(known)}")
        return wanted


def fits(scm: str, method: str) -> bool:
    """Whether a model can be asked: an order needs four states, the causal sets need a graph."""
    if scm in SETS:
        return method in ("location-scale ×5", "spline ×5", "default")
    return method != "default, order given" or (scm in PROBLEMS and len(PROBLEMS[scm].state_names) == 4)


def log(scm: str, n: int, seed: int) -> Transitions:
    """`n` rows of a problem with their noise; trials of 20 steps under random actions where it is sequential."""
    task = TASKS[scm]
    if isinstance(task, OneStep):
        return sample(task, n, seed)
    return simulate(task, random_policy(task), n // 20, 20, seed)


def run_cell(scm: str, n: int, method: str, seeds: Sequence[int], device: str) -> list[dict[str, Any]]:
    """Fit one model on one problem for every seed, in one stack, and judge it on rows it has not seen."""
    recipe, begun = methods()[method], time.perf_counter()
    if scm in SETS:
        errors = _causal_set_errors(SETS[scm], recipe, seeds, device)
    else:
        jobs = [Job(blind(log(scm, n, derive(seed, "fit"))), seed) for seed in seeds]
        models = recipe.fit_many(jobs, device=device)
        seconds = time.perf_counter() - begun
        errors = [_error(model, scm, seed) for model, seed in zip(models, seeds, strict=True)]
        begun = time.perf_counter() - seconds
    seconds = (time.perf_counter() - begun) / len(seeds)
    return [
        {"scm": scm, "n": n, "seed": seed, "method": method, "error": e.error, "fresh_error": e.fresh_error,
         "round_trip": e.round_trip, "seconds": seconds, "recipe": fingerprint(method)}
        for seed, e in zip(seeds, errors, strict=True)
    ]  # fmt: skip


def blind(rows: Transitions) -> Transitions:
    """Without the noise: no model may see it."""
    return replace(rows, noise=rows.noise[:, :0])


def _error(model: Any, scm: str, seed: int) -> CounterfactualError:
    test = log(scm, TEST_ROWS, derive(seed, "test"))
    return score(model, questions(TASKS[scm], test, seed), seed)


def _causal_set_errors(
    causal: CausalSet, recipe: DensitySCM, seeds: Sequence[int], device: str
) -> list[CounterfactualError]:
    tables = [causal.sample(SET_ROWS, derive(seed, "fit"))[0] for seed in seeds]
    models = fit_graph(recipe, tables, causal.parents, seeds, device=device)
    return [_set_error(model, causal, seed) for model, seed in zip(models, seeds, strict=True)]


def _set_error(model: Any, causal: CausalSet, seed: int) -> CounterfactualError:
    """Mean distance over interventions at the 25th, 50th and 75th percentiles."""
    x, noise = causal.sample(TEST_ROWS, derive(seed, "test"))
    answers, fresh = [], []
    for variable, value in causal.questions(x):
        truth = causal.counterfactual(noise, variable, value)
        answers.append(_distance(model.counterfactual(x, variable, value), truth))
        fresh.append(_distance(model.sample(len(x), generator(seed, "fresh"), {variable: value}), truth))
    round_trip = _distance(model.predict(model.abduct(x)).to(x), x)
    return CounterfactualError(_mean(answers), _mean(fresh), round_trip, float("nan"), ())


def _distance(left: Float[Tensor, "n x"], right: Float[Tensor, "n x"]) -> float:
    return float((left - right).norm(dim=1).mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _is(row: Mapping[str, Any], cell: tuple[str, int, str], seed: int) -> bool:
    return (row["scm"], int(row["n"]), row["method"], int(row["seed"])) == (*cell, seed)


def write_pages(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """The Markdown tables and the figures, one a sample size, of rows that today's recipes made."""
    rows = [row for row in rows if row["method"] in methods() and row.get("recipe") == fingerprint(row["method"])]
    text = ["# Counterfactual error against the truth\n", (__doc__ or "").split("\n\n")[1].replace("\n", " "), ""]
    for n in sorted({int(row["n"]) for row in rows}):
        some = [row for row in rows if int(row["n"]) == n]
        text += [
            f"\n## {n} rows\n",
            f"Mean of the seeds; `counterpoint bench counterfactuals --n {n}`.\n",
            _table(some),
        ]
        text += ["\nFresh noise on the same models, which is what abduction buys:\n", _table(some, "fresh_error")]
        text += ["\nSeconds to fit one seed:\n", _table(some, "seconds")]
        counterfactual_errors(some, out / f"counterfactuals_{n}.png", title=f"Counterfactual error, {n} rows")
    write_text(out / "counterfactuals.md", "\n".join(text) + "\n")


def _table(rows: Sequence[Mapping[str, Any]], quantity: str = "error") -> str:
    scms = list(dict.fromkeys(row["scm"] for row in rows))
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {s: [float(r[quantity]) for r in rows if r["scm"] == s and r["method"] == method] for s in scms}
        lines.append({"method": method, **{s: f"{_mean(v):.3g}" if v else "" for s, v in mine.items()}})
    return markdown_table(lines)
