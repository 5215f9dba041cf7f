"""Any simulator with a Gymnasium face: train an agent of another library inside a fitted SCM, or in the truth."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import checked
from counterpoint.data.schema import agree
from counterpoint.data.spaces import ActionSpace, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import (
    NoiseStream,
    TaskSimulator,
)
from counterpoint.tasks.base import KnownSCM, Task, check_task


class Begun(NamedTuple):
    """An episode that has begun: where it is simulated, for which task, in which state, with which subject factor."""

    simulator: TaskSimulator | ModelSimulator
    task: Task
    state: Tensor
    theta: Tensor


class SCMEnv(gymnasium.Env[np.ndarray, Any]):
    """One episode at a time: `terminated` where the task says so (drawn, if it is chance), `truncated` at the horizon.

    `info` holds the true `state` and, after a step, the `noise` that made it and the name of the `outcome`. Discrete
    action `i` is `task.actions.values[i]`. In a fitted model every episode lives in an ensemble member of its own, and
    where subjects differ every episode is one of some subject's.
    """

    def __init__(self, task: Task, begin: Callable[[int], Begun], horizon: int = 0) -> None:
        self.task, self.begin, self.horizon = task, begin, horizon or task.horizon
        self.action_space = _space(task.actions)
        # States have no stated bounds, and Gymnasium's checker objects to infinite ones.
        largest, width = np.finfo(np.float32).max, begin(0).state.shape[-1]
        self.observation_space = gymnasium.spaces.Box(-largest, largest, (width,), np.float32)

    @classmethod
    @checked
    def of_task(cls, task: KnownSCM, horizon: int = 0) -> "SCMEnv":
        """The truth."""

        def begin(seed: int) -> Begun:
            subject = torch.randint(2**31, (1,), generator=generator(seed, "subject"))
            state = task.initial(1, generator(seed, "initial"))
            own = task.of_subjects(subject)
            return Begun(TaskSimulator(own), own, state, state[:, :0])

        return cls(task, begin, horizon)

    @classmethod
    @checked
    def of_model(cls, model: Model, task: Task, rows: Transitions, horizon: int = 0) -> "SCMEnv":
        """A fitted model; episodes start in first states of the log, with the factors that the model infers."""
        agree(model.schema, rows.schema)
        check_task(task, rows.schema)
        first, simulator = ~rows.imagined & (rows.step == rows.step.min()), ModelSimulator([model])
        states, factors = rows.state[first].to(model.device), model.subjects(rows)[first].to(model.device)

        def begin(seed: int) -> Begun:
            row = torch.randint(len(states), (1,), generator=generator(seed, "initial"))
            return Begun(simulator, task, states[row], factors[row])

        return cls(task, begin, horizon)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        root = int(self.np_random.integers(2**62)) if seed is None else seed
        self._simulator, self._task, self._state, self._theta = self.begin(root)
        self._members = getattr(self._simulator, "members", 1)
        self._observation, self._end = generator(root, "observation"), generator(root, "end")
        self._member = int(torch.randint(self._members, (1,), generator=generator(root, "member")))
        self._noise: NoiseStream = self._simulator.fresh(self._members, derive(root, "noise"))
        self._step = 0
        return self._observe(), {"state": self._state[0].cpu().numpy()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, noise = self._state, self._noise(self._step)
        features = self._features(action).to(state)
        told, taken, theta = (x.expand(1, self._members, -1) for x in (state, features, self._theta))
        after = self._simulator.step(told, taken, noise, theta)[0, self._member][None]
        done = self._task.conclude(state, features, after, torch.rand(1, generator=self._end).to(state))
        # An end without a next state shows the last one seen.
        self._state = torch.where(done.next_state.isnan(), state, done.next_state)
        self._step += 1
        over, drawn = int(done.outcome) >= 0, noise[0].reshape(self._members, -1)[self._member]
        info: dict[str, Any] = {"state": self._state[0].cpu().numpy(), "noise": drawn.cpu().numpy()}
        info["outcome"] = self.task.outcome_names[int(done.outcome)] if over else ""
        return self._observe(), float(done.reward), over, self._step >= self.horizon and not over, info

    def _features(self, action: Any) -> Tensor:
        actions = self.task.actions
        return actions.table()[int(action)][None] if isinstance(actions, Discrete) else torch.as_tensor(action)[None]

    def _observe(self) -> np.ndarray:
        seen = self.task.observe(self._state, self._observation) if isinstance(self.task, KnownSCM) else self._state
        return seen[0].cpu().numpy()


def _space(actions: ActionSpace) -> gymnasium.Space[Any]:
    if isinstance(actions, Discrete):
        return gymnasium.spaces.Discrete(actions.count)
    low, high = (np.array(bound, np.float32) for bound in (actions.low, actions.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)
