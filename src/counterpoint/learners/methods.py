"""The arms of the paper's Figure 2a as a dictionary, with the appendix's numbers, and those that go beyond it.

How training ends, by one rule for all and without the environment: an arm that has a model of the dynamics keeps the
checkpoint with the best return of rollouts inside that model; PETS, which learns nothing but a model, keeps the one
that held-out rows like best; D3QN on the logged rows and BCQ have nothing to roll out in, so theirs is the last
checkpoint of a schedule of fixed length whose learning rate falls to zero.
"""

from dataclasses import replace

from counterpoint.core.settings import checked
from counterpoint.learners.baselines.bcq import BCQ
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import MVE, STEVE
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.rollout_rows import RolloutRows
from counterpoint.learners.search import Search
from counterpoint.models.base import Model, Recipe
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.gaussian_process import GaussianProcess
from counterpoint.models.dynamics.mixture import MixtureDynamics
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import PolicyLearner
from counterpoint.simulation.selection import RolloutSelection

CTRL_G, CTRL_G_BICOGAN = "CTRL_g, default SCM", "CTRL_g, BiCoGAN"
CTRL_G_CONDITIONAL = "CTRL_g, conditional BiCoGAN"
SEARCH_BICOGAN, SEARCH_CONDITIONAL = "search in the paper's BiCoGAN", "search in the conditional BiCoGAN"
ROLLOUTS, SEARCH, PILCO, PETS_ARM = "CTRL_g + rollouts", "CTRL_g + search", "PILCO", "PETS"
PILCO_ROWS = 2000
"""Rows that an exact Gaussian process is fitted on at most."""
PAPER_NAMES = {CTRL_G: "CTRL_g", CTRL_G_BICOGAN: "CTRL_g"}
"""What the paper calls an arm, where its name is another."""

