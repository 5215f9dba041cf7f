"""What is learned from a cohort of septic patients, by which recipes; the policies of one cohort share their models.

`benchmarks/clinical_search.py` uses the same recipes. The paper infers a patient's factor by an LSTM over windows of
five states, which is an arm here; random effects take it from the whole record so far, by an exact posterior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.evolution import EvolutionStrategy
from counterpoint.learners.methods import unselected
from counterpoint.learners.search import Search
from counterpoint.models.base import Model
from counterpoint.models.dynamics.outcome import LearnedTask, Outcome
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.effects.changes import Change
from counterpoint.models.scm.lstm_factor import LSTMFactor
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Learned, Policy
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.rollout import on_device
from counterpoint.simulation.selection import RolloutSelection
from reproduction.sepsis_cohort import Split

PHYSICIAN, D3QN_ROWS, CTRL_G, CTRL_P = "physician", "D3QN", "CTRL_g", "CTRL_p"
SEARCH_G, SEARCH_P, PAPER_P = "CTRL_g + search", "CTRL_p + search", "CTRL_p, paper"
POLICIES = (D3QN_ROWS, CTRL_G, SEARCH_G, PAPER_P, CTRL_P, SEARCH_P)
PERSONAL = (CTRL_P, SEARCH_P, PAPER_P)
"""Policies that know patients apart; to them every column is a number."""
HUBER = 15.0
"""Deaths count −15 and must count in full."""
Q_LEARNING = D3QN(
    (128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128, huber=HUBER
)
SUPPORT_PRICE = 1.0
"""Price of a step whose state and action are unlike all of the log, in units of the reward."""

SEARCH = Search(
    optimizer=EvolutionStrategy(),
    schedule=Schedule(steps=100, check_every=10, log_every=10),
    starts=4,
    restarts=1,
    choosing_starts=64,
    support_price=SUPPORT_PRICE,
)
"""Doses of two drugs, each linear in 48 inputs, have 98 numbers: too many for the cross-entropy method. Large doses are
rare in the log, and what the model makes of them is extrapolated: leaving the log has a price. Chosen on logs of the
seeds 100 to 102."""

EFFECTS = RandomEffects(factors=2, ensemble=2, schedule=replace(RandomEffects().schedule, steps=300))
"""Choosing factors and changes on 42 equations of 50 inputs takes hours; two factors, and log ratios of what is always
positive (`changes_of`)."""
PAPER_SCM = BiCoGAN(factor=LSTMFactor())
"""A factor from windows of five states, as in the paper."""


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
    windows: BiCoGAN = PAPER_SCM
    """The same in the paper's way: a BiCoGAN with a factor from windows of five states."""
    outcome: Outcome = Outcome()
    """Reward and ends of imagined rows, learned from the table as for anybody's."""
    learner: D3QN = Q_LEARNING
    """The Q-learning of every policy."""
    augmenter: Augmenter = Augmenter(alternatives=4)
    """Other actions that are asked about in every row: four of 24, for memory."""
    selection: RolloutSelection = RolloutSelection()
    """How checkpoints are chosen inside the models."""
    groups: MixtureGroups = MixtureGroups(2)
    """How CTRL_p groups patients. The criterion that chooses their number finds nine in 1,252 patients of seed 100, too
    small to learn from: 6.15 where two groups are worth 6.50 (both of an earlier ward)."""
    search: Search = SEARCH
    """The search inside the models."""
    policies: tuple[str, ...] = POLICIES
    """Which are learned. The paper's model takes as long on a processor as all the others together."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.policies:
            require(name in POLICIES, f"there is no policy '{name}'; choose from {', '.join(POLICIES)}")
        require(len(self.policies) > 0, f"no policy is to be learned; choose from {', '.join(POLICIES)}")

    def general(self) -> CTRLg:
        return CTRLg(self.scm, self.augmenter, self.learner, self.selection)

    def personal(self) -> CTRLp:
        inside = CTRLg(self.effects, self.augmenter, self.learner, self.selection, sees_factor=False)
        return CTRLp(inside, self.groups)

    def paper(self) -> CTRLp:
        """As the paper has it: k-means of the factors, each group's patients all counting as its centre."""
        inside = CTRLg(self.windows, self.augmenter, self.learner, self.selection, sees_factor=False)
        return CTRLp(inside, KMeansGroups(self.groups.count), centroids=True)

    def told(self) -> CTRLp:
        """A rule that sees the patient's factor."""
        return CTRLp(replace(self.search, model=self.effects), None)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learned from one cohort's training patients."""

    task: LearnedTask
    models: Mapping[str, Model]
    """By the policy that is learned in each: of CTRL_g, CTRL_p and the paper's CTRL_p."""
    policies: Mapping[str, Policy]


