"""Models that several methods need are fitted once, and no number tells: rows are those of methods that fit alone."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.base import Recipe
from counterpoint.models.groups import KMeansGroups
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.grid import PROTOCOL as TINY_PROTOCOL
from helpers.grid import TINY, TINY_CTRL_G, tiny_grid
from helpers.hd import PROTOCOL
from reproduction import learning
from reproduction.executors import Joblib
from reproduction.experiment import Context
from reproduction.grid import Grid
from reproduction.hd import HD, HDArm
from reproduction.logs import LogSource, logs

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
    return noted(monkeypatch)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """A list to which every fit in this process adds its recipe and the number of its jobs."""
    found: list[tuple[str, int]] = []

    def noting(recipe: type[Recipe]) -> Any:
        original = recipe.fit_many

        def fit_many(self: Any, jobs: Sequence[Job], *rest: Any) -> list[Any]:
            found.append((recipe.__name__, len(jobs)))
            return original(self, jobs, *rest)

        return fit_many

    for recipe in (DensitySCM, RandomEffects):
        monkeypatch.setattr(recipe, "fit_many", noting(recipe))
    return found


def each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every method fits its own models."""
    monkeypatch.setattr(learning, "_stored", lambda *_: None)


def grid(**changes: Any) -> Grid:
    return tiny_grid(ARMS, **changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """The rows of methods that fit their own models, and these fits."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        each_alone(monkeypatch)
        fits = noted(monkeypatch)
        return grid().run(tmp_path_factory.mktemp("alone")), fits


def test_methods_of_one_recipe_share_a_fit_and_have_the_rows_they_have_alone(
    alone: tuple[list[dict[str, Any]], list[tuple[str, int]]], tmp_path: Path, fits: list[tuple[str, int]]
):
    together = grid().run(tmp_path / "together")
    assert fits == [("DensitySCM", 2)] * 2, "one fit for each of two sizes, for three methods"
    assert alone == (together, [("DensitySCM", 2)] * 6)
    assert [row["method"] for row in together[::4]] == list(ARMS)
    assert not (tmp_path / "together" / "tiny" / "shared").exists(), "models are deleted once all cells are done"


def test_processes_use_what_another_fitted(alone: tuple[list[dict[str, Any]], Any], tmp_path: Path):
    assert grid().run(tmp_path / "shared", Joblib(2)) == alone[0]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of models, of an experiment in which one cell fails, so that they stay."""

    class Refused(Search):
        def check(self, jobs: Sequence[Job], task: Task) -> None:
            raise CounterpointError("not this")

    arms = {**ARMS, "refused": Refused(**{field.name: getattr(BRIEF, field.name) for field in fields(BRIEF)})}
    monkeypatch.setattr(sys.modules[__name__], "ARMS", arms)
    return tmp_path / "tiny" / "shared" / "models"


def rows_of_a_run(out: Path) -> list[dict[str, Any]]:
    with pytest.raises(CounterpointError, match="refused: CounterpointError: not this"):
        grid().run(out)
    return read_csv(out / "tiny.csv")


def test_a_run_that_goes_on_uses_stored_models_and_fits_incomplete_or_damaged_ones_again(
    kept: Path, tmp_path: Path, fits: list[tuple[str, int]]
):
    rows = rows_of_a_run(tmp_path)
    assert len(fits) == 2
    fits.clear()

    def again() -> None:
        for cell in (tmp_path / "tiny" / "cells").iterdir():
            cell.unlink()
        assert rows_of_a_run(tmp_path) == rows

    again()
    assert not fits
    next(kept.glob("*/complete")).unlink()  # As if it had been killed while the last model was written.
    again()
    assert fits == [("DensitySCM", 2)]
    fits.clear()
    weights = next(kept.glob("*/0/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    again()
    assert fits == [("DensitySCM", 2)], "the first method that finds the damage mends it for all"


def test_models_are_shared_by_recipe_and_data(tmp_path: Path, fits: list[tuple[str, int]]):
    context = Context("key", tmp_path)
    source = LogSource(CartPole(), "random", TINY_PROTOCOL)
    jobs = [Job(log, seed) for seed, log in logs(source, [0, 1]).items()]
    fitted = learning.shared_models(TINY_CTRL_G, jobs, context, "data")
    for learner, data, count in (
        (BRIEF, "data", 1),
        (replace(TINY_CTRL_G, model=replace(TINY_CTRL_G.model, hidden=(9,))), "data", 2),
        (TINY_CTRL_G, "other data", 3),
    ):
        assert len(learning.shared_models(learner, jobs, context, data)) == len(fitted)
        assert len(fits) == count


def test_models_of_subjects_are_shared_by_personal_policies_but_not_between_splits(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    experiment = HD(arms=HD_ARMS, seeds=2, protocol=PROTOCOL)
    rows = experiment.run(tmp_path / "together")
    assert sorted(fits) == [("RandomEffects", 2), ("RandomEffects", 10)]
    fits.clear()
    each_alone(monkeypatch)
    assert experiment.run(tmp_path / "alone") == rows
    assert sorted(fits) == [("RandomEffects", 2), ("RandomEffects", 2), ("RandomEffects", 10)]
    assert len(read_csv(tmp_path / "alone" / "hd.csv")) == 3 * 2 * 5


def test_what_cannot_be_learned_is_refused_before_a_model_is_fitted(
    tmp_path: Path, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    job = Job(logs(LogSource(CartPole(), "random", TINY_PROTOCOL), [0])[0])

    def refuse(self: CTRLg, jobs: Sequence[Job], task: Task) -> None:
        raise CounterpointError("not this")

    monkeypatch.setattr(CTRLg, "check", refuse)
    with pytest.raises(CounterpointError, match="not this"):
        learning.learn(TINY_CTRL_G, [job], CartPole(), Context("key", tmp_path), "data", "policy")
    assert not fits
