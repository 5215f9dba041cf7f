"""Every recipe and task by name, and `load`: a fitted thing back from its folder."""

from pathlib import Path
from typing import Any

from counterpoint import artifacts
from counterpoint.data.jobs import Origin
from counterpoint.data.spaces import Box, Discrete
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.dynamics.gaussian import GaussianDynamics
from counterpoint.dynamics.mixture import MixtureDynamics
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.density import Bent, Gaussian, Mixture, Spline
from counterpoint.nets.training import Schedule
from counterpoint.policies.bcq import BCQ
from counterpoint.policies.d3qn import D3QN
from counterpoint.policies.pets import PETS, Planner, TaskOrigin
from counterpoint.policies.steve import MVE, STEVE
from counterpoint.scm.auto import Auto, Candidate, Choice
from counterpoint.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.scm.bicogan_networks import Adversarial
from counterpoint.scm.density import DensitySCM
from counterpoint.scm.mixed import Mixed
from counterpoint.tasks.cartpole import CartPole

CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Box, Discrete, Origin, Schedule, Likelihood, Adversarial, Gaussian, Spline, Bent, Mixture, DensitySCM, BiCoGAN,
        ConditionalBiCoGAN, Mixed, Deterministic, GaussianDynamics, MixtureDynamics, Outcome, D3QN, BCQ, PETS, Planner,
        TaskOrigin, STEVE, MVE, CartPole, Auto, Choice, Candidate,
    )
}  # fmt: skip


def load(folder: Path | str) -> Any:
    """The fitted model, task or policy that was saved in `folder`.

    Example:
        >>> model = counterpoint.load("runs/first/scm")  # doctest: +SKIP
    """
    weights, header = artifacts.load(folder)
    try:
        recipe, actions, origin = (artifacts.decode(header[name], CLASSES) for name in ("recipe", "actions", "origin"))
        return recipe.rebuild(header, weights, actions, origin)
    except CounterpointError:
        raise
    except (LookupError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CounterpointError(f"'{folder}' does not hold what its recipe says ({reason}); save it again") from None


def load_kind(folder: Path | str, kind: type | tuple[type, ...], what: str) -> Any:
    """Like `load`, and the thing must be of a kind."""
    thing = load(folder)
    if not isinstance(thing, kind):
        raise CounterpointError(f"'{folder}' holds a {type(thing).__name__}, not {what}; name another folder")
    return thing
