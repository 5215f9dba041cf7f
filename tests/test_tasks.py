"""Trials, the Gymnasium face, the synthetic SCMs and the clinical simulators, against numbers worked by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.core.seeding import derive, generator
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.transitions import Transitions
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.nets.training import Schedule
from counterpoint.ope.model_based import true_return
from counterpoint.simulation.gym import SCMEnv
from counterpoint.simulation.rollout import TaskSimulator
from counterpoint.simulation.trials import random_policy, simulate, simulate_population, trial_subset
from counterpoint.tasks import (
    hiv,
    tumour,
)
from counterpoint.tasks.cartpole import PLANETS, CartPole
from helpers.recipes import BRIEF, DENSITY
from reproduction.tasks import structural_problems as synthetic
from reproduction.tasks.structural_problems import (
    PROBLEMS,
    SIMPSON_SYMPROD,
    TRIANGLE_NLIN,
    sample,
)


def stays() -> Transitions:
    """Forty stays of four rows; the last row of each is a death or a discharge, after which nothing is seen."""
    frame = pd.DataFrame({"id": [i // 4 for i in range(160)], "hour": [i % 4 for i in range(160)]})
    frame[["rate", "lactate"]] = torch.randn(160, 2, generator=generator(0)).numpy()
    frame["dose"], frame["reward"] = [(i * 7 % 3) / 2 for i in range(160)], -frame["lactate"]
    frame["died"] = (frame["hour"] == 3) & (frame["id"] % 3 == 0)
    frame["discharged"] = (frame["hour"] == 3) & ~frame["died"]
    roles = {"subject": "id", "time": "hour", "state": ["rate", "lactate"], "action": "dose", "reward": "reward"}
    with pytest.warns(CounterpointWarning, match="equals the reward"):
        return from_dataframe(frame, **roles, done=["died", "discharged"])


def trials_of(count: int, seed: int = 0, steps: int = 20, **options):
    return simulate(CartPole(), random_policy(CartPole()), count, steps, seed, **options)


def test_a_trial_does_not_depend_on_how_many_are_asked_for() -> None:
    many = trials_of(130)
    for count in (7, 50, 100):
        assert trial_subset(many, count).fingerprint == trials_of(count).fingerprint


def test_seeds() -> None:
    assert trials_of(20).fingerprint == trials_of(20).fingerprint
    assert not torch.equal(trials_of(20).noise, trials_of(20, seed=1).noise)
    rows = trials_of(100)
    assert not torch.equal(rows.noise[:1000], rows.noise[1000:]), "blocks must not share a stream"


def test_start_noise_observation_and_policy_have_streams_of_their_own() -> None:
    seeds: dict[str, int] = {}

    class Watched(CartPole):
        def initial(self, count, generator):
            seeds["initial"] = generator.initial_seed()
            return super().initial(count, generator)

        def noise(self, count, generator):
            seeds["noise"] = generator.initial_seed()
            return super().noise(count, generator)

        def observe(self, state, generator):
            seeds["observation"] = generator.initial_seed()
            return super().observe(state, generator)

    def policy(state, generator):
        seeds["policy"] = generator.initial_seed()
        return torch.ones(len(state), 1)

    simulate(Watched(), policy, 1, 1, seed=0)
    assert len(set(seeds.values())) == len(seeds) == 4


def test_shorter_trials_are_the_beginnings_of_longer_ones() -> None:
    long, short = trials_of(50, steps=20), trials_of(50, steps=8)
    assert torch.equal(long.state[long.step < 8], short.state)


def test_trials_are_consecutive_and_end_once() -> None:
    rows = trials_of(60)
    state, next_state = rows.state.view(60, 20, 4), rows.next_state.view(60, 20, 4)
    assert torch.equal(state[:, 1:], next_state[:, :-1])
    assert torch.equal(rows.terminated, CartPole().terminated(rows.next_state))
    assert torch.equal(rows.truncated, (rows.step == 19) & ~rows.terminated)
    assert torch.equal(rows.subject, torch.arange(60).repeat_interleave(20))


def test_a_failure_opens_a_new_episode_and_no_window_crosses_it() -> None:
    rows = trials_of(100)
    assert rows.terminated.any()
    follows = (rows.step > 0).nonzero()[:, 0]
    opened = rows.episode[follows] != rows.episode[follows - 1]
    assert torch.equal(opened, rows.terminated[follows - 1])
    windows = rows.windows(5).rows
    assert not rows.terminated[windows[:, :-1]].any()
    assert len(windows) < 100 * 16


def test_stopping_at_failure_keeps_each_trial_up_to_its_first_failure() -> None:
    full, stopped = trials_of(100), trials_of(100, stop_at_failure=True)
    for trial in range(100):
        failed = full.terminated[full.subject == trial].nonzero()
        length = int(failed[0]) + 1 if len(failed) else 20
        kept = stopped[stopped.subject == trial]
        assert torch.equal(kept.state, full.state[full.subject == trial][:length])
        assert int((kept.terminated | kept.truncated).sum()) == 1
        assert torch.equal(kept.episode, kept.subject)


def test_policies_under_one_seed_meet_the_same_noise() -> None:
    task = CartPole()
    pushed = simulate(task, lambda state, _: torch.ones(len(state), 1), 50, 5, seed=0)
    assert torch.equal(pushed.noise, trials_of(50, steps=5).noise)


def test_population_of_planets_keeps_each_planets_truth() -> None:
    tasks = [CartPole(gravity=gravity) for gravity in PLANETS.values()]
    rows = simulate_population(tasks, random_policy, trials=10, steps=20, seed=0)
    assert len(rows) == 1000
    assert len(rows.subject_names) == 50
    pairs = set(zip(rows.subject.tolist(), rows.episode.tolist(), strict=True))
    assert len(set(rows.episode.tolist())) == len(pairs), "no two subjects share an episode"
    for i, task in enumerate(tasks):
        own = rows[rows.subject // 10 == i]
        torch.testing.assert_close(task.counterfactual(own, own.action), own.next_state, atol=1e-6, rtol=0)
        wrong = tasks[(i + 1) % 5].counterfactual(own, own.action)
        assert (wrong - own.next_state).abs().max() > 1e-3


def test_wrong_requests_are_named() -> None:
    with pytest.raises(CounterpointError, match="0 trials"):
        trials_of(0)
    with pytest.raises(CounterpointError, match="holds 20"):
        trial_subset(trials_of(20), 21)
    with pytest.raises(CounterpointError, match="outside the action space"):
        simulate(CartPole(), lambda state, _: torch.full((len(state), 1), 0.33), 5, 2, seed=0)


def test_gym_environment_passes_gymnasiums_checker() -> None:
    check_env(SCMEnv.of_task(CartPole()), skip_render_check=True)


def test_gym_environment_tells_the_noise_and_cuts_at_the_horizon() -> None:
    task = CartPole()
    assert SCMEnv.of_task(task).horizon == task.horizon == 500
    env = SCMEnv.of_task(task, horizon=6)
    state, _ = env.reset(seed=5)
    for step in range(6):
        observed, reward, terminated, truncated, info = env.step(5)
        replayed = task.transition(torch.tensor(state), torch.tensor([0.5]), torch.tensor(info["noise"]))
        torch.testing.assert_close(replayed, torch.tensor(observed), atol=1e-6, rtol=0)
        assert (terminated, truncated, reward) == (False, step == 5, 1.0)
        state = observed
    env.reset(seed=5)
    *_, again = env.step(5)
    env.reset(seed=6)
    *_, other = env.step(5)
    assert not (again["noise"] == other["noise"]).all()


def test_gym_environment_terminates_before_it_truncates() -> None:
    env = SCMEnv.of_task(CartPole())
    env.reset(seed=0)
    steps = [env.step(10) for _ in range(12)]
    ends = [terminated for _, _, terminated, _, _ in steps]
    assert any(ends)
    assert not any(truncated for _, _, _, truncated, _ in steps)
    assert [info["outcome"] for *_, info in steps] == ["terminated" if end else "" for end in ends]
    env = SCMEnv.of_task(CartPole(), horizon=ends.index(True) + 1)
    env.reset(seed=0)
    *_, terminated, truncated, _ = [env.step(10) for _ in range(env.horizon)][-1]
    assert (terminated, truncated) == (True, False), "an end at the horizon is an end"


def test_gym_environment_shows_what_the_policy_sees_and_tells_the_state() -> None:
    env = SCMEnv.of_task(CartPole(noise_reading="observation"))
    observed, info = env.reset(seed=1)
    assert 0 < abs(observed - info["state"]).max() < 0.5
    for _ in range(3):
        observed, *_, info = env.step(5)
        assert 0 < abs(observed - info["state"]).max() < 0.5


@pytest.mark.parametrize("task", [CartPole(), tumour.Tumour(), hiv.HIV()], ids=["cartpole", "tumour", "hiv"])
def test_gym_environment_of_one_subject_of_every_simulator(task) -> None:
    env = SCMEnv.of_task(task, horizon=3)
    check_env(env, skip_render_check=True)
    assert env.observation_space.shape == (len(task.state_names),)
    assert env.action_space.n == task.actions.count


def test_gym_environment_of_a_population_has_one_patient_an_episode() -> None:
    task = tumour.Tumour(tumour.population(7, 0))
    env = SCMEnv.of_task(task)
    check_env(env, skip_render_check=True)
    met = set()
    for seed in range(30):
        state, _ = env.reset(seed=seed)
        patients = set(range(7))
        for action in (0, 1, 2, 3):
            observed, *_, info = env.step(action)
            features, noise = task.actions.table()[action], torch.tensor(info["noise"])
            for patient in list(patients):
                own = task.of_subjects(torch.tensor([patient]))
                after = own.transition(*(torch.as_tensor(x)[None] for x in (state, features, noise)))[0]
                if not torch.allclose(after, torch.tensor(observed), atol=1e-6):
                    patients.remove(patient)
            state = observed
        assert len(patients) == 1
        met |= patients
    assert met == set(range(7))


def test_gym_environment_of_a_fitted_model() -> None:
    """Gymnasium's checker accepts it, and every step is the answer of the episode's own member to the noise told."""
    rows = trials_of(10)
    model = DENSITY.fit(rows)
    env = SCMEnv.of_model(model, CartPole(), rows)
    check_env(env, skip_render_check=True)
    firsts, members = rows.state[rows.step == 0], set()
    for seed in range(6):
        state, _ = env.reset(seed=seed)
        assert (firsts == torch.tensor(state)).all(1).any(), "episodes start where the log does"
        answered = set(range(2))
        for action in (0, 10, 5):
            observed, reward, terminated, _, info = env.step(action)
            told = torch.tensor([*state, action / 10]).expand(2, 1, -1)
            noise, before = (torch.tensor(x).expand(2, 1, -1) for x in (info["noise"], state))
            answers = model.mechanism.predict(told, before, noise)[:, 0]
            same = torch.isclose(answers, torch.tensor(observed), atol=1e-5).all(1)
            answered &= set(same.nonzero()[:, 0].tolist())
            assert reward == 1.0
            assert terminated == bool(CartPole().terminated(torch.tensor(observed)))
            state = observed
        assert len(answered) == 1, "one member answers for the whole episode"
        members |= answered
    assert members == {0, 1}


def test_gym_environment_of_a_fitted_model_and_learned_ends() -> None:
    """A death or discharge that leaves no next state shows the last one seen, under the name of the outcome."""
    rows = stays()
    model, task = DENSITY.fit(rows), Outcome(hidden=(8,), likelihood=BRIEF).fit(rows)
    env = SCMEnv.of_model(model, task, rows)
    check_env(env, skip_render_check=True)
    assert env.horizon == task.horizon == int(rows.step.max()) + 1
    told = set()
    for seed in range(60):
        state, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            observed, reward, terminated, truncated, info = env.step(seed % 3)
            told.add(info["outcome"])
            assert math.isfinite(reward)
            assert (info["outcome"] != "") == terminated
            if terminated:
                assert (observed == state).all(), "the log has no state after an end"
            state = observed
    assert told == {"", "died", "discharged"}


BY_HAND = {
    # s = 0.5 (all states), a = −0.4, u = 0.7 (all noises)
    "a": 0.8 * 0.5 + 0.5 * math.sin(1.0) - 0.4 - 0.1 + 0.21,
    "b": 0.25 - 0.4 + 0.4 * math.exp(-0.32 + 0.3 * math.sin(1.0)) * 0.7,
    "c": 0.25 - 0.4 + 0.28 + 0.2 / (1 + math.exp(0.3)) * math.log1p(math.exp(2.1)),
    "h": 0.25 - 0.4 + 0.5 * (math.exp(-0.36 * 0.7) - 1) / -0.36,
}


@pytest.mark.parametrize("letter", BY_HAND)
def test_scalar_equations_by_hand(letter: str) -> None:
    out = PROBLEMS[letter].transition(torch.tensor([0.5]), torch.tensor([-0.4]), torch.tensor([0.7]))
    assert math.isclose(float(out), BY_HAND[letter], rel_tol=1e-5)


def test_four_state_equations_by_hand() -> None:
    state, action, noise = torch.tensor([0.2, -0.5, 1.0, 0.4]), torch.tensor([0.5]), torch.tensor([1.0, -1.0, 0.5, 2.0])
    m = [
        0.2 - 0.15 + 0.25,
        -0.4 + 0.5 + 0.3 * math.sin(2.0),
        1.0 + 0.12 + 0.3 * (1 + 0.5 * math.tanh(0.2)),
        0.32 - 0.4 * math.cos(1.0) + 0.3 * math.tanh(-0.1),
    ]
    r = math.sqrt(0.5)
    added = {
        "d": [
            0.3,
            -0.3 * math.exp(0.25),
            0.3 * (math.exp(0.3) - 1),
            0.25 * math.sinh(2.0) * (1 + 0.5 * math.tanh(0.4)),
        ],
        "e1": [
            0.3 * (1 - 0.6 - 0.2 + 0.4),
            0.3 * (-0.5 - 1 + 0.25 + 0.6),
            0.3 * (0.4 + 0.3 + 0.5 + 1.2),
            0.3 * (0.2 - 0.5 - 0.3 + 2),
        ],
        "e2": [0.4 * r * v for v in (1 + 1, 1 - 1, 0.5 - 2, 0.5 + 2)],
        "f": [0.3, -0.3 + 0.3, 0.15 + 0.3, 0.6 + 0.15],
    }
    for letter, noisy in added.items():
        out = PROBLEMS[letter].transition(state, action, noise)
        expected = torch.tensor([mean + extra for mean, extra in zip(m, noisy, strict=True)])
        assert (out - expected).abs().max() < 1e-5, letter


def slopes(task: synthetic.OneStep, rows) -> torch.Tensor:
    """∂s'_i/∂u_j, row by row."""
    noise = rows.noise.clone().requires_grad_()
    out = task.transition(rows.state, rows.action, noise)
    rows_of = [torch.autograd.grad(column.sum(), noise, retain_graph=True)[0] for column in out.unbind(1)]
    return torch.stack(rows_of, 1)


