"""The one rollout loop: whatever acts, in whatever steps, rewarded and ended by a task.

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
"""What to do in these states of subjects with these factors; with a leading axis of K, policy k acts in states [k]."""
Noise = tuple[Tensor, ...]
"""The noise of one step, one tensor for each stack of a simulator."""
Stream = Callable[[int], Noise]
"""The noise of step t."""
ASKED_EVERY = 64
"""Steps between two questions to a GPU whether any episode goes on."""


@runtime_checkable
class Simulator(Protocol):
    """Worlds side by side, stepped in one batch."""

    def step(self, state: State, action: Action, noise: Noise, theta: Float[Tensor, "*n t"]) -> State:
        """The next states."""
        ...


class TaskSimulator:
    """The truth as a simulator: the task's own structural equation."""

    @checked
    def __init__(self, task: KnownSCM) -> None:
        self.task = task

    def step(self, state: Tensor, action: Tensor, noise: Noise, theta: Tensor) -> Tensor:
        return self.task.transition(state, action, noise[0].expand(*state.shape[:-1], -1))

    def fresh(self, episodes: int, seed: int, device: torch.device | str = "cpu") -> Stream:
        """New noise at every step, drawn on the CPU, so that every device sees the same."""
        random = torch.Generator().manual_seed(seed)
        return lambda t: (self.task.noise(episodes, random).to(device),)


class RolloutStep(NamedTuple):
    """One step of every episode; `alive` is the probability of no end before it, `survival` that of none in it."""

    state: State
    action: Action
    noise: Noise
    next_state: State
    reward: Float[Tensor, "*n"]
    alive: Float[Tensor, "*n"]
    survival: Float[Tensor, "*n"]


class Rollout:
    """Episodes of `act` in a simulator. On a GPU with `replay`, a step is captured once and replayed as a graph."""

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
        noise: Stream,
        horizon: int,
        theta: Theta = NO_THETA,
        plan: Callable[[int], Tensor | None] = lambda t: None,
    ) -> Iterator[RolloutStep]:
        """Step after step; `plan(t)` may give the actions of step t instead of `act`.

        An episode that has ended for certain stays where it is (with `freeze`), and nothing happens once all have.
        """
        state, alive = start, start.new_ones(start.shape[:-1])
        theta = theta.to(start).expand(*start.shape[:-1], -1)
        for t in range(horizon):
            drawn, planned = noise(t), plan(t)
            inputs = {"state": state, "alive": alive, "theta": theta, **_numbered(drawn)}
            after = self.advance(inputs if planned is None else {**inputs, "action": planned})
            yield RolloutStep(
                state, after["action"], drawn, after["next_state"], after["reward"], alive, after["survival"]
            )
            state, alive = after["next_state"], after["alive"]
            if alive.is_cuda:  # A replayed step writes into the same memory again.
                state, alive = state.clone(), alive.clone()
            if self.freeze and asks_for_end(t, alive) and not bool(alive.any()):
                return

    def returns(
        self,
        start: Float[Tensor, "*n s"],
        noise: Stream,
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

    def _advance(self, given: Tensors) -> Tensors:
        state, alive, theta = given["state"], given["alive"], given["theta"]
        action = given["action"] if "action" in given else self._choose(state, theta)
        after = self.simulator.step(state, action, _together(given), theta)
        if self.freeze:
            after = torch.where(alive[..., None] > 0, after, state)
        reward, survival = self.task.expected(state, action, after)
        gone = {"reward": reward, "survival": survival, "alive": alive * survival}
        return {"action": action, "next_state": after, **gone}

    def _choose(self, state: Tensor, theta: Tensor) -> Tensor:
        assert self.act is not None
        return self.act(state, theta)


def asks_for_end(t: int, alive: Tensor) -> bool:
    """Whether to ask after a step if all have ended. A GPU must be waited for, and not while a graph is captured."""
    if not alive.is_cuda:
        return True
    return (t + 1) % ASKED_EVERY == 0 and not torch.cuda.is_current_stream_capturing()


def _numbered(noise: Noise) -> Tensors:
    return {f"noise{i}": tensor for i, tensor in enumerate(noise)}


def _together(given: Tensors) -> Noise:
    return tuple(tensor for name, tensor in given.items() if name.startswith("noise"))


Thing = TypeVar("Thing")


def on_device(thing: Thing, device: torch.device | str) -> Thing:
    """A task or a policy with its networks, if it has any, on a device; the one given stays where it is."""
    return copy.deepcopy(thing).to(device) if isinstance(thing, nn.Module) else thing
