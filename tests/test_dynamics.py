"""Base-D, Base-S, Base-M against known systems, and reward and end learned from a log."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterpoint import artifacts
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.base import DynamicsModel, DynamicsRecipe, HeadNetwork, Origin
from counterpoint.dynamics.deterministic import Deterministic, Point
from counterpoint.dynamics.gaussian import DiagonalGaussian, GaussianDynamics
from counterpoint.dynamics.mixture import JointMixture, MixtureDynamics
from counterpoint.dynamics.outcome import LearnedTask, Outcome
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.seeding import generator

torch.set_num_threads(1)


def quick(steps: int, learning_rate: float = 1e-2) -> Likelihood:
    return Likelihood(Schedule(steps=steps, check_every=50, rate="one-cycle"), 128, learning_rate)


SMALL = {"hidden": (32,), "batch_norm": False, "likelihood": quick(500)}
TINY = {"hidden": (8,), "likelihood": quick(50, 2e-3)}
RECIPES = [Deterministic(**TINY), GaussianDynamics(**TINY), MixtureDynamics(**TINY, components=2)]


def table(state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor, **columns: torch.Tensor) -> Transitions:
    count = len(state)
    flags = torch.zeros(count, dtype=torch.bool)
    given = {"reward": torch.zeros(count), "terminated": flags, "truncated": flags} | columns
    return Transitions.logged(
        state=state,
        action=action,
        next_state=next_state,
        subject=torch.arange(count),
        step=torch.zeros(count, dtype=torch.long),
        actions=Box((-1.0,), (1.0,)),
        **given,
    )


def draws(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    random = generator(seed, "rows")
    return torch.randn(count, 2, generator=random), 2 * torch.rand(count, 1, generator=random) - 1, random


def linear_mean(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return torch.cat([0.5 * state[:, :1] + action, state[:, 1:] - 0.4 * state[:, :1] + 1], -1)


SPREAD = torch.tensor([0.3, 0.1])


def linear(count: int, seed: int) -> Transitions:
    """s' = A s + B a + (.3 u₁, .1 u₂): swapping s and s' gives another mean and another spread."""
    state, action, random = draws(count, seed)
    return table(state, action, linear_mean(state, action) + SPREAD * torch.randn(count, 2, generator=random))


def forked(count: int, seed: int) -> Transitions:
    """Both columns step up together or down together; never one up and one down."""
    state, action, random = draws(count, seed)
    side = torch.where(torch.rand(count, 1, generator=random) < 0.3, -1.0, 1.0)
    return table(state, action, state + action + side + 0.1 * torch.randn(count, 2, generator=random))


def repeated(model: DynamicsModel, state: list[float], action: float, count: int = 4000) -> torch.Tensor:
    rows = torch.tensor([state]).expand(count, -1)
    return model.sample(rows, torch.full((count, 1), action), generator(0, "repeated"))


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision, in which a stack and a member alone round alike."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def gaussian() -> DynamicsModel:
    return GaussianDynamics(**SMALL, ensemble=3).fit(linear(3000, 0), seed=0)


@pytest.fixture(scope="module")
def mixture() -> DynamicsModel:
    return MixtureDynamics(**SMALL, components=3).fit(forked(3000, 0), seed=0)


def test_deterministic_finds_the_mean_and_never_varies() -> None:
    model = Deterministic(**SMALL).fit(linear(3000, 0), seed=0)
    state, action, _ = draws(500, 9)
    first, second = (model.sample(state, action, generator(seed)) for seed in (0, 1))
    assert torch.equal(first, second)
    assert float((first - linear_mean(state, action)).square().mean().sqrt()) < 0.06


def test_gaussian_recovers_mean_and_spread_of_a_linear_system(gaussian: DynamicsModel) -> None:
    for state, action in (([0.0, 0.0], 0.0), ([1.0, -0.5], 0.5), ([-0.7, 0.8], -0.9)):
        drawn = repeated(gaussian, state, action)
        truth = linear_mean(torch.tensor([state]), torch.tensor([[action]]))[0]
        assert torch.allclose(drawn.mean(0), truth, atol=0.08)
        assert torch.allclose(drawn.std(0), SPREAD, rtol=0.2)


def test_mixture_finds_both_modes_and_moves_the_columns_together(mixture: DynamicsModel) -> None:
    change = repeated(mixture, [0.5, -0.5], 0.2) - torch.tensor([0.5, -0.5]) - 0.2
    assert float(((change.abs() - 1).abs() < 0.4).all(1).float().mean()) > 0.97
    assert abs(float((change[:, 0] < 0).float().mean()) - 0.3) < 0.05
    assert float((change[:, 0].sign() == change[:, 1].sign()).float().mean()) > 0.99


def test_one_bell_cannot_hold_two_modes() -> None:
    model = GaussianDynamics(**SMALL).fit(forked(3000, 0), seed=0)
    change = repeated(model, [0.5, -0.5], 0.2) - torch.tensor([0.5, -0.5]) - 0.2
    assert float(((change.abs() - 1).abs() < 0.4).all(1).float().mean()) < 0.6


def test_mixture_log_likelihood_by_hand() -> None:
    """Weights ¼ and ¾; component 1 is N((0, 0), (1, 1)), component 2 N((1, −1), (2, ½)); y = (1, 0)."""
    log_two = 7 * torch.atanh(torch.tensor(2.0).log() / 7)
    raw = torch.tensor([0.0, torch.tensor(3.0).log(), 0, 0, 1, -1, 0, 0, log_two, -log_two])
    # 1/(2π) · e^(−½) = .0965324; 1/(2π · 2 · ½) · e^(−½ · 4) = .0215393; log(.0965324/4 + 3 · .0215393/4)
    found = JointMixture(2).log_prob(raw, torch.tensor([1.0, 0.0]))
    assert float(found) == pytest.approx(-3.211713, abs=1e-5)


def test_gaussian_log_likelihood_by_hand() -> None:
    """N((1, 0), (1, 1)) at (2, 2): −½ − 2 − log 2π = −4.337877; the point's score is the same without the constant."""
    y = torch.tensor([2.0, 2.0])
    assert float(DiagonalGaussian().log_prob(torch.tensor([1.0, 0, 0, 0]), y)) == pytest.approx(-4.337877, abs=1e-5)
    assert float(Point().log_prob(torch.tensor([1.0, 0.0]), y)) == pytest.approx(-2.5)


