"""Confounded logs and questions about them whose answers are known, by overlap of the behaviour policy.

One-step problems are logged by a = clip(.8·tanh(1.2·s̄) + spread·N(0, 1)), s̄ the sum of the states over √d. Where
actions are listed, the behaviour policy takes the one that a key column calls for, and any one with a known
probability. The clinical worlds have behaviour policies of their own, with less or more noise. A question is a logged
moment, another action there, and the state after h steps with the noise of the record; after the first step the logged
actions are repeated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive, generator
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.augmentation import without_noise
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks import hiv, tumour
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV
from counterpoint.tasks.tumour import Tumour
from counterpoint.tasks.ward import Ward
from reproduction.tasks.structural_problems import PROBLEMS, OneStep
from reproduction.worlds.base import Moment, World
from reproduction.worlds.infusion import Infusion
from reproduction.worlds.pharmacokinetic import Pharmacokinetic

Overlap = Literal["strong", "medium", "weak"]
OVERLAPS: tuple[Overlap, ...] = ("strong", "medium", "weak")
SPREAD: Mapping[Overlap, float] = {"strong": 0.5, "medium": 0.2, "weak": 0.1}
"""Standard deviation of the behaviour policy's noise: of a dose from −1 to 1, or of the logarithm of a world's dose."""
RANDOM_SHARE: Mapping[Overlap, float] = {"strong": 0.8, "medium": 0.3, "weak": 0.1}
"""Share of random actions where actions are listed."""
NEAR = 0.3
"""Largest distance of another dose of a one-step problem from the logged one."""
EXTRA = (0.5, 5.0)
"""Range of the dose that is added in half of the questions about the pharmacokinetic world."""
ROWS, PATIENTS, WARD_PATIENTS, STEPS = 1000, 50, 250, 20
"""Rows of a one-step problem's log; patients and steps of the other tasks' logs. The ward's stay for few."""
TEST_ROWS = 2000
POPULATION = 200
HORIZONS = (1, 4)
"""Steps after which answers are compared."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Logged windows, the actions in place of the logged ones, and what they lead to."""

    rows: Transitions
    """Records that the windows are part of: those that were fitted on, unless subjects have one row each."""
    window: Int[Tensor, "n h"]
    """Row numbers of consecutive steps of one episode."""
    plan: Float[Tensor, "n h a"]
    """Actions in these steps; the first is another one than in the log."""
    truth: Float[Tensor, "n s"]
    """Observed columns after the last step."""
    columns: tuple[int, ...]
    """Columns that are compared."""
    noise: Float[Tensor, " s"]
    """Standard deviation of the noise of one step in every column."""

    @property
    def factual(self) -> Float[Tensor, "n s"]:
        """The logged columns after the last step."""
        return self.rows.next_state[self.window[:, -1]]

    @property
    def logged(self) -> Float[Tensor, "n h a"]:
        """The logged actions of the windows."""
        return self.rows.action[self.window]


@dataclass(frozen=True, eq=False)
class ConfoundedLog:
    """A log of a behaviour policy, and questions by horizon."""

    rows: Transitions
    questions: Mapping[int, Questions]


def one_step(task: OneStep, overlap: Overlap, seed: int) -> ConfoundedLog:
    """Log a one-step problem and ask about rows that are not in the log."""

    def behave(state: Tensor, random: torch.Generator) -> Tensor:
        wish = 0.8 * torch.tanh(1.2 * state.sum(-1, keepdim=True) / state.shape[-1] ** 0.5)
        noise = torch.randn(len(state), 1, generator=random)
        return (wish + SPREAD[overlap] * noise).clamp(-1, 1)

    rows = simulate(task, behave, ROWS, 1, derive(seed, "log"))
    test = simulate(task, behave, TEST_ROWS, 1, derive(seed, "test"))
    random = generator(seed, "alternative")
    shift = NEAR * (2 * torch.rand(len(test), 1, generator=random) - 1)
    other = (test.action + shift).clamp(-1, 1)
    window = torch.arange(len(test))[:, None]
    return ConfoundedLog(without_noise(rows), {1: _asked(task, test, window, other)})


