"""The paper's HD experiment: five gravities in one log, and policies judged on each planet (Figure 2b and its twin).

A row is (method, behaviour, planet, seed, return_selected, return_last, return_in_model, commit, device). All seeds of
a method are learned in one stack; every finished cell is a file of its own, so a killed run goes on. A run of some
methods leaves the rows of the others as they are, made by the code that their column names. A personal policy begins
every episode with a pole it knows nothing of, and learns about its gravity from step to step.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from counterpoint.core.artifacts import (
    device_of,
    encode,
    read_json,
    read_tensors,
    recipe_hash,
    write_tensors,
    write_text,
)
from counterpoint.core.errors import require
from counterpoint.core.results import provenance, ran_on, read_csv, seconds_by, where, write_csv, write_json
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.nets.training import Monitor
from counterpoint.ope.true_return import true_returns
from counterpoint.policies.base import Learned, ModelBased, Policy
from counterpoint.simulation.trials import simulate_population
from counterpoint.tasks.cartpole import PLANETS, CartPole
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor
from reproduction.grid import Behaviour, Protocol, behaviour_recipe, behaviours, code_version
from reproduction.hd_arms import HDArm, Split, hd_arms
from reproduction.pages.hd import hd_figure, hd_page
from reproduction.runner import LOGGED
from reproduction.shared_models import SharedModels
from reproduction.workers import Report, silent

COLUMNS = (
    "method", "behaviour", "planet", "seed", "return_selected", "return_last", "return_in_model", "commit", "device",
)  # fmt: skip
TASKS = {planet: CartPole(gravity=gravity) for planet, gravity in PLANETS.items()}
HD_PROTOCOL = Protocol(logged_trials=50)
"""Trials of each planet in a log, and how policies are judged."""
SAVE_SECONDS = 60.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True)
class Pack:
    """All seeds of one method, learned in one stack."""

    method: str
    arm: HDArm
    behaviour: Behaviour
    seeds: tuple[int, ...]
    protocol: Protocol

    def key(self, seed: int) -> str:
        """What defines one seed's cell, the code included."""
        logged = behaviour_recipe(self.behaviour, self.protocol)
        return recipe_hash(code_version(), self.arm, logged, replace(self.protocol, random_action_share=0.0), seed)

    @property
    def name(self) -> str:
        return recipe_hash([self.key(seed) for seed in self.seeds])

    @property
    def models_key(self) -> str:
        """What its models are known by, whatever is learned by them; empty without models."""
        learner, logged = self.arm.learner, behaviour_recipe(self.behaviour, self.protocol)
        if not isinstance(learner, ModelBased):
            return ""
        return recipe_hash(code_version(), learner.model, self.arm.split, logged, self.protocol, self.seeds)

    def parts(self, logs: Mapping[int, Transitions]) -> list[list[Job]]:
        """Of every seed the jobs that it is split into."""
        jobs = [Job(logs[seed], derive(seed, "training")) for seed in self.seeds]
        return [_split(job, self.arm.split, self.protocol.logged_trials) for job in jobs]