def test_density_is_in_the_units_of_the_state() -> None:
    """Ten times larger units make a density ten times smaller a column."""
    network = HeadNetwork(1, 1, 2, DiagonalGaussian(), (4,), batch_norm=False)
    y = torch.tensor([[[0.3, -0.2]]])
    before = network.log_prob(torch.zeros(1, 1, 1), y).detach()
    network.y_scale.fill_(10.0)
    after = network.log_prob(torch.zeros(1, 1, 1), 10 * y).detach()
    assert float(before - after) == pytest.approx(2 * torch.tensor(10.0).log().item(), abs=1e-5)


def test_mixture_draws_have_the_mixtures_moments() -> None:
    head = JointMixture(2)
    raw = torch.tensor([0.0, torch.tensor(3.0).log(), 0, 0, 4, -4, 0, 0, 0, 0]).expand(40_000, -1)
    drawn = head.sample(raw, head.chance(raw.shape[:-1], 2, generator(0, "moments")), 2)
    assert torch.allclose(drawn.mean(0), torch.tensor([3.0, -3.0]), atol=0.05)
    assert torch.allclose(drawn.var(0), torch.full((2,), 1 + 16 * 0.75 * 0.25), rtol=0.03)


def test_members_see_their_own_rows(gaussian: DynamicsModel) -> None:
    state, action, _ = draws(400, 3)
    stacked_state = torch.stack([state, state + 1, state - 1])
    stacked_action = action.expand(3, -1, -1)
    drawn = gaussian.sample_members(stacked_state, stacked_action, generator(0))
    for member in range(3):
        truth = linear_mean(stacked_state[member], action)
        residual = (drawn[member] - truth) / SPREAD
        assert float(residual.abs().mean()) < 1.3
    assert not torch.equal(drawn[0], gaussian.sample_members(state.expand(3, -1, -1), stacked_action, generator(0))[1])


def test_ensemble_is_an_equal_mixture_of_its_members() -> None:
    """Members that sit at 0, 10 and 20 keep their places: a third of the draws each, and nothing in between."""
    recipe = Deterministic(ensemble=3, hidden=(4,), batch_norm=False)
    network = recipe.network(2, 3, 3)
    network.y_mean.copy_(torch.tensor([0.0, 10.0, 20.0])[:, None, None].expand(3, 1, 2))
    model = DynamicsModel(recipe, network, Box((-1.0,), (1.0,)), ("a", "b"), Origin(0, ""))
    drawn = repeated(model, [0.0, 0.0], 0.0, 9000)
    places, counts = drawn[:, 0].unique(return_counts=True)
    assert places.tolist() == [0.0, 10.0, 20.0]
    assert counts.min() > 2800
    assert torch.equal(drawn[:, 0], drawn[:, 1])