@pytest.mark.parametrize("letter", ["a", "b", "c", "h", "d", "f"])
def test_strictly_increasing_in_the_own_noise(letter: str) -> None:
    rows = sample(PROBLEMS[letter], 500, seed=0)
    slope = slopes(PROBLEMS[letter], rows)
    assert slope.diagonal(dim1=1, dim2=2).min() > 0
    later = slope.triu(1)
    assert later.abs().max() == 0, "no state depends on the noise of a later one"


def test_turning_noise_is_not_monotone_and_diagonal_noise_is_diagonal() -> None:
    turning = slopes(PROBLEMS["e2"], sample(PROBLEMS["e2"], 500, seed=0))
    assert turning[:, 0, 1].abs().max() > 0.3
    assert turning[:, 1, 0].sign().unique().numel() > 1, "the direction turns with the action"
    independent = slopes(PROBLEMS["d"], sample(PROBLEMS["d"], 500, seed=0))
    assert independent.tril(-1).abs().max() == 0


def test_skew_has_no_hole_at_the_zero_action() -> None:
    task, noise = PROBLEMS["h"], torch.tensor([[1.3]])
    out = [task.transition(torch.zeros(1, 1), torch.tensor([[a]]), noise).item() - a for a in (-1e-3, 0.0, 1e-3)]
    assert math.isclose(out[1], 0.65, rel_tol=1e-5)
    assert out[0] < out[1] < out[2]


