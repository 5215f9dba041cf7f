"""The arms of the paper's Figure 2a as a dictionary, with the appendix's numbers.

How training ends, by one rule for all and without the environment: an arm that has a model of the dynamics keeps the
checkpoint with the best return of rollouts inside that model; PETS, which learns nothing but a model, keeps the one
that held-out rows like best; D3QN on the logged rows and BCQ have nothing to roll out in, so theirs is the last
checkpoint of a schedule of fixed length whose learning rate falls to zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from counterpoint.data.jobs import Job
from counterpoint.dynamics.base import DynamicsModel
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.dynamics.gaussian import GaussianDynamics
from counterpoint.dynamics.mixture import MixtureDynamics
from counterpoint.methods.general import General
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Learned, PolicyLearner
from counterpoint.policies.bcq import BCQ
from counterpoint.policies.d3qn import D3QN, Judge
from counterpoint.policies.pets import PETS, Planner
from counterpoint.policies.steve import STEVE
from counterpoint.scm.bicogan import BiCoGAN
from counterpoint.tasks.base import Task
from counterpoint.worlds import Rollouts, Worlds

CTRL_G, CTRL_G_BICOGAN = "CTRL_g, default SCM", "CTRL_g, BiCoGAN"
PAPER_NAMES = {CTRL_G: "CTRL_g", CTRL_G_BICOGAN: "CTRL_g"}
"""What the paper calls an arm, where its name is another."""

LEARNER = D3QN(schedule=Schedule(steps=3000, check_every=150, rate="linear", log_every=250))
"""The Q-learning of every arm; short, because longer training on 20-step trials lowers true returns."""

QUICK_LEARNER = D3QN((128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128)
"""For a laptop."""

SMALL_BICOGAN = BiCoGAN(
    generator_hidden=(50, 100, 150, 150),
    encoder_hidden=(150, 150, 100, 50),
    discriminator_hidden=(150, 150, 100, 50),
    training=replace(BiCoGAN().training, schedule=Schedule(steps=1000)),
)
"""The paper's BiCoGAN at a quarter of its widths and a third of its length, for a laptop."""


@dataclass(frozen=True)
class JudgedSTEVE(PolicyLearner):
    """STEVE with its checkpoint chosen by rollouts in its own transition models."""

    steve: STEVE = STEVE(learner=LEARNER)
    """What learns the policy."""
    rollouts: Rollouts = Rollouts()
    """How the checkpoint is chosen."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        return self.steve.fit_many(jobs, task, monitor, device, self._judge)

    def _judge(self, models: Sequence[DynamicsModel], jobs: Sequence[Job], task: Task) -> Judge:
        return self.rollouts.judge(Worlds(models), jobs, task)


def unjudged(learner: D3QN) -> D3QN:
    """The same learning, kept to its end: for an arm that has no model to choose a checkpoint in."""
    return replace(learner, schedule=replace(learner.schedule, check_every=0))


def paper_arms() -> dict[str, PolicyLearner]:
    """Every arm of Figure 2a, CTRL_g twice: with the paper's SCM and with the default one."""
    return {
        "D3QN": unjudged(LEARNER),
        **baselines(LEARNER),
        CTRL_G_BICOGAN: General(BiCoGAN(), learner=LEARNER),
        CTRL_G: General(learner=LEARNER),
        "BCQ": BCQ(learner=unjudged(LEARNER)),
        "PETS": PETS(),
        "STEVE": JudgedSTEVE(),
    }


def quick_arms() -> dict[str, PolicyLearner]:
    """The same arms with smaller networks, shorter training and a shorter-sighted planner: minutes on two cores."""
    small = Rollouts(starts=8)
    width = (100, 100)
    arms = {
        "Base-D": Deterministic(hidden=width),
        "Base-S": GaussianDynamics(hidden=width),
        "Base-M": MixtureDynamics(hidden=width),
        CTRL_G_BICOGAN: SMALL_BICOGAN,
        CTRL_G: General().model,
    }
    steve = STEVE(dynamics=2, rewards=2, q_functions=2, learner=QUICK_LEARNER)
    return {
        "D3QN": unjudged(QUICK_LEARNER),
        **{name: General(model, learner=QUICK_LEARNER, rollouts=small) for name, model in arms.items()},
        "BCQ": BCQ(learner=unjudged(QUICK_LEARNER)),
        "PETS": PETS(ensemble=3, particles=3, planner=Planner(horizon=15, candidates=20, elites=4, iterations=2)),
        "STEVE": JudgedSTEVE(steve, small),
    }


def baselines(learner: D3QN) -> dict[str, PolicyLearner]:
    """Base-D, Base-S and Base-M differ from CTRL_g in the model, which imagines the rows and judges the policy."""
    return {
        "Base-D": General(Deterministic(), learner=learner),
        "Base-S": General(GaussianDynamics(), learner=learner),
        "Base-M": General(MixtureDynamics(), learner=learner),
    }
