"""Subjects everywhere: factors given or inferred reach models, imagined rows, simulators, policies and identities."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, Origin, fitting_table, identity
from counterpoint.data.transitions import Transitions, first_outcome
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.base import SubjectMechanism
from counterpoint.models.scm.base import SCMRecipe, StructuralMechanism
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout
from counterpoint.tasks.base import Task
from helpers.recipes import DENSITY

DOSES = cp.Discrete.of([-1.0, 0.0, 1.0])
SUBJECTS, STEPS = 30, 12


class Drift(StructuralMechanism, SubjectMechanism):
    """s' = s + a·(1 + θ) + u·scale, θ a subject's mean excess response: a model that owns its subject factors."""

    scale: Tensor

    def __init__(self, members: int, context: int, state: int) -> None:
        super().__init__()
        self.members, self.context_width, self.noise_width = members, context, state
        self.nothing = nn.Parameter(torch.zeros(members, 1))
        self.register_buffer("scale", torch.ones(members, 1, 1))

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return (next_state - state - context[..., 1:2] * (1 + context[..., 2:])) / self.scale

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return state + context[..., 1:2] * (1 + context[..., 2:]) + self.scale * noise

    def subjects(self, rows: Transitions) -> Tensor:
        known = rows.has_next & ~rows.imagined
        taken, moved = (
            rows.action[:, 0] * known,
            ((rows.next_state - rows.state)[:, 0] - rows.action[:, 0]).nan_to_num(),
        )
        each = torch.zeros(len(rows.subject_names)).index_add(0, rows.subject, taken * moved)
        weight = torch.zeros(len(rows.subject_names)).index_add(0, rows.subject, taken.square())
        return (each / (weight + 0.1))[rows.subject][:, None]


@dataclass(frozen=True)
class DriftSCM(SCMRecipe):
    """A user's own recipe: nothing but the spread is fitted."""

    width: int = 1

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list:
        whole = self.build(1, 2 + self.width, len(jobs))
        for k, job in enumerate(jobs):
            table = fitting_table(job)
            whole.scale[k] = 0.1 + 0 * table["state"].std()
        return self.cut(whole, jobs)

    def build(self, state: int, context: int, members: int) -> Drift:
        return Drift(members, context, state)


class Reach(Task):
    """Stay near 0: what a dose does differs between subjects, so the best one does too."""

    actions, discount, horizon = DOSES, 0.9, 10

    def reward(self, state, action, next_state):
        return -next_state[..., 0].abs()

    def terminated(self, next_state):
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)


def rows_of(theta: Tensor, seed: int = 0) -> Transitions:
    random = torch.Generator().manual_seed(seed)
    subject = torch.arange(len(theta)).repeat_interleave(STEPS)
    state = torch.randn(len(subject), 1, generator=random)
    action = DOSES.table()[torch.randint(3, (len(subject),), generator=random)]
    noise = 0.1 * torch.randn(len(subject), 1, generator=random)
    next_state = state + action * (1 + theta[subject][:, None]) + noise
    step = torch.arange(STEPS).repeat(len(theta))
    return Transitions.logged(
        state=state, action=action, reward=-next_state[:, 0].abs(), next_state=next_state,
        terminated=torch.zeros(len(subject), dtype=torch.bool), truncated=step == STEPS - 1, subject=subject, step=step,
        actions=DOSES, state_names=("x",),
    )  # fmt: skip


TRUTH = torch.where(torch.arange(SUBJECTS) % 2 == 0, 0.0, -2.0)
"""Half of the subjects respond the other way round."""
ROWS = rows_of(TRUTH)
MODEL = DriftSCM().fit(ROWS, theta=TRUTH[ROWS.subject][:, None])


def test_a_model_without_factors_gives_zero_width() -> None:
    model = DENSITY.fit(ROWS)
    assert model.theta_width == 0
    assert model.subjects(ROWS).shape == (len(ROWS), 0)


