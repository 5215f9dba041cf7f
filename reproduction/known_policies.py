"""Problems of off-policy evaluation with known answers: behaviour policies, logs, and policies with true values.

Every problem has policies that the log supports, and most have one that it does not: it treats where nobody was
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
from counterpoint.ope.model_based import returns
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
class KnownPolicy:
    """A policy given by its action probabilities."""

    schema: Schema
    rule: Rule

    def probabilities(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return self.rule(state)

    def act(self, state: Float[Tensor, "n s"], generator: torch.Generator) -> Float[Tensor, "n a"]:
        """Draw actions and return their features."""
        index = torch.multinomial(self.rule(state), 1, generator=generator)[:, 0]
        return _listed(self.schema).table().to(state)[index]


@dataclass(frozen=True, eq=False)
class EvaluationProblem:
    """A task, its behaviour policy, and policies to be evaluated from the log."""

    task: KnownSCM
    behaviour_policy: KnownPolicy
    policies: Mapping[str, KnownPolicy]
    unsupported: str
    """The policy that the log does not support; empty where there is none."""
    subjects: int
    steps: int
    behaviour: BehaviourRecipe | None = None
    """Estimator of the behaviour policy; None for the default."""

    def log(self, seed: int) -> Transitions:
        """Simulate a log of the behaviour policy."""
        return simulate(self.task, self.behaviour_policy.act, self.subjects, self.steps, seed, stop_at_failure=True)

    def truth(self, policy: str, trials: int, seed: int) -> float:
        """The policy's value: exact for a finite process, else the mean return of `trials` trials."""
        evaluated = self.policies[policy]
        if isinstance(self.task, FiniteProcess):
            return self.task.value(evaluated.probabilities(torch.arange(self.task.count)[:, None].float()))
        random = generator(seed, "drawn actions")
        actor = lambda state, theta: evaluated.act(state[0], random)[None]
        return float(returns(actor, self.task, 1, trials, derive(seed, "truth"), self.steps).mean())


def icu_sepsis_problem() -> EvaluationProblem:
    """1,000 episodes of clinicians; a log of this size hardly supports the optimal policy."""
    process, expert = icu_sepsis()
    return finite_problem(process, expert, 1000)


def finite_problem(process: FiniteProcess, expert: Float[Tensor, "s a"], subjects: int) -> EvaluationProblem:
    """An expert's log of a finite process; policies lead from the expert to the optimum."""
    optimal = process.optimal()
    tables = {"expert": expert, "half-and-half": (expert + optimal) / 2, "optimal": optimal}
    rule_of = lambda table: lambda state: table[state[:, 0].long().clamp(max=process.count - 1)]
    policies = {name: KnownPolicy(process.schema, rule_of(table)) for name, table in tables.items()}
    return EvaluationProblem(process, policies["expert"], policies, "", subjects, process.horizon)


def tumour_problem() -> EvaluationProblem:
    """Tumours below 2 cm are not treated in the log, others at random."""
    small = lambda state: state[:, 0] < SMALL
    return _treatments(Tumour(), small, ("nothing", "chemotherapy", "radiotherapy", "both"))


def hiv_problem() -> EvaluationProblem:
    """Patients with little virus are not treated in the log, others at random."""
    low = lambda state: state[:, 4] < LOW_VIRUS
    return _treatments(HIV(), low, ("nothing", "transcriptase inhibitor", "protease inhibitor", "both"))


def cartpole_problem() -> EvaluationProblem:
    """Random pushes in the log; policies push against the fall with increasing probability."""
    task = CartPole()
    count = _listed(task.schema).count
    uniform = torch.full((1, count), 1 / count)

    def against(share: float) -> Rule:
        def rule(state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
            push = (state[:, 2] + 0.5 * state[:, 3] > 0).long() * (count - 1)
            return share * torch.nn.functional.one_hot(push, count) + (1 - share) * uniform.expand(len(state), -1)

        return rule

    shares = (0.0, 0.2, 0.4, 0.6, 0.8)
    policies = {f"against the fall {share:.0%}": KnownPolicy(task.schema, against(share)) for share in shares}
    return EvaluationProblem(task, KnownPolicy(task.schema, against(0.0)), policies, "", 300, 20)


def _treatments(task: KnownSCM, spared: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> EvaluationProblem:
    """The behaviour policy never treats spared states, and the others at random; policies prefer one treatment there.

    One more policy gives the last treatment to nearly everybody, spared or not. The behaviour policy is estimated by
    trees, which find the edge of the spared region.
    """
    count = len(names)

    def preferring(action: int, share: float, sparing: bool = True) -> Rule:
        preferred = torch.full((count,), (1 - share) / count)
        preferred[action] += share
        none = torch.eye(count)[0]
        return lambda state: torch.where(spared(state)[:, None] & sparing, none, preferred)

    rules = {"as logged": preferring(0, 0.0)}
    rules |= {name: preferring(action, 0.6) for action, name in enumerate(names)}
    rules["everybody"] = preferring(count - 1, 0.9, sparing=False)
    policies = {name: KnownPolicy(task.schema, rule) for name, rule in rules.items()}
    return EvaluationProblem(task, policies["as logged"], policies, "everybody", 300, 20, BoostedTrees(least=0.01))


def _listed(schema: Schema) -> Discrete:
    if not isinstance(schema.actions, Discrete):
        raise CounterpointError("doses are continuous and have no list of probabilities; give discrete actions")
    return schema.actions


PROBLEMS: Mapping[str, Callable[[], EvaluationProblem]] = {
    "icu-sepsis": icu_sepsis_problem,
    "tumour": tumour_problem,
    "hiv": hiv_problem,
    "cartpole": cartpole_problem,
}
