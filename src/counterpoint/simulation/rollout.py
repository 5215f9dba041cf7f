"""The rollout loop: an actor in a simulator, with the rewards and ends of a task.

a_t = π(s_t),    s_{t+1} = f(s_t, a_t, θ, u_t),    return = Σ_t γ^t·P(not ended before t)·r_t
"""

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.settings import checked
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.shapes import Action, Reward, State, Theta
from counterpoint.nets.learner import Replayed, Tensors
from counterpoint.tasks.base import KnownSCM, Task

Actor = Callable[[Float[Tensor, "*n s"], Float[Tensor, "*n t"]], Float[Tensor, "*n a"]]
"""From states and subject factors to actions; with a leading axis of K, policy k acts in states [k]."""
StackedNoise = tuple[Tensor, ...]
"""The noise of one step, one tensor for each stack of a simulator."""
NoiseStream = Callable[[int], StackedNoise]
"""The noise of step t."""
END_CHECK_STEPS = 64
"""Steps between two checks on a GPU whether all episodes have ended."""


@runtime_checkable
class Simulator(Protocol):
    """A batch of environments with explicit noise."""

    def step(self, state: State, action: Action, noise: StackedNoise, theta: Float[Tensor, "*n t"]) -> State:
        """The next states."""
        ...


class TaskSimulator:
    """A simulator of the task's true structural equation."""

    @checked
    def __init__(self, task: KnownSCM) -> None:
        self.task = task

    def step(self, state: Tensor, action: Tensor, noise: StackedNoise, theta: Tensor) -> Tensor:
        return self.task.transition(state, action, noise[0].expand(*state.shape[:-1], -1))

    def fresh(self, episodes: int, seed: int, device: torch.device | str = "cpu") -> NoiseStream:
        """Fresh noise at every step, drawn on the CPU, so that it is the same on every device."""
        random = torch.Generator().manual_seed(seed)
        return lambda t: (self.task.noise(episodes, random).to(device),)


class RolloutStep(NamedTuple):
    """One step of every episode; `alive` is the probability of no end before it, `survival` of no end in it."""

    state: State
    action: Action
    noise: StackedNoise
    next_state: State
    reward: Float[Tensor, "*n"]
    alive: Float[Tensor, "*n"]
    survival: Float[Tensor, "*n"]


class Rollout:
    """Episodes of an actor in a simulator.

    With `freeze` an episode that has ended stays in its state. With `replay` a step is captured on a GPU and replayed
    as a CUDA graph.
    """

    @checked
    def __init__(
        self, simulator: Simulator, task: Task, act: Actor | None = None, freeze: bool = True, replay: bool = False
    ) -> None:
        self.simulator, self.task, self.act, self.freeze = simulator, task, act, freeze
        captured = replay and getattr(simulator, "capturable", True)
        self.advance = Replayed(self._advance) if captured else self._advance

    @torch.no_grad()
    def __call__(
        self,
        start: Float[Tensor, "*n s"],
        noise: NoiseStream,
        horizon: int,
        theta: Theta = NO_THETA,
        plan: Callable[[int], Tensor | None] = lambda t: None,
    ) -> Iterator[RolloutStep]:
        """Yield step after step, until the horizon or (with `freeze`) until all episodes have ended for certain.

        `plan(t)` may give the actions of step t in place of the actor's.
        """
        state, alive = start, start.new_ones(start.shape[:-1])
        theta = theta.to(start).expand(*start.shape[:-1], -1)
        for t in range(horizon):
            step_noise, planned = noise(t), plan(t)
            inputs = {"state": state, "alive": alive, "theta": theta}
            inputs |= {f"noise{i}": tensor for i, tensor in enumerate(step_noise)}
            after = self.advance(inputs if planned is None else {**inputs, "action": planned})
            yield RolloutStep(
                state, after["action"], step_noise, after["next_state"], after["reward"], alive, after["survival"]
            )
            state, alive = after["next_state"], after["alive"]
            if alive.is_cuda:  # A replayed step writes into the same memory again.
                state, alive = state.clone(), alive.clone()
            if self.freeze and checks_for_end(t, alive) and not bool(alive.any()):
                return

    def returns(
        self,
        start: Float[Tensor, "*n s"],
        noise: NoiseStream,
        horizon: int,
        theta: Theta = NO_THETA,
        plan: Callable[[int], Tensor | None] = lambda t: None,
        discount: float = 1.0,
    ) -> Reward:
        """The return of every episode, cut at the horizon."""
        total = start.new_zeros(start.shape[:-1])
        for t, step in enumerate(self(start, noise, horizon, theta, plan)):
            total += discount**t * step.alive * step.reward
        return total

    def _advance(self, inputs: Tensors) -> Tensors:
        state, alive, theta = inputs["state"], inputs["alive"], inputs["theta"]
        action = inputs["action"] if "action" in inputs else self._action(state, theta)
        noise = tuple(tensor for name, tensor in inputs.items() if name.startswith("noise"))
        after = self.simulator.step(state, action, noise, theta)
        if self.freeze:
            after = torch.where(alive[..., None] > 0, after, state)
        reward, survival = self.task.expected(state, action, after)
        ends = {"reward": reward, "survival": survival, "alive": alive * survival}
        return {"action": action, "next_state": after, **ends}

    def _action(self, state: Tensor, theta: Tensor) -> Tensor:
        assert self.act is not None
        return self.act(state, theta)


def checks_for_end(t: int, alive: Tensor) -> bool:
    """Whether to check after step t that all episodes have ended; on a GPU it synchronises, so it is done rarely."""
    if not alive.is_cuda:
        return True
    return (t + 1) % END_CHECK_STEPS == 0 and not torch.cuda.is_current_stream_capturing()


T = TypeVar("T")


def on_device(value: T, device: torch.device | str) -> T:
    """A copy of a task or policy with its networks on a device; the value itself where it has no networks."""
    return copy.deepcopy(value).to(device) if isinstance(value, nn.Module) else value