@dataclass(frozen=True)
class HD:
    """What to run."""

    behaviour: Behaviour = "random"
    """Who logged."""
    arms: Mapping[str, HDArm] = field(default_factory=hd_arms)
    """Methods, by the name they have in the table."""
    seeds: Positive = 20
    """Data sets and training seeds."""
    first_seed: Count = 0
    """The first of them."""
    protocol: Protocol = HD_PROTOCOL
    """Trials of each planet, and how policies are judged."""
    suffix: str = ""
    """What the files' names end with."""

    def __post_init__(self) -> None:
        require(self.seeds > 1, f"{self.seeds} seeds give no interval; set --seeds to 2 or more")

    @property
    def name(self) -> str:
        return ("hd" if self.behaviour == "random" else "hd-nonrandom") + self.suffix

    def packs(self) -> list[Pack]:
        seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
        return [Pack(name, arm, self.behaviour, seeds, self.protocol) for name, arm in self.arms.items()]

    def run(self, out: Path, executor: Executor, device: str = "cpu", report: Report = silent) -> list[dict[str, Any]]:
        """Run what is not done yet; write `<name>.csv`, `.md`, `.settings.json` and `.png`."""
        packs, folder = self.packs(), out / self.name
        self._check_folder(out)
        left = [pack for pack in packs[::-1] if any(_read(folder, pack, seed) is None for seed in pack.seeds)]
        logs = kept_logs(self, folder / "logs") if left else {}
        models = SharedModels(folder.resolve() / "models", device)
        models.prepare(left, partial(fit_models, logs=logs, models=models), executor, report)
        work = partial(learn, logs=logs, models=models, checkpoints=folder.resolve() / "checkpoints", device=device)
        failed = carry_out(
            left, work, partial(_keep, folder), lambda pack: pack.method, self.seeds * len(packs),
            out / f"{self.name}.failures.txt", executor, report, self.seeds,
        )  # fmt: skip
        if not failed:
            models.forget()
        rows = self._write(out, models.seconds(packs))
        refuse_failures(failed, len(packs), "packs")
        return rows

    @property
    def settings(self) -> dict[str, Any]:
        """What all rows of a table have in common."""
        shared = {"behaviour": self.behaviour, "seeds": self.seeds, "first_seed": self.first_seed}
        return {"protocol": encode(self.protocol), **shared}

    def _check_folder(self, out: Path) -> dict[str, Any]:
        """The settings of a table that is there already; one of another protocol is refused."""
        path = out / f"{self.name}.settings.json"
        found = read_json(path, "use another --out") if path.exists() else {}
        other = [name for name, value in self.settings.items() if found.get(name, value) != value]
        require(not other, f"'{path}' has other {(other or [''])[0]} than asked for; use another --out")
        return found

    def _write(self, out: Path, shared: Mapping[str, float]) -> list[dict[str, Any]]:
        """The files of a run from its cells, and from the rows of methods that it has not."""
        cells = [_read(out / self.name, pack, seed) for pack in self.packs() for seed in pack.seeds]
        table, found = out / f"{self.name}.csv", self._check_folder(out)
        earlier = (
            [row for row in read_csv(table, ("commit",)) if row["method"] not in self.arms] if table.exists() else []
        )
        rows = [*earlier, *({column: row[column] for column in COLUMNS} for cell in cells for row in cell or ())]
        order = list(hd_arms())
        rows.sort(key=lambda row: order.index(row["method"]) if row["method"] in order else len(order))
        write_csv(rows, table, COLUMNS)
        arms = found.get("arms", {}) | {name: encode(arm) for name, arm in self.arms.items()}
        first = next(iter(TASKS))
        made = {"arms": arms, **self.settings, "ran_on": ran_on(row for row in rows if row["planet"] == first)}
        seconds = seconds_by((cell[0] for cell in cells if cell), "method")
        made["seconds"] = found.get("seconds", {}) | seconds | dict(shared)
        write_json({**made, **provenance()}, out / f"{self.name}.settings.json")
        if rows:
            hd_figure(rows, self.behaviour, out / f"{self.name}.png")
            write_text(out / f"{self.name}.md", hd_page(rows, self.behaviour, self.name))
        return rows


def log(seed: int, behaviour: Behaviour, protocol: Protocol, own: Mapping[str, Any]) -> Transitions:
    """One seed's log: all planets, without the noise that made it."""
    places = {task.gravity: planet for planet, task in TASKS.items()}
    rows = simulate_population(
        list(TASKS.values()),
        lambda task: own[places[task.gravity]],  # pyright: ignore[reportAttributeAccessIssue]
        protocol.logged_trials,
        protocol.steps,
        derive(seed, "data"),
    )
    return replace(rows, noise=rows.noise[:, :0])


def kept_logs(experiment: HD, folder: Path) -> dict[int, Transitions]:
    """Every seed's log, from the folder where it has them."""
    protocol, behaviour = experiment.protocol, experiment.behaviour
    seeds = range(experiment.first_seed, experiment.first_seed + experiment.seeds)
    made_by = behaviour_recipe(behaviour, protocol), protocol.logged_trials, protocol.steps
    paths = {seed: folder / f"{recipe_hash(code_version(), *made_by, seed)}.safetensors" for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.exists()]
    share = protocol.random_action_share
    who = {planet: behaviours(task, behaviour, missing, share) for planet, task in TASKS.items()} if missing else {}
    for seed in missing:
        rows = log(seed, behaviour, protocol, {planet: own[seed] for planet, own in who.items()})
        write_tensors(paths[seed], {name: getattr(rows, name) for name in LOGGED}, {})
    return {seed: _read_log(path) for seed, path in paths.items()}


