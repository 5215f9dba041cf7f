"""PETS: the planner with the true model, what its particles do, and the ensemble it plans in."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import config

from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.rollout import returns
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.pets import (
    PETS,
    BootstrapLearner,
    Particles,
    PETSPolicy,
    Planner,
    TrueWorlds,
    nearest,
    places,
)
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.simulate import random_policy, simulate

BRIEF = Planner(horizon=4, candidates=20, elites=4, iterations=2)
QUICK = Likelihood(schedule=Schedule(steps=300, rate="one-cycle"), learning_rate=5e-3)


@dataclass(frozen=True)
class Walk(KnownSCM):
    """A walker on a line: s' = s + a + noise, who wants to be at 0 and falls off beyond 2."""

    actions = Discrete.of([-0.5, 0.0, 0.5])
    discount = 1.0
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
    reached = returns(planner.actor(TrueWorlds(task), task), task, 1, 1, 0, 500)
    assert reached.min() >= 450


def test_worth_is_the_return_until_the_end_and_nothing_after() -> None:
    task, state = Walk(), torch.tensor([[[1.0]]])
    out, home = [0.5, 0.5, 0.5, -0.5], [-0.5, -0.5, 0.0, 0.0]
    sequences = torch.tensor([out, home])[None, None, ..., None]
    found = BRIEF.worth(TrueWorlds(task, 2), state, sequences, task, torch.zeros(1, 1, 4, 2, 1))
    # 1.5, 2.0, 2.5 (beyond 2: the end, its own reward counts); 0.5, 0, 0, 0
    torch.testing.assert_close(found[0, 0], torch.tensor([1.5 + 1.0 + 0.5, 2.5 + 3 + 3 + 3]))


def test_worth_is_the_mean_over_particles_of_one_and_the_same_luck() -> None:
    task, state = Walk(), torch.tensor([[[0.0]]])
    luck = torch.zeros(1, 1, 4, 2, 1)
    luck[0, 0, 0, :, 0] = torch.tensor([1.0, -0.25])
    sequences = torch.zeros(1, 1, 3, 4, 1)
    found = BRIEF.worth(TrueWorlds(task, 2), state, sequences, task, luck)
    torch.testing.assert_close(found, torch.full((1, 1, 3), (4 * 2.0 + 4 * 2.75) / 2))


def test_plan_walks_home_by_the_shortest_way() -> None:
    state = torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.5])[None, :, None]
    task = Walk()
    actor = Planner(horizon=4, candidates=60, elites=6, iterations=4).actor(TrueWorlds(task, 4), task)
    assert actor(state).flatten().tolist() == [0.5, 0.5, 0.0, -0.5, -0.5]


def test_nearest_action_of_doses_and_of_treatments() -> None:
    doses = nearest(Discrete.of([0.0, 0.1, 0.2]), torch.tensor([[-3.0], [0.06], [0.14], [9.0]]))
    torch.testing.assert_close(doses.flatten(), torch.tensor([0.0, 0.1, 0.1, 0.2]))
    treatment = nearest(Discrete.one_hot(3), torch.tensor([[0.2, 0.9, 0.8]]))
    assert treatment.tolist() == [[0.0, 1.0, 0.0]]


def test_nearest_action_is_the_one_at_the_least_distance() -> None:
    random = torch.Generator().manual_seed(0)
    table, asked = torch.randn(7, 3, generator=random), torch.randn(500, 3, generator=random)
    found = nearest(Discrete(tuple(tuple(row) for row in table.tolist())), asked)
    assert torch.equal(found, table[torch.cdist(asked, table).argmin(-1)])


def test_states_read_the_tape_at_places_of_their_own() -> None:
    state = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    assert len(places(state).unique()) > 1900
    assert torch.equal(places(state[5:6]), places(state)[5:6])


def moving(propagation: str, particles: int) -> Particles:
    """Two models of two members each; member b adds b + 1 to the state, whatever happens."""
    law = PETS(ensemble=2, hidden=()).law(1, 2, 4)
    law.y_mean[:, 0, 0] = torch.arange(4.0) + 1
    # the raw log scale bends at ±7: e⁻⁷ is as still as a member gets
    law.net.layers[-1].bias.data[..., 1] = -1000.0
    return Particles(law, 2, particles, propagation)  # pyright: ignore[reportArgumentType]