def test_imagine_draws_afresh_and_stores_no_noise(gaussian: DynamicsModel) -> None:
    rows = linear(200, 4)
    action = -rows.action
    next_state, noise = gaussian.imagine(rows, action, generator(2))
    assert noise.shape == (200, 0)
    assert torch.equal(next_state, gaussian.sample(rows.state, action, generator(2)))
    blind = replace(rows, next_state=rows.next_state + 5)
    assert torch.equal(next_state, gaussian.imagine(blind, action, generator(2))[0])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_many_jobs_fit_as_one(recipe: DynamicsRecipe) -> None:
    """With batch norm on, and tables of different length: padding and neighbours must not leak into a member."""
    recipe = replace(recipe, ensemble=2)
    jobs = [Job(linear(300, 0), 0), Job(linear(500, 1), 1)]
    state, action, _ = draws(100, 5)
    for job, together in zip(jobs, recipe.fit_many(jobs), strict=True):
        alone = recipe.fit(job.data, job.seed)
        assert torch.allclose(
            alone.sample(state, action, generator(0)), together.sample(state, action, generator(0)), atol=1e-9
        )


def test_batch_norm_serves_a_row_alone_as_among_others() -> None:
    model = Deterministic(hidden=(16,), likelihood=quick(50)).fit(linear(300, 0))
    state, action, _ = draws(50, 6)
    alone = torch.cat([model.sample(state[i : i + 1], action[i : i + 1], generator(0)) for i in range(50)])
    assert torch.allclose(alone, model.sample(state, action, generator(0)), atol=1e-5)


def test_theta_is_used() -> None:
    rows = linear(2000, 0)
    theta = torch.randn(2000, 1, generator=generator(0, "theta"))
    moved = replace(rows, next_state=rows.next_state + 2 * theta)
    model = Deterministic(**SMALL).fit_many([Job(moved, 0, theta)])[0]
    state, action, random = draws(200, 7)
    shift = model.sample(state, action, random, torch.tensor([[0.5]])) - model.sample(
        state, action, random, torch.tensor([[-0.5]])
    )
    assert torch.allclose(shift.mean(0), torch.tensor([2.0, 2.0]), atol=0.1)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_saved_model_draws_the_same(recipe: DynamicsRecipe, tmp_path: Path) -> None:
    model = recipe.fit(linear(300, 0), seed=4)
    model.save(tmp_path)
    weights, header = artifacts.load(tmp_path)
    classes = {c.__name__: c for c in (type(recipe), Likelihood, Schedule, Box, Origin)}
    back, actions, origin = (artifacts.decode(header[k], classes) for k in ("recipe", "actions", "origin"))
    loaded = back.rebuild(header, weights, actions, origin)
    state, action, _ = draws(100, 8)
    assert (header["kind"], back, loaded.header()) == ("dynamics", recipe, model.header())
    assert torch.equal(loaded.sample(state, action, generator(1)), model.sample(state, action, generator(1)))


def test_an_action_outside_the_space_is_named(gaussian: DynamicsModel) -> None:
    with pytest.raises(CounterpointError, match="at row 1 is outside"):
        gaussian.sample(torch.zeros(2, 2), torch.tensor([[0.0], [2.0]]), generator(0))


