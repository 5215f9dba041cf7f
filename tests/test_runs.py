"""A run folder uses no part that does not belong: every order of commands is right, or refused in one line."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import counterpoint as cp
from counterpoint.cli import train
from counterpoint.cli.train import PERSONAL, Method, learns_q
from counterpoint.core.errors import CounterpointError
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import MVE, STEVE
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import named_methods
from counterpoint.learners.near_practice import NearPractice
from counterpoint.models.dynamics.outcome import LearnedTask
from counterpoint.nets.training import Schedule
from counterpoint.page.check_figure import check_figure
from counterpoint.run import Run
from counterpoint.run_folder import PARTS, RECORD
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.cli import command
from helpers.recipes import BRIEF, DENSITY, DYNAMICS, MODELS, PAPER
from helpers.runs import SMALL_OUTCOME

SHAPES = False

COLUMNS = ["--subject", "id", "--time", "hour", "--state", "rate", "lactate", "--action", "dose", "--reward", "reward"]
ENDS = ["--done", "died", "discharged"]
TINY_FIT = ["scm:density", "--scm.ensemble", "2", "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "20"]
TINY_TRAIN = ["--method", "ctrl-g", "--hidden", "8", "--steps", "20", "--batch", "16"]

SOURCES = ("ward", "other ward", "cartpole", "other cartpole")
"""Two tables of a user, and two data sets of a simulator."""
PARENTS = {
    "data": (),
    "split": ("data",),
    "task": ("data", "split"),
    "scm": ("data", "split"),
    "check": ("scm",),
    "augmented": ("data", "split", "task", "scm"),
    "policy": ("data", "split", "task", "scm", "augmented"),
    "returns": ("policy", "task"),
    "evaluation": ("data", "split", "task", "scm", "policy"),
}
ON_A_TABLE, IN_A_SIMULATOR = (tuple(part for part in PARENTS if part != other) for other in ("returns", "evaluation"))
"""All parts that the commands make; what `evaluate` makes depends on the data."""
STEPS = {
    "fit": (("data", "split"), "scm"),
    "check-scm": (("data", "split", "scm"), "check"),
    "augment": (("data", "split", "task", "scm"), "augmented"),
    "train": (("data", "split", "task", "scm", "augmented"), "policy"),
    "evaluate": (("task", "policy"), "returns"),
}
"""What a command reads, and what it makes."""


def ward(seed: int) -> pd.DataFrame:
    """Eighty patients of three to eight rows; each dies or is discharged in the last, and nothing is seen after it."""
    random, rows = torch.Generator().manual_seed(seed), []
    for patient in range(80):
        rate, lactate = (torch.randn(2, generator=random)).tolist()
        length = int(torch.randint(3, 9, (1,), generator=random))
        for hour in range(length):
            dose, (first, second) = int(torch.randint(3, (1,), generator=random)) / 2, torch.randn(2, generator=random)
            last, died = hour == length - 1, lactate > 0.5
            rows.append((patient, hour, rate, lactate, dose, -lactate, int(last and died), int(last and not died)))
            rate, lactate = 0.9 * rate + 0.3 * float(first), 0.8 * lactate - 0.5 * dose + 0.4 * float(second) + 0.2
    return pd.DataFrame(rows, columns=["id", "hour", "rate", "lactate", "dose", "reward", "died", "discharged"])


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wards")
    for seed, name in enumerate(("ward", "other ward")):
        ward(seed).to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in ("ward", "other ward")}


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """A learned task that is quick to fit, and checks with few trees and without their figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("counterpoint.models.dynamics.outcome.Outcome", lambda **_: SMALL_OUTCOME)
        patch.setattr("counterpoint.page.evaluation_figure.evaluation_figure", lambda found, path: None)
        patch.setattr("counterpoint.page.check_figure.check_figure", lambda report, data, path: None)
        patch.setattr("counterpoint.models.effects.nuisance.TREES", 2)
        yield


def step(name: str, run: Path, *more: object) -> None:
    """A command with tiny settings."""
    words = {
        "train": TINY_TRAIN,
        "evaluate": ["--trials", "2", "--draws", "5"],
        "augment": ["--alternatives", "2"],
    }.get(name, [])
    tail = TINY_FIT if name == "fit" else []
    command(name, "--run", run, *words, *more, *tail)


def simulate(run: Path, seed: int = 0, *more: object) -> None:
    command("simulate", "--run", run, "--trials", 20, "--held-out", 0.3, "--seed", seed, *more)


