"""Gymnasium environments of fitted models and known SCMs, in which agents of other libraries can be trained."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Positive, checked
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


class EpisodeStart(NamedTuple):
    """The simulator, task, first state and subject factor of a new episode."""

    simulator: TaskSimulator | ModelSimulator
    task: Task
    state: Tensor
    theta: Tensor


class SCMEnv(gymnasium.Env[np.ndarray, Any]):
    """Gymnasium environment: `terminated` where the task ends the episode, `truncated` at the horizon.

    `info` holds the true `state` and, after a step, its exogenous `noise` and the name of the `outcome`. Discrete
    action `i` is `task.actions.values[i]`. In a fitted model every episode is simulated in one randomly drawn ensemble
    member; where subjects differ, every episode has the parameters of one subject. Random ends are drawn.
    """

    def __init__(self, task: Task, begin: Callable[[int], EpisodeStart], horizon: int | None = None) -> None:
        """`begin` starts an episode from a seed; `horizon` is the task's unless another is given."""
        self.task = task
        self.begin = begin
        self.horizon = task.horizon if horizon is None else horizon
        self.action_space = _space(task.actions)
        # States have no stated bounds, and Gymnasium's checker objects to infinite ones.
        largest = np.finfo(np.float32).max
        width = begin(0).state.shape[-1]
        self.observation_space = gymnasium.spaces.Box(-largest, largest, (width,), np.float32)

    @classmethod
    @checked
    def of_task(cls, task: KnownSCM, horizon: Positive | None = None) -> "SCMEnv":
        """Return the environment of a known SCM."""

        def begin(seed: int) -> EpisodeStart:
            subject = torch.randint(2**31, (1,), generator=generator(seed, "subject"))
            state = task.initial(1, generator(seed, "initial"))
            subject_task = task.of_subjects(subject)
            return EpisodeStart(TaskSimulator(subject_task), subject_task, state, state[:, :0])

        return cls(task, begin, horizon)

    @classmethod
    @checked
    def of_model(cls, model: Model, task: Task, rows: Transitions, horizon: Positive | None = None) -> "SCMEnv":
        """Return the environment of a fitted model; episodes start in logged first states, with inferred factors."""
        agree(model.schema, rows.schema)
        check_task(task, rows.schema)
        first = ~rows.imagined & (rows.step == rows.step.min())
        simulator = ModelSimulator([model])
        states = rows.state[first].to(model.device)
        factors = model.subjects(rows)[first].to(model.device)

        def begin(seed: int) -> EpisodeStart:
            row = torch.randint(len(states), (1,), generator=generator(seed, "initial"))
            return EpisodeStart(simulator, task, states[row], factors[row])

        return cls(task, begin, horizon)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        root = int(self.np_random.integers(2**62)) if seed is None else seed
        self._simulator, self._task, self._state, self._theta = self.begin(root)
        self._members = getattr(self._simulator, "members", 1)
        self._observation = generator(root, "observation")
        self._end = generator(root, "end")
        self._member = int(torch.randint(self._members, (1,), generator=generator(root, "member")))
        self._noise: NoiseStream = self._simulator.fresh(self._members, derive(root, "noise"))
        self._step = 0
        return self._observe(), {"state": self._state[0].cpu().numpy()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, noise = self._state, self._noise(self._step)
        features = self._features(action).to(state)
        stacked = (x.expand(1, self._members, -1) for x in (state, features))
        theta = self._theta.expand(1, self._members, -1)
        after = self._simulator.step(*stacked, noise, theta)[0, self._member][None]
        result = self._task.draw_result(state, features, after, torch.rand(1, generator=self._end).to(state))
        # Where the end has no next state, the observation is the last state.
        self._state = torch.where(result.next_state.isnan(), state, result.next_state)
        self._step += 1
        over = int(result.outcome) >= 0
        member_noise = noise[0].reshape(self._members, -1)[self._member]
        info: dict[str, Any] = {"state": self._state[0].cpu().numpy(), "noise": member_noise.cpu().numpy()}
        info["outcome"] = self.task.outcome_names[int(result.outcome)] if over else ""
        return self._observe(), float(result.reward), over, self._step >= self.horizon and not over, info

    def _features(self, action: Any) -> Tensor:
        actions = self.task.actions
        return actions.table()[int(action)][None] if isinstance(actions, Discrete) else torch.as_tensor(action)[None]

    def _observe(self) -> np.ndarray:
        state = self.task.observe(self._state, self._observation) if isinstance(self.task, KnownSCM) else self._state
        return state[0].cpu().numpy()


def _space(actions: ActionSpace) -> gymnasium.Space[Any]:
    if isinstance(actions, Discrete):
        return gymnasium.spaces.Discrete(actions.count)
    low, high = (np.array(bound, np.float32) for bound in (actions.low, actions.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)
