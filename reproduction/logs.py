"""The logs that policies are learned from: trials of a behaviour policy in a simulator.

A seed fixes its log. Smaller logs are the first trials of the largest, and every method sees the same logs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from counterpoint.core.artifacts import read_tensors, write_tensors
from counterpoint.core.seeding import derive
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.trials import BehaviourPolicy, random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from reproduction.behaviour import RANDOM_ACTION_SHARE, trained_behaviours
from reproduction.experiment import exclusive, recipe_key

Behaviour = Literal["random", "non-random"]
BEHAVIOUR_BLOCK = 10
"""Seeds whose non-random behaviours are trained in one stack. Whole blocks are trained, so that a seed's log does not
depend on which other seeds an experiment has."""
COLUMNS = (
    "state", "action", "reward", "next_state", "terminated", "outcome", "truncated", "subject", "episode", "step",
)  # fmt: skip


@dataclass(frozen=True)
class Protocol:
    """How data are logged and policies evaluated; the same for every cell of an experiment."""

    logged_trials: int = 250
    """Trials of the largest log; smaller logs are its first trials."""
    steps: int = 20
    """Steps of a trial."""
    evaluation_trials: int = 50
    """Episodes of each policy's evaluation, the same for all policies; 10 in the paper."""
    evaluation_seed: int = 0
    """Seed of those episodes."""
    random_action_share: float = RANDOM_ACTION_SHARE
    """Share of random actions in a non-random log."""


@dataclass(frozen=True)
class LogSource:
    """What a log depends on beside its seed."""

    task: KnownSCM
    behaviour: Behaviour = "random"
    protocol: Protocol = Protocol()


def logs(source: LogSource, seeds: Sequence[int]) -> dict[int, Transitions]:
    """Simulate the largest log of every seed, without the noise that the simulator drew."""
    protocol = source.protocol
    policies = behaviours(source.task, source.behaviour, seeds, protocol.random_action_share)
    tables = {}
    for seed in seeds:
        table = simulate(source.task, policies[seed], protocol.logged_trials, protocol.steps, derive(seed, "data"))
        tables[seed] = replace(table, noise=table.noise[:, :0])
    return tables


def behaviours(
    task: KnownSCM, behaviour: Behaviour, seeds: Sequence[int], random_action_share: float
) -> dict[int, BehaviourPolicy]:
    """The behaviour policy of each seed's log."""
    if behaviour == "random":
        return dict.fromkeys(seeds, random_policy(task))
    trained: dict[int, BehaviourPolicy] = {}
    for first in sorted({seed // BEHAVIOUR_BLOCK * BEHAVIOUR_BLOCK for seed in seeds}):
        block = range(first, first + BEHAVIOUR_BLOCK)
        training_seeds = [derive(seed, "behaviour") for seed in block]
        policies = trained_behaviours(task, training_seeds, random_action_share)
        trained |= dict(zip(block, policies, strict=True))
    return trained


def shared_logs(
    make: Callable[[Any, Sequence[int]], Mapping[int, Transitions]],
    source: LogSource,
    seeds: Sequence[int],
    folder: Path,
) -> dict[int, Transitions]:
    """Read the logs of `seeds` from a folder that cells share; `make(source, missing seeds)` simulates what is missing.

    Random logs are simulated at once: that is quick, while non-random ones need behaviours to be trained.
    """
    if source.behaviour == "random":
        return dict(make(source, seeds))
    place = folder / "logs" / recipe_key(make, source)
    paths = {seed: place / f"{seed}.safetensors" for seed in seeds}
    with exclusive(place):
        missing = [seed for seed in seeds if not paths[seed].exists()]
        tables = make(source, missing) if missing else {}
        for seed, table in tables.items():
            write_tensors(paths[seed], {name: getattr(table, name) for name in COLUMNS}, {})
    return {seed: _read(path, source.task) for seed, path in paths.items()}


def _read(path: Path, task: KnownSCM) -> Transitions:
    columns: dict[str, Any] = {**read_tensors(path)[0], "schema": task.schema, "outcome_names": task.outcome_names}
    return Transitions.logged(**columns)
