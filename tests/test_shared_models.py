"""Models that several methods need are fitted once, and no number tells: rows are those of methods that fit alone."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.base import ModelRecipe
from counterpoint.models.groups import KMeansGroups
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.grid import PROTOCOL as TINY_PROTOCOL
from helpers.grid import TINY, TINY_CTRL_G, tiny_grid
from helpers.hd import PROTOCOL
from reproduction.executors import InProcess, Joblib
from reproduction.grid import Grid, logs
from reproduction.hd import HD
from reproduction.hd_arms import HDArm
from reproduction.runner import run
from reproduction.shared_models import SECONDS, SharedModels
from reproduction.workers import silent

SHAPES = False

BRIEF = Search(
    TINY_CTRL_G.model, draws=None, optimizer=CrossEntropy(8, 4), schedule=Schedule(steps=2, check_every=1),
    restarts=1, choosing_starts=2, horizon=20,
)  # fmt: skip
ARMS = {"D3QN": TINY, "CTRL_g": TINY_CTRL_G, "search": BRIEF, "search, one start": replace(BRIEF, starts=1)}
EFFECTS = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=20, check_every=10))
HD_ARMS = {
    "one": HDArm(replace(BRIEF, model=EFFECTS, sees_factor=False)),
    "groups": HDArm(CTRLp(replace(BRIEF, model=EFFECTS, sees_factor=False), KMeansGroups(2))),
    "planets": HDArm(replace(BRIEF, model=EFFECTS, sees_factor=False), "planets"),
}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(recipe, jobs) of every fit in this process."""
    found: list[tuple[str, int]] = []

    def noting(recipe: type[ModelRecipe]) -> Any:
        original = recipe.fit_many

        def fit_many(self: Any, jobs: Sequence[Job], *rest: Any) -> list[Any]:
            found.append((recipe.__name__, len(jobs)))
            return original(self, jobs, *rest)

        return fit_many

    for recipe in (DensitySCM, RandomEffects):
        monkeypatch.setattr(recipe, "fit_many", noting(recipe))
    return found


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every method fits its own."""
    monkeypatch.setattr(SharedModels, "wanted", lambda self, works: [])


def grid(**changes: Any) -> Grid:
    return tiny_grid(ARMS, **changes)


def test_methods_of_one_recipe_share_a_fit_and_have_the_rows_they_have_alone(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    together = run(grid(), tmp_path / "together", InProcess())
    assert fits == [("DensitySCM", 2)] * 2, "one fit for each of two sizes, for three methods"
    fits.clear()
    alone(monkeypatch)
    assert run(grid(), tmp_path / "alone", InProcess()).rows == together.rows
    assert fits == [("DensitySCM", 2)] * 6
    assert [row["method"] for row in together.rows[::4]] == list(ARMS)


def test_processes_find_what_another_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = run(grid(), tmp_path / "shared", Joblib(2)).rows
    alone(monkeypatch)
    assert run(grid(), tmp_path / "alone", InProcess()).rows == rows


def test_only_the_seconds_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept: list[int] = []
    forget = SharedModels.forget

    def noting(self: SharedModels) -> None:
        kept.append(len(list(self.folder.glob("*/*/weights.safetensors"))))
        forget(self)

    monkeypatch.setattr(SharedModels, "forget", noting)
    run(grid(), tmp_path, InProcess())
    assert kept == [4], "a model for each of four logs"
    assert {path.suffix for path in (tmp_path / "tiny" / "models").iterdir()} == {".json"}
    seconds = json.loads((tmp_path / "tiny.settings.json").read_text())["seconds"]
    assert list(seconds) == [*ARMS, SECONDS]
    assert seconds[SECONDS] > 0
    run(grid(), tmp_path, InProcess())
    assert json.loads((tmp_path / "tiny.settings.json").read_text())["seconds"] == seconds, "told again by a later call"
    (tmp_path / "tiny" / "models" / "other-cpu.json").write_text('{"models": 2, "seconds": 1000.0}')
    run(grid(), tmp_path, InProcess())
    assert json.loads((tmp_path / "tiny.settings.json").read_text())["seconds"] == seconds, "of other code"


def test_a_run_that_goes_on_takes_what_is_there_and_what_is_half_there_is_fitted_again(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SharedModels, "forget", lambda self: None)
    rows = run(grid(), tmp_path, InProcess()).rows
    models, cells = tmp_path / "tiny" / "models", tmp_path / "tiny" / "cells"
    fits.clear()
    for cell in cells.iterdir():
        cell.unlink()
    assert run(grid(), tmp_path, InProcess()).rows == rows
    assert not fits
    next(models.glob("*.json")).unlink()  # As if it had been killed while the last model was written.
    for cell in cells.iterdir():
        cell.unlink()
    assert run(grid(), tmp_path, InProcess()).rows == rows
    assert fits == [("DensitySCM", 2)]


def test_where_fitting_together_fails_every_method_fits_its_own(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    def full(self: SharedModels, *_: Any) -> None:
        raise OSError("no space left on the disk")

    monkeypatch.setattr(SharedModels, "fit", full)
    assert len(run(grid(), tmp_path, InProcess()).rows) == 16
    assert len(fits) == 6


def test_methods_fit_their_own_in_place_of_a_damaged_model(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SharedModels, "forget", lambda self: None)
    rows = run(grid(), tmp_path, InProcess()).rows
    weights = next((tmp_path / "tiny" / "models").glob("*/0/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    for cell in (tmp_path / "tiny" / "cells").iterdir():
        cell.unlink()
    fits.clear()
    assert run(grid(), tmp_path, InProcess()).rows == rows
    assert fits == [("DensitySCM", 2)] * 3, "three methods of the one size whose models are damaged"


def test_what_models_are_known_by(tmp_path: Path):
    one, other, sized = grid(), grid(task=CartPole(gravity=1.6)), grid(trials=(5, 9))
    keys = {pack.cells[0].method: pack.models_key for pack in one.packs()}
    assert keys["D3QN"] == ""
    assert keys["CTRL_g"] == keys["search"] == keys["search, one start"]
    assert len({pack.models_key for pack in one.packs()}) == 3, "nothing, and two sizes"
    assert not {pack.models_key for pack in one.packs()} & {pack.models_key for pack in other.packs()} - {""}
    assert len({pack.models_key for pack in [*one.packs(), *sized.packs()]}) == 4
    wanted = [pack.cells[0].trials for pack in SharedModels(tmp_path, "cpu").wanted(one.packs())]
    assert sorted(wanted) == [5, 10]
    assert not SharedModels(tmp_path, "cpu").wanted(tiny_grid({"D3QN": TINY, "search": BRIEF}).packs()), (
        "no two need it"
    )
    wider = tiny_grid({"CTRL_g": replace(TINY_CTRL_G, model=replace(TINY_CTRL_G.model, hidden=(9,)))})
    assert not {pack.models_key for pack in one.packs()} & {pack.models_key for pack in wider.packs()}


def test_models_of_subjects_are_shared_by_personal_policies_but_not_between_splits(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    experiment = HD(arms=HD_ARMS, seeds=2, protocol=PROTOCOL)
    rows = experiment.run(tmp_path / "together", InProcess())
    assert sorted(fits) == [("RandomEffects", 2), ("RandomEffects", 10)]
    assert SECONDS in json.loads((tmp_path / "together" / "hd.settings.json").read_text())["seconds"]
    fits.clear()
    alone(monkeypatch)
    assert experiment.run(tmp_path / "alone", InProcess()) == rows
    assert sorted(fits) == [("RandomEffects", 2), ("RandomEffects", 2), ("RandomEffects", 10)]
    assert len(read_csv(tmp_path / "alone" / "hd.csv")) == 3 * 2 * 5


def test_what_cannot_be_learned_is_refused_with_shared_models_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared, job = SharedModels(tmp_path, "cpu"), Job(logs(CartPole(), "random", [0], TINY_PROTOCOL)[0])
    shared.fit("key", TINY_CTRL_G, [job], silent, 5.0)

    def refuse(self: CTRLg, jobs: Sequence[Job], task: Task) -> None:
        raise CounterpointError("not this")

    monkeypatch.setattr(CTRLg, "check", refuse)
    with pytest.raises(CounterpointError, match="not this"):
        shared.learn("key", TINY_CTRL_G, [job], CartPole(), Monitor())


@pytest.mark.parametrize(("kept", "asked"), [(1, 2), (2, 1)])
def test_models_of_another_number_of_jobs_are_not_taken(
    kept: int, asked: int, tmp_path: Path, fits: list[tuple[str, int]]
):
    shared, own = SharedModels(tmp_path, "cpu"), logs(CartPole(), "random", [0, 1], TINY_PROTOCOL)
    jobs = [Job(own[seed], seed) for seed in own]
    shared.fit("key", TINY_CTRL_G, jobs[:kept], silent, 5.0)
    assert len(shared.learn("key", TINY_CTRL_G, jobs[:asked], CartPole(), Monitor())) == asked
    assert fits == [("DensitySCM", kept), ("DensitySCM", asked)]
    shared.learn("key", TINY_CTRL_G, jobs[:kept], CartPole(), Monitor())
    assert len(fits) == 2