def _read_log(path: Path) -> Transitions:
    task = next(iter(TASKS.values()))
    columns: dict[str, Any] = {**read_tensors(path)[0], "schema": task.schema, "outcome_names": task.outcome_names}
    return Transitions.logged(**columns)


def fit_models(pack: Pack, report: Report, logs: Mapping[int, Transitions], models: SharedModels) -> None:
    """Fit the models of a pack for all packs that need the same."""
    jobs = [job for own in pack.parts(logs) for job in own]
    models.fit(pack.models_key, pack.arm.learner, jobs, report, SAVE_SECONDS)


def learn(
    pack: Pack, report: Report, logs: Mapping[int, Transitions], models: SharedModels, checkpoints: Path, device: str
) -> list[list[dict[str, Any]]]:
    """For every seed of a pack a row for every planet, all learned side by side."""
    begun, parts = time.perf_counter(), pack.parts(logs)
    folder = checkpoints / f"{pack.name}-{device_of(device).type}"
    monitor = Monitor(folder, True, report, save_seconds=SAVE_SECONDS).stage("hd")
    flat = [job for own in parts for job in own]
    learned = models.learn(pack.models_key, pack.arm.learner, flat, next(iter(TASKS.values())), monitor)
    report("evaluation", 0, 1)
    each = len(parts[0])
    by_seed = [learned[i * each : (i + 1) * each] for i in range(len(parts))]
    judged = [_judge([own[i % each] for own in by_seed], task, pack) for i, task in enumerate(TASKS.values())]
    seconds = (time.perf_counter() - begun) / len(parts)
    return [
        [
            {"method": pack.method, "behaviour": pack.behaviour, "planet": planet, "seed": seed,
             **judged[i][place], "seconds": seconds, **where()}
            for i, planet in enumerate(TASKS)
        ]
        for place, seed in enumerate(pack.seeds)
    ]  # fmt: skip


def _split(job: Job, split: Split, trials: int) -> list[Job]:
    """The job whole, or one for each planet, or for as many groups drawn by chance."""
    if split == "nobody":
        return [job]
    subjects = len(TASKS) * trials
    own = torch.arange(subjects) // trials
    if split == "chance":
        own = own[torch.randperm(subjects, generator=generator(job.seed, "random groups"))]
    member = own[job.data.subject]
    return [replace(job[member == group], seed=derive(job.seed, split, group)) for group in range(len(TASKS))]


def _judge(learned: Sequence[Learned], task: CartPole, pack: Pack) -> list[dict[str, float | None]]:
    """Both ends of every seed's training on one planet."""

    def returns(policies: Sequence[Policy]) -> list[float]:
        asked, seed = pack.protocol.evaluation_trials, pack.protocol.evaluation_seed
        trials = min(pack.arm.most_episodes or asked, asked)
        return true_returns(policies, task.at_evaluation(), trials, seed).mean(1).tolist()

    selected = returns([each.selected for each in learned])
    same = all(each.selected is each.last for each in learned)
    last = selected if same else returns([each.last for each in learned])
    inside = [getattr(each.selected, "return_in_model", None) for each in learned]
    return [
        {"return_selected": s, "return_last": t, "return_in_model": m}
        for s, t, m in zip(selected, last, inside, strict=True)
    ]


def _read(folder: Path, pack: Pack, seed: int) -> list[dict[str, Any]] | None:
    """What a finished cell left behind; None where there is nothing whole."""
    rows = read_rows(_path(folder, pack, seed), (*COLUMNS, "seconds"))
    return None if rows is None else [{**row, "method": pack.method} for row in rows]


def _path(folder: Path, pack: Pack, seed: int) -> Path:
    return folder / "cells" / f"{pack.key(seed)}.json"


def _keep(folder: Path, pack: Pack, rows: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Each cell into its own file, whole or absent; then the checkpoints have served."""
    for seed, own in zip(pack.seeds, rows, strict=True):
        write_rows(_path(folder, pack, seed), own)
    for checkpoints in (folder / "checkpoints").glob(f"{pack.name}-*"):
        shutil.rmtree(checkpoints, ignore_errors=True)
