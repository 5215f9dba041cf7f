"""D3QN against numbers worked by hand and against a chain whose values are known."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import counterpoint
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import ActionSpace, Box, Discrete
from counterpoint.data.transitions import Transitions, concatenate, first_outcome
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    double_q_objective,
    table,
)
from counterpoint.nets.stacked import StackedLinear, initialise
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import joint_actor
from counterpoint.policies.q import DuelingQ, QPolicy
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks.base import Task
from helpers.selectors import FunctionSelector

GAMMA = 0.9
TINY = D3QN(hidden=(16,), schedule=Schedule(steps=20), batch=8)


class Chain(Task):
    """Rooms 0 … 3; action 1 goes right, action 0 stays; reaching room 3 pays 1 and ends."""

    discount = GAMMA
    horizon = 10

    def __init__(self, actions: ActionSpace = Discrete.of([0.0, 1.0])) -> None:
        self.actions = actions

    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        return (next_state[..., 0] == 3).float()

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        return next_state[..., 0] == 3


CHAIN = Chain()


def log(
    state: Sequence[float],
    action: Sequence[float],
    next_state: Sequence[float],
    reward: Sequence[float],
    terminated: Sequence[bool],
    truncated: Sequence[bool] = (),
) -> Transitions:
    column = lambda values: torch.tensor(values)[:, None]
    return Transitions.logged(
        state=column(state),
        action=column(action),
        reward=torch.tensor(reward),
        next_state=column(next_state),
        terminated=torch.tensor(terminated),
        truncated=torch.tensor(truncated or [False] * len(state)),
        subject=torch.arange(len(state)),
        step=torch.zeros(len(state), dtype=torch.long),
        actions=CHAIN.actions,
    )


ROOMS = log(
    state=[0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
    action=[0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
    next_state=[0.0, 1.0, 1.0, 2.0, 2.0, 3.0],
    reward=[0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    terminated=[False, False, False, False, False, True],
)
BEST = {room: GAMMA ** (2 - room) for room in (0, 1, 2)}
"""V of each room: the end pays 1, and every step before it costs a factor γ. Staying is worth γ·V."""


def linear_q(learner: D3QN, values: Sequence[Sequence[float]]) -> DuelingQ:
    """A network with Q(s, a) = intercept_a + slope_a·s, whatever s; `values` are (intercept, slope) by action."""
    network = replace(learner, hidden=()).build(1, len(values), 1)
    layer = network.net.layers[0]
    assert isinstance(layer, StackedLinear)
    lines = torch.tensor(values, dtype=torch.float32)
    mean = lines.mean(0)
    layer.bias.data[0, 0] = torch.cat([mean[:1], lines[:, 0]])
    layer.weight.data[0, 0] = torch.cat([mean[1:], lines[:, 1]])
    return network


def q_learner(data: Transitions, how: D3QN = TINY, seed: int = 0) -> QLearner:
    network = how.build(data.state_size, CHAIN.actions.count, 1)
    initialise(network, [seed])
    return QLearner(network, how.build, [table(Job(data))], how, double_q_objective(CHAIN, Job(data)), None)


def bootstrap(learner: QLearner, reward: Tensor, next_state: Tensor, not_terminated: Tensor) -> Tensor:
    return learner.objective.target(learner, reward, next_state, not_terminated)


def hand_made() -> QLearner:
    """At s' = 2 the online network likes action 1 (5 against 4) and the target network action 0 (10 against 7)."""
    how = replace(TINY, hidden=())
    online = linear_q(how, [[0, 2], [1, 2]])
    learner = QLearner(online, how.build, [table(Job(ROOMS))], how, double_q_objective(CHAIN, Job(ROOMS)), None)
    learner.target.load_state_dict(linear_q(how, [[0, 5], [3, 2]]).state_dict())
    for network in (learner.online, learner.target):
        network.states.take(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    return learner


def test_double_q_target_by_hand() -> None:
    """The online network's own value would give 1 + .9·5, the target network's own choice 1 + .9·10."""
    learner, two = hand_made(), torch.full((1, 1, 1), 2.0)
    assert learner.online(two).flatten().tolist() == [4, 5]
    assert learner.target(two).flatten().tolist() == [10, 7]
    target = bootstrap(learner, torch.ones(1, 1), two, torch.ones(1, 1))
    assert target.item() == pytest.approx(1 + 0.9 * 7)


def test_a_terminated_row_is_worth_its_reward_alone() -> None:
    target = bootstrap(hand_made(), torch.ones(1, 2), torch.full((1, 2, 1), 2.0), torch.tensor([[0.0, 1.0]]))
    assert target[0].tolist() == pytest.approx([1, 7.3])


def test_termination_cuts_the_future_and_truncation_does_not() -> None:
    rows = log([0.0, 1.0], [0.0, 1.0], [2.0, 2.0], [1.0, 1.0], [True, False], [False, True])
    assert table(Job(rows))["not_terminated"].tolist() == [0, 1]


def learned_values(data: Transitions, how: D3QN, states: Sequence[float]) -> Tensor:
    policy = how.fit(data, CHAIN, seed=0)
    assert isinstance(policy, QPolicy)
    return policy.values(torch.tensor(states)[:, None])


SOLVER = D3QN(hidden=(32,), schedule=Schedule(steps=800, rate="linear"), batch=32, learning_rate=1e-2, tau=0.05)


def test_the_chain_is_solved_to_its_known_values() -> None:
    """Ignoring `terminated` would bootstrap from room 3, which no row leaves, and reach no such values."""
    values = learned_values(ROOMS, SOLVER, [0.0, 1.0, 2.0])
    expected = torch.tensor([[GAMMA * BEST[room], BEST[room]] for room in (0, 1, 2)])
    torch.testing.assert_close(values, expected, rtol=0, atol=0.03)


def test_ignoring_the_end_is_seen_in_the_values() -> None:
    """One room whose only step pays 1: it is worth 1 where it ends and 1/(1 − γ) = 10 where it goes on."""
    once = log([1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [True, True, True])
    for_ever = replace(
        once, outcome=first_outcome(torch.zeros(3, dtype=torch.bool)), truncated=torch.ones(3, dtype=torch.bool)
    )
    assert learned_values(once, SOLVER, [1.0])[0].tolist() == pytest.approx([1, 1], abs=0.05)
    longer = replace(SOLVER, schedule=Schedule(steps=600, rate="linear"), tau=0.4, learning_rate=3e-2)
    assert learned_values(for_ever, longer, [1.0])[0].tolist() == pytest.approx([10, 10], abs=0.5)


def test_rewards_stay_with_their_own_rows() -> None:
    """A bandit whose paying action differs from state to state; rewards a row off would teach another."""
    rows = log(
        state=[0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
        action=[0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
        next_state=[float("nan")] * 6,
        reward=[1.0, 0.0, 0.0, 3.0, 2.0, 0.0],
        terminated=[True] * 6,
    )
    values = learned_values(rows, SOLVER, [0.0, 1.0, 2.0])
    expected = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
    torch.testing.assert_close(values, expected, rtol=0, atol=0.05)


def test_the_table_keeps_every_column_of_a_row_together() -> None:
    """Real rows come first, and state, action, reward and next state move as one."""
    mixed = replace(ROOMS, imagined=torch.tensor([True, False, True, False, False, True]))
    columns = table(Job(mixed))
    assert columns["state"][:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert columns["action"].tolist() == [1, 1, 0, 0, 0, 1]
    assert columns["next_state"][:, 0].tolist() == [1, 2, 2, 0, 1, 3]
    assert columns["reward"].tolist() == [0, 0, 0, 0, 0, 1]
    assert columns["not_terminated"].tolist() == [1, 1, 1, 1, 1, 0]
    assert columns["imagined"].tolist() == [False] * 3 + [True] * 3


def test_a_row_without_next_state_adds_its_reward_and_no_nan() -> None:
    rows = log([0.0, 1.0], [0.0, 1.0], [1.0, float("nan")], [0.0, -5.0], [False, True])
    columns = table(Job(rows))
    assert columns["next_state"].isfinite().all()
    learner = q_learner(rows)
    target = bootstrap(learner, learner.reward, learner.next_state, learner.not_terminated)
    assert target[0, 1].item() == -5


def test_a_row_that_neither_ends_nor_goes_on_is_named() -> None:
    rows = log([0.0, 1.0, 2.0], [0.0, 1.0, 1.0], [1.0, 2.0, float("nan")], [0.0, 0.0, 0.0], [False] * 3)
    rows = replace(rows, imagined=torch.tensor([True, False, False]))
    with pytest.raises(CounterpointError, match=r"^row 2 neither ends nor has a next state; drop it[^\n]*$"):
        TINY.fit(rows, CHAIN)


def test_an_action_outside_the_space_is_named() -> None:
    rows = replace(ROOMS, action_index=CHAIN.actions.index(torch.full((6, 1), 0.5)))
    with pytest.raises(CounterpointError, match=r"^row 0 has an action outside[^\n]*$"):
        TINY.fit(rows, CHAIN)


def test_a_continuous_action_space_is_one_line() -> None:
    with pytest.raises(
        CounterpointError,
        match=r"^this learner chooses from a list of actions,[^\n]*Bins\(\)$",
    ):
        TINY.fit(ROOMS, Chain(Box((0.0,), (1.0,))))


def test_checks_without_a_selector_are_one_line() -> None:
    with pytest.raises(CounterpointError, match=r"^the schedule checks but nothing selects;[^\n]*$"):
        replace(TINY, schedule=Schedule(steps=20, check_every=10)).fit(ROOMS, CHAIN)


def test_the_score_of_a_vote_is_that_of_each_of_its_voters() -> None:
    objective = replace(double_q_objective(CHAIN, Job(ROOMS)), votes=2)
    selector = FunctionSelector(lambda actor: torch.tensor([1.0, 2.0]))
    learner = QLearner(TINY.build(1, 2, 4), TINY.build, [table(Job(ROOMS))] * 4, TINY, objective, selector)
    assert learner.score().tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(("share", "real"), [(0.5, 4), (0.25, 2), (1.0, 8), (0.0, 0)])
def test_every_batch_has_its_share_of_real_rows(share: float, real: int) -> None:
    imagined = replace(ROOMS, imagined=torch.ones(6, dtype=torch.bool))
    learner = q_learner(concatenate([imagined, ROOMS, imagined]), replace(TINY, real_share=share))
    drawn = learner.draw(0, generator(0), 50)["rows"]
    assert drawn.shape == (50, 8)
    assert ((drawn < 6).sum(1) == real).all()
    assert set(drawn[drawn < 6].tolist()) == (set(range(6)) if real else set())
    assert set(drawn[drawn >= 6].tolist()) == (set(range(6, 18)) if real < 8 else set())


def test_without_imagined_rows_every_row_is_real() -> None:
    drawn = q_learner(ROOMS, replace(TINY, real_share=0.25)).draw(0, generator(0), 50)["rows"]
    assert set(drawn.flatten().tolist()) == set(range(6))
    assert drawn.shape == (50, 8)


def test_the_target_follows_by_tau() -> None:
    learner = q_learner(ROOMS, replace(TINY, tau=0.1))
    for parameter in learner.target.parameters():
        parameter.data += 1.0
    before = [p.clone() for p in learner.target.parameters()]
    learner.update({"rows": torch.arange(6)[None]})
    for old, target, online in zip(before, learner.target.parameters(), learner.online.parameters(), strict=True):
        torch.testing.assert_close(target, 0.9 * old + 0.1 * online)


def test_the_update_is_a_huber_step_on_the_taken_action() -> None:
    """At the first update the loss is the mean of Huber(Q(s, a) − y) by hand."""
    learner = hand_made()
    rows = torch.tensor([[1, 5]])
    loss = learner.update({"rows": rows})["loss"].item()
    # Row 1: s = 0, a = 1: Q = 1; s' = 1: online likes 1 (3 against 2), target says 5: y = .9·5 = 4.5.
    # Row 5: s = 2, a = 1: Q = 5; terminated with reward 1: y = 1.
    assert loss == pytest.approx(((3.5 - 0.5) + (4 - 0.5)) / 2)


def test_states_are_seen_in_units_of_the_real_rows() -> None:
    far = replace(ROOMS, state=ROOMS.state + 100, imagined=torch.ones(6, dtype=torch.bool))
    learner = q_learner(concatenate([ROOMS, far]))
    assert learner.online.states.mean.item() == pytest.approx(1.0)
    assert learner.target.states.scale.item() == pytest.approx(ROOMS.state.std().item())


def test_a_job_learns_the_same_alone_and_beside_others() -> None:
    jobs = [Job(ROOMS, 1), Job(ROOMS[:5], 2), Job(ROOMS, 3)]
    together = TINY.fit_many(jobs, CHAIN)
    for job, learned in zip(jobs, together, strict=True):
        alone = TINY.fit_many([job], CHAIN)[0]
        for one, other in zip(alone.last.weights().values(), learned.last.weights().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert learned.selected.origin.data == job.data.fingerprint


def test_the_seed_decides_the_policy() -> None:
    one, same, other = (TINY.fit(ROOMS, CHAIN, seed=seed).weights() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["net.layers.0.weight"], other["net.layers.0.weight"])


def test_the_selector_chooses_the_checkpoint() -> None:
    how = replace(TINY, schedule=Schedule(steps=30, check_every=10))
    asked: list[Tensor] = []

    def selector(actor: Actor) -> Tensor:
        asked.append(actor(torch.zeros(1, 1, 1), torch.zeros(1, 1, 0)))
        return torch.tensor([[3.0, 1.0, 2.0][len(asked) - 1]])

    learned = how.fit_many([Job(ROOMS)], CHAIN, selector=FunctionSelector(selector))[0]
    shorter = replace(how, schedule=Schedule(steps=20)).fit_many([Job(ROOMS)], CHAIN)[0]
    whole = replace(how, schedule=Schedule(steps=30)).fit_many([Job(ROOMS)], CHAIN)[0]
    assert len(asked) == 3
    for name, tensor in learned.selected.weights().items():
        assert torch.equal(tensor, shorter.last.weights()[name])
        assert torch.equal(learned.last.weights()[name], whole.last.weights()[name])


def test_a_saved_policy_comes_back_bit_for_bit(tmp_path: Path) -> None:
    policy = TINY.fit(ROOMS, CHAIN, seed=4)
    policy.save(tmp_path / "policy")
    loaded = counterpoint.load(tmp_path / "policy")
    states = torch.randn(50, 1, generator=generator(0))
    assert isinstance(policy, QPolicy)
    assert torch.equal(loaded.values(states), policy.values(states))
    assert torch.equal(loaded.act(states), policy.act(states))
    assert (loaded.recipe, loaded.actions, loaded.state_names) == (TINY, CHAIN.actions, ("state_0",))
    assert (loaded.origin.seed, loaded.origin.data) == (4, ROOMS.fingerprint)


def test_the_subjects_factor_is_part_of_what_a_policy_sees(tmp_path: Path) -> None:
    """Two subjects alike in all but their factor, which decides the paying action; real and imagined rows mixed."""
    rows = log([0.0, 0.0, 1.0, 1.0] * 2, [0.0, 1.0] * 4, [float("nan")] * 8, [1.0, 0.0, 1.0, 0.0] * 2, [True] * 8)
    factor = torch.tensor([[-1.0]] * 4 + [[1.0]] * 4)
    rows = replace(rows, reward=torch.where(factor[:, 0] < 0, rows.reward, 1 - rows.reward))
    rows = replace(rows, imagined=torch.tensor([True, False, False, True] * 2))
    policy = SOLVER.fit(rows, CHAIN, theta=factor)
    policy.save(tmp_path)
    states = torch.tensor([[0.0], [1.0]])
    for each in (policy, counterpoint.load(tmp_path)):
        for theta, paid in ((-1.0, 0.0), (1.0, 1.0)):
            assert each.act(states, torch.tensor([[theta]])).tolist() == [[paid]] * 2
            values = each.values(states, torch.tensor([[theta]]))
            torch.testing.assert_close(values, torch.tensor([[1 - paid, paid]] * 2), rtol=0, atol=0.05)
    assert policy.origin.theta != TINY.fit(rows, CHAIN).origin.theta


def test_policies_act_together_as_they_do_alone() -> None:
    policies = [learned.last for learned in TINY.fit_many([Job(ROOMS, seed) for seed in range(3)], CHAIN)]
    states = torch.randn(3, 40, 1, generator=generator(1))
    together = joint_actor(policies)(states, states[..., :0])
    for k, policy in enumerate(policies):
        assert torch.equal(together[k], policy.act(states[k]))


def test_an_interrupted_training_resumes_to_the_same_policy(tmp_path: Path) -> None:
    how = replace(TINY, schedule=Schedule(steps=160, rate="linear"))

    def report(stage: str, done: int, total: int) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        how.fit(ROOMS, CHAIN, monitor=Monitor(tmp_path, report=report, save_seconds=0.0))
    resumed = how.fit(ROOMS, CHAIN, monitor=Monitor(tmp_path, resume=True)).weights()
    whole = how.fit(ROOMS, CHAIN).weights()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    with pytest.raises(CounterpointError, match="belongs to another recipe, seed or table"):
        how.fit(ROOMS[:5], CHAIN, monitor=Monitor(tmp_path, resume=True))
