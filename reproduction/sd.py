"""The paper's SD experiment, CartPole on earth, every arm (Figure 2a and its twin), and what goes beyond it.

The paper logs 50 to 250 trials of 20 steps; 5, 10 and 20 show how few rows a policy can be learned from.
"""

from collections.abc import Sequence

from counterpoint.core.errors import CounterpointError
from counterpoint.learners.methods import (
    CTRL_G,
    PETS_ARM,
    PILCO,
    PILCO_ROWS,
    ROLLOUTS,
    SEARCH,
    adversarial_arms,
    beyond_arms,
    paper_arms,
    quick_arms,
)
from counterpoint.learners.search import Search
from counterpoint.policies.base import PolicyLearner
from counterpoint.tasks.cartpole import CartPole
from reproduction.grid import Arm, Behaviour, Grid, Protocol

SEARCH_MIRROR = f"{SEARCH}, mirror declared"
PAPER_TRIALS = (50, 100, 150, 200, 250)
TRIALS = (5, 10, 20, *PAPER_TRIALS)
QUICK_TRIALS, QUICK_SEEDS = (50, 250), 3


def sd(behaviour: Behaviour = "random", seeds: int = 20, methods: Sequence[str] = (), pack_size: int = 0) -> Grid:
    """The whole experiment; `methods` picks some of its arms."""
    learners = {**paper_arms(), **adversarial_arms(), **beyond_arms()}
    arms = {name: _arm(name, learner) for name, learner in learners.items()}
    arms[SEARCH_MIRROR] = Arm(Search(), CartPole(mirror_declared=True))
    asked, trials = _asked(arms, behaviour), TRIALS if behaviour == "random" else PAPER_TRIALS
    return Grid(_name(behaviour), chosen(asked, methods), trials, tuple(range(seeds)), behaviour, pack_size=pack_size)


def _asked(arms: dict[str, Arm], behaviour: Behaviour) -> dict[str, Arm]:
    """All arms from random logs; from others the paper's, and two that use the model for more than one step."""
    few = (*paper_arms(), ROLLOUTS, SEARCH)
    return {name: arm for name, arm in arms.items() if behaviour == "random" or name in few}


def _arm(name: str, learner: PolicyLearner) -> Arm:
    if name == PILCO:
        return Arm(learner, CartPole(), PILCO_ROWS // Protocol().steps, one_size=True)
    if name == PETS_ARM:
        return Arm(learner, CartPole(), one_size=True)
    return Arm(learner, CartPole())


def quick_sd(
    behaviour: Behaviour = "random", seeds: int = QUICK_SEEDS, methods: Sequence[str] = (), pack_size: int = 0
) -> Grid:
    """Two sizes, a few seeds and small networks."""
    arms = {name: Arm(learner, CartPole()) for name, learner in quick_arms().items()}
    name, numbers = f"{_name(behaviour)}-quick", tuple(range(seeds))
    return Grid(name, chosen(_asked(arms, behaviour), methods), QUICK_TRIALS, numbers, behaviour, pack_size=pack_size)


def chosen(arms: dict[str, Arm], methods: Sequence[str]) -> dict[str, Arm]:
    """The arms named, or all of them where none is."""
    unknown = [name for name in methods if name not in arms]
    if unknown:
        raise CounterpointError(f"there is no method '{unknown[0]}'; choose from {', '.join(arms)}")
    return {name: arm for name, arm in arms.items() if not methods or name in methods}


def sd_comparisons(grid: Grid) -> list[tuple[str, str]]:
    """CTRL_g with the default SCM, and the search inside it, against every other arm."""
    ours = [name for name in (SEARCH, CTRL_G) if name in grid.arms]
    return [(own, name) for own in ours for name in grid.arms if name not in ours[: ours.index(own) + 1]]


def _name(behaviour: Behaviour) -> str:
    return "sd" if behaviour == "random" else "sd-nonrandom"
