"""PETS: the planner with the true model, what its particles do, and the ensemble it plans in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from jaxtyping import config
from torch import Tensor

import counterpoint
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete, nearest
from counterpoint.data.transitions import Transitions
from counterpoint.learners.baselines.pets import (
    PETS,
    EnsembleParticles,
    PETSPolicy,
    Planner,
    PlanningActor,
    PlanningSimulator,
    Propagation,
    TaskPlanningSimulator,
    table_offsets,
)
from counterpoint.models.dynamics.base import DynamicsModel
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.nets.likelihood import (
    Likelihood,
    LikelihoodTraining,
)
from counterpoint.nets.training import Schedule
from counterpoint.ope.model_based import returns
from counterpoint.policies.base import joint_actor
from counterpoint.simulation.rollout import Rollout
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM, Task
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.tumour import Tumour, population

SHAPES = False

BRIEF = Planner(horizon=4, candidates=20, elites=4, iterations=2)
QUICK = Likelihood(Schedule(steps=300, rate="one-cycle"), learning_rate=5e-3, bootstrap=True)
ENSEMBLE = GaussianDynamics(5, (16,), batch_norm=False, likelihood=QUICK)


@dataclass(frozen=True)
class Walk(KnownSCM):
    """A walker on a line: s' = s + a + noise, who wants to be at 0 and falls off beyond 2."""

    actions = Discrete.of([-0.5, 0.0, 0.5])
    discount = 1.0
    horizon = 20
    state_names = ("position",)
    noise_width = 1

    def reward(self, state, action, next_state):
        return 3 - next_state[..., 0].abs()

    def terminated(self, next_state):
        return next_state[..., 0].abs() > 2

    def initial(self, count, generator):
        return 3 * torch.rand(count, 1, generator=generator) - 1.5

    def noise(self, count, generator):
        return 0.05 * torch.randn(count, 1, generator=generator)

    def transition(self, state, action, noise):
        return state + action + noise


def walked(trials: int = 40, seed: int = 0) -> Transitions:
    task = Walk()
    return simulate(task, random_policy(task), trials, 5, seed)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Shapes are not looked at: a hundred thousand steps would spend most of their time on it."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
def test_planning_with_the_true_model_balances_the_pole() -> None:
    """Reward 1 a step and no cost of being off centre: the pole stays up and the cart on the track."""
    task = CartPole(noise_size=0.0)
    planner = Planner(horizon=30, candidates=100, elites=10, iterations=2)
    reached = returns(planner.actor(TaskPlanningSimulator(task), task), task, 1, 1, 0, 500)
    assert reached.min() >= 450


def value(task: KnownSCM, state: Tensor, sequences: Tensor, luck: Tensor) -> Tensor:
    """What two particles in the truth make of every sequence."""
    return BRIEF.value(Rollout(TaskPlanningSimulator(task, 2), task), state, state[..., :0], sequences, luck)


def test_value_is_the_return_until_the_end_and_nothing_after() -> None:
    task, state = Walk(), torch.tensor([[[1.0]]])
    out, home = [0.5, 0.5, 0.5, -0.5], [-0.5, -0.5, 0.0, 0.0]
    sequences = torch.tensor([out, home])[None, None, ..., None]
    found = value(task, state, sequences, torch.zeros(1, 1, 4, 2, 1))
    # 1.5, 2.0, 2.5 (beyond 2: the end, its own reward counts); 0.5, 0, 0, 0
    torch.testing.assert_close(found[0, 0], torch.tensor([1.5 + 1.0 + 0.5, 2.5 + 3 + 3 + 3]))


def test_value_is_the_mean_over_particles_of_one_and_the_same_luck() -> None:
    task, state = Walk(), torch.tensor([[[0.0]]])
    luck = torch.zeros(1, 1, 4, 2, 1)
    luck[0, 0, 0, :, 0] = torch.tensor([1.0, -0.25])
    sequences = torch.zeros(1, 1, 3, 4, 1)
    found = value(task, state, sequences, luck)
    torch.testing.assert_close(found, torch.full((1, 1, 3), (4 * 2.0 + 4 * 2.75) / 2))


def test_plan_walks_home_by_the_shortest_way() -> None:
    state = torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.5])[None, :, None]
    task = Walk()
    actor = Planner(horizon=4, candidates=60, elites=6, iterations=4).actor(TaskPlanningSimulator(task, 4), task)
    assert actor(state, state[..., :0]).flatten().tolist() == [0.5, 0.5, 0.0, -0.5, -0.5]


