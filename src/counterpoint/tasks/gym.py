"""Any known SCM with discrete actions as a Gymnasium environment, with the noise of each step in `info`."""

from typing import Any

import gymnasium
import numpy as np

from counterpoint.data.spaces import Discrete
from counterpoint.errors import CounterpointError
from counterpoint.seeding import generator
from counterpoint.tasks.base import KnownSCM


class GymTask(gymnasium.Env[np.ndarray, np.int64]):
    """One trial of `task` at a time: `terminated` where the task says so, `truncated` after `horizon` steps.

    The observation is what the task lets a policy see; `info` holds the true `state` and, after a step, the `noise`
    that made it, so that `task.transition(state, action, noise)` answers what another action would have brought.
    Action `i` is `task.actions.values[i]`.
    """

    def __init__(self, task: KnownSCM, horizon: int) -> None:
        if not isinstance(task.actions, Discrete):
            raise CounterpointError(f"{type(task).__name__} has continuous actions; GymTask wraps discrete ones only")
        self.task, self.horizon = task, horizon
        self._action_table = task.actions.table()
        self.action_space = gymnasium.spaces.Discrete(task.actions.count)
        # States have no stated bounds, and Gymnasium's checker objects to infinite ones.
        largest = np.finfo(np.float32).max
        self.observation_space = gymnasium.spaces.Box(-largest, largest, (len(task.state_names),), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        root = int(self.np_random.integers(2**62)) if seed is None else seed
        # The noise and what is seen come from streams of their own, as in `simulate`.
        self._chance, self._blur = generator(root, "noise"), generator(root, "observation")
        self._state = self.task.initial(1, generator(root, "initial"))
        self._step = 0
        return self._observe(), {"state": self._state[0].numpy()}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, features = self._state, self._action_table[int(action)][None]
        noise = self.task.noise(1, self._chance)
        self._state = self.task.transition(state, features, noise)
        self._step += 1
        reward = float(self.task.reward(state, features, self._state))
        terminated = bool(self.task.terminated(self._state))
        info = {"state": self._state[0].numpy(), "noise": noise[0].numpy()}
        return self._observe(), reward, terminated, self._step >= self.horizon and not terminated, info

    def _observe(self) -> np.ndarray:
        return self.task.observe(self._state, self._blur)[0].numpy()
