"""`--device cuda` on the command line, on a pretended GPU that refuses every mixture of devices."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any, get_args

import pytest
import torch
from torch import nn

import counterpoint as cp
from counterpoint.cli import train
from counterpoint.models.scm.base import StructuralCausalModel
from helpers.cli import command
from helpers.personal_commands import EFFECTS, TABLE, table
from helpers.pretend_gpu import pretended_gpu
from helpers.short_methods import UPDATES, fitted, short_methods, sizes

SHAPES = False
__all__ = ["fitted", "short_methods"]


@pytest.mark.parametrize("mixed", [
    lambda there, here: there + here,
    lambda there, here: torch.cat([there, here]),
    lambda there, here: here[there.long()],
    lambda there, here: torch.where(here > 0, there, there),
    lambda there, here: nn.Linear(3, 2)(there),
    lambda there, here: nn.Linear(3, 2).to("cuda")(here),
    lambda there, here: torch.randn(3, device="cuda", generator=torch.Generator()),
    lambda there, here: there.numpy(),
])  # fmt: skip
def test_the_pretended_gpu_refuses_mixtures(mixed: Callable[..., Any]) -> None:
    with pretended_gpu(), pytest.raises((RuntimeError, TypeError, AssertionError)):
        mixed(torch.zeros(3, device="cuda"), torch.ones(3))


def test_the_pretended_gpu_takes_what_a_gpu_takes() -> None:
    with pretended_gpu():
        there, here = torch.zeros(3, device="cuda"), torch.ones(3)
        assert (there + torch.tensor(1.0)).device.type == "cuda"
        assert there[here.long()].device.type == "cuda"
        assert here.copy_(there).device.type == "cpu"
        module = nn.Linear(3, 2).to("cuda")
        module(there).sum().backward()
        assert module.weight.grad is not None
        assert module.weight.grad.device.type == "cuda"
        assert module(there).cpu().detach().numpy().shape == (2,)


@pytest.mark.usefixtures("short_methods")
@pytest.mark.parametrize("method", get_args(train.Method))
def test_every_method_learns_on_the_gpu_alone(fitted: Path, tmp_path: Path, method: str) -> None:
    copytree(fitted, tmp_path / "run")
    with pretended_gpu():
        command("train", "--run", tmp_path / "run", "--method", method, "--device", "cuda", *sizes(method))
    policy = cp.load(tmp_path / "run" / "policy")
    assert isinstance(policy, cp.Policy)
    assert torch.as_tensor(policy.act(torch.zeros(2, 2), torch.zeros(2, policy.factor_width))).shape == (2, 1)
    assert {tensor.device.type for tensor in policy.state_dict().values()} <= {"cpu"}


def test_a_search_of_continuous_doses_prices_them_on_the_gpu_alone(tmp_path: Path) -> None:
    log = table(24, 6)
    log.assign(dose=log["dose"] + 0.1 * log["x"].abs()).to_csv(tmp_path / "log.csv", index=False)
    words = ["--run", tmp_path / "run", "--data", tmp_path / "log.csv", *TABLE, "--last", "truncate"]
    with pretended_gpu():
        command("fit", *words, "--device", "cuda", "scm:density", *MODELS["scm:density"])
        command("train", "--run", tmp_path / "run", "--method", "search", "--device", "cuda", *sizes("search"))
    assert (tmp_path / "run" / "policy").exists()


MODELS = {
    "scm:density": ["--scm.likelihood.schedule.steps", UPDATES],
    "scm:random-effects": EFFECTS[1:],
    "scm:bicogan": ["--scm.training.schedule.steps", UPDATES],
    "scm:conditional-bicogan": ["--scm.training.schedule.steps", UPDATES],
}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_fitted_on_the_gpu_alone(fitted: Path, tmp_path: Path, model: str) -> None:
    copytree(fitted, tmp_path / "run")
    with pretended_gpu():
        command("fit", "--run", tmp_path / "run", "--device", "cuda", model, *MODELS[model])
    assert isinstance(cp.load(tmp_path / "run" / "scm"), StructuralCausalModel)
