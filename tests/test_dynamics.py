"""Base-D, Base-S, Base-M against known systems, and reward and end learned from a log."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterpoint.core import artifacts
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, Origin, context
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import GOES_ON, Transitions, concatenate, first_outcome
from counterpoint.models.dynamics.base import (
    DynamicsModel,
    DynamicsRecipe,
    LawNetwork,
)
from counterpoint.models.dynamics.deterministic import (
    Deterministic,
    PointLaw,
)
from counterpoint.models.dynamics.gaussian import DiagonalGaussian, GaussianDynamics
from counterpoint.models.dynamics.hazards import pick
from counterpoint.models.dynamics.mixture import JointMixture, MixtureDynamics
from counterpoint.models.dynamics.outcome import LearnedTask, Outcome
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.registry import load
from counterpoint.simulation.augmentation import Augmenter

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
    assert float(PointLaw().log_prob(torch.tensor([1.0, 0.0]), y)) == pytest.approx(-2.5)


def test_density_is_in_the_units_of_the_state() -> None:
    """Ten times larger units make a density ten times smaller a column."""
    network = LawNetwork(1, 1, 2, DiagonalGaussian(), (4,), batch_norm=False)
    y = torch.tensor([[[0.3, -0.2]]])
    before = network.log_prob_and_raw(torch.zeros(1, 1, 1), y)[0].detach()
    network.y.scale.fill_(10.0)
    after = network.log_prob_and_raw(torch.zeros(1, 1, 1), 10 * y)[0].detach()
    assert float(before - after) == pytest.approx(2 * torch.tensor(10.0).log().item(), abs=1e-5)


def test_mixture_draws_have_the_mixtures_moments() -> None:
    head = JointMixture(2)
    raw = torch.tensor([0.0, torch.tensor(3.0).log(), 0, 0, 4, -4, 0, 0, 0, 0]).expand(40_000, -1)
    drawn = head.sample(raw, head.chance(raw.shape[:-1], 2, generator(0, "moments")), 2)
    assert torch.allclose(drawn.mean(0), torch.tensor([3.0, -3.0]), atol=0.05)
    assert torch.allclose(drawn.var(0), torch.full((2,), 1 + 16 * 0.75 * 0.25), rtol=0.03)


def test_members_see_their_own_rows(gaussian: DynamicsModel) -> None:
    state, action, _ = draws(400, 3)
    mechanism, actions = gaussian.mechanism, action.expand(3, -1, -1)
    chance = mechanism.network.chance((3, 400), generator(0))
    own, shared = torch.stack([state, state + 1, state - 1]), state.expand(3, -1, -1)
    with torch.no_grad():
        drawn, alike = (mechanism.predict(context(s, actions), s, chance) for s in (own, shared))
    for member in range(3):
        residual = (drawn[member] - linear_mean(own[member], action)) / SPREAD
        assert float(residual.abs().mean()) < 1.3
    assert not torch.equal(drawn[0], alike[1])
    torch.testing.assert_close(drawn[0], alike[0])


def test_ensemble_is_an_equal_mixture_of_its_members() -> None:
    """Members that sit at 0, 10 and 20 keep their places: a third of the draws each, and nothing in between."""
    recipe = Deterministic(ensemble=3, hidden=(4,), batch_norm=False)
    mechanism, no_rows = recipe.build(2, 3, 3), torch.zeros(0, dtype=torch.long)
    mechanism.network.y.mean.copy_(torch.tensor([0.0, 10.0, 20.0])[:, None, None].expand(3, 1, 2))
    schema = Schema.of(("a", "b"), Box((-1.0,), (1.0,)))
    model = DynamicsModel(recipe, mechanism, schema, Origin(0, "", ""), no_rows)
    drawn = repeated(model, [0.0, 0.0], 0.0, 9000)
    places, counts = drawn[:, 0].unique(return_counts=True)
    assert places.tolist() == [0.0, 10.0, 20.0]
    assert counts.min() > 2800
    assert torch.equal(drawn[:, 0], drawn[:, 1])


def test_imagine_draws_afresh(gaussian: DynamicsModel) -> None:
    rows = linear(200, 4)
    action = torch.stack([-rows.action, rows.action, rows.action], 1)
    next_state = gaussian.imagine(rows, action, generator(2))
    assert next_state.shape == (200, 3, 2)
    drawn = gaussian.sample(rows.state.repeat_interleave(3, 0), action.flatten(0, 1), generator(2))
    assert torch.equal(next_state.flatten(0, 1), drawn)
    assert (next_state[:, 1] != next_state[:, 2]).any(1).all(), "the same action twice is drawn twice"
    blind = replace(rows, next_state=rows.next_state + 5)
    assert torch.equal(next_state, gaussian.imagine(blind, action, generator(2)))


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
    model = Deterministic(**SMALL).fit(moved, theta=theta)
    assert model.theta_width == 1
    state, action, random = draws(200, 7)
    shift = model.sample(state, action, random, torch.tensor([[0.5]])) - model.sample(
        state, action, random, torch.tensor([[-0.5]])
    )
    assert torch.allclose(shift.mean(0), torch.tensor([2.0, 2.0]), atol=0.1)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_saved_model_draws_the_same(recipe: DynamicsRecipe, tmp_path: Path) -> None:
    model = recipe.fit(linear(300, 0), seed=4)
    model.save(tmp_path)
    classes = (type(recipe), Likelihood, Schedule, Schema, Column, Knowledge, Box, Origin)
    loaded = artifacts.load(tmp_path, DynamicsModel, {c.__name__: c for c in classes})
    state, action, _ = draws(100, 8)
    assert isinstance(loaded, DynamicsModel)
    assert (loaded.kind, loaded.recipe, loaded.header()) == ("dynamics", recipe, model.header())
    assert loaded.fingerprint == model.fingerprint
    assert torch.equal(loaded.sample(state, action, generator(1)), model.sample(state, action, generator(1)))


def test_an_action_outside_the_space_is_named(gaussian: DynamicsModel) -> None:
    with pytest.raises(CounterpointError, match="at row 1 is outside"):
        gaussian.sample(torch.zeros(2, 2), torch.tensor([[0.0], [2.0]]), generator(0))


def rule(state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
    return 2 * next_state[..., 0] - state[..., 0] - action[..., 0]


def over(next_state: torch.Tensor) -> torch.Tensor:
    return next_state[..., 1] > 1.5


def judged(count: int, seed: int) -> Transitions:
    """Every end is seen in the next state, and certain there."""
    rows = linear(count, seed)
    ends = first_outcome(over(rows.next_state))
    return replace(rows, reward=rule(rows.state, rows.action, rows.next_state), outcome=ends)


def given(rows: Transitions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return rows.state, rows.action, rows.next_state


@pytest.fixture(scope="module")
def learned() -> LearnedTask:
    return Outcome(discount=0.9, hidden=(32,), likelihood=quick(600)).fit(judged(3000, 0), seed=0)


def test_outcome_recovers_reward_and_end(learned: LearnedTask) -> None:
    """The reward weighs s' against s and the end reads s' alone, so exchanging s and s' fails here."""
    rows = judged(2000, 1)
    reward, survival = learned.expected(*given(rows))
    for found, among in ((reward, slice(None)), (learned.reward(*given(rows)), ~rows.terminated)):
        error = (found - rows.reward)[among]
        assert float(error.square().mean().sqrt() / rows.reward.std()) < 0.06
    wrong = (survival < 0.5) != rows.terminated
    assert float(wrong.float().mean()) < 0.02
    assert float(rows.terminated.float().mean()) > 0.2
    assert (learned.discount, learned.horizon, learned.outcome_names) == (0.9, 1, ("terminated",))


