"""The paper's SD experiment, CartPole on earth, every arm (Figure 2a and its twin), and what goes beyond it.

The paper logs 50 to 250 trials of 20 steps; 5, 10 and 20 show how few rows a policy can be learned from.
"""

from collections.abc import Iterable, Sequence

from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.methods import PILCO_ROWS
from counterpoint.learners.search import Search
from counterpoint.tasks.cartpole import CartPole
from reproduction.arms import (
    CTRL_G,
    CTRL_G_BICOGAN,
    PETS_ARM,
    PILCO,
    ROLLOUTS,
    SEARCH,
    adversarial_arms,
    beyond_arms,
    paper_arms,
    quick_arms,
)
from reproduction.experiment import choose
from reproduction.grid import Arm, Grid
from reproduction.logs import RANDOM_ACTION_SHARE, Behaviour, Protocol

SEARCH_MIRROR = f"{SEARCH}, mirror declared"
PAPER_TRIALS = (50, 100, 150, 200, 250)
TRIALS = (5, 10, 20, *PAPER_TRIALS)
QUICK_TRIALS, QUICK_EPISODES = (50,), 10
WITHOUT_FAILURES = ("D3QN", "Base-S", CTRL_G_BICOGAN, CTRL_G, "BCQ", SEARCH)
"""Methods for logs of few random actions, most of which hold no failure."""


def sd(
    behaviour: Behaviour = "random",
    seeds: int = 20,
    methods: Sequence[str] = (),
    stack_size: int | None = None,
    random_action_share: float = RANDOM_ACTION_SHARE,
) -> Grid:
    """The whole experiment.

    Args:
        behaviour: Policy that logs.
        seeds: Data sets and training seeds.
        methods: Some of the arms; all where none is named.
        stack_size: Policies of a method learned in one stack; None for all.
        random_action_share: Share of random actions in non-random logs.
    """
    learners = {**paper_arms(), **adversarial_arms(), **beyond_arms()}
    arms = {name: _arm(name, learner) for name, learner in learners.items()}
    arms[SEARCH_MIRROR] = Arm(Search(), CartPole(mirror_declared=True))
    trials = TRIALS if behaviour == "random" else PAPER_TRIALS
    protocol = Protocol(random_action_share=random_action_share)
    return _grid("", arms, trials, seeds, behaviour, protocol, methods, stack_size)


def quick_sd(
    behaviour: Behaviour = "random",
    seeds: int = 2,
    methods: Sequence[str] = (),
    stack_size: int | None = None,
    random_action_share: float = RANDOM_ACTION_SHARE,
) -> Grid:
    """One size, a few seeds and small networks: minutes on two cores."""
    arms = {name: Arm(learner, CartPole()) for name, learner in quick_arms().items()}
    protocol = Protocol(random_action_share=random_action_share, evaluation_trials=QUICK_EPISODES)
    return _grid("-quick", arms, QUICK_TRIALS, seeds, behaviour, protocol, methods, stack_size)


def _grid(
    suffix: str,
    arms: dict[str, Arm],
    trials: tuple[int, ...],
    seeds: int,
    behaviour: Behaviour,
    protocol: Protocol,
    methods: Sequence[str],
    stack_size: int | None,
) -> Grid:
    """From random logs all arms, from others the paper's and two that use the model for more than one step."""
    name = "sd" if behaviour == "random" else "sd-nonrandom"
    if protocol.random_action_share != RANDOM_ACTION_SHARE:
        name += f"-{100 * protocol.random_action_share:g}"
    few = (*paper_arms(), ROLLOUTS, SEARCH)
    suited = {name: arm for name, arm in arms.items() if behaviour == "random" or name in few}
    chosen = choose(suited, methods)
    return Grid(
        name + suffix,
        chosen,
        trials,
        tuple(range(seeds)),
        behaviour,
        protocol,
        stack_size,
        tuple(sd_comparisons(chosen)),
        with_paper=True,
    )


def _arm(name: str, learner: PolicyLearner) -> Arm:
    if name == PILCO:
        return Arm(learner, CartPole(), PILCO_ROWS // Protocol().steps, one_size=True)
    if name == PETS_ARM:
        return Arm(learner, CartPole(), one_size=True)
    return Arm(learner, CartPole())


def sd_comparisons(arms: Iterable[str]) -> list[tuple[str, str]]:
    """CTRL_g with the default SCM, and the search inside it, against every other arm."""
    names = list(arms)
    ours = [name for name in (SEARCH, CTRL_G) if name in names]
    comparisons = []
    for place, method in enumerate(ours):
        comparisons += [(method, name) for name in names if name not in ours[: place + 1]]
    return comparisons
