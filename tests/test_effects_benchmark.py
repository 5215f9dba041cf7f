"""The benchmark of effects: true answers have no error, copying has 1, and confounding shows in the naive ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterpoint.data.jobs import Job
from counterpoint.models.scm.density import location_scale
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from reproduction.command import Reproduce
from reproduction.effect_estimators import FittedSCM, SCMReplay, estimators
from reproduction.effects import Effects, coverage, relative_error, share_of_right_signs
from reproduction.pages.effects import effects_page, summary
from reproduction.tasks.confounded import LOGS, Questions, confounded_log


@pytest.mark.parametrize("task", ["d", "tumour", "ward", "pharmacokinetic"])
def test_the_truth_has_no_error_and_copying_has_1(task: str) -> None:
    log = confounded_log(task, "medium", 0)
    assert set(log.questions) == ({1} if task == "d" else {1, 4})
    for horizon, questions in log.questions.items():
        assert questions.window.shape[1] == horizon
        assert relative_error(questions, questions.truth) == 0
        assert relative_error(questions, questions.factual) == pytest.approx(1, abs=1e-5)
        assert share_of_right_signs(questions, questions.truth) == 1
        backward = questions.factual - (questions.truth - questions.factual)
        assert share_of_right_signs(questions, backward) == 0
        torch.testing.assert_close(questions.plan[:, 1:], questions.logged[:, 1:])
    assert log.rows.noise.shape[1] == 0


@pytest.mark.parametrize("task", ["a", "tumour"])
def test_less_overlap_leaves_less_variation_of_the_action_given_the_state(task: str) -> None:
    left = []
    for overlap in ("strong", "medium", "weak"):
        rows = confounded_log(task, overlap, 1).rows
        state = torch.cat([rows.state, rows.state**2, torch.ones(len(rows), 1)], 1).double()
        action = rows.action.double()
        residual = action - state @ torch.linalg.lstsq(state, action).solution
        left.append(float(residual.square().mean() / (action - action.mean(0)).square().mean()))
    assert left[0] > left[1] > left[2]


def test_a_fitted_scm_replays_its_own_record_and_moves_with_the_plan() -> None:
    log = confounded_log("tumour", "strong", 0)
    recipe = replace(location_scale(ensemble=1), likelihood=Likelihood(Schedule(steps=150, rate="one-cycle")))
    (answer,) = FittedSCM(recipe).fit_many([Job(log.rows, 0)], "cpu")
    questions = log.questions[4]
    same = replace(questions, plan=questions.logged)
    torch.testing.assert_close(answer(same), questions.factual, atol=2e-3, rtol=1e-3)
    assert relative_error(questions, answer(questions)) < 0.9
    assert isinstance(answer, SCMReplay)


def test_intervals_are_of_the_questions_rows_and_wider_intervals_cover_more() -> None:
    log = confounded_log("tumour", "medium", 0)
    recipe = replace(location_scale(ensemble=3), likelihood=Likelihood(Schedule(steps=60, rate="one-cycle")))
    (answer,) = FittedSCM(recipe).fit_many([Job(log.rows, 0)], "cpu")
    questions = log.questions[1]
    assert isinstance(answer, SCMReplay)
    low, high = answer.interval(questions, 0.9)
    middle = answer(questions)
    assert bool(((low <= middle + 1e-4) & (middle <= high + 1e-4)).all())
    narrow, wide = (coverage(questions, *answer.interval(questions, level)) for level in (0.5, 0.99))
    assert narrow["covered"] < wide["covered"]
    assert narrow["width"] < wide["width"]
    exact = coverage(questions, questions.truth, questions.truth)
    assert (exact["covered"], exact["width"]) == (1.0, 0.0)
    assert coverage(questions, questions.factual, questions.factual)["covered"] < 0.2


def test_confounding_makes_trees_worse_than_a_line_in_the_pharmacokinetic_world() -> None:
    log = confounded_log("pharmacokinetic", "strong", 0)
    signs = {}
    for name in ("line", "boosted trees"):
        (answer,) = estimators()[name].fit_many([Job(log.rows, 0)], "cpu")
        signs[name] = share_of_right_signs(log.questions[1], answer(log.questions[1]))
    assert signs["line"] > 0.95 > 0.8 > signs["boosted trees"]


def test_the_page_counts_who_is_first_and_who_is_no_better_than_copying() -> None:
    cell = {"task": "a", "overlap": "weak", "horizon": 1}
    rows = [
        {**cell, "estimator": name, "seed": seed, "error": error, "sign_right": 1.0}
        for name, errors in (("x", (0.2, 0.4)), ("y", (0.31, 0.31)), ("z", (1.0, 1.1)))
        for seed, error in enumerate(errors)
    ]
    lines = {line["estimator"]: line for line in summary(rows)}
    assert [lines[name]["first"] for name in "xyz"] == [1, 1, 0]
    assert [lines[name]["copying or worse"] for name in "xyz"] == [0, 0, 1]
    assert "| a | weak | 0.30 | 0.31 | 1.05 |" in effects_page(rows, "python -m reproduction effects")


def test_the_experiment_writes_its_files_and_the_command_chooses(tmp_path: Path) -> None:
    some = {name: estimators()[name] for name in ("line", "ridge")}
    experiment = Effects(("a",), ("weak",), 2, estimators=some, name="effects-quick")
    rows = experiment.run(tmp_path)
    assert len(rows) == 4
    header = (tmp_path / "effects-quick.csv").read_text().splitlines()[0]
    assert header == "task,overlap,horizon,estimator,seed,error,sign_right"
    assert (tmp_path / "effects-quick.png").exists()
    chosen = Reproduce("effects", worlds=("hiv",), methods=("ridge",), seeds=3, device="cpu").part("effects")
    assert [cell.name for cell in chosen.cells()] == ["ridge on hiv"]
    whole = Reproduce("effects", device="cpu").part("effects")
    assert isinstance(whole, Effects)
    assert len(whole.cells()) == (len(LOGS) - 1) * len(whole.estimators)


def test_an_answer_that_is_not_finite_is_infinitely_wrong() -> None:
    questions = confounded_log("a", "weak", 0).questions[1]
    broken = questions.factual.clone()
    broken[0, 0] = torch.nan
    assert relative_error(questions, broken) == float("inf")
    assert isinstance(questions, Questions)
