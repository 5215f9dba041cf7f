"""Logs of Gymnasium's environments, and returns of policies in them."""

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
from counterpoint.policies.base import Policy
from reproduction.tasks.classic import ClassicControl

Choose = Callable[[Float[Tensor, "n s"]], Float[Tensor, "n a"]]
"""From states to the features of the chosen actions."""


@dataclass(frozen=True)
class Step:
    """One step of an environment."""

    state: np.ndarray
    action: Tensor
    reward: float
    next_state: np.ndarray
    terminated: bool
    piece: int
    number: int


@checked
def log_random(task: ClassicControl, rows: int, piece: int, seed: int) -> Transitions:
    """Log `rows` transitions of uniformly random actions; the environment is reset after `piece` steps or an end.

    Each piece is a subject and an episode; its last row is truncated unless it is terminated. A shorter log of the
    same seed is the beginning of a longer one.

    Example:
        >>> from reproduction.tasks.classic import Pendulum
        >>> log = log_random(Pendulum(), rows=100, piece=50, seed=0)
        >>> len(log), len(log.subject_names)
        (100, 2)
    """
    require(rows > 0 and piece > 0, f"cannot log {rows} rows in pieces of {piece}; set both to 1 or more")
    environment, seen = gymnasium.make(task.gym_id, disable_env_checker=True), []
    number = 0
    while len(seen) < rows:
        seen += _piece(environment, task.actions, min(piece, rows - len(seen)), seed, number)
        number += 1
    environment.close()
    return _table(task, seen)


def _piece(
    environment: gymnasium.Env[Any, Any], actions: ActionSpace, steps: int, seed: int, number: int
) -> list[Step]:
    """One episode of random actions, from its own random stream."""
    state, _ = environment.reset(seed=derive(seed, "reset", number))
    random, seen = generator(seed, "random actions", number), []
    for step in range(steps):
        action = actions.sample(1, random)
        after, reward, terminated, truncated, _ = environment.step(gym_actions(actions, action)[0])
        seen.append(Step(state, action[0], float(reward), after, terminated, number, step))
        state = after
        if terminated or truncated:
            break
    return seen


def _table(task: ClassicControl, steps: list[Step]) -> Transitions:
    terminated = torch.tensor([step.terminated for step in steps])
    piece = torch.tensor([step.piece for step in steps])
    last = torch.ones_like(terminated)
    last[:-1] = piece[1:] != piece[:-1]
    return Transitions.logged(
        state=torch.from_numpy(np.stack([step.state for step in steps])).float(),
        action=torch.stack([step.action for step in steps]),
        reward=torch.tensor([step.reward for step in steps]),
        next_state=torch.from_numpy(np.stack([step.next_state for step in steps])).float(),
        terminated=terminated,
        truncated=last & ~terminated,
        subject=piece,
        step=torch.tensor([step.number for step in steps]),
        schema=task.schema,
        outcome_names=task.outcome_names,
    )


def gym_actions(actions: ActionSpace, features: Float[Tensor, "n a"]) -> list[Any]:
    """Convert features to Gymnasium's actions: the index of a discrete action, or an array of doses."""
    if isinstance(actions, Discrete):
        return actions.index(features).tolist()
    return list(features.numpy())


@torch.no_grad()
def gym_returns(choose: Choose, actions: ActionSpace, gym_id: str, episodes: int, seed: int) -> Float[Tensor, " n"]:
    """Return the undiscounted returns of whole episodes, with the same resets for every policy."""
    require(episodes > 0, f"{episodes} episodes have no mean return; set episodes to 1 or more")
    running = {i: gymnasium.make(gym_id, disable_env_checker=True) for i in range(episodes)}
    states = {i: env.reset(seed=derive(seed, "evaluation", i))[0] for i, env in running.items()}
    total = torch.zeros(episodes, dtype=torch.double)
    while running:
        state = torch.from_numpy(np.stack([states[i] for i in running])).float()
        chosen = gym_actions(actions, choose(state).cpu())
        for (i, environment), action in zip(list(running.items()), chosen, strict=True):
            states[i], reward, terminated, truncated, _ = environment.step(action)
            total[i] += float(reward)
            if terminated or truncated:
                running.pop(i).close()
    return total.float()


@checked
def evaluate_in_gym(policy: Policy, gym_id: str, episodes: int = 20, seed: int = 0) -> Float[Tensor, " n"]:
    """Return the undiscounted return of one policy in every episode, truncated as in the environment."""
    act = policy.actor()
    choose = lambda state: act(state[None].to(policy.device), state.new_zeros(1, len(state), 0).to(policy.device))[0]
    return gym_returns(choose, policy.actions, gym_id, episodes, seed)
