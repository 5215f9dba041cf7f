"""What `test_grid.py` shares with other test modules."""

from dataclasses import replace
from typing import Any

from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from reproduction.grid import Arm, Grid
from reproduction.logs import Protocol

TINY = D3QN((8, 8), Schedule(steps=150, rate="linear"), batch=16)

TINY_CTRL_G = CTRLg(
    DensitySCM(ensemble=1, hidden=(8,), likelihood=Likelihood(Schedule(steps=100, check_every=25))),
    learner=replace(TINY, schedule=Schedule(steps=100, check_every=50)),
    selection=CheckpointSelection(starts=2, horizon=10),
)

PROTOCOL = Protocol(logged_trials=10, evaluation_trials=3)


def tiny_grid(
    arms: dict[str, PolicyLearner], stack_size: int | None = 2, task: KnownSCM = CartPole(), **changes: Any
) -> Grid:
    named = {name: Arm(learner, task) for name, learner in arms.items()}
    return replace(Grid("tiny", named, (5, 10), (0, 1), protocol=PROTOCOL, stack_size=stack_size), **changes)