def sequential(
    task: KnownSCM, key: tuple[int, ...], overlap: Overlap, seed: int, patients: int = PATIENTS
) -> ConfoundedLog:
    """Log patients whose treatment follows the sum of their key columns, and ask about their own records."""
    usual, table = _key_law(type(task), key), _listed(task)

    def behave(state: Tensor, random: torch.Generator) -> Tensor:
        score = (state[:, list(key)].sum(1) - usual[0]) / usual[1]
        wanted = (torch.special.ndtr(score) * len(table)).long().clamp(max=len(table) - 1)
        drawn = torch.randint(len(table), wanted.shape, generator=random)
        at_random = torch.rand(wanted.shape, generator=random) < RANDOM_SHARE[overlap]
        return table[torch.where(at_random, drawn, wanted)]

    rows = simulate(task, behave, patients, STEPS, derive(seed, "log"), stop_at_failure=True)
    random = generator(seed, "alternative")
    questions = {}
    for horizon in HORIZONS:
        window = rows.windows(horizon).rows
        window = window[rows.has_next[window].all(1)]
        step = torch.randint(1, len(table), (len(window),), generator=random)
        other = table[(rows.action_index[window[:, 0]] + step) % len(table)]
        questions[horizon] = _asked(task, rows, window, other)
    plain = without_noise(rows)
    return ConfoundedLog(plain, questions)


def _listed(task: KnownSCM) -> Float[Tensor, "k a"]:
    assert isinstance(task.actions, Discrete)
    return task.actions.table()