QUICK_SEARCH = Search(
    draws=PosteriorDraws(5), restarts=1, choosing_starts=8, schedule=Schedule(steps=15, check_every=5, log_every=5)
)
QUICK_LEARNER = D3QN((128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128)
"""Both for a laptop."""

SMALL_BICOGAN = BiCoGAN(
    generator_hidden=(50, 100, 150, 150),
    encoder_hidden=(150, 150, 100, 50),
    discriminator_hidden=(150, 150, 100, 50),
    training=replace(BiCoGAN().training, schedule=Schedule(steps=1000)),
)
"""The paper's BiCoGAN at a quarter of its widths and a third of its length, for a laptop."""
SHORT_CONDITIONAL = ConditionalBiCoGAN(
    training=replace(ConditionalBiCoGAN().training, schedule=Schedule(steps=1000, rate="linear"))
)
"""The conditional one at a fifth of its length."""


def unselected(learner: D3QN) -> D3QN:
    """The same learning, kept to its end: for an arm that has no model to choose a checkpoint in."""
    return replace(learner, schedule=replace(learner.schedule, check_every=0))


@checked
def paper_arms(learner: D3QN = LEARNER) -> dict[str, PolicyLearner]:
    """Every arm of Figure 2a, CTRL_g twice: with the paper's SCM and with the default one.

    Base-D, Base-S and Base-M differ from CTRL_g in the model, which imagines the rows and chooses the checkpoint.
    """
    return {
        "D3QN": unselected(learner),
        "Base-D": CTRLg(Deterministic(), learner=learner),
        "Base-S": CTRLg(GaussianDynamics(), learner=learner),
        "Base-M": CTRLg(MixtureDynamics(), learner=learner),
        CTRL_G_BICOGAN: CTRLg(BiCoGAN(), learner=learner),
        CTRL_G: CTRLg(learner=learner),
        "BCQ": BCQ(learner=unselected(learner)),
        PETS_ARM: PETS(),
        "STEVE": STEVE(learner=learner),
    }


VOTING = replace(LEARNER, hidden=(128, 128), batch=128, networks=10)
"""The Q-learning on rollouts: ten small networks that vote."""


def beyond_arms(learner: D3QN = VOTING) -> dict[str, PolicyLearner]:
    """What uses more of the model than one step: Q-learning on rollouts, and policies searched inside it.

    PILCO differs from the search in the SCM by its model alone: the predictive variance of a Gaussian process.
    """
    return {
        ROLLOUTS: CTRLg(learner=learner, rollouts=RolloutRows()),
        SEARCH: Search(),
        PILCO: Search(GaussianProcess(most=PILCO_ROWS), draws=None, starts=5, restarts=1, choosing_starts=20),
    }


def adversarial_arms(learner: D3QN = LEARNER) -> dict[str, PolicyLearner]:
    """Whether the paper's GAN fails or only its encoder: CTRL_g with an encoder that sees (s, a, s'), and the search,
    which needs no encoder, inside either GAN.

    A GAN has one member, so a candidate has as many episodes in it as the search has in all members of the default.
    The paper's has some 700,000 weights, and every step of every candidate needs them all: they are rounded to ten
    bits, off by at most a two-thousandth where the noise of a step is a twentieth.
    """
    return {
        CTRL_G_CONDITIONAL: CTRLg(ConditionalBiCoGAN(), learner=learner),
        SEARCH_BICOGAN: in_one_member(BiCoGAN(), Search(allow_tf32=True)),
        SEARCH_CONDITIONAL: in_one_member(ConditionalBiCoGAN(), Search()),
    }


def in_one_member(model: Recipe[Model], search: Search) -> Search:
    """The search with as many episodes in a model of one member as it has in all draws of its own."""
    draws = search.draws.members if search.draws else 1
    starts, choosing = draws * search.starts, draws * search.choosing_starts
    return replace(search, model=model, draws=None, starts=starts, choosing_starts=choosing)


def named_arms(learner: D3QN = LEARNER) -> dict[str, PolicyLearner]:
    """All arms, MVE and the personal ones, under names that are easily typed."""
    short = {CTRL_G: "ctrl-g", CTRL_G_BICOGAN: "ctrl-g-bicogan", ROLLOUTS: "ctrl-g-rollouts", SEARCH: "search"}
    every = {**paper_arms(learner), **beyond_arms(VOTING if learner == LEARNER else learner)}
    arms = {short.get(name, name.lower()): arm for name, arm in every.items()}
    by_groups = CTRLg(RandomEffects(), learner=learner, sees_factor=False)
    return {**arms, "mve": MVE(learner=learner), "ctrl-p": CTRLp(), "ctrl-p-d3qn": CTRLp(by_groups)}


def quick_arms() -> dict[str, PolicyLearner]:
    """The same arms with smaller networks, shorter training and a shorter-sighted planner: minutes on two cores."""
    small = RolloutSelection(starts=8)
    width = (100, 100)
    arms = {
        "Base-D": Deterministic(hidden=width),
        "Base-S": GaussianDynamics(hidden=width),
        "Base-M": MixtureDynamics(hidden=width),
        CTRL_G_BICOGAN: SMALL_BICOGAN,
        CTRL_G: CTRLg().model,
        CTRL_G_CONDITIONAL: SHORT_CONDITIONAL,
    }
    planner = Planner(horizon=15, candidates=20, elites=4, iterations=2)
    return {
        "D3QN": unselected(QUICK_LEARNER),
        **{name: CTRLg(model, learner=QUICK_LEARNER, selection=small) for name, model in arms.items()},
        "BCQ": BCQ(learner=unselected(QUICK_LEARNER)),
        PETS_ARM: PETS(replace(PETS().model, ensemble=3), particles=3, planner=planner),
        "STEVE": STEVE(dynamics=2, rewards=2, q_functions=2, learner=QUICK_LEARNER, selection=small),
        SEARCH: QUICK_SEARCH,
        SEARCH_BICOGAN: in_one_member(SMALL_BICOGAN, QUICK_SEARCH),
        SEARCH_CONDITIONAL: in_one_member(SHORT_CONDITIONAL, QUICK_SEARCH),
    }
