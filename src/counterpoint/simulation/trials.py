"""Simulate trials in a known SCM, logged with their exogenous noise (paper, section 5.1: 250 trials of 20 steps)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import checked
from counterpoint.data.spaces import check_actions
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.simulation.rollout import Rollout, TaskSimulator
from counterpoint.tasks.base import KnownSCM

BehaviourPolicy = Callable[[Float[Tensor, "n s"], torch.Generator], Float[Tensor, "n a"]]
"""From observed states and a generator to the features of the chosen actions."""

BLOCK = 50
"""Number of trials that share one random stream; a block is always simulated as a whole (see `simulate`)."""


@checked
def random_policy(task: KnownSCM) -> BehaviourPolicy:
    """Return the uniform policy over the task's actions, independent of the state."""
    return lambda state, generator: task.actions.sample(len(state), generator)


@torch.no_grad()
@checked
def simulate(
    task: KnownSCM, policy: BehaviourPolicy, trials: int, steps: int, seed: int, stop_at_failure: bool = False
) -> Transitions:
    """Log `trials` trials of `steps` steps; each trial is one subject, and `.noise` holds its noise.

    A trial continues after a failure, because the paper's trials have 20 full steps (40% of random CartPole trials on
    earth fail within 20 steps): the physics continues from the failed state, every row whose next state lies beyond the
    limits is `terminated`, and the next row starts a new episode, so that no window and no value crosses a failure.
    `step` counts through the trial. With `stop_at_failure` the trial ends at its first terminated row instead, as it
    always does after a row without a next state. The last row of a trial is `truncated` unless it is terminated.

    Trial k is the same for every number of trials: every block of `BLOCK` trials has its own random streams, and the
    surplus of the last block is discarded. First states, noise, observation and policy draw from separate streams, so
    two policies with one seed have the same first states and the same noise.

    Where subjects have parameters, trial k belongs to subject k (see `KnownSCM.of_subjects`).

    Example:
        >>> from counterpoint.tasks.cartpole import CartPole
        >>> rows = simulate(CartPole(), random_policy(CartPole()), trials=50, steps=20, seed=0)
        >>> len(rows), rows.noise.shape[1]
        (1000, 5)
    """
    if trials < 1 or steps < 1:
        raise CounterpointError(f"cannot simulate {trials} trials of {steps} steps; ask for at least one of each")
    blocks = [_simulate_block(task, policy, steps, seed, first) for first in range(0, trials, BLOCK)]
    state, action, noise, reward, outcome, next_state = (torch.cat(c)[:trials] for c in zip(*blocks, strict=True))
    terminated = outcome >= 0
    last = torch.zeros_like(terminated)
    last[:, -1] = True
    opens = torch.zeros_like(terminated)
    opens[:, 0] = True
    opens[:, 1:] |= terminated[:, :-1]
    rows = Transitions.logged(
        state=state.flatten(0, 1),
        action=action.flatten(0, 1),
        reward=reward.flatten(),
        next_state=next_state.flatten(0, 1),
        terminated=terminated.flatten(),
        outcome=outcome.flatten(),
        truncated=(last & ~terminated).flatten(),
        subject=torch.arange(trials).repeat_interleave(steps),
        episode=opens.flatten().cumsum(0) - 1,
        step=torch.arange(steps).repeat(trials),
        schema=task.schema,
        outcome_names=task.outcome_names,
    )
    check_actions(task.actions, rows.action, "the policy's action")
    rows = replace(rows, noise=noise.flatten(0, 1))
    has_random_ends = bool(next_state.isnan().any())
    return _until_end(rows, trials) if stop_at_failure or has_random_ends else rows


def simulate_population(
    tasks: Sequence[KnownSCM],
    policy: Callable[[KnownSCM], BehaviourPolicy],
    trials: int,
    steps: int,
    seed: int,
    stop_at_failure: bool = False,
) -> Transitions:
    """Log `trials` trials of each task in one table: the paper's hybrid data HD is five planets with 50 trials each.

    `policy(task)` is the behaviour policy of that task. Subjects `i·trials … (i+1)·trials − 1` belong to `tasks[i]`.
    """
    tables = []
    episodes = 0
    for i, task in enumerate(tasks):
        table = simulate(task, policy(task), trials, steps, derive(seed, "task", i), stop_at_failure)
        tables.append(replace(table, subject=table.subject + i * trials, episode=table.episode + episodes))
        episodes += int(table.episode.max()) + 1
    return replace(concatenate(tables), subject_names=_numbers(len(tasks) * trials))


@checked
def trial_subset(transitions: Transitions, trials: int) -> Transitions:
    """Return the first `trials` trials, so that the paper's subsets of 50, 100, …, 250 are nested."""
    held = len(transitions.subject_names)
    if not 1 <= trials <= held:
        raise CounterpointError(f"cannot take {trials} trials of a table that holds {held}; ask for 1 to {held}")
    subset = transitions[transitions.subject < trials]
    return replace(subset, subject_names=transitions.subject_names[:trials])


def _simulate_block(task: KnownSCM, policy: BehaviourPolicy, steps: int, seed: int, first: int) -> tuple[Tensor, ...]:
    """Simulate the block from trial `first`; return states, actions, noise, rewards, outcomes and next states."""
    begin, observation, choose, end = (
        generator(seed, purpose, first) for purpose in ("initial", "observation", "policy", "end")
    )
    task = task.of_subjects(torch.arange(first, first + BLOCK))
    act = lambda state, theta: policy(task.observe(state, observation), choose)
    simulator = TaskSimulator(task)
    noise = simulator.fresh(BLOCK, derive(seed, "noise", first))
    log = []
    uniform = torch.rand(BLOCK, steps, generator=end)
    for t, step in enumerate(Rollout(simulator, task, act, freeze=False)(task.initial(BLOCK, begin), noise, steps)):
        result = task.draw_result(step.state, step.action, step.next_state, uniform[:, t])
        log.append((step.state, step.action, step.noise[0], *result))
    return tuple(torch.stack(column, 1) for column in zip(*log, strict=True))


def _until_end(rows: Transitions, trials: int) -> Transitions:
    """Cut each trial after its first terminated row; the trial is then one episode."""
    first_episode = rows.episode.view(trials, -1)[:, :1].expand(trials, len(rows) // trials).flatten()
    kept = rows[rows.episode == first_episode]
    return replace(kept, episode=kept.subject.clone())


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(count))