@lru_cache(maxsize=16)
def _key_law(kind: type[KnownSCM], key: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of the sum of the key columns under random treatment."""
    task = kind()
    rows = simulate(task, random_policy(task), PATIENTS, STEPS, derive(0, "key columns"), stop_at_failure=True)
    total = rows.state[:, list(key)].sum(1)
    return float(total.mean()), float(total.std())


def _asked(task: KnownSCM, rows: Transitions, window: Int[Tensor, "n h"], other: Float[Tensor, "n a"]) -> Questions:
    plan = rows.action[window].clone()
    plan[:, 0] = other
    alike = task.of_subjects(rows.subject[window[:, 0]])
    truth = replayed_in(alike, rows, window, plan)
    again = replayed_in(alike, rows, window, rows.action[window])
    factual = rows.next_state[window[:, -1]]
    spread = rows.next_state[rows.has_next].std(0)
    if bool(((again - factual).abs() > 1e-3 * spread).any()):
        raise CounterpointError("the recorded noise does not lead to the logged states; log the task anew")
    effect = (truth - factual).square().mean(0).sqrt()
    moved = tuple(int(i) for i in (effect > 1e-6 * spread).nonzero()[:, 0])
    return Questions(without_noise(rows), window, plan, truth, moved, _noise_of(task, rows))


def replayed_in(
    task: KnownSCM, rows: Transitions, window: Int[Tensor, "n h"], plan: Float[Tensor, "n h a"]
) -> Float[Tensor, "n s"]:
    """Return the true states after the windows under other actions, with the recorded noise."""
    state = rows.state[window[:, 0]]
    for k in range(window.shape[1]):
        state = task.transition(state, plan[:, k], rows.noise[window[:, k]])
    return state


def _noise_of(task: KnownSCM, rows: Transitions) -> Float[Tensor, " s"]:
    """Return the standard deviation of the noise of one step: two draws differ by √2 of it."""
    some = rows[rows.has_next]
    drawn = task.noise(len(some), generator(0, "noise spread")).to(some.noise)
    other = task.of_subjects(some.subject).transition(some.state, some.action, drawn)
    return (other - some.next_state).square().mean(0).sqrt() / 2**0.5


def of_world(world: World, subjects: int, overlap: Overlap, seed: int) -> ConfoundedLog:
    """Log a clinical world and ask about its subjects' own records: other doses of the same subject, and more."""
    frame = world.log(subjects, seed)
    rows = world.read(frame)
    moments = world.logged(subjects, seed)
    logged = np.stack([moment.action for moment in moments])
    random = np.random.default_rng(derive(seed, "alternative"))
    other = _other_doses(logged, random)
    place = {pair: row for row, pair in enumerate(zip(rows.subject.tolist(), rows.step.tolist(), strict=True))}
    questions = {horizon: _of_branches(world, rows, moments, place, subjects, seed, other, horizon)
                 for horizon in HORIZONS}  # fmt: skip
    return ConfoundedLog(rows, questions)


def _other_doses(logged: Float[np.ndarray, "t n a"], random: np.random.Generator) -> Float[np.ndarray, "t n a"]:
    """Return a dose that the same subject had at another time, or the logged dose and more, at even odds."""
    steps, subjects, _ = logged.shape
    own = logged[random.integers(steps, size=(steps, subjects)), np.arange(subjects)]
    typical = float(np.median(logged[logged > 0]))
    more = logged + typical * random.uniform(*EXTRA, size=logged.shape)
    return np.where(random.random((steps, subjects, 1)) < 0.5, own, more)


def _of_branches(
    world: World,
    rows: Transitions,
    moments: list[Moment],
    place: Mapping[tuple[int, int], int],
    subjects: int,
    seed: int,
    other: Float[np.ndarray, "t n a"],
    horizon: int,
) -> Questions:
    branches = world.counterfactual(moments, subjects, seed, other, horizon)
    pairs = zip(branches.subject.tolist(), branches.step.tolist(), strict=True)
    window = torch.tensor([[place[subject, step + k] for k in range(horizon)] for subject, step in pairs])
    marker = rows.state_names.index(world.marker)
    truth = rows.next_state[window[:, -1]].clone()
    truth[:, marker] = torch.from_numpy(branches.truth[:, -1, world.state.index(world.marker)]).float()
    noise = torch.zeros(rows.state_size)
    noise[marker] = world.noise_size
    plan = torch.from_numpy(branches.plan).float()
    low, high = _ends(rows)
    return Questions(rows, window, plan.clamp(low, high), truth, (marker,), noise)


def _ends(rows: Transitions) -> tuple[Tensor, Tensor]:
    require(isinstance(rows.actions, Box), "questions about a world need continuous doses")
    assert isinstance(rows.actions, Box)
    return torch.tensor(rows.actions.low), torch.tensor(rows.actions.high)


def _pharmacokinetic(overlap: Overlap, seed: int) -> ConfoundedLog:
    return of_world(Pharmacokinetic(spread=SPREAD[overlap]), 30, overlap, seed)


def _infusion(overlap: Overlap, seed: int) -> ConfoundedLog:
    return of_world(Infusion(spread=SPREAD[overlap]), 40, overlap, seed)


def _tumour(overlap: Overlap, seed: int) -> ConfoundedLog:
    return sequential(Tumour(response=tumour.population(POPULATION, 0)), (0,), overlap, seed)


def _hiv(overlap: Overlap, seed: int) -> ConfoundedLog:
    return sequential(HIV(response=hiv.population(POPULATION, 0)), (4,), overlap, seed)


def _cartpole(overlap: Overlap, seed: int) -> ConfoundedLog:
    return sequential(CartPole(), (2, 3), overlap, seed)


def _ward(overlap: Overlap, seed: int) -> ConfoundedLog:
    return sequential(Ward(), (0,), overlap, seed, WARD_PATIENTS)


def _of_problem(task: OneStep) -> Callable[[Overlap, int], ConfoundedLog]:
    return lambda overlap, seed: one_step(task, overlap, seed)


LOGS: dict[str, Callable[[Overlap, int], ConfoundedLog]] = {
    **{name: _of_problem(task) for name, task in PROBLEMS.items()},
    "cartpole": _cartpole,
    "tumour": _tumour,
    "hiv": _hiv,
    "ward": _ward,
    "pharmacokinetic": _pharmacokinetic,
    "infusion": _infusion,
}
"""Makers of confounded logs by task, each from an overlap and a seed."""


@lru_cache(maxsize=4)
def confounded_log(task: str, overlap: Overlap, seed: int) -> ConfoundedLog:
    """Return the log of a task; estimators that run one after the other share it."""
    return LOGS[task](overlap, derive(seed, "confounded", task, overlap))
