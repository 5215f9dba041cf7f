"""The benchmark of counterfactuals: its reference scores, its restart, its words on wrong names."""

from pathlib import Path

import pytest

import counterpoint.experiments.counterfactuals as benchmark
from counterpoint.errors import CounterpointError
from counterpoint.experiments.counterfactuals import SETS, TASKS, Counterfactuals, log, methods, run_cell
from counterpoint.report.results import read_csv, write_csv

COPY = ("copy the outcome",)


@pytest.mark.parametrize("scm", ["a", "d", "cartpole", "tumour"])
def test_copying_the_outcome_scores_one(scm: str) -> None:
    (row,) = run_cell(scm, 200, *COPY, [0], "cpu")
    assert row["error"] == pytest.approx(1.0, abs=0.03)
    assert row["round_trip"] == 0.0


def test_models_never_see_the_noise() -> None:
    assert log("b", 100, 0).noise.shape[1] == 1
    assert benchmark.blind(log("b", 100, 0)).noise.shape[1] == 0


def test_a_second_run_fits_nothing_and_a_larger_one_only_what_is_new(tmp_path: Path, monkeypatch) -> None:
    fitted: list[list[int]] = []
    real = benchmark.run_cell

    def counted(scm, n, method, seeds, device):
        fitted.append(list(seeds))
        return real(scm, n, method, seeds, device)

    monkeypatch.setattr(benchmark, "run_cell", counted)
    small = Counterfactuals(scms=("a",), n=(100,), seeds=1, methods=COPY)
    small.run(tmp_path)
    before = (tmp_path / "counterfactuals.csv").read_bytes()
    small.run(tmp_path)
    assert (tmp_path / "counterfactuals.csv").read_bytes() == before
    Counterfactuals(scms=("a",), n=(100,), seeds=3, methods=COPY).run(tmp_path)
    assert fitted == [[0], [1, 2]]
    assert [row["seed"] for row in read_csv(tmp_path / "counterfactuals.csv")] == [0, 1, 2]
    assert "copy the outcome" in (tmp_path / "counterfactuals.md").read_text()


def test_a_row_of_another_recipe_is_fitted_again_and_replaced(tmp_path: Path) -> None:
    out, grid = tmp_path / "new" / "folder", Counterfactuals(scms=("a",), n=(100,), seeds=2, methods=COPY)
    first = grid.run(out)
    path = out / "counterfactuals.csv"
    write_csv([{**first[0], "recipe": "rold", "error": 7.0}, first[1]], path, benchmark.COLUMNS)
    assert [(row["seed"], row["error"]) for row in grid.run(out)] == [(1, first[1]["error"]), (0, first[0]["error"])]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CounterpointError, match="no SCM 'z'"):
        Counterfactuals(scms=("z",)).cells()
    with pytest.raises(CounterpointError, match="no model 'x'"):
        Counterfactuals(methods=("x",)).cells()


def test_every_model_stands_on_every_problem_it_can_answer() -> None:
    cells = Counterfactuals().cells()
    assert {scm for scm, _, _ in cells} == {*TASKS, *SETS}
    assert {method for _, _, method in cells} == set(methods())
    assert ("a", 1000, "default, order given") not in cells
    assert ("f", 5000, "default, order given") in cells
