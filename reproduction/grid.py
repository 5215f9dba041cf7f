"""A grid of cells, method × number of trials × seed: what there is to run, under which key, on which logs.

A cell is known by a hash of everything that defines it, the code included, so that a changed recipe is another cell.
Cells of one method are learned together, in packs that the grid's definition fixes: neither the executor nor what is
already done changes a pack, so every executor and every restart gives the same rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from counterpoint.core.artifacts import recipe_hash
from counterpoint.core.seeding import derive
from counterpoint.data.transitions import Transitions
from counterpoint.policies.base import ModelBased, PolicyLearner
from counterpoint.simulation.trials import BehaviourPolicy, random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from reproduction.behaviour import RANDOM_ACTION_SHARE, trained_behaviours, training_recipe

Behaviour = Literal["random", "non-random"]
BEHAVIOUR_BLOCK = 10
"""Seeds whose non-random behaviours are trained in one stack, always a whole block, so that a seed's log does not
depend on which other seeds a grid has."""


NO_NUMBERS = ("page", "cli", "registry", "pages", "commands")
"""Folders and files of the package that only show results or start work."""
SCHEDULING = ("cells", "executors", "gpu_sharing", "jobserver", "ray_data", "summary", "workers")
"""Modules of `experiments` that only run cells or summarise finished ones; the others compute a cell's metrics."""


@cache
def code_version() -> str:
    """A hash of the code that makes a cell's numbers, its metrics included: all but what runs, shows and starts."""
    root, total = Path(__file__).parents[1], hashlib.sha256()
    for package in (root / "src" / "counterpoint", root / "reproduction"):
        for path in sorted(package.rglob("*.py")):
            folder = path.relative_to(package).parts[0].removesuffix(".py")
            if folder not in NO_NUMBERS and not (package.name == "reproduction" and folder in SCHEDULING):
                total.update(path.read_bytes())
    return total.hexdigest()[:16]


@dataclass(frozen=True)
class Arm:
    """What a method's name stands for."""

    learner: PolicyLearner
    task: KnownSCM
    most_trials: int = 0
    """Logged trials that it can learn from at most; 0 for any number."""
    one_size: bool = False
    """Whether only logs of one length share a stack, where a long one would make every short one as dear as itself: its
    kernel matrix to fit, or the plans of its long episodes."""


@dataclass(frozen=True)
class Protocol:
    """How data are logged and policies tried, for every cell alike."""

    logged_trials: int = 250
    """Trials of the largest log; smaller logs are its first trials."""
    steps: int = 20
    """Steps a trial."""
    evaluation_trials: int = 50
    """Episodes each policy is tried in, the same for all policies; 10 in the paper."""
    evaluation_seed: int = 0
    """Seed of those episodes."""
    random_action_share: float = RANDOM_ACTION_SHARE
    """Share of random actions in a non-random log."""


def behaviour_recipe(behaviour: Behaviour, protocol: Protocol) -> list[Any]:
    """What the actions of a log depend on beside the seed; for random ones nothing."""
    return [behaviour] if behaviour == "random" else [behaviour, protocol.random_action_share, training_recipe()]


@dataclass(frozen=True)
class Cell:
    """One policy to learn. Data and training depend on the seed alone, so methods are compared in pairs."""

    method: str
    """A label: two names for one recipe are one cell."""
    behaviour: Behaviour
    trials: int
    seed: int
    arm: Arm
    protocol: Protocol

    @cached_property
    def key(self) -> str:
        logged = behaviour_recipe(self.behaviour, self.protocol)
        protocol = replace(self.protocol, random_action_share=0.0)
        return recipe_hash(code_version(), self.arm, logged, self.trials, self.seed, protocol)


@dataclass(frozen=True)
class Pack:
    """Cells of one method that are learned in one stack."""

    cells: tuple[Cell, ...]

    @property
    def key(self) -> str:
        return recipe_hash([cell.key for cell in self.cells])

    @property
    def models_key(self) -> str:
        """What its models are known by: recipe, code and logs, not what is learned by them; empty without models."""
        learner = self.cells[0].arm.learner
        if not isinstance(learner, ModelBased):
            return ""
        logged = [(cell.arm.task, cell.behaviour, cell.trials, cell.seed, cell.protocol) for cell in self.cells]
        return recipe_hash(code_version(), learner.model, logged)


@dataclass(frozen=True)
class Grid:
    """Every method at every number of trials with every seed."""

    name: str
    arms: Mapping[str, Arm]
    trials: tuple[int, ...] = (50, 100, 150, 200, 250)
    seeds: tuple[int, ...] = tuple(range(20))
    behaviour: Behaviour = "random"
    protocol: Protocol = Protocol()
    pack_size: int = 0
    """Cells of a method that are learned together; 0 for all of them, which suits a GPU."""

    def cells(self) -> list[Cell]:
        return [cell for name in self.arms for cell in self._cells_of(name)]

    def packs(self) -> list[Pack]:
        """The grid in packs; arms of one recipe share theirs."""
        unique: dict[str, Pack] = {}
        for name in self.arms:
            size = self.pack_size or (len(self.seeds) if self.arms[name].one_size else 0)
            for cells in _chunks(self._cells_of(name), size):
                unique.setdefault(Pack(cells).key, Pack(cells))
        return list(unique.values())

    def _cells_of(self, name: str) -> list[Cell]:
        arm = self.arms[name]
        return [
            Cell(name, self.behaviour, trials, seed, arm, self.protocol)
            for trials, seed in product(self.trials, self.seeds)
            if not arm.most_trials or trials <= arm.most_trials
        ]


def logs(
    task: KnownSCM, behaviour: Behaviour, seeds: Sequence[int], protocol: Protocol = Protocol()
) -> dict[int, Transitions]:
    """The whole log of every seed, without the noise that made it."""
    own = behaviours(task, behaviour, seeds, protocol.random_action_share)
    tables = {
        seed: simulate(task, own[seed], protocol.logged_trials, protocol.steps, derive(seed, "data")) for seed in seeds
    }
    return {seed: replace(table, noise=table.noise[:, :0]) for seed, table in tables.items()}


def behaviours(
    task: KnownSCM, behaviour: Behaviour, seeds: Sequence[int], random_action_share: float
) -> dict[int, BehaviourPolicy]:
    """Who logs, for each seed."""
    if behaviour == "random":
        return dict.fromkeys(seeds, random_policy(task))
    trained: dict[int, BehaviourPolicy] = {}
    for first in sorted({seed // BEHAVIOUR_BLOCK * BEHAVIOUR_BLOCK for seed in seeds}):
        block = range(first, first + BEHAVIOUR_BLOCK)
        own = [derive(seed, "behaviour") for seed in block]
        trained |= dict(zip(block, trained_behaviours(task, own, random_action_share), strict=True))
    return trained


def _chunks(cells: Sequence[Cell], size: int) -> list[tuple[Cell, ...]]:
    size = size or len(cells)
    return [tuple(cells[first : first + size]) for first in range(0, len(cells), size)]
