"""The methods of Figure 2b: those of the paper, CTRL_p in four ways, an upper bound and a control."""

from dataclasses import dataclass, replace
from typing import Literal

from counterpoint.core.settings import Positive, check_settings
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.methods import QUICK_SEARCH
from counterpoint.learners.search import Search
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.models.scm.lstm_factor import LSTMFactor
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.tasks.cartpole import PLANETS
from reproduction.arms import CTRL_G, SEARCH, beyond_arms, paper_arms, quick_arms

PLANNED_EPISODES = 10
"""Episodes of a planner's evaluation on each planet, fifty in all: it plans at every step of every episode."""
Split = Literal["none", "planets", "chance"]


@dataclass(frozen=True)
class HDArm:
    """What a method's name stands for."""

    learner: PolicyLearner
    split: Split = "none"
    """How subjects are divided before learning, with one policy for each part: not at all, by planet (an upper bound),
    or into as many groups at random (a control)."""
    most_episodes: Positive | None = None
    """Episodes of each policy's evaluation on a planet at most; None for as many as every other method."""

    def __post_init__(self) -> None:
        check_settings(self)


def hd_arms() -> dict[str, HDArm]:
    """Every method of Figure 2b, CTRL_p in the paper's way and in three others, an upper bound and a control."""
    paper = paper_arms()
    effects, count = RandomEffects(), len(PLANETS)
    one_step = CTRLg(effects, learner=LEARNER, sees_factor=False)
    lstm = CTRLg(BiCoGAN(factor=LSTMFactor()), learner=LEARNER, sees_factor=False)
    search = Search(effects, sees_factor=False)
    return {
        **{name: HDArm(paper[name]) for name in ("D3QN", "BCQ", "STEVE", CTRL_G)},
        "CTRL_p, paper": HDArm(CTRLp(lstm, KMeansGroups(count), centroids=True)),
        "CTRL_p, D3QN": HDArm(CTRLp(one_step, MixtureGroups(count), centroids=True)),
        SEARCH: HDArm(beyond_arms()[SEARCH]),
        "one policy, robust over θ": HDArm(search),
        "CTRL_p + search, told θ": HDArm(CTRLp(replace(search, sees_factor=True), None)),
        "CTRL_p + search": HDArm(CTRLp(search, MixtureGroups(count))),
        "known gravity": HDArm(Search(), "planets"),
        "random groups": HDArm(Search(), "chance"),
        "PETS": HDArm(paper["PETS"], most_episodes=PLANNED_EPISODES),
    }


def quick_hd_arms() -> dict[str, HDArm]:
    """A few methods with small networks and short searches: minutes on two cores."""
    quick, effects = quick_arms(), RandomEffects(ensemble=2)
    search = replace(QUICK_SEARCH, model=effects, sees_factor=False)
    return {
        "D3QN": HDArm(quick["D3QN"]),
        SEARCH: HDArm(quick[SEARCH]),
        "one policy, robust over θ": HDArm(search),
        "CTRL_p + search": HDArm(CTRLp(search, MixtureGroups(len(PLANETS)))),
    }