def test_outcome_takes_any_leading_shape(learned: LearnedTask) -> None:
    rows, uniform = judged(12, 2), torch.rand(12, generator=generator(2))
    flat, shaped = given(rows), [column.view(3, 4, -1) for column in given(rows)]
    flat_answers = [learned.reward(*flat), *learned.expected(*flat), *learned.branches(*flat)]
    answers = [learned.reward(*shaped), *learned.expected(*shaped), *learned.branches(*shaped)]
    for answer, expected in zip(answers, flat_answers, strict=True):
        torch.testing.assert_close(answer.flatten(0, 1), expected, rtol=0, atol=1e-6)
    ends = zip(learned.draw_result(*shaped, uniform.view(3, 4)), learned.draw_result(*flat, uniform), strict=True)
    for answer, expected in ends:
        torch.testing.assert_close(answer.flatten(0, 1), expected, rtol=0, atol=1e-6)


def test_only_what_has_no_next_state_is_over_for_certain(learned: LearnedTask) -> None:
    rows = judged(100, 1)
    assert rows.terminated.any()
    assert not learned.terminated(rows.next_state).any()
    rows.next_state[7, 1] = torch.nan
    assert learned.terminated(rows.next_state).nonzero().flatten().tolist() == [7]


def test_the_hazard_of_the_next_state_is_calibrated() -> None:
    rows = linear(8000, 3)
    truth = torch.sigmoid(2 * rows.next_state[:, 0])
    flags = torch.rand(8000, generator=generator(3, "flags")) < truth
    task = Outcome(hidden=(16,), likelihood=quick(300)).fit(replace(rows, outcome=first_outcome(flags)))
    probability, _ = task.branches(*given(rows))
    assert (probability[:, 0] == 0).all(), "no row ends before its next state"
    assert float((probability[:, 1] - truth).abs().mean()) < 0.04
    torch.testing.assert_close(task.expected(*given(rows))[1], 1 - probability[:, 1])