def test_bimodal_noise_has_the_stated_modes() -> None:
    noise = PROBLEMS["c"].noise(20000, generator(0))
    assert math.isclose(float((noise < 0).float().mean()), 0.35, abs_tol=0.01)
    assert math.isclose(float(noise[noise > 0].mean()), 1.0, abs_tol=0.01)
    assert math.isclose(float(noise[noise < 0].std()), 0.25, abs_tol=0.01)


@pytest.mark.parametrize("letter", PROBLEMS)
def test_synthetic_truth_keeps_state_and_noise(letter: str) -> None:
    task = PROBLEMS[letter]
    rows = sample(task, 200, seed=1)
    torch.testing.assert_close(task.counterfactual(rows, rows.action), rows.next_state, atol=1e-6, rtol=0)
    there_and_back = task.counterfactual(rows, -rows.action)
    assert (there_and_back - rows.next_state).abs().max() > 0.1
    assert rows.action.abs().max() <= 1
    assert rows.action.std() > 0.5
    assert sample(task, 200, seed=1).fingerprint == rows.fingerprint != sample(task, 200, seed=2).fingerprint


def test_causal_sets_by_hand() -> None:
    u = torch.tensor([[0.5, -1.0, 2.0, 1.0]])
    x2 = 2 * 0.25 - 1.0
    triangle = [0.5, x2, 20 / (1 + math.exp(-(x2**2) + 0.5)) + 2.0]
    torch.testing.assert_close(TRIANGLE_NLIN.solve(u[:, :3]), torch.tensor([triangle]))
    y2 = 2 * math.tanh(1.0) - 1 / math.sqrt(10)
    simpson = [0.5, y2, 0.25 * y2 + 2 / math.sqrt(2), math.tanh(0.75) + math.sqrt(0.3)]
    torch.testing.assert_close(SIMPSON_SYMPROD.solve(u), torch.tensor([simpson]))


