"""Fitted models as simulators: every policy acts in the members of its own model, under the noise it was promised."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.models.base import Model, SubjectFactors
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.laws import Gaussian, Mixture, SkewedSpline, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.monotone import FoldedGenerator
from counterpoint.nets.training import Schedule
from counterpoint.simulation.models import FreshNoise, ModelSimulator, NoisePool, abducted
from counterpoint.simulation.rollout import (
    Actor,
    NoiseStream,
    Rollout,
    RolloutStep,
    StackedNoise,
    checks_for_end,
    on_device,
)
from counterpoint.simulation.selection import (
    CheckpointSelection,
    CheckpointSelector,
)
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole
from helpers.recipes import BRIEF, DENSITY, DYNAMICS, MODELS, ROWS, SCMS

TASK = CartPole()
NOISES: dict[str, FreshNoise | NoisePool] = {"fresh": FreshNoise(), "pool": NoisePool()}


def logged(trials: int, seed: int = 0) -> Transitions:
    return simulate(TASK, random_policy(TASK), trials, 20, seed)


def step(simulator: ModelSimulator, state: Tensor, action: Tensor, noise: StackedNoise) -> Tensor:
    return simulator.step(state, action, noise, state[..., :0])


def by_member(model: Model, *columns: Float[Tensor, "e _"]) -> list[Float[Tensor, "m n _"]]:
    """A model's episodes in the equal, neighbouring shares that its members get."""
    return [column.unflatten(0, (model.mechanism.members, -1)) for column in columns]