def ending(count: int, seed: int) -> Transitions:
    """Every fifth row ends without a next state and pays 10 + s₁ − 2a; the others pay 1."""
    rows = linear(count, seed)
    last = torch.arange(count) % 5 == 0
    paid = 10 + rows.state[:, 0] - 2 * rows.action[:, 0]
    return replace(
        rows,
        reward=torch.where(last, paid, 1.0),
        next_state=torch.where(last[:, None], torch.nan, rows.next_state),
        outcome=first_outcome(last),
    )


def test_rows_without_a_next_state_have_a_reward_of_their_own_and_end() -> None:
    log = ending(1500, 0)
    task = Outcome(hidden=(8,), likelihood=quick(100)).fit(log)
    rows, test = linear(100, 1), ending(100, 1)
    probability, reward = task.branches(*given(rows))
    paid = 10 + rows.state[:, 0] - 2 * rows.action[:, 0]
    torch.testing.assert_close(reward[:, 0], paid, rtol=0, atol=0.1)
    torch.testing.assert_close(reward[:, 2], torch.ones(100), rtol=0, atol=1e-4)
    assert float((probability[:, 0] - 0.2).abs().mean()) < 0.05
    assert (probability[:, 1] == 0).all(), "no row ends in its next state"
    assert torch.equal(task.terminated(test.next_state), test.terminated)


def test_a_single_outcome_row_gives_its_own_reward() -> None:
    rows = ending(100, 0)
    rows = rows[~rows.terminated | (torch.arange(100) == 0)]
    task = Outcome(hidden=(8,), likelihood=quick(50)).fit(rows)
    _, reward = task.branches(torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(1, 2))
    assert float(reward[0, 0]) == pytest.approx(float(rows.reward[0]), abs=1e-4)


NAMES = ("died", "discharged", "transferred")
DIED, DISCHARGED, TRANSFERRED = range(3)


def ward(count: int, seed: int) -> Transitions:
    """Before the next state the ill die (−10 + 2s₂) and the well go home (5 − a); in it some die (−20); else 1.

    Nobody is transferred, and nobody goes home in a next state.
    """
    rows = linear(count, seed)
    chance = torch.rand(3, count, generator=generator(seed, "ward"))
    died = chance[0] < torch.sigmoid(2 * rows.state[:, 0] - 3)
    home = ~died & (chance[1] < torch.sigmoid(-2 * rows.state[:, 0] - 2))
    late = ~died & ~home & (chance[2] < torch.sigmoid(rows.next_state[:, 1] - 3))
    outcome = torch.where(died | late, DIED, torch.where(home, DISCHARGED, GOES_ON))
    reward = torch.where(died, -10 + 2 * rows.state[:, 1], torch.where(home, 5 - rows.action[:, 0], 1.0))
    return replace(
        rows,
        reward=torch.where(late, -20.0, reward),
        next_state=torch.where((died | home)[:, None], torch.nan, rows.next_state),
        outcome=outcome,
        outcome_names=NAMES,
    )


