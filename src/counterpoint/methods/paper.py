"""The arms of the paper's Figure 2a as a dictionary, with the appendix's numbers."""

from dataclasses import replace

from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.dynamics.gaussian import GaussianDynamics
from counterpoint.dynamics.mixture import MixtureDynamics
from counterpoint.methods.general import General
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import PolicyLearner
from counterpoint.policies.d3qn import D3QN
from counterpoint.scm.bicogan import BiCoGAN
from counterpoint.scm.density import DensitySCM

PAPER_D3QN = D3QN(hidden=(512, 512, 512, 512))
"""The Q-network of appendix E."""

SMALL_BICOGAN = BiCoGAN(
    generator_hidden=(50, 100, 150, 150),
    encoder_hidden=(150, 150, 100, 50),
    discriminator_hidden=(150, 150, 100, 50),
    training=replace(BiCoGAN().training, schedule=Schedule(steps=1000)),
)
"""The paper's BiCoGAN at a quarter of its widths and a third of its length, for a laptop."""


def demo_arms() -> dict[str, PolicyLearner]:
    """What `counterpoint demo` compares."""
    learner = D3QN(hidden=(128, 128), schedule=Schedule(steps=2000, rate="linear"), batch=128)
    return {
        "D3QN, real rows": learner,
        "CTRL_g, BiCoGAN (small)": General(SMALL_BICOGAN, learner=learner),
        "CTRL_g, default SCM": General(DensitySCM(), learner=learner),
    }


def baselines(learner: D3QN) -> dict[str, PolicyLearner]:
    """Base-D, Base-S and Base-M differ from CTRL_g only in the model that imagines the rows."""
    return {
        "Base-D": General(Deterministic(), learner=learner),
        "Base-S": General(GaussianDynamics(), learner=learner),
        "Base-M": General(MixtureDynamics(), learner=learner),
    }
