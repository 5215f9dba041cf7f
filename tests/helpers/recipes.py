"""Every SCM and every model of the dynamics, small enough to be fitted in a blink, with rows that suit it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from counterpoint.data.spaces import ActionSpace
from counterpoint.data.transitions import Transitions
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.gaussian_process import GaussianProcess
from counterpoint.models.dynamics.mixture import MixtureDynamics
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.mixed import MixedSCM
from counterpoint.nets.laws import Gaussian, Mixture, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.tasks.base import Task
from reproduction.tasks.structural_problems import (
    Independent,
    sample,
)

BRIEF = Likelihood(Schedule(steps=20, check_every=10), batch=32)
ROWS = sample(Independent(), 120, 0)
CODED = replace(
    ROWS,
    state=torch.cat([ROWS.state[:, :3], (ROWS.state[:, 3:] > 0).float()], 1),
    next_state=torch.cat([ROWS.next_state[:, :3], (ROWS.next_state[:, 3:] > 0).float()], 1),
)
TRAINING = replace(BiCoGAN().training, schedule=Schedule(steps=5), batch=16)
PAPER = BiCoGAN((8, 8), (8, 8), (8, 8), training=TRAINING)
CONDITIONAL = ConditionalBiCoGAN((8,), 4, (8,), (8,), training=TRAINING)
DENSITY = DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF)
DYNAMICS: dict[str, Any] = {"ensemble": 2, "hidden": (8,), "likelihood": BRIEF}

SCMS: dict[str, tuple[Any, Transitions]] = {
    "skewed spline": (DENSITY, ROWS),
    "gaussian": (replace(DENSITY, law=Gaussian()), ROWS),
    "spline": (replace(DENSITY, law=Spline(4)), ROWS),
    "mixture": (replace(DENSITY, law=Mixture(3)), ROWS),
    "triangular": (replace(DENSITY, order=(2, 0, 3, 1)), ROWS),
    "triangular mixture": (replace(DENSITY, law=Mixture(2), order=(0, 1, 2, 3)), ROWS),
    "mixed": (MixedSCM(((3, 2),), ensemble=2, hidden=(8,), likelihood=BRIEF), CODED),
    "bicogan": (PAPER, ROWS),
    "bicogan inverted": (replace(PAPER, abduction="inversion"), ROWS),
    "conditional bicogan": (CONDITIONAL, ROWS),
    "conditional bicogan's encoder": (replace(CONDITIONAL, abduction="encoder", change=False), ROWS),
}
MODELS = {
    "deterministic": Deterministic(**DYNAMICS),
    "gaussian dynamics": GaussianDynamics(**DYNAMICS),
    "mixture dynamics": MixtureDynamics(**DYNAMICS, components=2),
    "gaussian process": GaussianProcess(Schedule(steps=20, check_every=10)),
}
POLICY = D3QN(hidden=(8,), schedule=Schedule(steps=5), batch=16)


class Pays(Task):
    """Pays the first column of the next state, never ends, and names no columns of its own."""

    discount, horizon = 0.9, 5

    def __init__(self, actions: ActionSpace) -> None:
        self.actions = actions

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[..., 0]

    def terminated(self, next_state: Tensor) -> Tensor:
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)