WARD = ward(3000, 0)


@pytest.fixture(scope="module")
def stay() -> LearnedTask:
    return Outcome(hidden=(16,), likelihood=quick(400)).fit(WARD, seed=0)


def test_outcomes_have_rewards_of_their_own(stay: LearnedTask) -> None:
    rows = linear(300, 5)
    _, reward = stay.branches(*given(rows))
    torch.testing.assert_close(reward[:, DIED], -10 + 2 * rows.state[:, 1], rtol=0, atol=0.2)
    torch.testing.assert_close(reward[:, DISCHARGED], 5 - rows.action[:, 0], rtol=0, atol=0.2)
    assert float((reward[:, 3 + DIED] + 20).abs().mean()) < 1
    assert float((reward[:, -1] - 1).abs().mean()) < 0.5
    assert stay.outcome_names == NAMES


def test_hazards_are_those_of_the_ward(stay: LearnedTask) -> None:
    rows = linear(2000, 5)
    probability, _ = stay.branches(*given(rows))
    died = torch.sigmoid(2 * rows.state[:, 0] - 3)
    home = (1 - died) * torch.sigmoid(-2 * rows.state[:, 0] - 2)
    late = (1 - died - home) * torch.sigmoid(rows.next_state[:, 1] - 3)
    for branch, truth in ((DIED, died), (DISCHARGED, home), (3 + DIED, late)):
        assert float((probability[:, branch] - truth).abs().mean()) < 0.04
    torch.testing.assert_close(probability.sum(-1), torch.ones(2000))
    assert (probability >= 0).all()


def test_a_hazard_is_logistic_unless_a_network_foresees_ends_clearly_better(tmp_path: Path) -> None:
    """Job by job, whatever shares the stack: the ward's hazards are logistic, ends far out on either side are not."""
    rows = linear(3000, 3)
    far = rows.next_state[:, 0].abs() > 1.5
    either_side = replace(rows, outcome=torch.where(far, DIED, GOES_ON), outcome_names=NAMES)
    tasks = Outcome(hidden=(16,), likelihood=quick(400)).fit_many([Job(WARD, 0), Job(either_side, 1)])
    assert [task.heads.linear("after") for task in tasks] == [True, False]
    assert tasks[0].heads.linear("before")
    survival = tasks[1].expected(*given(rows))[1]
    assert float(survival[far].mean()) < 0.5
    assert float(survival[~far].mean()) > 0.9
    for number, task in enumerate(tasks):
        task.save(tmp_path / str(number))
        again = load(tmp_path / str(number))
        for found, expected in zip(again.branches(*given(rows)), task.branches(*given(rows)), strict=True):
            assert torch.equal(found, expected)


def test_an_outcome_the_log_never_has_is_never_foreseen(stay: LearnedTask) -> None:
    """Not even far from the log; and an outcome that only ever leaves no next state is never foreseen in one."""
    random = generator(0, "far")
    far = [30 * torch.randn(5000, width, generator=random) for width in (2, 1, 2)]
    uniform = torch.cat([torch.rand(4998, generator=random), torch.tensor([0.0, 1 - 2**-24])])
    probability, _ = stay.branches(*far)
    assert (probability[:, [TRANSFERRED, 3 + DISCHARGED, 3 + TRANSFERRED]] == 0).all()
    outcome = stay.draw_result(*far, uniform).outcome
    assert set(outcome.unique().tolist()) <= {GOES_ON, DIED, DISCHARGED}


LOGS = {"ends before and after": WARD, "certain ends": judged(3000, 0), "ends by chance alone": ending(1500, 0)}