def test_interventions_change_descendants_only() -> None:
    x, noise = SIMPSON_SYMPROD.sample(500, seed=0)
    after = SIMPSON_SYMPROD.counterfactual(noise, variable=1, value=0.3)
    assert torch.equal(after[:, [0, 3]], x[:, [0, 3]])
    assert (after[:, 1] == 0.3).all()
    torch.testing.assert_close(after[:, 2] - x[:, 2], x[:, 0] * (0.3 - x[:, 1]) / 2)


def test_questions_are_quartiles_of_the_intervened_variables() -> None:
    x, _ = TRIANGLE_NLIN.sample(4000, seed=0)
    asked = TRIANGLE_NLIN.queries(x)
    assert [variable for variable, _ in asked] == [0, 0, 0, 1, 1, 1]
    for (variable, value), share in zip(asked, (0.25, 0.5, 0.75) * 2, strict=True):
        assert math.isclose(float((x[:, variable] < value).float().mean()), share, abs_tol=1e-3)


@pytest.mark.parametrize("graph", [TRIANGLE_NLIN, SIMPSON_SYMPROD])
def test_stated_parents_are_the_equations_parents(graph: synthetic.CausalSet) -> None:
    _, noise = graph.sample(50, seed=0)
    size = len(graph.names)
    for i in range(size):
        before = torch.randn(50, i, generator=generator(i)).requires_grad_()
        out = graph.equations[i](before, noise[:, i]).sum()
        grad = torch.autograd.grad(out, before, allow_unused=True)[0] if out.requires_grad else None
        used = torch.zeros(i, dtype=torch.bool) if grad is None else grad.abs().amax(0) > 0
        assert torch.equal(used, graph.adjacency()[i, :i])
        assert not graph.adjacency()[i, i:].any()