@dataclass(frozen=True)
class Bench:
    """Brings data into a folder, and keeps for each source a folder in which every command ran once, in order."""

    wards: dict[str, Path]
    folder: Path

    def bring(self, source: str, run: Path) -> None:
        if source in self.wards:
            step("fit", run, "--data", self.wards[source], *COLUMNS, *ENDS)
        else:
            simulate(run, SOURCES.index(source))

    @cache  # noqa: B019
    def fresh(self, source: str) -> Path:
        run = self.folder / source.replace(" ", "-")
        self.bring(source, run)
        for name in STEPS:
            step(name, run)
        return run

    def copy(self, source: str, to: Path) -> Path:
        return Path(shutil.copytree(self.fresh(source), to))

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture(scope="module")
def bench(wards: dict[str, Path], small: None, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(wards, tmp_path_factory.mktemp("fresh"))


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a part (a file or a folder) or of a run, except what training left behind."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and "checkpoints" not in file.parts)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def refused(capsys: pytest.CaptureFixture[str], run: Path, act: Callable[[], None]) -> str:
    """The one line that a command ends with; it exits with 2 and leaves every file as it was."""
    capsys.readouterr()
    before = contents(run)
    with pytest.raises(SystemExit) as stop:
        act()
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert contents(run) == before
    return lines[0]


# --- every order of commands ------------------------------------------------------------------------------------------

State = dict[str, str]
"""The source that each part of a folder stems from: what a folder must know of itself, in the simplest words."""


def belongs(state: State, part: str) -> bool:
    return state.get(part) == state["data"] and all(belongs(state, parent) for parent in PARENTS[part])


def expected(state: State, name: str) -> State | None:
    """The folder after a command; None where it must refuse."""
    reads, makes = STEPS[name]
    if not all(belongs(state, part) for part in reads):
        return None
    makes = "evaluation" if name == "evaluate" and "ward" in state["data"] else makes  # It has no simulator.
    checked = {"check": state["data"]} if name == "train" else {}  # A model that nobody has checked is checked then.
    return {**state, makes: state["data"], **checked}


def brought(state: State, source: str, wards: dict[str, Path]) -> State:
    parts = ("data", "split", "task", "scm") if source in wards else ("data", "split", "task")
    return {**state, **dict.fromkeys(parts, source)}


def check_folder(run: Path, state: State, bench: Bench) -> None:
    """A part is there for the run exactly if it belongs, and is then what a fresh folder with these data has."""
    here, fresh = Run(run), Run(bench.fresh(state["data"]))
    for part in PARTS:
        assert here.has(part) == belongs(state, part), (part, state)
        if here.has(part):
            assert contents(here.path(part)) == contents(fresh.path(part)), (part, state)


def check_every_order(start: State, run: Path, bench: Bench, capsys: pytest.CaptureFixture[str]) -> int:
    """From a folder, every sequence of commands: each command once in each state that any sequence leads to.

    A command that was refused changed nothing, and one that is run twice gives the same files, so the states are few.
    """
    todo, seen, number = [(start, run)], [start], 0
    while todo:
        state, folder = todo.pop()
        check_folder(folder, state, bench)
        for name in STEPS:
            after, number = expected(state, name), number + 1
            copy = Path(shutil.copytree(folder, run.parent / f"{run.name}-{number}"))
            if after is None:
                check_refusal(refused(capsys, copy, lambda n=name, c=copy: step(n, c)), state, name)
            else:
                step(name, copy)
                check_folder(copy, after, bench)
            if after is not None and after not in seen:
                seen.append(after)
                todo.append((after, copy))
            else:
                shutil.rmtree(copy)
    return len(seen)


def check_refusal(line: str, state: State, name: str) -> None:
    """The line names a part that does not belong, and the command that makes it."""
    missing = [part for part in PARTS if part not in state]
    stale = [part for part in PARTS if part in state and not belongs(state, part)]
    named = [f"has no {part}; run {PARTS[part].command} first" for part in missing]
    named += [f"/{PARTS[part].path}' was made from another" for part in stale]
    assert any(words in line for words in named), line
    assert any(f"run {PARTS[part].command} " in line for part in (*missing, *stale)), line


@pytest.mark.parametrize("source", ["ward", "cartpole"])
def test_every_order_of_commands_in_a_new_folder(source: str, bench: Bench, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    for name in STEPS:
        refused(capsys, tmp_path, lambda n=name: step(n, run))
    bench.bring(source, run)
    assert check_every_order(brought({}, source, bench.wards), run, bench, capsys) >= 5


@pytest.mark.parametrize(
    ("first", "second"),
    [("ward", "ward"), ("ward", "other ward"), ("cartpole", "ward"), ("cartpole", "other cartpole")],
)
def test_every_order_of_commands_after_other_data_came_in(
    first: str, second: str, bench: Bench, tmp_path: Path, capsys
) -> None:
    """All commands ran with the first data; then the second came in. Nothing of the first is ever used for it."""
    run = bench.copy(first, tmp_path / "run")
    state = {part: first for part in PARTS if Run(run).has(part)}
    assert tuple(state) == (ON_A_TABLE if first == "ward" else IN_A_SIMULATOR)
    before = contents(run)
    bench.bring(second, run)
    if first == second:
        assert contents(run) == before, "the same data again change nothing"
        check_folder(run, state, bench)
        return
    assert check_every_order(brought(state, second, bench.wards), run, bench, capsys) >= 5


@pytest.mark.parametrize("name", STEPS)
def test_a_step_run_again_makes_stale_what_was_made_from_it(name: str, bench: Bench, tmp_path: Path, capsys) -> None:
    """Another seed of any one step: all that followed from its result is refused, and all else stays."""
    run = bench.copy("cartpole", tmp_path / "run")
    before = {part: Run(run).fingerprint(part) for part in IN_A_SIMULATOR}
    step(name, run, "--seed", 7)
    made = STEPS[name][1]
    assert Run(run).fingerprint(made) != before[made]
    stale = {part for part in IN_A_SIMULATOR if made in ancestors(part)}
    assert {part for part in IN_A_SIMULATOR if not Run(run).has(part)} == stale
    readers = [other for other, (reads, _) in STEPS.items() if set(reads) & stale]
    for other in readers:
        assert "was made from another" in refused(capsys, run, lambda n=other: step(n, run))
    for other in list(STEPS)[list(STEPS).index(name) + 1 :]:
        step(other, run)
    assert all(Run(run).has(part) for part in IN_A_SIMULATOR)


def ancestors(part: str) -> set[str]:
    return {part for parent in PARENTS[part] for part in (parent, *ancestors(parent))}


def test_the_record_says_what_every_part_was_made_from(bench: Bench) -> None:
    """run.json by hand: the hash of every part's file, and the hashes of its parents' files."""
    run = bench.fresh("cartpole")
    record = json.loads((run / RECORD).read_text())
    hashes = {}
    for part in IN_A_SIMULATOR:
        path = Run(run).path(part)
        file = path / "recipe.json" if path.is_dir() else path
        hashes[part] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert set(record["parts"]) == set(IN_A_SIMULATOR)
    for part, entry in record["parts"].items():
        assert entry["fingerprint"] == hashes[part] == Run(run).fingerprint(part)
        assert entry["made_from"] == {parent: hashes[parent] for parent in PARENTS[part]}


def test_what_is_learned_says_which_rows_it_was_learned_on(bench: Bench) -> None:
    for source in ("ward", "cartpole"):
        run = Run(bench.fresh(source))
        assert run.scm.origin.data == run.training.fingerprint
        assert run.policy.origin.data == run.augmented.fingerprint
        if isinstance(run.task, LearnedTask):
            assert run.task.origin.data == run.training.fingerprint
            assert run.task.outcome_names == ("died", "discharged")


# --- the simulator's data replaced ------------------------------------------------------------------------------------


def test_another_simulation_is_not_mixed_with_the_rows_of_the_first(bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    simulate(run, 3)
    line = refused(capsys, run, lambda: step("train", run))
    assert "was made from another data" in line
    assert "run fit again" in line or "run augment again" in line
    step("fit", run)
    assert "augmented.parquet' was made from another" in refused(capsys, run, lambda: step("train", run))
    step("augment", run)
    step("train", run)
    real = Run(run).augmented.real
    assert torch.equal(real.state, Run(run).training.state)


def test_the_same_simulation_again_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    before = contents(run)
    simulate(run, SOURCES.index("cartpole"))
    assert contents(run) == before
    assert all(Run(run).has(part) for part in IN_A_SIMULATOR)


def test_the_same_rows_of_another_simulator_are_judged_anew(bench: Bench, tmp_path: Path, capsys) -> None:
    """The task decides rewards and ends of imagined rows, and the evaluation: they go with it, the SCM does not."""
    run = bench.copy("cartpole", tmp_path / "run")
    simulate(run, SOURCES.index("cartpole"), "task:cartpole", "--task.evaluation-noise-size", 0.2)
    valid = {part for part in PARTS if Run(run).has(part)}
    assert valid == {"data", "split", "task", "scm", "check"}
    assert Run(run).task == CartPole(evaluation_noise_size=0.2)
    assert "was made from another task" in refused(capsys, run, lambda: step("evaluate", run))


def test_a_users_table_in_a_folder_that_had_a_cartpole(bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    bench.bring("ward", run)
    assert isinstance(Run(run).task, LearnedTask)
    assert "was made from another" in refused(capsys, run, lambda: step("train", run))
    step("train", run, "--method", "d3qn")
    assert Run(run).policy.act(torch.randn(3, 2)).shape == (3, 1)
    for name in ("augment", "train", "check-scm", "evaluate"):
        step(name, run)
    check_folder(run, dict.fromkeys(ON_A_TABLE, "ward"), bench)
    simulate(run, SOURCES.index("cartpole"))
    assert isinstance(Run(run).task, CartPole), "a simulator that comes back is the task again"


# --- the split --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["ward", "cartpole"])
def test_held_out_subjects_are_in_nobodys_training_rows(source: str, bench: Bench) -> None:
    run = Run(bench.fresh(source))
    share, subjects = (0.2, 80) if source == "ward" else (0.3, 20)
    held_out = set(run.held_out.subject.tolist())
    assert len(held_out) == round(share * subjects)
    assert held_out.isdisjoint(run.training.subject.tolist())
    assert len(run.held_out) + len(run.training) == len(run.data)
    assert set(json.loads((run.folder / "split.json").read_text())["subjects"]) == held_out
    assert held_out.isdisjoint(run.augmented.subject.tolist())
    assert int(run.augmented.source.max()) < len(run.training)
    own = run.training.with_next().row_hashes
    assert torch.equal(run.scm.fitted_rows.sort().values, own.sort().values)
    assert not run.scm.has_seen(run.held_out)
    assert run.scm.has_seen(run.training)


def test_the_split_of_a_run_is_decided_once(bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("ward", tmp_path / "run")
    table = ["--data", bench.wards["ward"], *COLUMNS, *ENDS]
    for words in (["--held-out", 0.3], [*table, "--held-out", 0.3], ["--held-out", 0.0]):
        line = refused(capsys, run, lambda w=words: step("fit", run, *w))
        assert "holds out a share of 0.2 of its subjects" in line
        assert f"start another run for {words[-1]}" in line
    before = contents(run)
    for words in (["--held-out", 0.2], table, [*table, "--held-out", 0.2]):
        step("fit", run, *words)
        assert contents(run) == before
    split = (run / "split.json").read_bytes()
    step("fit", run, *table, "--seed", 5)
    assert (run / "split.json").read_bytes() == split, "another seed of the fit is no other split"
    simulated = bench.copy("cartpole", tmp_path / "simulated")
    words = ["simulate", "--run", simulated, "--trials", 20, "--held-out", 0.1, "--seed", SOURCES.index("cartpole")]
    assert "holds out a share of 0.3" in refused(capsys, simulated, lambda: command(*words))


def test_a_simulation_again_without_the_flag_keeps_the_split(bench: Bench, tmp_path: Path) -> None:
    """What the refusal advises, to leave --held-out away, must be possible."""
    run = bench.copy("cartpole", tmp_path / "run")
    before = contents(run)
    command("simulate", "--run", run, "--trials", 20, "--seed", SOURCES.index("cartpole"))
    assert contents(run) == before


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_what_is_no_share_is_refused(share: float, bench: Bench, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    table = ["--data", bench.wards["ward"], *COLUMNS, *ENDS]
    for act in (
        lambda: step("fit", run, *table, "--held-out", share),
        lambda: command("simulate", "--run", run, "--trials", 3, "--held-out", share),
    ):
        assert f"{share} is not a share" in refused(capsys, tmp_path, act)


@pytest.mark.parametrize(("source", "held_out"), [("ward", 0.2), ("ward", 0.0), ("cartpole", 0.3), ("cartpole", 0.0)])
def test_a_check_says_whether_its_rows_were_seen(source: str, held_out: float, bench: Bench, tmp_path, capsys) -> None:
    """Rows without a next state, which every ward has, are no reason to take the fit's rows for new ones."""
    run = tmp_path / "run"
    if source == "ward":
        step("fit", run, "--data", bench.wards["ward"], *COLUMNS, *ENDS, "--held-out", held_out)
        assert not Run(run).training.has_next.all()
    else:
        command("simulate", "--run", run, "--trials", 20, "--held-out", held_out)
        step("fit", run)
    capsys.readouterr()
    step("check-scm", run)
    said, kept = capsys.readouterr().out, json.loads((run / "check.json").read_text())
    assert ("rows the model had not seen" in said) == kept["held_out"] == (held_out > 0)
    assert ("the rows the model was fitted on" in said) == (held_out == 0)
    rows = Run(run).held_out if held_out else Run(run).training
    assert kept["rows"] == int(rows.has_next.sum())


def test_a_check_of_whole_numbers_says_whether_its_rows_were_seen(tmp_path: Path, capsys) -> None:
    """Two patients may share a heart rate: a held-out row that looks like one of the fit was not seen for that."""
    run, table = tmp_path / "run", ward(0)
    table[["rate", "lactate"]] = (2 * table[["rate", "lactate"]]).round()
    table.to_csv(tmp_path / "ward.csv", index=False)
    step("fit", run, "--data", tmp_path / "ward.csv", *COLUMNS, *ENDS)
    capsys.readouterr()
    step("check-scm", run)
    assert "rows the model had not seen" in capsys.readouterr().out


def test_a_run_of_the_previous_format_is_read(bench: Bench, tmp_path: Path) -> None:
    """Two parts had other names; an evaluation of that version is refused in one line."""
    run = bench.copy("cartpole", tmp_path / "run")
    present = Run(run).present()
    record = json.loads((run / RECORD).read_text())
    record["format"] = "counterpoint-run/1"
    record["parts"]["evaluation"] = record["parts"].pop("returns")
    (run / RECORD).write_text(json.dumps(record))
    assert Run(run).present() == present
    Run(run).keep("evaluation", lambda path: path.write_text('{"format": "counterpoint-evaluation/1"}'), ["data"])
    with pytest.raises(CounterpointError, match="run evaluate or compare again"):
        _ = Run(run).evaluation


def test_a_check_draws_its_figure(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("counterpoint.page.check_figure.check_figure", check_figure)
    run = bench.copy("ward", tmp_path / "run")
    before = (run / "check.json").read_bytes()
    step("check-scm", run)
    assert (run / "check.png").stat().st_size > 10_000
    assert (run / "check.json").read_bytes() == before
    assert "Trust: " in capsys.readouterr().out
    other = tmp_path / "rows.parquet"
    cp.write(Run(run).training, other)
    step("check-scm", run, "--data", other)
    assert "the rows the model was fitted on" in capsys.readouterr().out


# --- parts that are not what the record says --------------------------------------------------------------------------

READERS = {
    "data": "fit",
    "split": "fit",
    "task": "evaluate",
    "scm": "augment",
    "augmented": "train",
    "policy": "evaluate",
}
"""A command that needs the part; nothing needs a check or an evaluation."""


def file_of(run: Path, part: str) -> Path:
    path = Run(run).path(part)
    return path / "recipe.json" if path.is_dir() else path


def read_part(run: Path, part: str) -> None:
    """What needs the part; where no command does, the run itself is asked."""
    step(READERS[part], run) if part in READERS else Run(run).fingerprint(part)


def refused_part(capsys: pytest.CaptureFixture[str], run: Path, part: str) -> str:
    if part in READERS:
        return refused(capsys, run, lambda: read_part(run, part))
    with pytest.raises(CounterpointError) as caught:
        read_part(run, part)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def mend(run: Path, part: str) -> None:
    """The command that the refusal names, with the settings of the fresh folder."""
    makes = {made: name for name, (_, made) in STEPS.items()}
    step(makes[part], run) if part in makes else simulate(run, SOURCES.index("cartpole"))


def edit(run: Path, other: Path, part: str) -> None:
    file = file_of(run, part)
    file.write_bytes(file.read_bytes() + b" ")


def copy_in(run: Path, other: Path, part: str) -> None:
    theirs, own = Run(other).path(part), Run(run).path(part)
    shutil.copytree(theirs, own, dirs_exist_ok=True) if theirs.is_dir() else shutil.copy(theirs, own)


def delete(run: Path, other: Path, part: str) -> None:
    path = Run(run).path(part)
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def delete_recipe(run: Path, other: Path, part: str) -> None:
    file_of(run, part).unlink()


@pytest.mark.parametrize("harm", [edit, copy_in, delete, delete_recipe])
@pytest.mark.parametrize("part", IN_A_SIMULATOR)
def test_a_harmed_part_is_refused_and_mended(part: str, harm: Any, bench: Bench, tmp_path: Path, capsys) -> None:
    run, other = bench.copy("cartpole", tmp_path / "run"), bench.copy("other cartpole", tmp_path / "other")
    if part == "task":  # The two cartpoles are one task.
        simulate(other, 1, "task:cartpole", "--task.gravity", 3.7)
    harm(run, other, part)
    assert contents(run) != contents(bench.fresh("cartpole"))
    line = refused_part(capsys, run, part)
    assert (part if harm in (delete, delete_recipe) else PARTS[part].path.split(".")[0]) in line
    again = "first" if harm is delete else "again"
    assert f"run {PARTS[part].command} {again}" in line or harm is delete_recipe
    assert not any(Run(run).has(child) for child in PARTS if part in (child, *ancestors(child)))
    mend(run, part)
    check_folder(run, dict.fromkeys(IN_A_SIMULATOR, "cartpole"), bench)


@pytest.mark.parametrize("part", ["task", "scm", "policy"])
def test_harmed_weights_are_refused_and_mended(part: str, bench: Bench, tmp_path: Path, capsys) -> None:
    """The record knows an artifact by its recipe, and the recipe knows its weights."""
    run, other = bench.copy("ward", tmp_path / "run"), bench.fresh("other ward")
    weights = Path(part) / "weights.safetensors"
    theirs, own = (other / weights).read_bytes(), (run / weights).read_bytes()
    for content in (theirs, own[:-50], own[:-1] + bytes([own[-1] ^ 1]), b""):
        (run / weights).write_bytes(content)
        if part == "policy":
            with pytest.raises(CounterpointError, match="policy") as caught:
                _ = Run(run).policy
            line = str(caught.value)
        else:
            line = refused(capsys, run, lambda: step("augment", run))
        assert part in line
        step("train" if part == "policy" else "fit", run)
        check_folder(run, dict.fromkeys(ON_A_TABLE, "ward"), bench)
        assert (run / weights).read_bytes() == own


def entry(part: str, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: {**record, "parts": {**record["parts"], part: {**record["parts"][part], **changes}}}


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda record: [record],
    "nothing": lambda record: None,
    "a number": lambda record: 3,
    "empty": lambda record: {},
    "another format": lambda record: {**record, "format": "counterpoint-run/9"},
    "no parts": lambda record: {"format": record["format"]},
    "a list of parts": lambda record: {**record, "parts": list(record["parts"])},
}
ENTRIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a part that is a list": lambda record: {**record, "parts": {part: [] for part in record["parts"]}},
    "a part that is text": lambda record: {**record, "parts": dict.fromkeys(record["parts"], "data")},
    "a part that is nothing": lambda record: {**record, "parts": {part: {} for part in record["parts"]}},
    "no parents": lambda record: {
        **record,
        "parts": {part: {"fingerprint": each["fingerprint"]} for part, each in record["parts"].items()},
    },
    "a list of parents": entry("data", made_from=["split"]),
    "unknown parents": entry("data", made_from={"dates": "0"}),
    "its own parent": entry("data", made_from={"data": "0"}),
}


def check_unusable(run: Path, said: str, capsys: pytest.CaptureFixture[str], bench: Bench) -> None:
    """Every command is refused, also those that bring data in: they lose nothing of what the folder has."""
    for name in STEPS:
        assert said in refused(capsys, run, lambda n=name: step(n, run)), name
    for source in ("ward", "cartpole", "other cartpole"):
        assert said in refused(capsys, run, lambda s=source: bench.bring(s, run)), source


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_none_is_refused(kind: str, bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    record = json.loads((run / RECORD).read_text())
    (run / RECORD).write_text(json.dumps(RECORDS[kind](record)))
    check_unusable(run, RECORD, capsys, bench)


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_record_with_a_bad_entry_is_refused(kind: str, bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    record = json.loads((run / RECORD).read_text())
    (run / RECORD).write_text(json.dumps(ENTRIES[kind](record)))
    for name in STEPS:
        refused(capsys, run, lambda n=name: step(n, run))


@pytest.mark.parametrize("source", ["ward", "other cartpole"])
@pytest.mark.parametrize("kind", ENTRIES)
def test_new_data_mend_a_record_with_a_bad_entry_or_are_refused(
    kind: str, source: str, bench: Bench, tmp_path: Path, capsys
) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    record = json.loads((run / RECORD).read_text())
    (run / RECORD).write_text(json.dumps(ENTRIES[kind](record)))
    before = contents(run)
    try:
        bench.bring(source, run)
    except SystemExit:
        assert contents(run) == before
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    else:
        check_parts_of_one_source(run, [source], bench)
        assert all(Run(run).has(part) for part in ("data", "split", "task"))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_record_cut_short_is_refused(share: float, bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    content = (run / RECORD).read_bytes()
    (run / RECORD).write_bytes(content[: round(share * len(content))])
    check_unusable(run, f"{RECORD}' is not JSON (damaged)", capsys, bench)
    (run / RECORD).write_bytes(b"\xff\xfe" + content)
    check_unusable(run, f"{RECORD}' is not JSON (damaged)", capsys, bench)


def test_a_refused_fit_learns_nothing_first(bench: Bench, tmp_path: Path, capsys) -> None:
    """A record that cannot be used is seen before an hour of training, not after it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / RECORD).write_text("[]")
    table = ["--data", bench.wards["ward"], *COLUMNS, *ENDS]
    assert RECORD in refused(capsys, run, lambda: step("fit", run, *table))
    assert [path.name for path in run.iterdir()] == [RECORD]


def test_a_folder_without_its_record_is_empty(bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    (run / RECORD).unlink()
    for name, missing in {"fit": "data", "augment": "data", "train": "data", "check-scm": "scm"}.items():
        assert f"has no {missing}; run" in refused(capsys, run, lambda n=name: step(n, run))
    simulate(run, SOURCES.index("cartpole"))
    assert {part for part in PARTS if Run(run).has(part)} == {"data", "split", "task"}


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", IN_A_SIMULATOR)
def test_a_kill_between_a_part_and_the_record_is_refused_and_mended(
    part: str, bench: Bench, tmp_path: Path, capsys
) -> None:
    run, other = bench.copy("cartpole", tmp_path / "run"), bench.copy("other cartpole", tmp_path / "other")
    if part == "task":
        simulate(other, 1, "task:cartpole", "--task.gravity", 3.7)
    record = (run / RECORD).read_bytes()
    Run(run).keep(part, lambda path: copy_in(run, other, part), PARENTS[part], simulator=part == "task")
    assert (run / RECORD).read_bytes() != record
    assert Run(run).has(part)
    (run / RECORD).write_bytes(record)
    line = refused_part(capsys, run, part)
    assert "was changed after run.json recorded it" in line
    assert f"run {PARTS[part].command} again" in line
    mend(run, part)
    check_folder(run, dict.fromkeys(IN_A_SIMULATOR, "cartpole"), bench)


class Killed(BaseException):
    """No handler catches it."""


@pytest.mark.parametrize(("first", "second"), [("cartpole", "other ward")])
def test_a_kill_at_any_write_is_refused_and_mended(
    first: str, second: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its n-th file takes its place, n = 1, 2, …: what the folder still has belongs together."""
    import counterpoint.core.artifacts as artifacts

    for kill_at in range(1, 99):
        run = bench.copy(first, tmp_path / f"run-{kill_at}")
        if not killed(monkeypatch, artifacts, kill_at, lambda r=run: bench.bring(second, r)):
            break
        check_parts_of_one_source(run, (first, second), bench)
        bench.bring(second, run)
        fits = {part for part in PARTS if Run(run).has(part)}
        assert fits == set(brought({}, second, bench.wards))
        for part in fits:
            assert contents(Run(run).path(part)) == contents(Run(bench.fresh(second)).path(part)), part
        shutil.rmtree(run)
    assert kill_at > 5


@pytest.mark.parametrize("name", STEPS)
def test_a_command_killed_at_any_write_can_be_run_again(
    name: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import counterpoint.core.artifacts as artifacts

    for kill_at in range(1, 99):
        run = bench.copy("cartpole", tmp_path / f"run-{kill_at}")
        if not killed(monkeypatch, artifacts, kill_at, lambda r=run: step(name, r, "--seed", 7)):
            break
        for part in PARTS:
            if Run(run).has(part):
                assert contents(Run(run).path(part)).keys() >= {file_of(run, part).name}
        step(name, run)
        check_folder(run, dict.fromkeys(IN_A_SIMULATOR, "cartpole"), bench)
        shutil.rmtree(run)
    assert kill_at > 2


def killed(monkeypatch: pytest.MonkeyPatch, artifacts: Any, kill_at: int, act: Callable[[], None]) -> bool:
    """Whether the n-th file was reached: the process ends in the moment before it takes its place."""
    count, move = 0, artifacts.os.replace

    def moving(draft: Path, path: Path) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            raise Killed
        move(draft, path)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts.os, "replace", moving)
        try:
            act()
        except Killed:
            return True
    return False


def check_parts_of_one_source(run: Path, sources: Sequence[str], bench: Bench) -> None:
    """All parts that a half-written folder still vouches for are those of one source."""
    here = Run(run)
    parts = [part for part in PARTS if here.has(part)]
    fresh = [Run(bench.fresh(source)) for source in sources]
    same = [all(contents(here.path(p)) == contents(each.path(p)) for p in parts) for each in fresh]
    assert any(same), parts


# --- what a run is while others write into it -------------------------------------------------------------------------


def test_a_run_at_hand_sees_that_its_data_were_replaced(bench: Bench, tmp_path: Path) -> None:
    """A notebook holds a run; a command brings other data in: old rows are never cut by the new split."""
    run = bench.copy("cartpole", tmp_path / "run")
    held = Run(run)
    assert len(held.data) == 400
    command("simulate", "--run", run, "--trials", 30, "--held-out", 0.5, "--seed", 9)
    assert held.data.fingerprint == Run(run).data.fingerprint
    assert held.training.fingerprint == Run(run).training.fingerprint


@pytest.mark.parametrize("name", ["fit", "augment", "train"])
def test_data_that_come_in_while_a_command_works_are_not_what_it_worked_on(
    name: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """What is made from old rows is not recorded as made from the new ones, however long it took."""
    run, before = bench.copy("cartpole", tmp_path / "run"), list(STEPS)[: list(STEPS).index(name)]
    cls, method = {
        "fit": (cp.DensitySCM, "fit"),
        "augment": (cp.Augmenter, "augment"),
        "train": (cp.CTRLg, "learn"),
    }[name]
    work, working = getattr(cls, method), []

    def interrupted(self: Any, *given: Any, **named: Any) -> Any:
        result = work(self, *given, **named)
        if not working:
            working.append(True)
            simulate(run, 3)
            for other in before:
                step(other, run)
        return result

    monkeypatch.setattr(cls, method, interrupted)
    ended = [0]
    try:
        step(name, run)
    except SystemExit as stop:
        ended = [stop.code]
    assert ended in ([0], [2])
    now, made = Run(run), STEPS[name][1]
    if now.has(made):
        made_on = {
            "scm": lambda: now.scm.origin.data == now.training.fingerprint,
            "augmented": lambda: torch.equal(now.augmented.real.state, now.training.state),
            "policy": lambda: now.policy.origin.data == now.augmented.fingerprint,
        }
        assert made_on[made]()


# --- methods ----------------------------------------------------------------------------------------------------------


class Spy:
    """Learns as a recipe does, and remembers on which rows."""

    def __init__(self, learner: Any, seen: list[cp.Transitions]) -> None:
        self.learner, self.seen = learner, seen

    def fit(self, data: cp.Transitions, *more: Any) -> cp.Policy:
        self.seen.append(data)
        return self.learner.fit(data, *more)


def tiny_arms(learner: D3QN) -> dict[str, Any]:
    """The arms with models that are fitted in a blink; the Q-learning is the command's."""
    few = CheckpointSelection(starts=2, horizon=3)
    models = {"ctrl-g": DENSITY, "ctrl-g-bicogan": PAPER, "base-d": MODELS["deterministic"]}
    models |= {"base-s": MODELS["gaussian dynamics"], "base-m": MODELS["mixture dynamics"]}
    planner = Planner(horizon=2, candidates=4, elites=2, iterations=1)
    model = cp.models.Deterministic(ensemble=2, hidden=(8,), batch_norm=False, likelihood=BRIEF)
    small = {"rewards": 2, "q_functions": 2, "model": model, "learner": learner, "selection": few}
    return {
        **{name: cp.CTRLg(model, learner=learner, selection=few) for name, model in models.items()},
        "d3qn": named_methods(learner)["d3qn"],
        "bcq": named_methods(learner)["bcq"],
        "pets": PETS(cp.models.GaussianDynamics(**DYNAMICS), particles=2, planner=planner),
        "steve": STEVE(**small),
        "mve": MVE(**small),
        "ctrl-g-rollouts": cp.CTRLg(DENSITY, learner=learner, selection=few, rollouts=SHORT),
        "search": cp.Search(DENSITY, cp.models.PosteriorDraws(2), **BRIEF_SEARCH),
        "pilco": cp.Search(MODELS["gaussian process"], None, **BRIEF_SEARCH),
        "near-practice": NearPractice(rounds=1, starts=2, choosing_starts=2, horizon=3),
        **{name: named_methods(learner)[name] for name in (*PERSONAL, "practice")},
    }


SHORT = cp.learners.RolloutRows(every=10, episodes=1, steps=3, rounds=1)
BRIEF_SEARCH: dict[str, Any] = {"horizon": 3, "schedule": Schedule(steps=2, check_every=1), "choosing_starts": 2}


def test_the_tiny_arms_are_the_real_ones_but_small() -> None:
    real, tiny = named_methods(), tiny_arms(D3QN())
    assert set(real) == set(tiny) == set(get_args(Method))
    for name in real:
        assert type(real[name]) is type(tiny[name])
        assert type(getattr(real[name], "model", None)) is type(getattr(tiny[name], "model", None))


@pytest.mark.parametrize("source", ["cartpole"])
@pytest.mark.parametrize("method", [name for name in get_args(Method) if name not in PERSONAL])
def test_every_method_learns_from_the_runs_training_rows(
    method: str, source: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    seen: list[cp.Transitions] = []
    own = set(train.PARENTS.get(method, ()))
    arms = lambda learner: {n: arm if own else Spy(arm, seen) for n, arm in tiny_arms(learner).items()}
    run = bench.copy(source, tmp_path / "run")
    monkeypatch.setattr("counterpoint.cli.train.named_methods", arms)
    command("train", "--run", run, *(TINY_TRAIN if learns_q(method) else []), "--method", method)
    assert f"{method} learned on {len(Run(run).training)} logged rows" in capsys.readouterr().out
    policy = Run(run).policy
    assert policy.act(Run(run).data.state[:4]).shape == (4, 1)
    assert [rows.fingerprint for rows in seen] == ([] if own else [Run(run).training.fingerprint])
    made_from = json.loads((run / RECORD).read_text())["parts"]["policy"]["made_from"]
    assert set(made_from) == {"data", "split", "task"} | own
    if source == "cartpole":
        command("evaluate", "--run", run, "--trials", 1, "--horizon", 2)
        assert Run(run).has("returns")
    step("fit", run, "--seed", 7)
    assert Run(run).has("policy") == (not own), "only what was learned with the run's SCM rests on it"


def test_a_baseline_needs_no_model_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 10)
    step("train", run, "--method", "d3qn")
    step("evaluate", run)
    assert {part for part in PARTS if Run(run).has(part)} == {"data", "split", "task", "policy", "returns"}


@pytest.mark.parametrize("flag", [["--hidden", 8], ["--steps", 20], ["--batch", 16], ["--tau", 0.1]])
def test_pets_with_flags_of_a_q_network_is_refused(flag: list[Any], bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("cartpole", tmp_path / "run")
    line = refused(capsys, run, lambda: command("train", "--run", run, "--method", "pets", *flag))
    assert "pets learns no Q-network" in line


# --- a user's own classes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slippery(CartPole):
    """A user's simulator."""

    slip: float = 0.0

    def physics(self, state: Float[Tensor, "*n 4"], action: Float[Tensor, "*n 1"]) -> Float[Tensor, "*n 4"]:
        return super().physics(state, (1 - self.slip) * action + self.slip / 2)


class Bedside(Task):
    """A user's reward and end, no simulator and no dataclass."""

    actions = cp.Discrete.of([0.0, 0.5, 1.0])
    discount, horizon, outcome_names = 0.9, 8, ("died", "discharged")

    def __init__(self, price: float) -> None:
        self.price = price

    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        return -next_state[..., 1] - self.price * action[..., 0]

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        return next_state[..., 1] > 9


def test_a_run_loads_a_users_own_simulator(tmp_path: Path) -> None:
    task = Slippery(gravity=3.7, slip=0.25)
    rows = cp.simulate(task, cp.random_policy(task), 10, 20, 0)
    run = Run(tmp_path / "run", Slippery)
    run.start(rows, 0.2, 0)
    run.keep_task(task)
    learner = PETS(cp.models.GaussianDynamics(**DYNAMICS), particles=2, planner=Planner(2, 4, 2, 1))
    run.keep("policy", learner.fit(run.training, run.task).save, ["data", "split", "task"])
    again = Run(tmp_path / "run", Slippery)
    assert again.task == task
    torch.testing.assert_close(again.task.counterfactual(rows, rows.action), rows.next_state)
    torch.testing.assert_close(again.policy.act(rows.state[:3]), run.policy.act(rows.state[:3]))
    stranger = Run(tmp_path / "run")
    assert stranger.has("task")
    for part in ("task", "policy"):
        with pytest.raises(CounterpointError, match="'Slippery' is not known here; name your own class") as caught:
            getattr(stranger, part)
        assert "\n" not in str(caught.value)


def test_a_run_loads_a_users_own_task(bench: Bench, tmp_path: Path, capsys) -> None:
    run = bench.copy("ward", tmp_path / "run")
    Run(run).keep_task(Bedside(price=0.3))
    mine = Run(run, Bedside)
    assert vars(mine.task) == {"price": 0.3}
    assert not mine.has("augmented"), "imagined rows of another task are stale"
    assert mine.has("scm")
    rows = cp.Augmenter(alternatives=1).augment(mine.training, mine.scm, mine.task)
    assert torch.equal(
        rows.reward[rows.imagined], mine.task.reward(rows.state, rows.action, rows.next_state)[rows.imagined]
    )
    assert "'Bedside' is not known here" in refused(capsys, run, lambda: step("augment", run))


def test_a_task_that_cannot_be_written_exactly_is_not_kept(bench: Bench, tmp_path: Path) -> None:
    run = bench.copy("ward", tmp_path / "run")
    before = contents(run)
    for price in (lambda: 0.3, Schedule, object()):
        with pytest.raises(CounterpointError, match="cannot be written exactly"):
            Run(run).keep_task(Bedside(price=price))  # pyright: ignore
    assert contents(run) == before


def test_rows_of_a_run_can_be_replaced_by_hand(tmp_path: Path) -> None:
    """The Python face: `start` with the same rows changes nothing, with others it makes stale what rests on them."""
    run, task = Run(tmp_path / "run"), CartPole()
    rows, others = (cp.simulate(task, cp.random_policy(task), 10, 20, seed) for seed in (0, 1))
    run.start(rows, 0.2, 0)
    run.keep_task(task)
    run.keep_model(DENSITY.fit(run.training))
    before = contents(run.folder)
    run.start(rows, None, 5)
    assert contents(run.folder) == before
    with pytest.raises(CounterpointError, match=r"holds out a share of 0\.2 of its subjects"):
        run.start(rows, 0.5, 0)
    run.start(replace(rows, reward=rows.reward + 1), 0.5, 0)
    assert not run.has("scm")
    assert len(run.held_out.subject.unique()) == 5
    run.start(others, None, 0)
    assert len(run.held_out) == 0
    assert run.training.fingerprint == others.fingerprint
    with pytest.raises(CounterpointError, match="scm' was made from another data than this run has now; run fit again"):
        _ = run.scm
