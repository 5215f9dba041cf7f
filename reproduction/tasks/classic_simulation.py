"""Gymnasium's own environments as a source of logs and as a judge: nothing of theirs is rewritten."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import checked
from counterpoint.data.spaces import ActionSpace, Discrete
from counterpoint.data.transitions import Transitions
from reproduction.tasks.classic import ClassicControl

Choose = Callable[[Float[Tensor, "n s"]], Float[Tensor, "n a"]]
"""From states to the features of the chosen actions."""


@dataclass(frozen=True)
class Seen:
    """One step of an environment."""

    state: np.ndarray
    action: Tensor
    reward: float
    next_state: np.ndarray
    terminated: bool
    piece: int
    step: int


@checked
def log_random(task: ClassicControl, rows: int, piece: int, seed: int) -> Transitions:
    """`rows` transitions of uniformly random actions, begun anew after `piece` steps or an end.

    Each piece is a subject and an episode; its last row is truncated unless it is terminated. A shorter log of the same
    seed is the beginning of a longer one.

    Example:
        >>> from reproduction.tasks.classic import Pendulum
        >>> log = log_random(Pendulum(), rows=100, piece=50, seed=0)
        >>> len(log), len(log.subject_names)
        (100, 2)
    """
    require(rows > 0 and piece > 0, f"cannot log {rows} rows in pieces of {piece}; ask for at least one of each")
    environment, seen = gymnasium.make(task.gym_id, disable_env_checker=True), []
    number = 0
    while len(seen) < rows:
        seen += _piece(environment, task.actions, min(piece, rows - len(seen)), seed, number)
        number += 1
    environment.close()
    return _table(task, seen)


def _piece(
    environment: gymnasium.Env[Any, Any], actions: ActionSpace, steps: int, seed: int, number: int
) -> list[Seen]:
    """One episode of random actions, from a stream of its own."""
    state, _ = environment.reset(seed=derive(seed, "reset", number))
    random, seen = generator(seed, "random actions", number), []
    for step in range(steps):
        action = actions.sample(1, random)
        after, reward, terminated, truncated, _ = environment.step(gym_actions(actions, action)[0])
        seen.append(Seen(state, action[0], float(reward), after, terminated, number, step))
        state = after
        if terminated or truncated:
            break
    return seen


def _table(task: ClassicControl, seen: list[Seen]) -> Transitions:
    terminated = torch.tensor([each.terminated for each in seen])
    piece = torch.tensor([each.piece for each in seen])
    last = torch.ones_like(terminated)
    last[:-1] = piece[1:] != piece[:-1]
    return Transitions.logged(
        state=torch.from_numpy(np.stack([each.state for each in seen])).float(),
        action=torch.stack([each.action for each in seen]),
        reward=torch.tensor([each.reward for each in seen]),
        next_state=torch.from_numpy(np.stack([each.next_state for each in seen])).float(),
        terminated=terminated,
        truncated=last & ~terminated,
        subject=piece,
        step=torch.tensor([each.step for each in seen]),
        schema=task.schema,
        outcome_names=task.outcome_names,
    )


def gym_actions(actions: ActionSpace, features: Float[Tensor, "n a"]) -> list[Any]:
    """Features as what Gymnasium takes: the number of a listed action, or an array of doses."""
    if isinstance(actions, Discrete):
        return actions.index(features).tolist()
    return list(features.numpy())


@torch.no_grad()
def gym_returns(choose: Choose, actions: ActionSpace, gym_id: str, episodes: int, seed: int) -> Float[Tensor, " n"]:
    """Undiscounted returns of whole episodes, each from its own reset; the same resets for every chooser."""
    require(episodes > 0, f"{episodes} episodes say nothing; ask for 1 or more")
    running = {i: gymnasium.make(gym_id, disable_env_checker=True) for i in range(episodes)}
    states = {i: each.reset(seed=derive(seed, "evaluation", i))[0] for i, each in running.items()}
    total = torch.zeros(episodes, dtype=torch.double)
    while running:
        told = torch.from_numpy(np.stack([states[i] for i in running])).float()
        chosen = gym_actions(actions, choose(told).cpu())
        for (i, environment), action in zip(list(running.items()), chosen, strict=True):
            states[i], reward, terminated, truncated, _ = environment.step(action)
            total[i] += float(reward)
            if terminated or truncated:
                running.pop(i).close()
    return total.float()