def predicted(model: Model, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
    """By hand: what each member makes of its own share."""
    told, here, drawn = by_member(model, torch.cat([state, action], -1), state, noise)
    return model.mechanism.predict(told, here, drawn).reshape(state.shape).detach()


@pytest.mark.parametrize("name", ["skewed spline", "triangular mixture", "mixed", "bicogan", "conditional bicogan"])
def test_every_world_is_one_member_of_one_scm(name: str) -> None:
    recipe, rows = SCMS[name]
    models = recipe.fit_many([Job(rows, seed) for seed in range(3)])
    simulator, members = ModelSimulator(models), models[0].mechanism.members
    assert simulator.members == members
    assert (name == "bicogan") == any(
        isinstance(part, FoldedGenerator) for part in simulator.stacks[0].mechanism.modules()
    )
    state = torch.stack([rows.state[i : i + 5 * members] for i in range(3)])
    action = torch.stack([rows.action[i : i + 5 * members] for i in range(3)])
    stepped = step(simulator, state, action, simulator.fresh(5 * members, 0)(0))
    noise = models[0].mechanism.prior(members * 5, generator(0))
    for j, model in enumerate(models):
        by_hand = predicted(model, state[j], action[j], noise)
        torch.testing.assert_close(stepped[j], by_hand, rtol=1e-4, atol=1e-5)
    if members > 1:
        assert not torch.allclose(*_swapped(models[0], state[0], action[0], noise))


def _swapped(model: Any, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The first world's rows in the first and in the second member."""
    first = [table[:1].expand(model.mechanism.members, -1, -1) for table in by_member(model, state, action, noise)]
    out = model.mechanism.predict(torch.cat(first[:2], -1), first[0], first[2])
    return out[0], out[1]


@pytest.mark.parametrize("name", MODELS)
def test_every_world_is_one_member_of_one_dynamics_model(name: str) -> None:
    models = MODELS[name].fit_many([Job(ROWS, seed) for seed in range(3)])
    simulator = ModelSimulator(models)
    assert simulator.members == getattr(MODELS[name], "ensemble", 1)
    state, action = ROWS.state[:30].view(3, 10, 4), ROWS.action[:30].view(3, 10, 1)
    stepped = step(simulator, state, action, simulator.fresh(10, 0)(0))
    noise = models[0].mechanism.prior(10, generator(0))
    for j, model in enumerate(models):
        torch.testing.assert_close(stepped[j], predicted(model, state[j], action[j], noise), rtol=1e-4, atol=1e-5)
    assert torch.equal(stepped, step(simulator, state, action, simulator.fresh(10, 0)(0)))


@pytest.mark.parametrize("name", ["deterministic", "gaussian dynamics", "mixture dynamics"])
def test_picked_models_step_as_they_do_in_their_own_places(name: str) -> None:
    models = MODELS[name].fit_many([Job(ROWS, seed) for seed in range(3)])
    simulator, order = ModelSimulator(models), [2, 0, 0, 1, 2]
    state, action = ROWS.state[:50].view(5, 10, 4), ROWS.action[:50].view(5, 10, 1)
    noise = simulator.fresh(10, 0)(0)
    stepped = step(simulator.picked(torch.tensor(order)), state, action, noise)
    for place, model in enumerate(order):
        own = step(ModelSimulator([models[model]]), state[place : place + 1], action[place : place + 1], noise)
        torch.testing.assert_close(stepped[place : place + 1], own, rtol=1e-5, atol=1e-6)
    first = step(simulator, state[:3], action[:3], noise)
    assert (stepped[0] - first[0]).abs().max() > 1e-3, "another model than the one that has this place"


def test_models_of_different_structures_are_not_picked_from(choices: tuple[list[Job], list[Any]]) -> None:
    with pytest.raises(CounterpointError, match="models of different structures cannot be picked from"):
        ModelSimulator(choices[1]).picked(torch.tensor([0]))


def test_a_deterministic_world_steps_as_its_member_whatever_the_seed() -> None:
    models = Deterministic(**DYNAMICS).fit_many([Job(ROWS, seed) for seed in range(2)])
    simulator = ModelSimulator(models)
    state, action = ROWS.state[:20].view(2, 10, 4), ROWS.action[:20].view(2, 10, 1)
    stepped, again = (step(simulator, state, action, simulator.fresh(10, seed)(0)) for seed in (0, 1))
    assert torch.equal(stepped, again)
    for j, model in enumerate(models):
        told, here = by_member(model, torch.cat([state[j], action[j]], -1), state[j])
        by_hand = here + model.mechanism.network.point(told).detach()
        torch.testing.assert_close(stepped[j], by_hand.flatten(0, 1), rtol=1e-4, atol=1e-5)


def chosen(law: Any) -> AutoSCM:
    """A recipe that selects this law."""
    return AutoSCM((replace(DENSITY, law=law),))


@pytest.fixture(scope="module")
def choices() -> tuple[list[Job], list[Any]]:
    """Jobs of one experiment for which `Auto` chose differently, in no order."""
    jobs = [Job(logged(6, seed), seed) for seed in range(4)]
    recipes = [chosen(Gaussian()), chosen(SkewedSpline()), chosen(Gaussian()), chosen(SkewedSpline())]
    recipes[3] = replace(recipes[3], held_out=0.3)
    return jobs, [recipe.fit_many([job])[0] for recipe, job in zip(recipes, jobs, strict=True)]


def test_models_that_were_chosen_differently_step_together_as_alone(choices: tuple[list[Job], list[Any]]) -> None:
    jobs, models = choices
    assert [model.structure.law for model in models[:2]] == [Gaussian(), SkewedSpline()]
    simulator = ModelSimulator(models)
    assert [stack.models.tolist() for stack in simulator.stacks] == [[0, 2], [1, 3]]
    state = torch.stack([job.data.state[:10] for job in jobs])
    plan = lambda t: torch.stack([job.data.action[t : t + 10] for job in jobs])
    together = list(Rollout(simulator, TASK, freeze=False)(state, simulator.fresh(10, seed=3), 6, plan=plan))
    assert len(together) == 6
    for k, model in enumerate(models):
        alone = ModelSimulator([model])
        mine = lambda t, k=k: plan(t)[k : k + 1]
        steps = Rollout(alone, TASK, freeze=False)(state[k : k + 1], alone.fresh(10, seed=3), 6, plan=mine)
        for beside, own in zip(together, steps, strict=True):
            torch.testing.assert_close(beside.next_state[k : k + 1], own.next_state, rtol=1e-5, atol=1e-6)
    last = together[-1].next_state
    assert all((last[i] - last[j]).abs().max() > 1e-3 for i in range(4) for j in range(i))


def test_models_of_different_ensemble_sizes_are_one_line() -> None:
    models = [replace(DENSITY, ensemble=size).fit(ROWS) for size in (1, 2)]
    with pytest.raises(CounterpointError, match=r"^models of different ensemble sizes cannot[^\n]*$"):
        ModelSimulator(models)


def own_noises(model: Any, rows: Transitions) -> list[set[tuple[float, ...]]]:
    """The noises that each member abducts from a log."""
    noise = model.abduct(rows).unflatten(1, (model.mechanism.members, -1))
    return [{tuple(row) for row in noise[:, m].tolist()} for m in range(model.mechanism.members)]


def test_pool_noise_is_abducted_from_ones_own_log_by_the_same_member(choices: tuple[list[Job], list[Any]]) -> None:
    jobs, models = choices
    imagined = replace(jobs[0].data, next_state=jobs[0].data.state + 9, imagined=torch.ones(120, dtype=torch.bool))
    logs = [concatenate([jobs[0].data, imagined]), *(job.data for job in jobs[1:])]
    logs[1] = replace(logs[1], next_state=logs[1].next_state.masked_fill(logs[1].terminated[:, None], torch.nan))
    simulator, episodes = ModelSimulator(models), 2 * 8
    start = torch.zeros(4, episodes, 4)
    act = lambda state, theta: torch.full_like(state[..., :1], 0.5)
    stream = NoisePool().stream(simulator, [Job(log) for log in logs], episodes, seed=1)
    steps = list(Rollout(simulator, TASK, act, freeze=False)(start, stream, 30))
    kept = [log[~log.imagined & log.has_next] for log in logs]
    assert [len(rows) for rows in kept[2:]] == [120, 120]
    assert len(kept[0]) == 120 < len(logs[0])
    assert len(kept[1]) < 120
    for k, model in enumerate(models):
        used = by_member(model, *(_noise_of(simulator, each, k) for each in steps))
        for m, allowed in enumerate(own_noises(model, kept[k])):
            drawn = {tuple(row) for noise in used for row in noise[m].tolist()}
            assert drawn <= allowed
            assert len(drawn) > 80  # 240 draws of at most 120 rows: all but a few of 1 − e⁻² of them


def _noise_of(simulator: ModelSimulator, each: RolloutStep, model: int) -> Float[Tensor, "e u"]:
    """The noise that one model's episodes had in a step."""
    for noise, stack in zip(each.noise, simulator.stacks, strict=True):
        if model in stack.models.tolist():
            return noise[stack.models.tolist().index(model)]
    raise AssertionError("no such model")


def test_pool_draws_follow_the_seed(choices: tuple[list[Job], list[Any]]) -> None:
    jobs, models = choices
    simulator = ModelSimulator(models)
    one, same, other = (NoisePool().stream(simulator, jobs, 8, seed)(0) for seed in (0, 0, 1))
    assert all(torch.equal(*both) for both in zip(one, same, strict=True))
    assert not any(torch.equal(*both) for both in zip(one, other, strict=True))


def full_episode(rows: Transitions) -> Transitions:
    """The first trial that lasts for all its steps."""
    lengths = torch.bincount(rows.episode)
    return rows[rows.episode == int((lengths == 20).nonzero()[0])]


EXACT = {
    "gaussian": replace(DENSITY, law=Gaussian()),
    "skewed spline": DENSITY,
    "spline": replace(DENSITY, law=Spline(4)),
    "mixture": replace(DENSITY, law=Mixture(3)),
    "triangular": replace(DENSITY, order=(1, 0, 3, 2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_own_noise_and_own_actions_bring_the_record_back_in_every_member(name: str) -> None:
    data = logged(8)
    model, episode = EXACT[name].fit(data), full_episode(data)
    simulator, members = ModelSimulator([model]), model.mechanism.members
    noise = abducted(model, Job(episode)).repeat_interleave(3, 0)
    stream = lambda t: (noise[None, :, t],)
    start = episode.state[0].expand(1, 3 * members, -1)
    plan = lambda t: episode.action[t].expand(1, 3 * members, -1)
    steps = list(Rollout(simulator, TASK)(start, stream, 20, plan=plan))
    assert len(steps) == 20
    for t, each in enumerate(steps):
        expected = episode.next_state[t].expand(1, 3 * members, -1)
        torch.testing.assert_close(each.next_state, expected, rtol=0, atol=1e-3)
    # another action leads elsewhere, and the members then disagree
    other = lambda t: 1 - plan(t)
    away = list(Rollout(simulator, TASK, freeze=False)(start, stream, 20, plan=other))[-1].next_state[0]
    assert (away - episode.next_state[-1]).abs().amax() > 0.1
    assert (away[0] - away[-1]).abs().max() > 1e-3


def test_a_model_that_cannot_abduct_has_no_noise_of_a_record() -> None:
    model = MODELS["gaussian dynamics"].fit(ROWS)
    with pytest.raises(CounterpointError, match=r"^a dynamics model cannot abduct noise from the log;[^\n]*$"):
        NoisePool().stream(ModelSimulator([model]), [Job(ROWS[:1])], 4, 0)


def test_episodes_that_cannot_be_dealt_to_the_members_are_one_line() -> None:
    simulator = ModelSimulator([DENSITY.fit(ROWS)])
    for noise in (FreshNoise(), NoisePool()):
        with pytest.raises(CounterpointError, match=r"^3 episodes cannot be dealt to 2 members; use a multiple$"):
            noise.stream(simulator, [Job(ROWS)], 3, 0)


def test_pool_noise_is_abducted_with_the_factors_of_the_job() -> None:
    data = logged(6)
    theta = torch.randn(len(data), 2, generator=torch.Generator().manual_seed(0))
    model = DENSITY.fit(data, theta=theta)
    drawn = NoisePool().stream(ModelSimulator([model]), [Job(data, 0, theta)], 4, 0)(0)[0].view(2, 2, -1)
    allowed = model.abduct(data, theta).unflatten(1, (2, -1))
    for m in range(2):
        assert all((allowed[:, m] == row).all(1).any() for row in drawn[m])


class Drift:
    """A simulator by hand: world w adds `drift[w]` times the action to the position and leaves the rest."""

    device = torch.device("cpu")

    def __init__(self, drift: Sequence[float], models: int) -> None:
        self.drift, self.members = torch.tensor(drift), len(drift) // models
        self.models = [_Blind()] * models

    def step(self, state: Tensor, action: Tensor, noise: StackedNoise, theta: Tensor) -> Tensor:
        by_episode = self.drift.repeat_interleave(state[..., 0].numel() // len(self.drift)).view(state.shape[:2])
        moved = state.clone()
        moved[..., 0] += by_episode * action[..., 0]
        return moved

    def fresh(self, episodes: int, seed: int) -> NoiseStream:
        return lambda t: ()


class _Blind:
    """A model that knows no subjects."""

    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        return SubjectFactors.prior(len(rows.subject_names), 0)


def fixed(*actions: float) -> Actor:
    return lambda state, theta: torch.tensor(actions)[:, None, None].expand(-1, state.shape[1], 1)


def select(drift: Sequence[float], jobs: int, horizon: int = 50, task: CartPole = TASK) -> CheckpointSelector:
    data = replace(logged(4), state=torch.zeros(80, 4))
    simulator: Any = Drift(drift, jobs)
    return CheckpointSelector(
        CheckpointSelection(starts=3, horizon=horizon), simulator, [Job(data, seed) for seed in range(jobs)], task
    )


def test_returns_end_where_the_task_ends() -> None:
    """The limit of 2.4 is passed with the third step of 1 and with the fifth of .5; without a drift, never."""
    got = select([1.0, 0.5, 0.0, 1.0], jobs=2, horizon=9).returns(fixed(1.0, 1.0))
    assert got.tolist() == [[3.0] * 3 + [5.0] * 3, [9.0] * 3 + [3.0] * 3]


def test_the_score_is_minus_the_mean_return_in_ones_own_worlds() -> None:
    scores = select([1.0, 0.5, 0.0, 1.0], jobs=2, horizon=9)(fixed(1.0, 1.0))
    assert scores.tolist() == [-4.0, -6.0]


def test_a_policys_action_goes_to_its_own_worlds() -> None:
    got = select([1.0, 1.0], jobs=2, horizon=9).returns(fixed(1.0, 0.5))
    assert got.tolist() == [[3.0] * 3, [5.0] * 3]


def test_nothing_is_earned_after_the_end() -> None:
    """A policy that turns round beyond the limit comes back into the world, but not to life."""
    turning = lambda state, theta: torch.where(state[..., :1].abs() > 2.4, -1.0, 1.0)
    assert select([1.0], jobs=1, horizon=9).returns(turning).tolist() == [[3.0] * 3]


def test_without_a_horizon_of_its_own_it_is_the_tasks() -> None:
    class Patient(CartPole):
        selection_horizon = None

    assert select([0.0], 1, horizon=None).returns(fixed(1.0)).tolist() == [[TASK.selection_horizon] * 3]
    assert select([0.0], 1, horizon=None, task=Patient(horizon=33)).returns(fixed(1.0)).tolist() == [[33.0] * 3]


class Perilous(CartPole):
    """Every step ends the episode with one half, whatever happens."""

    def expected(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(state[..., 0]), torch.full_like(state[..., 0], 0.5)


def test_what_follows_an_uncertain_end_counts_by_its_probability() -> None:
    simulator: Any = Drift([1.0], 1)
    rollout = Rollout(simulator, Perilous(), fixed(1.0))
    got = rollout.returns(torch.zeros(1, 2, 4), simulator.fresh(2, 0), 4)
    assert got.tolist() == [[1 + 0.5 + 0.25 + 0.125] * 2]
    steps = list(rollout(torch.zeros(1, 2, 4), simulator.fresh(2, 0), 4))
    assert [float(each.alive[0, 0]) for each in steps] == [1, 0.5, 0.25, 0.125]


def test_an_episode_that_has_ended_stays_and_nothing_happens_once_all_have() -> None:
    simulator: Any = Drift([1.0, 0.5], 1)
    start = torch.zeros(1, 2, 4)
    steps = list(Rollout(simulator, TASK, fixed(1.0))(start, simulator.fresh(2, 0), 9))
    positions = [each.next_state[0, :, 0].tolist() for each in steps]
    assert positions == [[1, 0.5], [2, 1], [3, 1.5], [3, 2], [3, 2.5]]
    further = list(Rollout(simulator, TASK, fixed(1.0), freeze=False)(start, simulator.fresh(2, 0), 9))
    assert further[-1].next_state[0, :, 0].tolist() == [9, 4.5]


class OnGPU(NamedTuple):
    """As much of a tensor on a GPU as is asked about it."""

    is_cuda: bool = True


def test_a_gpu_is_asked_rarely_and_not_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    here: Any = OnGPU()
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    assert [t for t in range(200) if checks_for_end(t, here)] == [63, 127, 191]
    assert all(checks_for_end(t, torch.ones(1)) for t in range(3))
    capturing[0] = True
    assert not any(checks_for_end(t, here) for t in range(200))


def test_starts_are_first_states_of_ones_own_real_rows() -> None:
    tables = [logged(6, 0), logged(6, 1)]
    imagined = replace(tables[0], state=tables[0].state + 50, imagined=torch.ones(120, dtype=torch.bool))
    jobs = [Job(concatenate([tables[0], imagined]), 0), Job(tables[1], 1)]
    simulator: Any = Drift([0.0] * 4, 2)
    starts = CheckpointSelector(CheckpointSelection(starts=20), simulator, jobs, TASK).state
    assert starts.shape == (2, 40, 4)
    for k, table in enumerate(tables):
        first = {tuple(row) for row in table.state[table.step == 0].tolist()}
        assert {tuple(row) for row in starts[k].tolist()} <= first


def test_jobs_of_one_table_start_in_states_of_their_own() -> None:
    """A job's seed picks its starts: of three jobs of the same rows, two with the same seed have the same starts."""
    table = logged(40)
    simulator: Any = Drift([0.0] * 3, 3)
    starts = CheckpointSelector(
        CheckpointSelection(starts=20), simulator, [Job(table, seed) for seed in (3, 4, 3)], TASK
    ).state
    assert torch.equal(starts[0], starts[2])
    assert (starts[0] != starts[1]).any(1).sum() > 10


@pytest.fixture(scope="module")
def pole() -> list[Any]:
    how = Likelihood(Schedule(steps=400, check_every=50, rate="one-cycle"), batch=256, learning_rate=5e-3)
    recipe = DensitySCM(ensemble=2, hidden=(32,), likelihood=how)
    return recipe.fit_many([Job(logged(40, seed), seed) for seed in range(2)])


@pytest.mark.parametrize("noise", ["fresh", "pool"])
def test_the_balancing_policy_wins_inside_a_fitted_model(pole: list[Any], noise: str) -> None:
    """Chosen without the environment, as it would be in it."""
    jobs = [Job(logged(40, seed), seed) for seed in range(2)]
    score = CheckpointSelection(starts=16, horizon=120, noise=NOISES[noise]).selector(pole, jobs, TASK)
    balance = lambda state, theta: TASK.actions.features(10 * (state[..., 2] + 0.5 * state[..., 3] > 0).long())
    fall = lambda state, theta: TASK.actions.features(10 * (state[..., 2] + 0.5 * state[..., 3] < 0).long())
    mixed = lambda state, theta: torch.cat([balance(state, theta)[:1], fall(state, theta)[1:]])
    assert (score(balance) < -80).all()
    assert (score(fall) > -20).all()
    scores = score(mixed)
    assert scores[0] < -80
    assert scores[1] > -20
    assert torch.equal(score(balance), score(balance))


TRIED = [*((DENSITY, noise) for noise in NOISES), *((recipe, "fresh") for recipe in MODELS.values())]


@pytest.mark.parametrize(("recipe", "noise"), TRIED, ids=[*(f"scm, {noise}" for noise in NOISES), *MODELS])
def test_a_policy_is_tried_the_same_alone_and_beside_others(recipe: Any, noise: str) -> None:
    """Whatever the noise: other models neither change its draws nor its returns, and the seed decides both."""
    jobs = [Job(logged(6, seed), seed) for seed in range(3)]
    models = [recipe.fit_many([job])[0] for job in jobs]
    how = CheckpointSelection(starts=4, horizon=25, noise=NOISES[noise])
    together = how.selector(models, jobs, TASK).returns(fixed(0.4, 0.4, 0.4))
    for k, (job, model) in enumerate(zip(jobs, models, strict=True)):
        alone = how.selector([model], [job], TASK)
        torch.testing.assert_close(together[k : k + 1], alone.returns(fixed(0.4)))
        assert torch.equal(alone.returns(fixed(0.4)), how.selector([model], [job], TASK).returns(fixed(0.4)))
    backwards = how.selector(models[::-1], jobs[::-1], TASK).returns(fixed(0.4, 0.4, 0.4))
    torch.testing.assert_close(backwards.flip(0), together)
    assert len(set(together.flatten().tolist())) > 3


def test_choices_are_tried_the_same_alone_and_beside_others(choices: tuple[list[Job], list[Any]]) -> None:
    jobs, models = choices
    for noise in NOISES.values():
        how = CheckpointSelection(starts=4, horizon=25, noise=noise)
        together = how.selector(models, jobs, TASK).returns(fixed(0.4, 0.4, 0.4, 0.4))
        for k, (job, model) in enumerate(zip(jobs, models, strict=True)):
            torch.testing.assert_close(together[k], how.selector([model], [job], TASK).returns(fixed(0.4))[0])


def test_a_learned_task_is_not_moved_in_place() -> None:
    data = logged(6)
    task = Outcome(hidden=(8,), likelihood=BRIEF).fit(data)
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    moved = on_device(task, torch.device("meta"))
    assert moved is not task
    assert {tensor.device.type for tensor in moved.state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in task.state_dict().values()} == {"cpu"}
    assert all(torch.equal(task.state_dict()[name], tensor) for name, tensor in before.items())
    same = on_device(task, "cpu")
    same.heads.end_bias += 1
    assert torch.equal(task.heads.end_bias, before["heads.end_bias"])
    assert on_device(TASK, "meta") is TASK
