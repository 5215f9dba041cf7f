"""What is learned from a cohort of septic patients, by which recipes; the policies of one cohort share their models.

`benchmarks/clinical_search.py` uses the same recipes. The paper infers a patient's factor from windows of five states;
random effects take it from the whole record so far, by an exact posterior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from counterpoint.counterfactual import Augmenter
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.outcome import LearnedTask, Outcome
from counterpoint.experiments.sepsis_cohort import Split
from counterpoint.methods.arms import unselected
from counterpoint.methods.general import General
from counterpoint.methods.personal import Personal
from counterpoint.model import Model
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Policy
from counterpoint.policies.d3qn import D3QN
from counterpoint.policies.evolution import EvolutionStrategy
from counterpoint.policies.search import Search
from counterpoint.scm.density import DensitySCM
from counterpoint.scm.effects.changes import Change
from counterpoint.scm.groups import MixtureGroups
from counterpoint.scm.random_effects import RandomEffects
from counterpoint.seeding import derive
from counterpoint.settings import check_settings
from counterpoint.simulation.rollout import on_device
from counterpoint.simulation.selection import Rollouts

PHYSICIAN, D3QN_ROWS, CTRL_G, CTRL_P = "physician", "D3QN", "CTRL_g", "CTRL_p"
SEARCH_G, SEARCH_P = "CTRL_g + search", "CTRL_p + search"
PERSONAL = (CTRL_P, SEARCH_P)
"""Policies that know patients apart; to them every column is a number."""
HUBER = 15.0
"""Deaths count −15 and must count in full."""
Q_LEARNING = D3QN(
    (128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128, huber=HUBER
)
SEARCH = Search(
    optimizer=EvolutionStrategy(),
    schedule=Schedule(steps=100, check_every=10, log_every=10),
    starts=4,
    restarts=1,
    choosing_starts=64,
    support_price=1.0,
)
"""Doses of two drugs, each linear in 48 inputs, have 98 numbers: too many for the cross-entropy method. Large doses are
rare in the log, and what the model makes of them is extrapolated: leaving the log has a price. Chosen on logs of the
seeds 100 to 102."""

EFFECTS = RandomEffects(factors=2, ensemble=2, schedule=replace(RandomEffects().schedule, steps=300))
"""Choosing factors and changes on 42 equations of 50 inputs takes hours; two factors, and log ratios of what is always
positive (`changes_of`)."""


def changes_of(rows: Transitions) -> tuple[Change, ...]:
    """Log ratios of columns that are positive in every row, differences of the others."""
    lowest = torch.cat([rows.state, rows.next_state[rows.has_next]]).amin(0)
    return tuple("log ratio" if low > 0 else "difference" for low in lowest.tolist())


@dataclass(frozen=True)
class SepsisArms:
    """Recipes of everything that is learned."""

    scm: DensitySCM = DensitySCM()
    """To which all patients are alike: of CTRL_g."""
    effects: RandomEffects = EFFECTS
    """To which patients differ: of CTRL_p."""
    outcome: Outcome = Outcome()
    """Reward and ends of imagined rows, learned from the table as for anybody's."""
    learner: D3QN = Q_LEARNING
    """The Q-learning of every policy."""
    augmenter: Augmenter = Augmenter(alternatives=4)
    """Other actions that are asked about in every row: four of 24, for memory."""
    selection: Rollouts = Rollouts()
    """How checkpoints are chosen inside the models."""
    groups: MixtureGroups = MixtureGroups(2)
    """How CTRL_p groups patients. The criterion that chooses their number finds nine in 1,252 patients of seed 100, too
    small to learn from: 6.15 where two groups are worth 6.50 (both of an earlier ward)."""
    search: Search = SEARCH
    """The search inside the models."""
    personal_search: bool = True
    """Whether a policy that is told the patient's factor is searched too."""

    def __post_init__(self) -> None:
        check_settings(self)

    def general(self) -> General:
        return General(self.scm, self.augmenter, self.learner, self.selection)

    def personal(self) -> Personal:
        inside = General(self.effects, self.augmenter, self.learner, self.selection, sees_factor=False)
        return Personal(inside, self.groups)

    def told(self) -> Personal:
        """A rule that sees the patient's factor."""
        return Personal(replace(self.search, model=self.effects), None)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learned from one cohort's training patients."""

    task: LearnedTask
    scm: Model
    effects: Model
    policies: Mapping[str, Policy]


class Learning:
    """Everything from one cohort's training patients."""

    def __init__(self, arms: SepsisArms, split: Split, seed: int, monitor: Monitor, device: str) -> None:
        numbers = split.with_numbers().train
        own = replace(arms.effects, changes=arms.effects.changes or changes_of(numbers))
        self.arms, self.monitor, self.device = replace(arms, effects=own), monitor, device
        self.job = Job(split.train, derive(seed, "training"))
        self.numbers = Job(numbers, self.job.seed)

    def fit(self) -> Fitted:
        arms, watch = self.arms, self.monitor
        task, numeric = (
            arms.outcome.fit(job.data, job.seed, watch.stage(f"ends-{name}"), self.device)
            for name, job in (("coded", self.job), ("numbers", self.numbers))
        )
        scm = arms.general().fit_models([self.job], watch.stage("scm"), self.device)[0]
        effects = arms.personal().policy.fit_models([self.numbers], watch.stage("effects"), self.device)[0]
        learners: dict[str, Callable[[Monitor], Any]] = {
            D3QN_ROWS: lambda at: unselected(arms.learner).fit_many([self.job], task, at, self.device),
            CTRL_G: lambda at: arms.general().with_models([self.job], [scm], task, at, self.device),
            SEARCH_G: lambda at: arms.search.with_models([self.job], [scm], task, at, self.device),
            CTRL_P: lambda at: arms.personal().with_models([self.numbers], [effects], numeric, at, self.device),
        }
        if arms.personal_search:
            learners[SEARCH_P] = lambda at: arms.told().with_models([self.numbers], [effects], numeric, at, self.device)
        policies = {name: learn(watch.stage(name))[0].selected.to("cpu") for name, learn in learners.items()}
        return Fitted(on_device(task, "cpu"), scm.to("cpu"), effects.to("cpu"), policies)


def quick_sepsis_arms() -> SepsisArms:
    """Small networks and short searches: minutes on two cores."""
    likelihood = replace(Likelihood(), schedule=replace(Likelihood().schedule, steps=600))
    learner = replace(Q_LEARNING, hidden=(64,), schedule=replace(Q_LEARNING.schedule, steps=1000, check_every=500))
    return SepsisArms(
        scm=replace(DensitySCM(), likelihood=likelihood),
        effects=replace(EFFECTS, ensemble=1, schedule=replace(EFFECTS.schedule, steps=100)),
        outcome=Outcome(likelihood=likelihood),
        learner=learner,
        selection=Rollouts(starts=8),
        search=replace(SEARCH, schedule=replace(SEARCH.schedule, steps=20), choosing_starts=16),
    )
