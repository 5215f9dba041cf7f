"""Recipes of the sepsis experiment, and how one cohort's policies are learned with shared models.

`benchmarks/clinical_search.py` uses the same recipes. The paper infers a patient's factor by an LSTM over windows of
five states, which is one arm; random effects infer it from the whole record so far, by an exact posterior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.base import ModelBased
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
from counterpoint.policies.base import Policy
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.rollout import on_device
from counterpoint.simulation.selection import CheckpointSelection
from reproduction.sepsis_cohort import Split

PHYSICIAN, D3QN_ROWS, CTRL_G, CTRL_P = "physician", "D3QN", "CTRL_g", "CTRL_p"
SEARCH_G, SEARCH_P, PAPER_P = "CTRL_g + search", "CTRL_p + search", "CTRL_p, paper"
POLICIES = (D3QN_ROWS, CTRL_G, SEARCH_G, PAPER_P, CTRL_P, SEARCH_P)
PERSONAL = (CTRL_P, SEARCH_P, PAPER_P)
"""Policies that depend on the patient's factor. Their models take every column as a number."""
HUBER = 15.0
"""A death has reward −15, and the loss must be quadratic up to there."""
Q_LEARNING = D3QN(
    (128, 128), Schedule(steps=3000, check_every=500, rate="linear", log_every=250), batch=128, huber=HUBER
)
SUPPORT_PRICE = 1.0
"""Price of a step whose state and action have no support in the log, in units of the reward."""

SEARCH = Search(
    optimizer=EvolutionStrategy(),
    schedule=Schedule(steps=100, check_every=10, log_every=10),
    starts=4,
    restarts=1,
    choosing_starts=64,
    support_price=SUPPORT_PRICE,
)
"""Doses of two drugs, each linear in 48 inputs, have 98 parameters: too many for the cross-entropy method. Large doses
are rare in the log, so the model extrapolates: a step without support has a price. Chosen on logs of seeds 100 to 102.
"""

EFFECTS = RandomEffects(factors=2, ensemble=2, schedule=replace(RandomEffects().schedule, steps=300))
"""Choosing factors and changes on 42 equations of 50 inputs takes hours: here two factors, and log ratios of columns
that are always positive (`changes_of`)."""
PAPER_SCM = BiCoGAN(factor=LSTMFactor())
"""A factor from windows of five states, as in the paper."""


def changes_of(rows: Transitions) -> tuple[Change, ...]:
    """Return log ratios for columns that are positive in every row, differences for the others."""
    lowest = torch.cat([rows.state, rows.next_state[rows.has_next]]).amin(0)
    return tuple("log ratio" if low > 0 else "difference" for low in lowest.tolist())


@dataclass(frozen=True)
class SepsisArms:
    """Recipes of everything that is learned."""

    scm: DensitySCM = DensitySCM()
    """The model of CTRL_g, without subject factors."""
    effects: RandomEffects = EFFECTS
    """The model of CTRL_p, with subject factors."""
    windows: BiCoGAN = PAPER_SCM
    """The model of the paper's CTRL_p: a BiCoGAN with a factor from windows of five states."""
    outcome: Outcome = Outcome()
    """Reward and ends of imagined rows, learned from the table."""
    learner: D3QN = Q_LEARNING
    """The Q-learning of every policy."""
    augmenter: Augmenter = Augmenter(alternatives=4)
    """Counterfactual actions per row: four of 24, for memory."""
    selection: CheckpointSelection = CheckpointSelection()
    """How checkpoints are chosen inside the models."""
    groups: MixtureGroups = MixtureGroups(2)
    """How CTRL_p groups patients. The criterion that chooses their number finds nine among 1,252 patients of seed 100,
    too small to learn from: a mean return of 6.15, with two groups 6.50 (both in an earlier version of the ward)."""
    search: Search = SEARCH
    """The search inside the models."""
    policies: tuple[str, ...] = POLICIES
    """Policies to learn. The paper's model takes as long on a processor as all the others together."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.policies:
            require(name in POLICIES, f"there is no policy '{name}'; choose from {', '.join(POLICIES)}")
        require(len(self.policies) > 0, f"there is no policy to learn; choose from {', '.join(POLICIES)}")

    def general(self) -> CTRLg:
        return CTRLg(self.scm, self.augmenter, self.learner, self.selection)

    def personal(self) -> CTRLp:
        inside = CTRLg(self.effects, self.augmenter, self.learner, self.selection, sees_factor=False)
        return CTRLp(inside, self.groups)

    def paper(self) -> CTRLp:
        """The paper's CTRL_p: k-means of the factors; each group's patients all have the factor of its centre."""
        inside = CTRLg(self.windows, self.augmenter, self.learner, self.selection, sees_factor=False)
        return CTRLp(inside, KMeansGroups(self.groups.count), centroids=True)

    def personal_search(self) -> CTRLp:
        """A searched rule that is given the patient's factor."""
        return CTRLp(replace(self.search, model=self.effects), None)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learned from one cohort's training patients."""

    task: LearnedTask
    models: Mapping[str, Model]
    """By the policy that is learned in each: CTRL_g, CTRL_p and the paper's CTRL_p."""
    policies: Mapping[str, Policy]