STEEP = Likelihood(Schedule(steps=300, rate="one-cycle"), 128, learning_rate=3.0, held_out=0.0)
FITS = {
    "barely": Outcome(hidden=(16,), likelihood=quick(5)),
    "well": Outcome(hidden=(16,), likelihood=quick(400)),
    "steeply": Outcome(hidden=(), likelihood=STEEP),
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("fit", FITS)
def test_every_outcome_is_foreseen_as_often_as_the_log_has_it(name: str, fit: str) -> None:
    """Calibration in the large, however the networks are fitted; where a hazard is steep, few rows can still move."""
    log = LOGS[name]
    task = FITS[fit].fit(log, seed=1)
    outcomes = len(log.outcome_names)
    for k in range(outcomes):
        # The hazard before a next state does not read it.
        before = task.branches(log.state, log.action, log.state)[0][:, k]
        seen = (log.outcome == k) & ~log.has_next
        assert float(before.double().mean()) == pytest.approx(float(seen.double().mean()), abs=1e-4)
        rows = log.with_next()
        probability, _ = task.branches(*given(rows))
        after = probability[:, outcomes + k] / (1 - probability[:, :outcomes].sum(-1))
        assert float(after.double().mean()) == pytest.approx(float((rows.outcome == k).double().mean()), abs=1e-4)


def many(rows: Transitions, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Each row so many times over, with uniforms that fill 0 to 1 evenly, shuffled."""
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    uniform = uniform[torch.randperm(count, generator=generator(0, "even"))].float()
    return [column[:, None].expand(-1, count, -1) for column in given(rows)], uniform.expand(len(rows), -1)


def test_conclusions_are_drawn_as_often_as_foreseen(stay: LearnedTask) -> None:
    rows, count = linear(20, 6), 20_000
    told, uniform = many(rows, count)
    reward, outcome, next_state = stay.draw_result(*told, uniform)
    probability, rewards = stay.branches(*given(rows))
    gone = next_state.isnan().any(-1)
    assert torch.equal(gone, next_state.isnan().all(-1))
    assert torch.equal(next_state[~gone], told[2][~gone])
    assert (outcome[gone] >= 0).all(), "what has no next state has ended"
    for branch, (kind, before) in enumerate(
        [*((k, True) for k in range(3)), *((k, False) for k in range(3)), (-1, False)]
    ):
        drawn = (outcome == kind) & (gone == before)
        torch.testing.assert_close(drawn.float().mean(1), probability[:, branch], rtol=0, atol=2 / count)
        expected = rewards[:, branch, None].expand_as(reward)
        torch.testing.assert_close(reward[drawn], expected[drawn], rtol=0, atol=1e-5)
    assert gone.any()
    assert ((outcome == DIED) & ~gone).any()


def test_the_expected_step_is_the_mean_of_its_conclusions(stay: LearnedTask) -> None:
    rows, count = linear(20, 6), 20_000
    told, uniform = many(rows, count)
    drawn = stay.draw_result(*told, uniform)
    reward, survival = stay.expected(*given(rows))
    torch.testing.assert_close(drawn.reward.double().mean(1).float(), reward, rtol=0, atol=0.01)
    torch.testing.assert_close((drawn.outcome == GOES_ON).float().mean(1), survival, rtol=0, atol=2 / count)


def test_a_class_without_probability_is_never_picked() -> None:
    """Not by the smallest uniform, not between two others; the last takes what rounding leaves."""
    probability = torch.tensor([0.0, 0.25, 0.0, 0.25, 0.5])
    uniform = torch.tensor([0.0, 0.2, 0.25, 0.49, 0.5, 1 - 2**-24])
    assert pick(probability.expand(6, -1), uniform).tolist() == [1, 1, 3, 3, 4, 4]


def test_what_ends_in_a_next_state_leaves_it_there(learned: LearnedTask) -> None:
    rows = judged(500, 4)
    uniform = torch.rand(500, generator=generator(4))
    uniform[0] = 0.0
    drawn = learned.draw_result(*given(rows), uniform)
    assert torch.equal(drawn.next_state, rows.next_state)
    assert float(((drawn.outcome >= 0) == rows.terminated).float().mean()) > 0.97


def test_imagined_rows_end_as_the_learned_task_says(gaussian: DynamicsModel, stay: LearnedTask) -> None:
    rows = Augmenter(2).imagine(WARD, gaussian, stay, seed=3)
    died, home = ((rows.outcome == k) & ~rows.has_next for k in (DIED, DISCHARGED))
    probability, reward = stay.branches(rows.state, rows.action, rows.state)
    for ended, k in ((died, DIED), (home, DISCHARGED)):
        assert float(ended.float().mean()) == pytest.approx(float(probability[:, k].mean()), abs=0.02)
        torch.testing.assert_close(rows.reward[ended], reward[ended, k])
    assert torch.equal(rows.has_next, ~(died | home))
    assert ((rows.outcome == DIED) & rows.has_next).any()
    assert not (rows.outcome == TRANSFERRED).any()
    again = Augmenter(2).imagine(WARD, gaussian, stay, seed=3)
    assert torch.equal(again.outcome, rows.outcome)


def test_a_task_of_other_outcomes_is_refused(gaussian: DynamicsModel, learned: LearnedTask) -> None:
    with pytest.raises(CounterpointError, match="outcomes are died, discharged, transferred and the task's terminated"):
        Augmenter(1).imagine(WARD, gaussian, learned)
    renamed = replace(judged(100, 0), outcome_names=("died",))
    assert Augmenter(1).imagine(renamed, gaussian, learned).outcome_names == ("died",)


def test_nothing_is_learned_from_imagined_rows() -> None:
    recipe, log = Outcome(hidden=(8,), likelihood=quick(50)), WARD[:400]
    wrong = replace(log, imagined=torch.ones(400, dtype=torch.bool), reward=log.reward + torch.nan)
    wrong = replace(wrong, outcome=torch.full((400,), TRANSFERRED))
    rows = linear(50, 2)
    for answer, expected in zip(
        recipe.fit(concatenate([log, wrong])).branches(*given(rows)),
        recipe.fit(log).branches(*given(rows)),
        strict=True,
    ):
        assert torch.equal(answer, expected)


def test_the_horizon_is_the_longest_record() -> None:
    log = WARD[:200]
    task = Outcome(hidden=(8,), likelihood=quick(50)).fit(replace(log, step=torch.arange(200) % 7))
    assert task.horizon == 7


def test_a_reward_that_is_not_finite_is_named() -> None:
    rows = judged(100, 0)
    rows.reward[17] = torch.nan
    with pytest.raises(CounterpointError, match="not finite at row 17"):
        Outcome().fit(rows)


def test_many_outcomes_fit_as_one() -> None:
    """One job ends before next states only, one in them only, one in neither: each is as if fitted alone."""
    recipe = Outcome(hidden=(8,), likelihood=quick(50))
    jobs = [Job(ending(300, 0), 0), Job(judged(500, 1), 1), Job(linear(200, 2), 2)]
    rows = judged(50, 2)
    for job, together in zip(jobs, recipe.fit_many(jobs), strict=True):
        alone = recipe.fit(job.data, job.seed)
        for one, other in zip(alone.branches(*given(rows)), together.branches(*given(rows)), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
        assert alone.ends_in_next_state == together.ends_in_next_state


@pytest.mark.parametrize("name", ["learned", "stay"])
def test_saved_outcome_judges_the_same(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    task = request.getfixturevalue(name)
    task.save(tmp_path)
    classes = (Outcome, Likelihood, Schedule, Schema, Column, Knowledge, Box, Origin)
    loaded = artifacts.load(tmp_path, LearnedTask, {c.__name__: c for c in classes})
    rows = judged(50, 3)
    assert isinstance(loaded, LearnedTask)
    assert (loaded.kind, loaded.header(), loaded.fingerprint) == ("task", task.header(), task.fingerprint)
    for attribute in ("discount", "horizon", "outcome_names", "actions", "state_names", "ends_in_next_state"):
        assert getattr(loaded, attribute) == getattr(task, attribute)
    for answer, expected in zip(loaded.branches(*given(rows)), task.branches(*given(rows)), strict=True):
        assert torch.equal(answer, expected)