def test_particles_keep_their_member_under_ts_infinity_and_change_it_under_ts1() -> None:
    state, action = torch.zeros(8, 3, 1), torch.zeros(8, 3, 1)
    random = torch.Generator().manual_seed(0)
    kept, dealt = state, state
    for _ in range(20):
        noise = torch.randn(8, 3, 2, generator=random)
        kept = moving("TSinf", 4).step(kept, action, noise)
        change = moving("TS1", 4).step(dealt, action, noise) - dealt
        # every member carries the same number of particles at every step, each model its own members
        by_model = change.view(2, 4, 3).sort(1).values
        expected = torch.tensor([[1.0, 1, 2, 2], [3, 3, 4, 4]])[..., None].expand(2, 4, 3)
        torch.testing.assert_close(by_model, expected, atol=0.02, rtol=0)
        dealt = dealt + change
    apart = torch.tensor([1.0, 1, 2, 2, 3, 3, 4, 4])[:, None, None].expand(8, 3, 1)
    torch.testing.assert_close(kept, 20 * apart, atol=0.2, rtol=0)
    assert (dealt - 20 * apart).abs().min() > 2


def test_members_see_bootstraps_of_the_rows_that_are_not_held_out() -> None:
    rows = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    table = {"context": rows, "y": rows[:, :1]}
    law = PETS(ensemble=2, hidden=(4,)).law(1, 2, 2)
    learner = BootstrapLearner(law, [table, table], [1, 2], Likelihood())
    drawn = [learner.draw(k, torch.Generator().manual_seed(0), 200)["rows"].unique() for k in range(2)]
    for each in drawn:
        assert each.max() < learner.kept[0] == 170
        assert 0.58 < len(each) / 170 < 0.68  # 1 − 1/e of the rows are in a bootstrap
    assert not torch.equal(*drawn)


def test_policy_learned_from_rows_walks_home_and_is_a_function_of_the_state() -> None:
    task, planner = Walk(), Planner(horizon=4, candidates=40, elites=6, iterations=3)
    recipe = PETS(hidden=(16,), likelihood=QUICK, planner=planner, particles=10)
    jobs = [Job(walked(seed=1), 3), Job(walked(60, seed=2), 4)]
    policies = [each.selected for each in recipe.fit_many(jobs, task)]
    state = torch.tensor([-1.5, -0.7, 0.02, 0.7, 1.5])[:, None]
    for policy in policies:
        assert policy.act(state).flatten().tolist() == [0.5, 0.5, 0.0, -0.5, -0.5]
        assert torch.equal(torch.cat([policy.act(state[i : i + 1]) for i in range(5)]), policy.act(state))
    many = 3 * torch.rand(2, 40, 1, generator=torch.Generator().manual_seed(0)) - 1.5
    acted = type(policies[0]).together(policies)(many)
    for k, policy in enumerate(policies):
        assert torch.equal(acted[k], policy.act(many[k]))
    back = recipe.rebuild(policies[0].header(), policies[0].weights(), task.actions, policies[0].origin)
    assert torch.equal(back.act(many[0]), acted[0])
    alone = recipe.fit_many(jobs[1:], task)[0].selected
    for name, tensor in alone.weights().items():
        torch.testing.assert_close(policies[1].weights()[name], tensor, atol=1e-3, rtol=1e-2)


def test_model_learns_the_noise_it_plans_with() -> None:
    recipe = PETS(hidden=(16,), likelihood=QUICK, planner=BRIEF)
    policy = recipe.fit_many([Job(walked(200), 0)], Walk())[0].last
    assert isinstance(policy, PETSPolicy)
    worlds = Particles(policy.law, 1, 5, "TSinf")
    state = torch.zeros(5, 500, 1)
    noise = worlds.noise(2500, torch.Generator().manual_seed(0)).view(5, 500, 2)
    after = worlds.step(state, torch.full((5, 500, 1), 0.5), noise).detach()
    assert after.mean() == pytest.approx(0.5, abs=0.02)
    assert after.std(1).mean() == pytest.approx(0.05, abs=0.01)


def test_particles_must_share_out_among_members() -> None:
    with pytest.raises(CounterpointError, match="7 particles"):
        PETS(particles=7).fit(walked(), Walk())


def test_dealt_particles_get_their_own_change_back() -> None:
    """Every member moves a state by ten times its action, plus its own 1, 2, 3 or 4."""
    worlds = moving("TS1", 4)
    worlds.law.net.layers[-1].weight.data[:, 1, 0] = 10.0  # pyright: ignore[reportArgumentType, reportIndexIssue]
    action = torch.arange(8.0)[:, None, None].expand(8, 3, 1)
    noise = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))
    own = worlds.step(torch.zeros(8, 3, 1), action, noise).detach() - 10 * action
    assert own.min() > 0.9
    assert own.max() < 4.1