def test_a_model_that_owns_its_factors_infers_a_new_subjects() -> None:
    new = rows_of(torch.tensor([0.0, -2.0, 0.5]), seed=9)
    found = MODEL.subjects(new)
    assert found.shape == (len(new), 1)
    for subject, truth in enumerate((0.0, -2.0, 0.5)):
        own = found[new.subject == subject, 0]
        assert own.unique().numel() == 1
        assert abs(float(own[0]) - truth) < 0.15
    shuffled = torch.randperm(len(new), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(MODEL.subjects(new[shuffled]), found[shuffled])


def test_counterfactuals_follow_the_subjects_own_factor() -> None:
    answer = MODEL.counterfactual(ROWS, torch.ones(len(ROWS), 1))
    noise = ROWS.next_state - ROWS.state - ROWS.action * (1 + TRUTH[ROWS.subject][:, None])
    truth = ROWS.state + (1 + TRUTH[ROWS.subject][:, None]) + noise
    torch.testing.assert_close(answer, truth, rtol=0, atol=0.3)
    torch.testing.assert_close(MODEL.counterfactual(ROWS, ROWS.action), ROWS.next_state)
    given = MODEL.counterfactual(ROWS, torch.ones(len(ROWS), 1), torch.tensor([[5.0]]))
    assert (given - truth).abs().mean() > 3


def test_imagined_rows_and_their_job_carry_the_factor_of_their_source() -> None:
    job = CTRLg(DriftSCM()).augment(Job(ROWS), MODEL, Reach())
    rows, inferred = job.data, MODEL.subjects(ROWS)
    assert torch.equal(job.theta[~rows.imagined], inferred)
    assert torch.equal(job.theta[rows.imagined], inferred[rows.source[rows.imagined]])
    luck = MODEL.abduct(ROWS)[rows.source]
    expected = rows.state + rows.action * (1 + job.theta) + 0.1 * luck
    torch.testing.assert_close(rows.next_state[rows.imagined], expected[rows.imagined])


def test_imagined_rows_keep_their_own_factor_behind_rows_that_have_no_next_state() -> None:
    ended = ROWS.step == 3
    rows = replace(
        ROWS, next_state=ROWS.next_state.masked_fill(ended[:, None], torch.nan), outcome=first_outcome(ended)
    )
    theta = TRUTH[rows.subject][:, None]
    imagined = Augmenter().imagine(rows, MODEL, Reach(), theta=theta)
    luck = MODEL.abduct(ROWS, theta)[imagined.source]
    expected = imagined.state + imagined.action * (1 + theta[imagined.source]) + 0.1 * luck
    torch.testing.assert_close(imagined.next_state, expected)


def test_a_simulator_steps_every_row_with_its_own_factor() -> None:
    simulator = ModelSimulator([MODEL, MODEL])
    state, action, still = torch.zeros(2, 3, 1), torch.ones(2, 3, 1), (torch.zeros(1, 3, 1),)
    theta = torch.tensor([[0.0, -2.0, 1.0], [3.0, 0.0, 0.0]])[..., None]
    assert simulator.step(state, action, still, theta)[..., 0].tolist() == [[1.0, -1.0, 2.0], [4.0, 1.0, 1.0]]
    seen: list[Tensor] = []

    def act(state: Tensor, factor: Tensor) -> Tensor:
        seen.append(factor)
        return torch.ones_like(state)

    list(Rollout(simulator, Reach(), act)(state, lambda t: still, 2, theta))
    assert all(torch.equal(factor, theta) for factor in seen)


@pytest.fixture(scope="module")
def personal():
    learner = D3QN((32,), Schedule(steps=600, check_every=200, rate="linear"), 128, 3e-3, tau=0.02)
    return CTRLg(DriftSCM(), learner=learner).fit_many([Job(ROWS, 3, MODEL.subjects(ROWS))], Reach())[0].selected


def test_a_policy_acts_by_the_factor_it_is_given(personal, tmp_path: Path) -> None:
    """Above 0 the usual subject needs the negative dose, the contrary one the positive; and a saved policy agrees."""
    state = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    theta = torch.tensor([[0.0], [-2.0], [0.0], [-2.0]])
    assert personal.act(state, theta)[:, 0].tolist() == [-1.0, 1.0, 1.0, -1.0]
    personal.save(tmp_path)
    assert torch.equal(cp.load(tmp_path, cp.Policy, [DriftSCM]).act(state, theta), personal.act(state, theta))


def test_identities_and_origins_know_the_factor() -> None:
    plain, other = Job(ROWS), Job(ROWS, theta=MODEL.subjects(ROWS))
    assert identity(D3QN(), [plain]) != identity(D3QN(), [other])
    assert Origin.of(plain) != Origin.of(other)
    assert Origin.of(other) == Origin.of(Job(ROWS, theta=MODEL.subjects(ROWS)))


def test_a_checkpoint_with_other_factors_is_not_taken_up(tmp_path: Path) -> None:
    theta = MODEL.subjects(ROWS)
    DENSITY.fit_many([Job(ROWS, theta=theta)], Monitor(tmp_path))
    with pytest.raises(CounterpointError, match="belongs to another"):
        DENSITY.fit_many([Job(ROWS, theta=theta + 1)], Monitor(tmp_path, resume=True))


def test_factors_of_another_width_are_refused_in_one_line() -> None:
    wide = torch.zeros(len(ROWS), 2)
    for ask in (lambda: MODEL.abduct(ROWS, wide), lambda: MODEL.predict(ROWS.state, ROWS.action, wide[:, :1])):
        with pytest.raises(CounterpointError, match=r"^[^\n]*subject factors of 1 columns and was given [02][^\n]*$"):
            ask()


def test_a_model_fitted_with_given_factors_says_that_it_cannot_infer() -> None:
    model = DENSITY.fit(ROWS, theta=TRUTH[ROWS.subject][:, None])
    assert model.theta_width == 1
    with pytest.raises(CounterpointError, match=r"^[^\n]*cannot infer those of new subjects; pass theta[^\n]*$"):
        model.subjects(ROWS)
    again = model.counterfactual(ROWS, ROWS.action, TRUTH[ROWS.subject][:, None])
    torch.testing.assert_close(again, ROWS.next_state, rtol=0, atol=1e-3)
    assert not torch.equal(model.abduct(ROWS, torch.zeros(1, 1)), model.abduct(ROWS, torch.ones(1, 1)))


def test_fitting_sees_the_factor() -> None:
    """The same rows with the factor as context are foreseen better than without."""
    theta = TRUTH[ROWS.subject][:, None]
    recipe = replace(DENSITY, hidden=(32,), likelihood=replace(DENSITY.likelihood, schedule=Schedule(400, 50)))
    errors = []
    for given in (theta, torch.zeros(1, 0)):
        model = recipe.fit(ROWS, theta=given)
        silent = torch.zeros(len(ROWS), 2 * model.mechanism.noise_width)
        errors.append(float((model.predict(ROWS.state, ROWS.action, silent, given) - ROWS.next_state).abs().mean()))
    assert errors[0] < 0.5 * errors[1]
