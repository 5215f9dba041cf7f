"""Every method of `train` in a model that diverges: none keeps a policy that nothing finite speaks for."""

from pathlib import Path
from shutil import copytree
from typing import get_args

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
from helpers.search import DRIFT, LOG, MODEL_RECIPE
from helpers.short_methods import fitted, short_methods, sizes

SHAPES = False
__all__ = ["fitted", "short_methods"]
WITHOUT_MODEL = ("d3qn", "bcq", "practice")
METHODS = [method for method in get_args(train.Method) if method not in WITHOUT_MODEL]


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
@pytest.mark.parametrize("method", get_args(train.Method))
def test_every_method_says_the_step_it_kept_and_its_score(
    fitted: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(fitted, tmp_path / "run")
    command("train", "--run", tmp_path / "run", "--method", method, *sizes(method))
    said = capsys.readouterr().out
    if method in ("pets", "practice"):
        assert "kept" not in said, "neither a planner nor practice has checkpoints"
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
