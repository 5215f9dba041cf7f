"""The paper's SD experiment: CartPole on earth, 50 to 250 logged trials, every arm (Figure 2a and its twin)."""

from collections.abc import Sequence

from counterpoint.errors import CounterpointError
from counterpoint.experiments.grid import Arm, Behaviour, Grid
from counterpoint.methods.arms import CTRL_G, paper_arms, quick_arms
from counterpoint.tasks.cartpole import CartPole

QUICK_TRIALS, QUICK_SEEDS = (50, 250), 3


def sd(behaviour: Behaviour = "random", seeds: int = 20, methods: Sequence[str] = (), pack_size: int = 0) -> Grid:
    """The whole experiment; `methods` picks some of its arms."""
    arms = {name: Arm(learner, CartPole()) for name, learner in paper_arms().items()}
    numbers = tuple(range(seeds))
    return Grid(_name(behaviour), chosen(arms, methods), seeds=numbers, behaviour=behaviour, pack_size=pack_size)


def quick_sd(
    behaviour: Behaviour = "random", seeds: int = QUICK_SEEDS, methods: Sequence[str] = (), pack_size: int = 0
) -> Grid:
    """Two sizes, a few seeds and small networks."""
    arms = {name: Arm(learner, CartPole()) for name, learner in quick_arms().items()}
    name, numbers = f"{_name(behaviour)}-quick", tuple(range(seeds))
    return Grid(name, chosen(arms, methods), QUICK_TRIALS, numbers, behaviour, pack_size=pack_size)


def chosen(arms: dict[str, Arm], methods: Sequence[str]) -> dict[str, Arm]:
    """The arms named, or all of them where none is."""
    unknown = [name for name in methods if name not in arms]
    if unknown:
        raise CounterpointError(f"there is no method '{unknown[0]}'; choose from {', '.join(arms)}")
    return {name: arm for name, arm in arms.items() if not methods or name in methods}


def sd_comparisons(grid: Grid) -> list[tuple[str, str]]:
    """CTRL_g with the default SCM against every other arm."""
    return [(CTRL_G, name) for name in grid.arms if name != CTRL_G] if CTRL_G in grid.arms else []


def _name(behaviour: Behaviour) -> str:
    return "sd" if behaviour == "random" else "sd-nonrandom"