class Learning:
    """Everything from one cohort's training patients; a policy of `PERSONAL` has the second of each pair."""

    def __init__(self, arms: SepsisArms, split: Split, seed: int, monitor: Monitor, device: str) -> None:
        numbers, own_seed = split.with_numbers().train, derive(seed, "training")
        effects = replace(arms.effects, changes=arms.effects.changes or changes_of(numbers))
        self.arms, self.monitor, self.device = replace(arms, effects=effects), monitor, device
        self.jobs = Job(split.train, own_seed), Job(numbers, own_seed)
        self.tasks = tuple(
            arms.outcome.fit(job.data, job.seed, monitor.stage(f"ends-{name}"), device)
            for name, job in zip(("coded", "numbers"), self.jobs, strict=True)
        )

    def fit(self) -> Fitted:
        arms, watch = self.arms, self.monitor
        recipes = {CTRL_G: arms.general(), CTRL_P: arms.personal().policy, PAPER_P: arms.paper().policy}
        models = {
            name: inside.fit_models([self.jobs[name in PERSONAL]], watch.stage(f"model-{name}"), self.device)
            for name, inside in recipes.items()
            if {name, f"{name} + search"} & set(arms.policies)
        }
        learners: dict[str, Callable[..., list[Learned]]] = {
            D3QN_ROWS: unselected(arms.learner).fit_many, CTRL_G: arms.general().with_models,
            SEARCH_G: arms.search.with_models, PAPER_P: arms.paper().with_models,
            CTRL_P: arms.personal().with_models, SEARCH_P: arms.told().with_models,
        }  # fmt: skip
        policies = {}
        for name in arms.policies:
            inside = [models[name.removesuffix(" + search")]] if name != D3QN_ROWS else []
            policies[name] = self._learn(name, learners[name], *inside)
        own = {name: fitted[0].to("cpu") for name, fitted in models.items()}
        return Fitted(on_device(self.tasks[0], "cpu"), own, policies)

    def _learn(self, name: str, learn: Callable[..., list[Learned]], *models: list[Model]) -> Policy:
        """A policy by its name, from its own reading of the rows and, where it has one, its model."""
        job, task = (pair[name in PERSONAL] for pair in (self.jobs, self.tasks))
        return learn([job], *models, task, self.monitor.stage(name), self.device)[0].selected.to("cpu")


def quick_sepsis_arms() -> SepsisArms:
    """Small networks and short searches: minutes on two cores."""
    likelihood = replace(Likelihood(), schedule=replace(Likelihood().schedule, steps=600))
    learner = replace(Q_LEARNING, hidden=(64,), schedule=replace(Q_LEARNING.schedule, steps=1000, check_every=500))
    return SepsisArms(
        scm=replace(DensitySCM(), likelihood=likelihood),
        effects=replace(EFFECTS, ensemble=1, schedule=replace(EFFECTS.schedule, steps=100)),
        windows=replace(PAPER_SCM, training=replace(PAPER_SCM.training, schedule=Schedule(steps=200))),
        outcome=Outcome(likelihood=likelihood),
        learner=learner,
        selection=RolloutSelection(starts=8),
        search=replace(SEARCH, schedule=replace(SEARCH.schedule, steps=20), choosing_starts=16),
    )