def test_tumour_grows_untreated_and_shrinks_under_radiotherapy() -> None:
    task = tumour.Tumour(tumour.population(50, seed=0), noise_size=0.0)
    none, radio = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0])
    left_alone, treated = (simulate(task, lambda s, _, a=a: a.expand(len(s), 2), 50, 10, 0) for a in (none, radio))
    assert (left_alone.next_state[:, 0] > left_alone.state[:, 0]).all()
    fall = (treated.state - treated.next_state)[:, 0].view(50, 10)
    strong = task.response.radio > 0.1
    assert strong.any()
    assert (fall[strong] > 0).all()


def test_tumour_step_by_hand() -> None:
    response = tumour.TumourResponse(torch.tensor(0.2), torch.tensor(0.005), torch.tensor(0.03))
    task = tumour.Tumour(response)
    out = task.transition(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.5]))
    capacity = math.log(math.pi / 6 * 30**3)
    expected = 3 + 0.005 * (capacity - 3) - 0.03 * 7 - (0.2 * 2 + 0.02 * 4) + 0.015
    torch.testing.assert_close(out, torch.tensor([expected, 7.0]))
    reward = task.reward(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0]), out)
    assert math.isclose(float(reward), 3 - expected - 0.35, rel_tol=1e-4)
    dead = torch.tensor([math.log(math.pi / 6 * 13**3) + 0.01, 0.0])
    assert bool(task.terminated(dead))
    assert float(task.reward(dead, torch.zeros(2), dead)) == -10