def rule(state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
    return 2 * next_state[..., 0] - state[..., 0] - action[..., 0]


def over(next_state: torch.Tensor) -> torch.Tensor:
    return next_state[..., 1] > 1.5


def judged(count: int, seed: int) -> Transitions:
    rows = linear(count, seed)
    return replace(rows, reward=rule(rows.state, rows.action, rows.next_state), terminated=over(rows.next_state))


@pytest.fixture(scope="module")
def learned() -> LearnedTask:
    return Outcome(discount=0.9, hidden=(32,), likelihood=quick(600)).fit(judged(3000, 0), seed=0)


def test_outcome_recovers_reward_and_end(learned: LearnedTask) -> None:
    """The reward weighs s' against s and the end reads s' alone, so exchanging s and s' fails here."""
    rows = judged(2000, 1)
    error = learned.reward(rows.state, rows.action, rows.next_state) - rows.reward
    assert float(error.square().mean().sqrt() / rows.reward.std()) < 0.06
    wrong = learned.terminated(rows.next_state) != rows.terminated
    assert float(wrong.float().mean()) < 0.02
    assert float(rows.terminated.float().mean()) > 0.2
    assert learned.discount == 0.9


def test_outcome_takes_any_leading_shape(learned: LearnedTask) -> None:
    rows = judged(12, 2)
    shaped = [column.view(3, 4, -1) for column in (rows.state, rows.action, rows.next_state)]
    assert torch.allclose(
        learned.reward(*shaped).flatten(), learned.reward(rows.state, rows.action, rows.next_state), atol=1e-6
    )
    assert torch.equal(learned.terminated(shaped[2]).flatten(), learned.terminated(rows.next_state))


def test_termination_probability_is_calibrated() -> None:
    rows = linear(4000, 3)
    truth = torch.sigmoid(2 * rows.next_state[:, 0])
    flags = torch.rand(4000, generator=generator(3, "flags")) < truth
    task = Outcome(hidden=(16,), likelihood=quick(300)).fit(replace(rows, terminated=flags))
    assert float((task.termination_probability(rows.next_state) - truth).abs().mean()) < 0.04


def ending(count: int, seed: int) -> Transitions:
    """Every fifth row ends without a next state and pays 10 + s₁ − 2a; the others pay 1."""
    rows = linear(count, seed)
    last = torch.arange(count) % 5 == 0
    outcome = 10 + rows.state[:, 0] - 2 * rows.action[:, 0]
    return replace(
        rows,
        reward=torch.where(last, outcome, 1.0),
        next_state=torch.where(last[:, None], torch.nan, rows.next_state),
        terminated=last,
    )


def test_rows_without_a_next_state_have_a_reward_of_their_own_and_end() -> None:
    task = Outcome(hidden=(8,), likelihood=quick(100)).fit(ending(1500, 0))
    rows = ending(100, 1)
    reward, ended = task.reward(rows.state, rows.action, rows.next_state), task.terminated(rows.next_state)
    assert torch.equal(ended, rows.terminated)
    assert torch.allclose(reward[ended], rows.reward[ended], atol=0.1)
    assert torch.allclose(reward[~ended], rows.reward[~ended], atol=1e-4)


def test_a_single_outcome_row_gives_its_own_reward() -> None:
    rows = ending(100, 0)
    rows = rows[~rows.terminated | (torch.arange(100) == 0)]
    task = Outcome(hidden=(8,), likelihood=quick(50)).fit(rows)
    assert float(task.reward(torch.zeros(1, 2), torch.zeros(1, 1), torch.full((1, 2), torch.nan))) == pytest.approx(
        float(rows.reward[0]), abs=1e-4
    )


def test_reward_without_a_next_state_needs_such_rows(learned: LearnedTask) -> None:
    with pytest.raises(CounterpointError, match="none was fitted on"):
        learned.reward(torch.zeros(1, 2), torch.zeros(1, 1), torch.full((1, 2), torch.nan))


def test_a_reward_that_is_not_finite_is_named() -> None:
    rows = judged(100, 0)
    rows.reward[17] = torch.nan
    with pytest.raises(CounterpointError, match="not finite at row 17"):
        Outcome().fit(rows)


def test_many_outcomes_fit_as_one() -> None:
    recipe = Outcome(hidden=(8,), likelihood=quick(50))
    jobs = [Job(ending(300, 0), 0), Job(judged(500, 1), 1)]
    rows = judged(50, 2)
    for job, together in zip(jobs, recipe.fit_many(jobs), strict=True):
        alone = recipe.fit(job.data, job.seed)
        arguments = (rows.state, rows.action, rows.next_state)
        assert torch.allclose(alone.reward(*arguments), together.reward(*arguments), atol=1e-4)
        assert torch.allclose(
            alone.termination_probability(rows.next_state), together.termination_probability(rows.next_state), atol=1e-4
        )


def test_saved_outcome_judges_the_same(learned: LearnedTask, tmp_path: Path) -> None:
    learned.save(tmp_path)
    weights, header = artifacts.load(tmp_path)
    classes = {c.__name__: c for c in (Outcome, Likelihood, Schedule, Box, Discrete, Origin)}
    recipe, actions, origin = (artifacts.decode(header[k], classes) for k in ("recipe", "actions", "origin"))
    loaded = recipe.rebuild(header, weights, actions, origin)
    rows = judged(50, 3)
    assert header["kind"] == "task"
    assert torch.equal(
        loaded.reward(rows.state, rows.action, rows.next_state),
        learned.reward(rows.state, rows.action, rows.next_state),
    )
    assert torch.equal(
        loaded.termination_probability(rows.next_state), learned.termination_probability(rows.next_state)
    )
