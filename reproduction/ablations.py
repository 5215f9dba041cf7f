"""Ablations: CTRL_g with the default SCM, and the search inside it, with one setting changed at a time.

Every arm sees the same data seeds, and arms with the same SCM recipe fit identical SCMs on them. So "fresh noise"
differs from the reference only in the noise of the imagined rows.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import get_args

from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.evolution import CrossEntropy, EvolutionStrategy
from counterpoint.learners.methods import (
    QUICK_SEARCH,
    unselected,
)
from counterpoint.learners.search import Search
from counterpoint.models.scm.density import default_scm
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.policies.rule import OrderedDose, ScoredActions
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.models import NoisePool
from counterpoint.simulation.objectives import LowerBound, WorstShare
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.cartpole import CartPole, NoiseReading
from reproduction.arms import QUICK_LEARNER
from reproduction.experiment import choose
from reproduction.grid import Arm, Grid
from reproduction.logs import Protocol
from reproduction.sd import QUICK_EPISODES

REFERENCE = "reference"
LENGTHS = (750, 1500, 3000, 6000)
READINGS: tuple[NoiseReading, ...] = get_args(NoiseReading)


def ablations(seeds: int = 20, methods: Sequence[str] = (), stack_size: int | None = None) -> Grid:
    """Every ablation of CTRL_g at 50 and 250 trials."""
    arms = ablation_arms(CTRLg(learner=LEARNER), LENGTHS)
    return _grid("ablations", arms, (50, 250), seeds, methods, stack_size)


def quick_ablations(seeds: int = 2, methods: Sequence[str] = (), stack_size: int | None = None) -> Grid:
    """The same with small networks, a third of the demo's updates, a few seeds, 50 trials."""
    learner = _of_length(QUICK_LEARNER, 1000)
    arms = ablation_arms(CTRLg(learner=learner, selection=CheckpointSelection(starts=8)), (500, 1000))
    return _grid("ablations-quick", arms, (50,), seeds, methods, stack_size, QUICK_EPISODES)


def search_ablations(seeds: int = 20, methods: Sequence[str] = (), stack_size: int | None = None) -> Grid:
    """Every ablation of the search, at 5, 10 and 50 trials."""
    arms = {name: Arm(search, CartPole()) for name, search in search_variants(Search()).items()}
    return _grid("search-ablations", arms, (5, 10, 50), seeds, methods, stack_size)


def quick_search_ablations(seeds: int = 2, methods: Sequence[str] = (), stack_size: int | None = None) -> Grid:
    """The same with few candidates, a few seeds, 10 trials."""
    arms = {name: Arm(search, CartPole()) for name, search in search_variants(QUICK_SEARCH).items()}
    return _grid("search-ablations-quick", arms, (10,), seeds, methods, stack_size, QUICK_EPISODES)


def _grid(
    name: str,
    arms: dict[str, Arm],
    trials: tuple[int, ...],
    seeds: int,
    methods: Sequence[str],
    stack_size: int | None,
    evaluation_trials: int = Protocol().evaluation_trials,
) -> Grid:
    chosen = choose(arms, methods)
    return Grid(
        name,
        chosen,
        trials,
        tuple(range(seeds)),
        protocol=Protocol(evaluation_trials=evaluation_trials),
        stack_size=stack_size,
        comparisons=tuple(ablation_comparisons(chosen)),
    )


def search_variants(reference: Search) -> dict[str, Search]:
    """The search, and everything that differs from it in one thing; the part before the colon names the setting."""
    longer = replace(reference.schedule, steps=reference.schedule.steps * 12 // 5, patience=0)
    return {
        REFERENCE: reference,
        "members: the fitted ones": replace(reference, draws=None),
        "rule: one score an action": replace(
            reference, rule=ScoredActions(), optimizer=CrossEntropy(192, 24), schedule=longer
        ),
        "members: 20 draws": replace(reference, draws=PosteriorDraws(20)),
        "objective: mean − sd over members": replace(reference, objective=LowerBound()),
        "objective: worst quarter of members": replace(reference, objective=WorstShare()),
        "optimizer: evolution strategy": replace(reference, optimizer=EvolutionStrategy(48), schedule=longer),
        "noise: abducted pool": replace(reference, noise=NoisePool()),
        "restarts: 1": replace(reference, restarts=1),
        "rule: network of 16": replace(
            reference, rule=OrderedDose((16,)), optimizer=CrossEntropy(96, 12), schedule=longer
        ),
    }


def ablation_comparisons(arms: Collection[str]) -> list[tuple[str, str]]:
    """Every change against the reference; under another noise reading, which is another task, CTRL_g against D3QN."""
    changes = [(name, REFERENCE) for name in arms if name != REFERENCE and not name.startswith("noise reading")]
    readings = [tuple(f"noise reading: {reading}, {arm}" for arm in ("CTRL_g", "D3QN")) for reading in READINGS]
    return [(left, right) for left, right in changes + readings if {left, right} <= set(arms)]


def ablation_arms(reference: CTRLg, lengths: Sequence[int]) -> dict[str, Arm]:
    """The reference, and everything that differs from it in one thing; the part before the colon names the setting."""
    learner = reference.learner
    learners = {
        **{f"length: {steps} updates": _of_length(learner, steps) for steps in lengths},
        **{f"real share: {share}": replace(learner, real_share=share) for share in (0.1, 0.25, 0.5, 0.75)},
        "network: 4×512, the paper's": replace(learner, hidden=(512, 512, 512, 512)),
    }
    augmenters = {
        "noise: fresh, on the same SCM": Augmenter(fresh_noise=True),
        **{f"alternatives: {count}": Augmenter(alternatives=count) for count in (1, 2, 5)},
    }
    return {
        REFERENCE: Arm(reference, CartPole()),
        **{name: Arm(replace(reference, learner=changed), CartPole()) for name, changed in learners.items()},
        **{name: Arm(replace(reference, augmenter=changed), CartPole()) for name, changed in augmenters.items()},
        "selection: one network's share of episodes": Arm(replace(reference, selection=_share(reference)), CartPole()),
        "SCM: one network": Arm(replace(reference, model=default_scm(ensemble=1)), CartPole()),
        **_reading_arms(reference),
    }


def _share(reference: CTRLg) -> CheckpointSelection:
    """As many episodes in all as for a model of one network, spread over the members."""
    return replace(reference.selection, starts=max(reference.selection.starts // default_scm().ensemble, 1))


def _of_length(learner: D3QN, steps: int) -> D3QN:
    """The learner with another number of updates and the same number of validations."""
    validations = learner.schedule.steps // learner.schedule.check_every
    return replace(learner, schedule=replace(learner.schedule, steps=steps, check_every=steps // validations))


def _reading_arms(reference: CTRLg) -> dict[str, Arm]:
    """What "5% noise" means, for CTRL_g and for D3QN on the logged rows."""
    arms = {}
    for reading in READINGS:
        task = CartPole(noise_reading=reading)
        arms[f"noise reading: {reading}, CTRL_g"] = Arm(reference, task)
        arms[f"noise reading: {reading}, D3QN"] = Arm(unselected(reference.learner), task)
    return arms