def test_tumour_population_leaves_room_for_personal_decisions() -> None:
    """Radiotherapy at a cost of 0.35: 0.07 if all or none receive it, 0.14 if each patient is decided apart."""
    response = tumour.population(100000, seed=0)
    assert response.radio.min() > 0
    assert response.growth.min() > 0
    gain = 2.4 * response.radio - 0.35
    assert math.isclose(float(gain.mean()), 0.070, abs_tol=0.003)
    assert math.isclose(float(gain.clamp_min(0).mean()), 0.139, abs_tol=0.003)


@pytest.mark.parametrize(
    "task", [tumour.Tumour(tumour.population(60, seed=0)), hiv.HIV(hiv.population(60, seed=0))], ids=["tumour", "hiv"]
)
def test_subject_parameters_follow_the_rows(task) -> None:
    rows = simulate(task, random_policy(task), 60, 3, seed=0)
    order = torch.randperm(len(rows), generator=generator(0))
    shuffled = rows[order]
    truth = task.counterfactual(shuffled, shuffled.action)
    torch.testing.assert_close(truth, shuffled.next_state, atol=1e-5, rtol=1e-6)
    alone = task.of_subjects(torch.tensor([7]))
    own = rows[rows.subject == 7]
    torch.testing.assert_close(alone.transition(own.state, own.action, own.noise), own.next_state, atol=1e-5, rtol=1e-6)
    stranger = task.of_subjects(torch.tensor([8]))
    assert (stranger.transition(own.state, own.action, own.noise) - own.next_state).abs().max() > 1e-4


