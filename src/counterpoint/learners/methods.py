"""Policy-learning methods by name, as `counterpoint train --method` lists them.

Without the environment, a method with a model selects the checkpoint with the best return of rollouts inside that
model. PETS fits nothing but a model and selects it on held-out rows. D3QN on logged rows and BCQ have no model: their
policy is the last checkpoint of a schedule of fixed length whose learning rate falls to zero.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from counterpoint import learners
from counterpoint.learners.base import ModelBased, PolicyLearner
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.rollout_rows import RolloutRows
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.gaussian_process import GaussianProcess
from counterpoint.models.dynamics.mixture import MixtureDynamics
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy

PILCO_ROWS = 2000
"""Rows that an exact Gaussian process is fitted on at most."""
VOTING = replace(LEARNER, hidden=(128, 128), batch=128, networks=10)
"""The Q-learning on rollouts: ten small networks whose mean acts."""

QUICK_SEARCH = Search(
    draws=PosteriorDraws(5), restarts=1, choosing_starts=8, schedule=Schedule(steps=15, check_every=5, log_every=5)
)
"""A short search, for a laptop."""
SMALL_BICOGAN = BiCoGAN(
    generator_hidden=(50, 100, 150, 150),
    encoder_hidden=(150, 150, 100, 50),
    discriminator_hidden=(150, 150, 100, 50),
    training=replace(BiCoGAN().training, schedule=Schedule(steps=1000)),
)
"""The paper's BiCoGAN with a quarter of its widths and a third of its updates, for a laptop."""


def unselected(learner: D3QN) -> D3QN:
    """The same learner keeping its last checkpoint, for a method without a model to select one in."""
    return replace(learner, schedule=replace(learner.schedule, check_every=0))


def named_methods(learner: D3QN = LEARNER) -> dict[str, PolicyLearner[Policy]]:
    """Every method by its name on the command line; `learner` is the Q-learning of those that have one.

    Base-D, Base-S and Base-M differ from CTRL_g in the model. PILCO differs from the search in the model, whose
    predictive variance is that of a Gaussian process.
    """
    voting = VOTING if learner == LEARNER else learner
    pilco = Search(GaussianProcess(most=PILCO_ROWS), draws=None, starts=5, restarts=1, choosing_starts=20)
    by_groups = CTRLg(RandomEffects(), learner=learner, sees_factor=False)
    return {
        "d3qn": unselected(learner),
        "base-d": CTRLg(Deterministic(), learner=learner),
        "base-s": CTRLg(GaussianDynamics(), learner=learner),
        "base-m": CTRLg(MixtureDynamics(), learner=learner),
        "ctrl-g-bicogan": CTRLg(BiCoGAN(), learner=learner),
        "ctrl-g": CTRLg(learner=learner),
        "ctrl-g-rollouts": CTRLg(learner=voting, rollouts=RolloutRows()),
        "search": Search(),
        "pilco": pilco,
        "ctrl-p": CTRLp(),
        "ctrl-p-d3qn": CTRLp(by_groups),
        **dict(_exported_methods(learner)),
    }


def _exported_methods(learner: D3QN) -> Iterator[tuple[str, PolicyLearner[Policy]]]:
    """Every exported learner that names itself in `command`, with that name."""
    for name in dir(learners):
        kind: Any = getattr(learners, name)
        if not isinstance(kind, type) or "command" not in vars(kind):
            continue
        recipe: Any = kind
        settings: dict[str, Any] = {}
        if "learner" in {field.name for field in fields(recipe)}:
            settings["learner"] = learner if issubclass(kind, ModelBased) else unselected(learner)
        yield recipe.command[0], recipe(**settings)
