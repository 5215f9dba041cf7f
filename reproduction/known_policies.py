"""Logs whose writers are known, and policies whose true values are: the ground that off-policy evaluation is tried on.

Every ground has policies that the log speaks of, and most have one that it cannot speak of: it treats where nobody was
treated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive, generator
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.behaviour import BoostedTrees
from counterpoint.ope.evaluation import BehaviourRecipe
from counterpoint.ope.true_return import returns
from counterpoint.simulation.trials import simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV
from counterpoint.tasks.tumour import Tumour, log_ball
from reproduction.tasks.finite import FiniteProcess
from reproduction.tasks.icu_sepsis import icu_sepsis

Rule = Callable[[Float[Tensor, "n s"]], Float[Tensor, "n a"]]
"""From states to the probability of every action."""
SMALL = log_ball(2)
"""Log volume below which no tumour is treated in the log."""
LOW_VIRUS = 9.0
"""Log virus below which nobody is treated in the log."""


@dataclass(frozen=True, eq=False)
class Chances:
    """A policy by its probabilities."""

    schema: Schema
    rule: Rule

    def probabilities(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return self.rule(state)

    def act(self, state: Float[Tensor, "n s"], generator: torch.Generator) -> Float[Tensor, "n a"]:
        """The features of drawn actions."""
        drawn = torch.multinomial(self.rule(state), 1, generator=generator)[:, 0]
        return _listed(self.schema).table().to(state)[drawn]


@dataclass(frozen=True, eq=False)
class Ground:
    """A task, who logs in it, and policies to be judged from the log."""

    task: KnownSCM
    logger: Chances
    policies: Mapping[str, Chances]
    silent: str
    """The policy that the log cannot speak of; empty where there is none."""
    subjects: int
    steps: int
    behaviour: BehaviourRecipe | None = None
    """How whoever logged is estimated; none for the usual way."""

    def log(self, seed: int) -> Transitions:
        return simulate(self.task, self.logger.act, self.subjects, self.steps, seed, stop_at_failure=True)

    def truth(self, policy: str, trials: int, seed: int) -> float:
        """What the policy is worth: exactly where that can be known, else the mean of so many trials."""
        judged = self.policies[policy]
        if isinstance(self.task, FiniteProcess):
            return self.task.value(judged.probabilities(torch.arange(self.task.count)[:, None].float()))
        random = generator(seed, "drawn actions")
        actor = lambda state, theta: judged.act(state[0], random)[None]
        return float(returns(actor, self.task, 1, trials, derive(seed, "truth"), self.steps).mean())


def icu_sepsis_ground() -> Ground:
    """1,000 episodes of clinicians; the best policy is what a log of this size can just speak of, or cannot."""
    process, expert = icu_sepsis()
    return finite_ground(process, expert, 1000)


def finite_ground(process: FiniteProcess, expert: Float[Tensor, "s a"], subjects: int) -> Ground:
    """An expert's log of a finite process, and how far the way to the best policy can be judged."""
    best = process.optimal()
    tables = {"expert": expert, "half-and-half": (expert + best) / 2, "optimal": best}
    looked_up = lambda table: lambda state: table[state[:, 0].long().clamp(max=process.count - 1)]
    policies = {name: Chances(process.schema, looked_up(table)) for name, table in tables.items()}
    return Ground(process, policies["expert"], policies, "", subjects, process.horizon)


def tumour_ground() -> Ground:
    """Tumours below 2 cm are left alone in the log, others treated in any way."""
    task = Tumour()
    small = lambda state: state[:, 0] < SMALL
    names = "nothing", "chemotherapy", "radiotherapy", "both"
    return _treating(task, small, names, 300, 20)


def hiv_ground() -> Ground:
    """Patients with little virus are not treated in the log, others in any way."""
    low = lambda state: state[:, 4] < LOW_VIRUS
    return _treating(HIV(), low, ("nothing", "transcriptase inhibitor", "protease inhibitor", "both"), 300, 20)


def cartpole_ground() -> Ground:
    """Pushed at random in the log; policies push against the fall with rising probability."""
    task = CartPole()
    count = _listed(task.schema).count
    any_push = torch.full((1, count), 1 / count)

    def against(share: float) -> Rule:
        def rule(state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
            falls = (state[:, 2] + 0.5 * state[:, 3] > 0).long() * (count - 1)
            return share * torch.nn.functional.one_hot(falls, count) + (1 - share) * any_push.expand(len(state), -1)

        return rule

    shares = (0.0, 0.2, 0.4, 0.6, 0.8)
    policies = {f"against the fall {share:.0%}": Chances(task.schema, against(share)) for share in shares}
    return Ground(task, Chances(task.schema, against(0.0)), policies, "", 300, 20)


def _treating(
    task: KnownSCM, spared: Callable[[Tensor], Tensor], names: tuple[str, ...], subjects: int, steps: int
) -> Ground:
    """Whoever logged spares some states and treats the others in any way; policies prefer one way in these.

    One more gives the last treatment to nearly everybody. Trees find the edge of what is spared.
    """
    count = len(names)

    def preferring(action: int, share: float, sparing: bool = True) -> Rule:
        wanted = torch.full((count,), (1 - share) / count)
        wanted[action] += share
        none = torch.eye(count)[0]
        return lambda state: torch.where(spared(state)[:, None] & sparing, none, wanted)

    rules = {name: preferring(action, 0.6) for action, name in enumerate(names)}
    rules = {"as logged": preferring(0, 0.0), **rules, "everybody": preferring(count - 1, 0.9, sparing=False)}
    policies = {name: Chances(task.schema, rule) for name, rule in rules.items()}
    return Ground(task, policies["as logged"], policies, "everybody", subjects, steps, BoostedTrees(least=0.01))


def _listed(schema: Schema) -> Discrete:
    if not isinstance(schema.actions, Discrete):
        raise CounterpointError("doses are continuous and have no list of probabilities; give discrete actions")
    return schema.actions


GROUNDS: Mapping[str, Callable[[], Ground]] = {
    "icu-sepsis": icu_sepsis_ground,
    "tumour": tumour_ground,
    "hiv": hiv_ground,
    "cartpole": cartpole_ground,
}