class Counting(PlanningSimulator):
    """The truth, and how many states each plan was for, of which policies."""

    def __init__(self, task: KnownSCM) -> None:
        self.truth, self.particles, self.prior = TaskPlanningSimulator(task, 2), 2, task.noise
        self.states: list[int] = []
        self.asked: list[int] = []

    def picked(self, policies):
        self.asked = policies.tolist()
        return self

    def step(self, state, action, noise, theta):
        self.states.append(state.shape[0] * state.shape[1] // (2 * BRIEF.candidates))
        return self.truth.step(state, action, noise, theta)

    def planned(self) -> int:
        """States that were planned for since the last question."""
        steps, self.states = self.states, []
        return sum(steps) // (BRIEF.horizon * BRIEF.iterations)


def test_a_state_that_stays_keeps_its_plan_and_costs_nothing() -> None:
    """Two policies of eight states each; only what has changed is planned anew, whichever policy's it is."""
    task = Walk()
    counting = Counting(task)
    actor = BRIEF.actor(counting, task)
    random = torch.Generator().manual_seed(0)
    state = 3 * torch.rand(2, 8, 1, generator=random) - 1.5
    changes = [([], []), ([], []), ([1], [0, 5]), ([0, 1, 2], [4, 5, 6, 7]), ([3], [2])]
    for changed, planned in zip(changes, (16, 0, 3, 7, 2), strict=True):
        for k, moved in enumerate(changed):
            state[k, moved] = 3 * torch.rand(len(moved), 1, generator=random) - 1.5
        found = actor(state, state[..., :0])
        assert counting.planned() == planned
        assert counting.asked == ([0] * len(changed[0]) + [1] * len(changed[1]) if any(changed) else [0] * 8 + [1] * 8)
        assert torch.equal(found, BRIEF.actor(TaskPlanningSimulator(task, 2), task)(state, state[..., :0]))
    whole = 3 * torch.rand(2, 8, 1, generator=random) - 1.5
    assert torch.equal(
        actor(whole, whole[..., :0]), BRIEF.actor(TaskPlanningSimulator(task, 2), task)(whole, whole[..., :0])
    )
    few = whole[:, :7]
    assert torch.equal(actor(few, few[..., :0]), BRIEF.actor(TaskPlanningSimulator(task, 2), task)(few, few[..., :0]))
    assert isinstance(actor, PlanningActor)
    assert actor.batch == 14, "no room is kept that a graph of this many states would not have"


def test_another_factor_of_the_same_state_is_something_new() -> None:
    task, state = Walk(), torch.zeros(1, 4, 1)
    counting = Counting(task)
    actor = BRIEF.actor(counting, task)
    theta = torch.zeros(1, 4, 1)
    actor(state, theta)
    counting.planned()
    actor(state, torch.tensor([0.0, 1.0, 0.0, 2.0])[None, :, None])
    assert counting.planned() == 2


def test_room_for_plans_follows_how_many_there_are() -> None:
    """A planner is made smaller when a quarter of its places is free, and larger at once."""
    task = Walk()
    replanning = PlanningActor(BRIEF, TaskPlanningSimulator(task), task, torch.device("cpu"))
    replanning._set_batch(100)
    widths = []
    for states in (100, 76, 75, 60, 56, 80):
        replanning._resize(states)
        widths.append(replanning.batch)
    assert widths == [100, 100, 75, 75, 56, 80]


def test_nearest_action_of_doses_and_of_treatments() -> None:
    doses = nearest(Discrete.of([0.0, 0.1, 0.2]), torch.tensor([[-3.0], [0.06], [0.14], [9.0]]))
    torch.testing.assert_close(doses.flatten(), torch.tensor([0.0, 0.1, 0.1, 0.2]))
    treatment = nearest(Discrete.one_hot(3), torch.tensor([[0.2, 0.9, 0.8]]))
    assert treatment.tolist() == [[0.0, 1.0, 0.0]]


def test_nearest_action_is_the_one_at_the_least_distance_in_ranges_of_the_columns() -> None:
    random = torch.Generator().manual_seed(0)
    table, asked = torch.randn(7, 3, generator=random), torch.randn(500, 3, generator=random)
    found = nearest(Discrete(tuple(tuple(row) for row in table.tolist())), asked)
    span = table.amax(0) - table.amin(0)
    assert torch.equal(found, table[torch.cdist(asked / span, table / span).argmin(-1)])


def test_a_product_of_doses_in_unlike_units_is_rounded_column_by_column() -> None:
    """Squares of millilitres are a million times those of micrograms, more than single precision holds side by side."""
    fluid, drug = torch.tensor([0.0, 30.0, 100.0, 330.0, 900.0]), torch.tensor([0.0, 0.04, 0.15, 0.3, 0.8])
    actions = Discrete(tuple((f, d) for f in fluid.tolist() for d in drug.tolist()))
    asked = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([900.0, 0.8])
    by_column = [doses[(x[:, None] - doses).abs().argmin(1)] for x, doses in zip(asked.T, (fluid, drug), strict=True)]
    torch.testing.assert_close(nearest(actions, asked), torch.stack(by_column, 1))


def test_states_read_the_tape_at_places_of_their_own() -> None:
    state = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    assert len(table_offsets(state).unique()) > 1900
    assert torch.equal(table_offsets(state[5:6]), table_offsets(state)[5:6])


def moving(propagation: Propagation, particles: int, slope: float = 0.0) -> EnsembleParticles:
    """Two models of two members each; member b of the four adds b + 1 and `slope` times the action to the state."""
    recipe = GaussianDynamics(2, (), batch_norm=False)
    models = []
    for first in (1.0, 3.0):
        mechanism = recipe.build(1, 2, 2)
        mechanism.network.y.take(torch.tensor([first, first + 1]).view(2, 1, 1), torch.ones(2, 1, 1))
        layer = mechanism.network.net.layers[-1]
        layer.weight.data[:, 1, 0] = slope
        # the raw log scale bends at ±7: e⁻⁷ is as still as a member gets
        layer.bias.data[..., 1] = -1000.0
        origin = Origin(0, "", "")
        schema = Schema.of(("position",), Walk.actions)
        models.append(DynamicsModel(recipe, mechanism, schema, origin, torch.zeros(0).long()))
    return EnsembleParticles(models, particles, propagation)


def step(particles: EnsembleParticles, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
    return particles.step(state, action, (noise,), state[..., :0])


def test_particles_keep_their_member_under_ts_infinity_and_change_it_under_ts1() -> None:
    """Two models × four particles of three planning problems."""
    state, action = torch.zeros(2, 4 * 3, 1), torch.zeros(2, 4 * 3, 1)
    random = torch.Generator().manual_seed(0)
    kept, dealt = state, state
    for _ in range(20):
        noise = torch.randn(2, 4 * 3, 2, generator=random)
        kept = step(moving("TSinf", 4), kept, action, noise)
        change = step(moving("TS1", 4), dealt, action, noise) - dealt
        # every member carries the same number of particles at every step, each model its own members
        by_model = change.view(2, 4, 3).sort(1).values
        expected = torch.tensor([[1.0, 1, 2, 2], [3, 3, 4, 4]])[..., None].expand(2, 4, 3)
        torch.testing.assert_close(by_model, expected, atol=0.02, rtol=0)
        dealt = dealt + change
    apart = torch.tensor([[1.0, 1, 2, 2], [3, 3, 4, 4]])[..., None].expand(2, 4, 3)
    torch.testing.assert_close(kept.view(2, 4, 3), 20 * apart, atol=0.2, rtol=0)
    assert (dealt.view(2, 4, 3) - 20 * apart).abs().min() > 2


def test_members_see_bootstraps_of_the_rows_that_are_not_held_out() -> None:
    rows = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    table = {"context": rows, "y": rows[:, :1], "subject": torch.arange(200)}
    assert PETS().model.likelihood.bootstrap
    network = replace(PETS().model, ensemble=2, hidden=(4,)).build(1, 2, 2).network
    learner = LikelihoodTraining(network, [table, table], [1, 2], PETS().model.likelihood)
    drawn = [learner.draw(k, torch.Generator().manual_seed(0), 200)["rows"].unique() for k in range(2)]
    for each, checked in zip(drawn, learner.checked, strict=True):
        assert len(checked) == 30
        assert not torch.isin(each, checked).any()
        assert 0.58 < len(each) / 170 < 0.68  # 1 − 1/e of the rows are in a bootstrap
    assert not torch.equal(*drawn)


def test_policy_learned_from_rows_walks_home_and_is_a_function_of_the_state(tmp_path: Path) -> None:
    task, planner = Walk(), Planner(horizon=4, candidates=40, elites=6, iterations=3)
    recipe = PETS(ENSEMBLE, planner=planner, particles=10)
    jobs = [Job(walked(seed=1), 3), Job(walked(60, seed=2), 4)]
    policies = [each.selected for each in recipe.fit_many(jobs, task)]
    state = torch.tensor([-1.5, -0.7, 0.02, 0.7, 1.5])[:, None]
    for policy in policies:
        assert policy.act(state).flatten().tolist() == [0.5, 0.5, 0.0, -0.5, -0.5]
        assert torch.equal(torch.cat([policy.act(state[i : i + 1]) for i in range(5)]), policy.act(state))
    many = 3 * torch.rand(2, 40, 1, generator=torch.Generator().manual_seed(0)) - 1.5
    acted = joint_actor(policies)(many, many[..., :0])
    for k, policy in enumerate(policies):
        assert torch.equal(acted[k], policy.act(many[k]))
    policies[0].save(tmp_path)
    back = counterpoint.load(tmp_path, counterpoint.Policy, [Walk])
    assert (back.recipe, back.task) == (recipe, task)
    assert torch.equal(back.act(many[0]), acted[0])
    ends = recipe.fit_many(jobs[1:], task)[0]
    assert ends.selected is ends.last, "held-out rows choose, and nothing else is judged"
    alone = ends.selected
    weights = alone.tensors()
    assert len(weights) > 4
    for name, tensor in weights.items():
        torch.testing.assert_close(policies[1].tensors()[name], tensor, atol=1e-3, rtol=1e-2)


BRIEFLY = PETS(replace(ENSEMBLE, likelihood=Likelihood(Schedule(steps=40), bootstrap=True)), planner=BRIEF)


def comes_back(data: Transitions, task: Task, folder: Path) -> tuple[PETSPolicy, PETSPolicy]:
    """A policy for this task, and what `load` makes of its folder without any class named."""
    policy = BRIEFLY.fit(data, task, seed=2)
    assert isinstance(policy, PETSPolicy)
    policy.save(folder)
    loaded = counterpoint.load(folder)
    acted = policy.act(data.state)
    assert torch.equal(loaded.act(data.state), acted)
    assert len(acted.unique(dim=0)) > 1
    assert (loaded.recipe, loaded.origin, loaded.fingerprint) == (BRIEFLY, policy.origin, policy.fingerprint)
    return policy, loaded


def test_a_policy_with_a_learned_task_comes_back_with_the_same_actions(tmp_path: Path) -> None:
    data = walked()
    learned = Outcome(hidden=(8,), likelihood=Likelihood(Schedule(steps=100))).fit(data)
    assert learned.expected(data.state, data.action, data.next_state)[1].min() < 0.9
    policy, loaded = comes_back(data, learned, tmp_path)
    assert loaded.task.fingerprint == learned.fingerprint
    asked = data.state, data.action, data.next_state
    for one, other in zip(learned.branches(*asked), loaded.task.branches(*asked), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(PETSPolicy(BRIEFLY, policy.model, Away()).act(data.state), policy.act(data.state))


class Away(Walk):
    """The same walker, who wants to be far from 0."""

    def reward(self, state, action, next_state):
        return next_state[..., 0].abs()


@pytest.mark.parametrize("patients", [0, 7])
def test_a_policy_with_the_tumour_task_comes_back_with_the_same_actions(patients: int, tmp_path: Path) -> None:
    """One patient's response is three numbers, a population's three columns: both are in the folder, exactly."""
    task = Tumour(radio_cost=0.2, chemo_cost=0.05, horizon=30)
    task = replace(task, response=population(patients, seed=3)) if patients else task
    data = simulate(task, random_policy(task), 10, 10, 0)
    _, loaded = comes_back(data, task, tmp_path)
    assert isinstance(loaded.task, Tumour)
    assert (loaded.task.radio_cost, loaded.task.chemo_cost, loaded.task.horizon) == (0.2, 0.05, 30)
    for one, other in zip(task.response, loaded.task.response, strict=True):
        assert torch.equal(one, other)


def test_model_learns_the_noise_it_plans_with() -> None:
    policy = PETS(ENSEMBLE, planner=BRIEF).fit_many([Job(walked(200), 0)], Walk())[0].last
    assert isinstance(policy, PETSPolicy)
    particles = EnsembleParticles([policy.model], 5, "TSinf")
    noise = particles.prior(2500, torch.Generator().manual_seed(0))[None]
    after = step(particles, torch.zeros(1, 2500, 1), torch.full((1, 2500, 1), 0.5), noise)
    assert after.mean() == pytest.approx(0.5, abs=0.02)
    assert after.view(5, 500).std(1).mean() == pytest.approx(0.05, abs=0.01)


def test_particles_must_share_out_among_members() -> None:
    with pytest.raises(CounterpointError, match="7 particles"):
        PETS(particles=7)


def test_dealt_particles_get_their_own_change_back() -> None:
    """Every member moves a state by ten times its action, plus its own 1, 2, 3 or 4."""
    particles = moving("TS1", 4, slope=10.0)
    action = torch.arange(8.0).view(2, 4, 1).repeat_interleave(3, 1)
    noise = torch.randn(2, 4 * 3, 2, generator=torch.Generator().manual_seed(0))
    own = step(particles, torch.zeros(2, 4 * 3, 1), action, noise) - 10 * action
    assert own.min() > 0.9
    assert own.max() < 4.1