@pytest.mark.parametrize("trials", [1, 3, 7, 16])
@pytest.mark.parametrize(
    "task",
    [tumour.Tumour(tumour.population(7, 0)), hiv.HIV(hiv.population(7, 0), horizon=2)],
    ids=["tumour", "hiv"],
)
def test_a_policy_meets_the_patients_of_a_population_one_after_the_other(task, trials: int) -> None:
    """Trial i is one of patient i mod 7: a loop by hand with that patient's own parameters gives the same return."""
    rows = simulate(task, random_policy(task), 10, 2, seed=0)
    policy = D3QN((8,), Schedule(steps=5), batch=16).fit(rows, task)
    found = true_return(policy, task, trials, seed=4)
    state = task.initial(trials, generator(4, "evaluation start"))
    stream = TaskSimulator(task).fresh(trials, derive(4, "evaluation"))
    noise = [stream(t)[0] for t in range(task.horizon)]
    expected, neighbours = (returns_of(policy, task, (torch.arange(trials) + k) % 7, state, noise) for k in (0, 1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert ((found - neighbours).abs() > 1e-4).all()


def returns_of(policy, task, patients: torch.Tensor, state: torch.Tensor, noise: list[torch.Tensor]) -> torch.Tensor:
    """Row i with the response of patients[i], step by step until the end."""
    task = replace(task, response=type(task.response)(*(value[patients] for value in task.response)))
    total, alive = torch.zeros(len(state)), torch.ones(len(state), dtype=torch.bool)
    for drawn in noise:
        action = policy.act(state)
        after = task.transition(state, action, drawn)
        total += torch.where(alive, task.reward(state, action, after), 0.0)
        alive &= ~task.terminated(after)
        state = after
    return total


def test_hiv_rests_at_its_published_steady_states() -> None:
    for published in (hiv.UNHEALTHY, hiv.HEALTHY):
        state = torch.tensor(published, dtype=torch.float64).log()
        after = hiv.HIV().flow(state, torch.zeros(2, dtype=torch.float64))
        # The published numbers are rounded to whole cells: T₂* = 6 may be off by a twelfth.
        torch.testing.assert_close(after, state, atol=0.03, rtol=0)


def test_hiv_integration_agrees_with_an_adaptive_solver() -> None:
    from scipy.integrate import solve_ivp

    task = hiv.HIV()
    rows = simulate(task, random_policy(task), 5, 12, seed=0)[::10]
    errors = []
    for state, action in zip(rows.state.double(), rows.action.double(), strict=True):

        def change(_, x, action=action):
            x = torch.tensor(x)
            production, loss = hiv.balance(x, action, task.response)
            return (production - loss * x).numpy()

        solved = solve_ivp(change, (0, 5), state.exp().numpy(), method="LSODA", rtol=1e-8, atol=1e-8).y[:, -1]
        errors.append((task.flow(state, action) - torch.tensor(solved).log()).abs())
    assert torch.stack(errors).max() < 0.02
    assert torch.stack(errors).median() < 0.002


def test_hiv_balance_by_hand() -> None:
    x = torch.tensor([1e5, 10.0, 1e3, 50.0, 1e4, 30.0], dtype=torch.float64)
    production, loss = hiv.balance(x, torch.ones(2, dtype=torch.float64), hiv.HIVResponse())
    change = production - loss * x
    infected = 1050.0
    t1, t2 = 0.3 * 8e-7 * 1e4 * 1e5, (1 - 0.34 * 0.7) * 1e-4 * 1e4 * 10
    expected = [
        1e4 - 1e3 - t1,
        31.98 - 0.1 - t2,
        t1 - 0.7e3 - 1e-5 * 30 * 1e3,
        t2 - 35 - 1e-5 * 30 * 50,
        0.7 * 100 * 0.7 * infected - 13e4 - t1 - t2,
        1 + (0.3 * infected / (infected + 100) - 0.25 * infected / (infected + 500) - 0.1) * 30,
    ]
    torch.testing.assert_close(change, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_hiv_reward_by_hand() -> None:
    """E = 50 and V = 1000 after the step earn 50,000 − 100; the drugs cost 20,000·.7² = 9,800 and 2,000·.3² = 180."""
    task = hiv.HIV()
    before, after = (torch.tensor(x, dtype=torch.float64).log() for x in ([7.0] * 6, [1.0, 1, 1, 1, 1000, 50]))
    reward = task.reward(before.expand(4, 6), task.actions.table().double(), after.expand(4, 6))
    torch.testing.assert_close(reward, torch.tensor([0.499, 0.401, 0.4972, 0.3992], dtype=torch.float64))


def test_both_drugs_lower_the_virus() -> None:
    task = hiv.HIV()
    action = task.actions.table().double()
    state = torch.tensor(hiv.UNHEALTHY, dtype=torch.float64).log().expand(4, 6)
    for _ in range(4):
        state = task.flow(state, action)
    none, transcriptase, protease, both = state[:, 4].tolist()
    assert both < transcriptase < none - 1
    assert protease < none
