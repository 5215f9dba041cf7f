"""Every method of `train` where there is nothing to learn: a model that diverges, one action, few subjects, no dose."""

from pathlib import Path
from shutil import copytree
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.cli import train
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Discrete
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.selection import check_rollouts
from helpers.cli import command
from helpers.personal_commands import TABLE, table
from helpers.search import DRIFT, LOG, MODEL_RECIPE
from helpers.short_methods import fitted, fitted_run, short_methods, sizes

SHAPES = False
__all__ = ["fitted", "short_methods"]
WITHOUT_MODEL = ("d3qn", "bcq", "practice")
NEAR = ("near-practice", "practice")
"""Methods that keep to practice where the log supports nothing else."""
METHODS = [method for method in get_args(train.Method) if method not in (*WITHOUT_MODEL, *NEAR)]
AUGMENTED = [method for method, parts in train.PARENTS.items() if "augmented" in parts]


def diverging(self: ModelSimulator, state: Tensor, action: Tensor, noise: tuple[Tensor, ...], theta: Tensor) -> Tensor:
    """The next states of a model that leaves all numbers at its first step."""
    return torch.full_like(state, torch.inf)


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", METHODS)
def test_no_method_learns_in_a_model_that_diverges(
    fitted: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(fitted, tmp_path / "run")
    monkeypatch.setattr(ModelSimulator, "step", diverging)
    with pytest.raises(SystemExit, match="2"):
        command("train", "--run", tmp_path / "run", "--method", method, *sizes(method))
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "inside the fitted model" in said
    assert "finite" in said
    assert not (tmp_path / "run" / "policy").exists()


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", [*WITHOUT_MODEL, "near-practice"])
def test_a_model_that_diverges_is_no_evidence_for_any_policy(
    fitted: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(fitted, tmp_path / "run")
    monkeypatch.setattr(ModelSimulator, "step", diverging)
    command("train", "--run", tmp_path / "run", "--method", method, *sizes(method))
    said = capsys.readouterr().out
    assert "no mean return inside the model: the model leads to returns that are not finite" in said
    assert method != "near-practice" or "so the policy is practice itself" in said


@pytest.fixture(scope="module")
def one_action(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a log in which every row has the same dose."""
    return fitted_run(tmp_path_factory.mktemp("one"), table(24, 6).assign(dose=0))


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", get_args(train.Method))
def test_nothing_is_learned_from_one_action(
    one_action: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that need imagined rows are refused by augment; the others by train, except those near practice."""
    copytree(one_action, tmp_path / "run")
    words = ["train", "--run", tmp_path / "run", "--method", method, *sizes(method)]
    if method in NEAR:
        command(*words)
        policy = cp.Run(tmp_path / "run").policy
        assert policy.act(torch.randn(20, 2)).unique().tolist() == [0.0]
        assert method == "practice" or "practice itself" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit, match="2"):
        command(*(["augment", "--run", tmp_path / "run"] if method in AUGMENTED else words))
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert ("there is one action only" if method in AUGMENTED else "all rows have the same action") in said
    assert not (tmp_path / "run" / "policy").exists()


@pytest.fixture(scope="module")
def five_subjects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a log of five subjects, one of them held out."""
    run = fitted_run(tmp_path_factory.mktemp("five"), table(5, 6))
    command("augment", "--run", run)
    return run


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", get_args(train.Method))
def test_a_log_of_five_subjects(
    five_subjects: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every method ends; the default one keeps to practice, since it can hold no subjects out."""
    copytree(five_subjects, tmp_path / "run")
    command("train", "--run", tmp_path / "run", "--method", method, *sizes(method))
    said, run = capsys.readouterr().out, cp.Run(tmp_path / "run")
    assert "mean return in the log" in said
    if method == train.OWN_TABLE:
        assert "4 subjects are too few to hold some out, so the policy is practice itself" in said
        practice = cp.Practice().fit(run.training, run.task)
        assert torch.equal(run.policy.act(run.data.state), practice.act(run.data.state))


@pytest.fixture(scope="module")
def unused_dose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two doses, one of which nobody was ever given."""
    log = table(24, 6)
    amounts = np.random.default_rng(0).gamma(2.0, 1.0, len(log)).round(3)
    roles = [*TABLE, "--action", "dose", "unused"]
    return fitted_run(tmp_path_factory.mktemp("unused"), log.assign(dose=amounts, unused=0.0), roles)


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", get_args(train.Method))
def test_a_dose_that_nobody_was_given_is_never_advised(
    unused_dose: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that choose from a list of actions refuse continuous doses; the others leave the unused dose at 0."""
    copytree(unused_dose, tmp_path / "run")
    words = ["train", "--run", tmp_path / "run", "--method", method, *sizes(method)]
    if method in ("search", "ctrl-p", "pilco", *NEAR):
        command(*words)
        run = cp.Run(tmp_path / "run")
        advised = run.policy.act(3 * run.data.state, run.scm.subjects(run.data)[:, : run.policy.factor_width])
        assert advised[:, 1].abs().max() == 0.0
        assert advised[:, 0].isfinite().all()
        return
    with pytest.raises(SystemExit, match="2"):
        command(*words)
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert ("has no augmented" if method in AUGMENTED else "the doses are continuous") in said
    assert not (tmp_path / "run" / "policy").exists()


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", get_args(train.Method))
def test_every_method_says_the_step_it_kept_and_its_score(
    fitted: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(fitted, tmp_path / "run")
    command("train", "--run", tmp_path / "run", "--method", method, *sizes(method))
    said = capsys.readouterr().out
    if method in ("pets", "practice"):
        assert "kept" not in said, "neither a planner nor practice has checkpoints"
    elif method == "near-practice":
        assert "return inside the model" in said
    elif method in WITHOUT_MODEL:
        assert "kept the last step: no model chose among the checkpoints" in said
    elif method == "near-practice":
        assert "mean return inside the model" in said
        assert "practice (" in said
    else:
        assert "kept step " in said
        assert "return inside the model" in said
    assert "mean return in the log" in said


def test_one_finite_episode_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second of two actions keeps the numbers finite, and only in the first episode."""
    model, actions = MODEL_RECIPE.fit(LOG), Discrete.of([0.0, 1.0])

    def step(self: ModelSimulator, state: Tensor, action: Tensor, noise: object, theta: Tensor) -> Tensor:
        after = torch.full_like(state, torch.inf)
        after[:, 0] = state[:, 0] / action[:, 0]
        return after

    monkeypatch.setattr(ModelSimulator, "step", step)
    check_rollouts([model], [Job(LOG)], DRIFT, actions, 3)
    with pytest.raises(cp.CounterpointError, match="no episode inside the fitted model is finite"):
        check_rollouts([model], [Job(LOG)], DRIFT, Discrete.of([0.0]), 3)
