"""The arms of the paper's Figure 2a with the appendix's numbers, and arms that go beyond the paper."""

from dataclasses import replace

from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.baselines.bcq import BCQ
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import STEVE
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import QUICK_SEARCH, SMALL_BICOGAN, named_methods, unselected
from counterpoint.learners.search import Search
from counterpoint.models.base import Model, Recipe
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.mixture import MixtureDynamics
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy
from counterpoint.simulation.selection import CheckpointSelection

CTRL_G, CTRL_G_BICOGAN = "CTRL_g, default SCM", "CTRL_g, BiCoGAN"
CTRL_G_CONDITIONAL = "CTRL_g, conditional BiCoGAN"
SEARCH_BICOGAN, SEARCH_CONDITIONAL = "search in the paper's BiCoGAN", "search in the conditional BiCoGAN"
ROLLOUTS, SEARCH, PILCO, PETS_ARM = "CTRL_g + rollouts", "CTRL_g + search", "PILCO", "PETS"
PAPER_NAMES = {CTRL_G: "CTRL_g", CTRL_G_BICOGAN: "CTRL_g"}
"""The paper's name of an arm, where it differs."""
PAPER_ARMS = {
    "D3QN": "d3qn",
    "Base-D": "base-d",
    "Base-S": "base-s",
    "Base-M": "base-m",
    CTRL_G_BICOGAN: "ctrl-g-bicogan",
    CTRL_G: "ctrl-g",
    "BCQ": "bcq",
    PETS_ARM: "pets",
    "STEVE": "steve",
}
"""The method of every arm of Figure 2a; CTRL_g twice, with the paper's SCM and with the default one."""
BEYOND_ARMS = {ROLLOUTS: "ctrl-g-rollouts", SEARCH: "search", PILCO: "pilco"}
"""Methods that use more of the model than one step."""

QUICK_LEARNER = D3QN((128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128)
"""A small Q-learning, for a laptop."""
SHORT_CONDITIONAL = ConditionalBiCoGAN(
    training=replace(ConditionalBiCoGAN().training, schedule=Schedule(steps=1000, rate="linear"))
)
"""The conditional BiCoGAN with a fifth of its updates, for a laptop."""

Arms = dict[str, PolicyLearner[Policy]]


def paper_arms() -> Arms:
    """Every arm of Figure 2a."""
    methods = named_methods()
    return {name: methods[method] for name, method in PAPER_ARMS.items()}


def beyond_arms() -> Arms:
    """Q-learning on rollouts and policies searched inside the model."""
    methods = named_methods()
    return {name: methods[method] for name, method in BEYOND_ARMS.items()}


def adversarial_arms() -> Arms:
    """CTRL_g with an encoder that sees (s, a, s'), and the search, which needs no encoder, inside either GAN.

    They tell a failure of the paper's GAN from one of its encoder. A GAN has one member, so a candidate has as many
    episodes in it as the search has in all members of the default. Every step of every candidate needs the
    700,000 weights of the paper's GAN, so their products use TF32, off by at most 1/2000 where the noise is 1/20.
    """
    return {
        CTRL_G_CONDITIONAL: CTRLg(ConditionalBiCoGAN(), learner=LEARNER),
        SEARCH_BICOGAN: in_one_member(BiCoGAN(), Search(allow_tf32=True)),
        SEARCH_CONDITIONAL: in_one_member(ConditionalBiCoGAN(), Search()),
    }


def in_one_member(model: Recipe[Model], search: Search) -> Search:
    """The search with as many episodes in a model of one member as it has in all its posterior draws."""
    draws = search.draws.members if search.draws else 1
    starts, choosing = draws * search.starts, draws * search.choosing_starts
    return replace(search, model=model, draws=None, starts=starts, choosing_starts=choosing)


def quick_arms() -> Arms:
    """The same arms with smaller networks, shorter training and a shorter planning horizon: minutes on two cores."""
    few_starts = CheckpointSelection(starts=8)
    width = (100, 100)
    models: dict[str, Recipe[Model]] = {
        "Base-D": Deterministic(hidden=width),
        "Base-S": GaussianDynamics(hidden=width),
        "Base-M": MixtureDynamics(hidden=width),
        CTRL_G_BICOGAN: SMALL_BICOGAN,
        CTRL_G: CTRLg().model,
        CTRL_G_CONDITIONAL: SHORT_CONDITIONAL,
    }
    planner = Planner(horizon=15, candidates=20, elites=4, iterations=2)
    two_models = replace(STEVE().model, ensemble=2)
    return {
        "D3QN": unselected(QUICK_LEARNER),
        **{name: CTRLg(model, learner=QUICK_LEARNER, selection=few_starts) for name, model in models.items()},
        "BCQ": BCQ(learner=unselected(QUICK_LEARNER)),
        PETS_ARM: PETS(replace(PETS().model, ensemble=3), particles=3, planner=planner),
        "STEVE": STEVE(rewards=2, q_functions=2, model=two_models, learner=QUICK_LEARNER, selection=few_starts),
        SEARCH: QUICK_SEARCH,
        SEARCH_BICOGAN: in_one_member(SMALL_BICOGAN, QUICK_SEARCH),
        SEARCH_CONDITIONAL: in_one_member(SHORT_CONDITIONAL, QUICK_SEARCH),
    }