def rows_for(policy: str, split: Split) -> Split:
    """Return the cohort as a policy reads it: with flags as numbers if it is personal."""
    return split.with_numbers() if policy in PERSONAL else split


class Learning:
    """Fits the models and policies of one cohort's training patients. Policies share models.

    There are two versions of the rows, with flags as categories and as numbers (for `PERSONAL` policies), and of the
    task that is learned from them.
    """

    def __init__(self, arms: SepsisArms, split: Split, seed: int, monitor: Monitor, device: str) -> None:
        numbers = split.with_numbers().train
        seed = derive(seed, "training")
        effects = replace(arms.effects, changes=arms.effects.changes or changes_of(numbers))
        self.arms = replace(arms, effects=effects)
        self.monitor = monitor
        self.device = device
        self.jobs = Job(split.train, seed), Job(numbers, seed)
        self.tasks = tuple(
            arms.outcome.fit(job.data, job.seed, monitor.stage(f"ends-{name}"), device)
            for name, job in zip(("coded", "numbers"), self.jobs, strict=True)
        )

    def fit(self) -> Fitted:
        """Fit the models that the policies need, then the policies."""
        arms = self.arms
        recipes = {CTRL_G: arms.general(), CTRL_P: arms.personal().policy, PAPER_P: arms.paper().policy}
        models = {
            name: recipe.fit_models([self.jobs[name in PERSONAL]], self.monitor.stage(f"model-{name}"), self.device)
            for name, recipe in recipes.items()
            if {name, f"{name} + search"} & set(arms.policies)
        }
        learners: dict[str, ModelBased] = {
            CTRL_G: arms.general(),
            SEARCH_G: arms.search,
            PAPER_P: arms.paper(),
            CTRL_P: arms.personal(),
            SEARCH_P: arms.personal_search(),
        }
        policies = {}
        for name in arms.policies:
            if name == D3QN_ROWS:
                policies[name] = self._on_rows(name)
            else:
                policies[name] = self._with_models(name, learners[name], models[name.removesuffix(" + search")])
        on_host = {name: fitted[0].to("cpu") for name, fitted in models.items()}
        return Fitted(on_device(self.tasks[0], "cpu"), on_host, policies)

    def _on_rows(self, name: str) -> Policy:
        """The policy of Q-learning on the logged rows alone."""
        learner, stage = unselected(self.arms.learner), self.monitor.stage(name)
        return learner.fit_many([self.jobs[0]], self.tasks[0], stage, self.device)[0].selected.to("cpu")

    def _with_models(self, name: str, learner: ModelBased, models: Sequence[Model]) -> Policy:
        """A policy learned with its fitted model, from its version of the rows."""
        job, task = self.jobs[name in PERSONAL], self.tasks[name in PERSONAL]
        return learner.with_models([job], models, task, self.monitor.stage(name))[0].selected.to("cpu")


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
        selection=CheckpointSelection(starts=8),
        search=replace(SEARCH, schedule=replace(SEARCH.schedule, steps=20), choosing_starts=16),
    )
