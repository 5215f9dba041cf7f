"""Practice as a policy: quantiles, probabilities and personal offsets against what a log was made by."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import ActionSpace, Box, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.practice import Constant, Practice
from counterpoint.policies.practice import (
    DOSE_TABLES,
    QUANTILES,
    AdditiveFunctions,
    ConstantPolicy,
    DosePractice,
    PracticePolicy,
    StandardisedColumns,
)
from counterpoint.registry import load
from counterpoint.tasks.base import Task
from helpers.tables import refused

SMALL = Practice(trees=30, folds=2)


class Treatment(Task):
    """A task that is asked for its actions only."""

    horizon = 10

    def __init__(self, actions: ActionSpace) -> None:
        self.actions = actions

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -state[..., 0]

    def terminated(self, state: Tensor) -> Tensor:
        return torch.zeros_like(state[..., 0], dtype=torch.bool)


def log(
    act: Callable[[Tensor, Tensor, np.random.Generator], np.ndarray],
    actions: ActionSpace,
    subjects: int = 40,
    steps: int = 40,
    schema: Schema | None = None,
) -> Transitions:
    """Rows whose states are uniform on [−2, 2]² and a category of three levels, treated by `act(state, subject)`."""
    random = np.random.default_rng(3)
    rows = subjects * steps
    state = torch.from_numpy(random.uniform(-2, 2, (rows, 3))).float()
    state[:, 2] = torch.from_numpy(random.integers(0, 3, rows)).float()
    subject = torch.arange(subjects).repeat_interleave(steps)
    step = torch.arange(steps).repeat(subjects)
    columns = (Column("marker"), Column("slope"), Column("ward", ("a", "b", "c")))
    action = torch.from_numpy(act(state, subject, random)).float().view(rows, -1)
    names = tuple(f"dose_{i}" for i in range(action.shape[1]))
    return Transitions.logged(
        state=state,
        action=action,
        reward=-state[:, 0],
        next_state=state,
        terminated=torch.zeros(rows, dtype=torch.bool),
        truncated=step == steps - 1,
        subject=subject,
        step=step,
        schema=schema or Schema(columns, actions, names),
    )


def fitted(rows: Transitions, recipe: Practice = SMALL) -> PracticePolicy:
    return recipe.fit(rows, Treatment(rows.actions))


def test_quantiles_are_those_of_the_doses_and_the_median_acts() -> None:
    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        x = state.numpy()
        return np.exp(0.5 * x[:, 0] + 0.3 * (x[:, 2] == 1) + (0.2 + 0.2 * (x[:, 1] > 0)) * random.normal(size=len(x)))

    policy = fitted(log(act, Box((0.0,), (20.0,)), subjects=60, steps=60))
    state = torch.tensor([[-1.0, -1.0, 0.0], [1.0, -1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    spread = torch.tensor([0.2, 0.2, 0.4, 0.4])
    centre = 0.5 * state[:, 0] + 0.3 * (state[:, 2] == 1)
    normal = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(QUANTILES))
    truth = (centre[:, None] + spread[:, None] * normal).exp()
    assert torch.allclose(policy.quantiles(state)[:, 0].log(), truth.log(), atol=0.15)
    assert torch.equal(policy.dose(state), policy.quantiles(state)[..., 2])
    assert torch.equal(policy.act(state), policy.dose(state))
    many = torch.rand(500, 3) * 6 - 3
    quantiles = policy.quantiles(many)
    assert bool((quantiles.diff(dim=-1) >= 0).all())
    assert bool((quantiles >= policy.range[0, :, None]).all() & (quantiles <= policy.range[1, :, None]).all())


def test_quantiles_that_cross_are_moved_apart_and_the_median_stays() -> None:
    def constants(*values: float) -> AdditiveFunctions:
        none = torch.zeros(len(values), 0, 1)
        return AdditiveFunctions(
            torch.tensor(values), torch.zeros(len(values), 1), none.long(), none, none.expand(-1, -1, 2)
        )

    tables = {name: torch.zeros(1) for name in DOSE_TABLES} | {"low": torch.tensor([-9.0]), "high": torch.tensor([9.0])}
    tables |= {name: torch.tensor([False]) for name in ("has_zeros", "logarithmic")}
    columns = StandardisedColumns(torch.zeros(1), torch.ones(1))
    practice = DosePractice(columns, constants(0.0), constants(1.0, 3.0, 2.0, 1.5, 4.0), tables)
    assert practice.quantiles(torch.zeros(1, 1))[0, 0].tolist() == [1.0, 2.0, 2.0, 2.0, 4.0]
    assert practice.median(torch.zeros(1, 1)).item() == 2.0


def test_exported_trees_give_what_scikit_learn_gives() -> None:
    """On a log with a step in it that no line follows, so that trees are chosen."""

    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        x = state.numpy()
        return np.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0) + 0.1 * random.normal(size=len(x))

    from counterpoint.learners import practice

    rows = log(act, Box((-3.0,), (3.0,)))
    table = practice.PracticeTable.of(rows, SMALL, 0)
    y = rows.action[:, 0].double().numpy()
    parts = practice._quantile_functions("boosted trees", table.z, y, (0.25, 0.5), SMALL, 0)
    exported = practice.functions(parts, table.z.shape[1], SMALL.depth)
    expected = np.stack([part(table.z) for part in parts], 1)
    assert np.abs(exported(torch.from_numpy(table.z)).numpy() - expected).max() < 1e-5
    policy = fitted(rows)
    assert "boosted trees" in policy.explain()
    corners = torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    assert torch.allclose(policy.dose(corners)[:, 0], torch.tensor([1.0, -1.0, -1.0]), atol=0.3)


def test_a_dose_that_is_mostly_zero_has_median_zero_exactly_there() -> None:
    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        x = state.numpy()
        often = 1 / (1 + np.exp(-3 * x[:, 0]))
        return (random.uniform(size=len(x)) < often) * np.exp(1 + 0.5 * random.normal(size=len(x)))

    policy = fitted(log(act, Box((0.0,), (20.0,)), subjects=60, steps=60))
    never = 1 - torch.tensor(1.5).sigmoid()
    rest = ((torch.tensor(QUANTILES) - never) / (1 - never)).clamp(min=0.0)
    truth = (1 + 0.5 * torch.distributions.Normal(0.0, 1.0).icdf(rest)).exp()
    quantiles = policy.quantiles(torch.tensor([[0.5, 0.0, 0.0]]))[0, 0]
    assert quantiles[0] == 0.0
    assert torch.allclose(quantiles[2:4], truth[2:4], rtol=0.1)
    doses = policy.dose(torch.tensor([[-1.0, 0.0, 0.0], [1.5, 0.0, 0.0]]))[:, 0]
    assert doses[0] == 0.0
    assert abs(float(doses[1]) - np.exp(1)) < 0.2
    drawn = policy.drawn()
    state = torch.tensor([[-0.5, 0.0, 0.0]]).repeat(4000, 1)
    share = float((drawn(state, torch.Generator().manual_seed(0)) > 0).float().mean())
    assert abs(share - 1 / (1 + np.exp(1.5))) < 0.05


def test_probabilities_are_calibrated_and_the_most_probable_action_is_taken() -> None:
    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        scores = np.stack([np.zeros(len(state)), 1.5 * state[:, 0].numpy(), -1.5 * state[:, 0].numpy()], 1)
        return (scores + random.gumbel(size=scores.shape)).argmax(1)

    rows = log(act, Discrete.of([0.0, 1.0, 2.0, 3.0]), subjects=60, steps=60)
    policy = fitted(rows)
    state = torch.tensor([[-1.5, 0.0, 0.0], [0.0, 1.0, 1.0], [1.5, 0.0, 2.0]])
    scores = torch.stack([torch.zeros(3), 1.5 * state[:, 0], -1.5 * state[:, 0]], 1)
    probabilities = policy.probabilities(state)
    assert torch.allclose(probabilities[:, :3], scores.softmax(1), atol=0.07)
    assert bool((probabilities[:, 3] == 0).all()), "an action that the log never has"
    assert policy.act(state)[[0, 2], 0].tolist() == [2.0, 1.0]
    drawn = policy.drawn()(state[:1].repeat(4000, 1), torch.Generator().manual_seed(0))
    shares = torch.stack([(drawn[:, 0] == action).float().mean() for action in range(4)])
    assert torch.allclose(shares, probabilities[0], atol=0.03)


def test_two_actions_and_one_action_are_lists_too() -> None:
    def two(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        return (random.uniform(size=len(state)) < 1 / (1 + np.exp(-2 * state[:, 1].numpy()))).astype(float)

    policy = fitted(log(two, Discrete.of([0.0, 1.0])))
    at = policy.probabilities(torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]))[:, 1]
    assert torch.allclose(at, torch.tensor([2.0, -2.0]).sigmoid(), atol=0.08)
    one = fitted(log(lambda state, subject, random: np.ones(len(state)), Discrete.of([0.0, 1.0])))
    assert torch.equal(one.probabilities(torch.zeros(1, 3)), torch.tensor([[0.0, 1.0]]))


@lru_cache
def unlike_subjects(spread: float) -> Transitions:
    """Subjects of whom each is given its own multiple of the dose of the state."""

    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        offset = spread * np.random.default_rng(1).normal(size=int(subject.max()) + 1)
        return np.exp(0.5 * state[:, 0].numpy() + offset[subject.numpy()] + 0.2 * random.normal(size=len(subject)))

    return log(act, Box((0.0,), (60.0,)))


def test_offsets_of_subjects_are_found_where_there_are_any_and_move_the_dose() -> None:
    rows = unlike_subjects(0.5)
    policy = fitted(rows)
    truth = 0.5 * np.random.default_rng(1).normal(size=40)
    found = policy.offsets(rows)[:, 0].numpy()
    assert policy.personal
    assert np.corrcoef(found, truth)[0, 1] > 0.95
    record = rows[rows.subject == 7]
    state = rows.state[:5]
    assert torch.allclose(policy.with_history(record).dose(state), policy.dose(state) * np.exp(found[7]), rtol=1e-3)
    share = (float(policy.offsets(record[:rows])[0, 0] / policy.deviations(record[:rows]).mean()) for rows in (2, 40))
    assert next(share) < 0.95 * next(share), "fewer rows shrink more"
    assert not fitted(unlike_subjects(0.0)).personal
    assert "2 subjects" in refused(lambda: policy.with_history(rows[:60]))


def test_a_saved_policy_acts_as_before_and_policies_act_side_by_side(tmp_path: Path) -> None:
    rows = unlike_subjects(0.5)
    policy, other = fitted(rows), Practice(trees=5, folds=2).fit(rows, Treatment(rows.actions), seed=1)
    policy.save(tmp_path / "policy")
    state = rows.state[:50]
    again = load(tmp_path / "policy", PracticePolicy)
    assert torch.equal(again.dose(state), policy.dose(state))
    assert again.notes == policy.notes
    both = policy.rollout_actor([other])(state[None].expand(2, -1, -1), torch.zeros(2, 50, 0))
    assert torch.equal(both, torch.stack([policy.dose(state), other.dose(state)]))
    drawn = policy.drawn().rollout_actor()
    assert not torch.equal(drawn(state[None], torch.zeros(1, 50, 0)), drawn(state[None], torch.zeros(1, 50, 0)))


def test_constant_policies_give_nothing_or_the_commonest_action(tmp_path: Path) -> None:
    def act(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        return random.choice([0.0, 2.0, 4.0], p=[0.3, 0.5, 0.2], size=len(state))

    listed, doses = log(act, Discrete.of([4.0, 2.0, 0.0])), log(act, Box((0.0,), (4.0,)))
    for rows in (listed, doses):
        nothing = Constant().fit(rows, Treatment(rows.actions))
        commonest = Constant("commonest").fit(rows, Treatment(rows.actions))
        assert bool((nothing.act(rows.state[:3]) == 0).all())
        assert bool((commonest.act(rows.state[:3]) == 2).all())
        commonest.save(tmp_path / "constant")
        expected = "always 2" if rows is listed else "always dose_0 2"
        assert load(tmp_path / "constant", ConstantPolicy).explain() == expected
    unordered = Discrete.one_hot(3)

    def flags(state: Tensor, subject: Tensor, random: np.random.Generator) -> np.ndarray:
        return np.eye(3)[random.integers(0, 3, len(state))]

    rows = log(flags, unordered)
    assert "named none" in refused(lambda: Constant().fit(rows, Treatment(unordered)))


def test_a_log_of_one_subject_is_refused() -> None:
    rows = unlike_subjects(0.0)
    assert "one subject" in refused(lambda: fitted(rows[rows.subject == 0]))
